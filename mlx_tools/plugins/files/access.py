"""``file_access`` and ``create_file``: read, list, write and delete files.

`file_access` writes and deletes below roots that were named with ``:rw``. `create_file` creates
files below any root. Each change has a `Preview`.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal

from mlx_tools.messages import Effects, ToolSpec, replace
from mlx_tools.plugins.files.known_files import make_warning, record_write
from mlx_tools.plugins.files.reading import FileReader
from mlx_tools.store import (
    ABSENT,
    MAX_UNDO_BYTES,
    PathAbsent,
    PathRefused,
    PathUnlisted,
    Place,
    Root,
    WrongFileKind,
    digest_content,
    expand_home,
    get_identity,
    get_status,
    open_place,
    open_present,
    write_file,
)
from mlx_tools.toolbox import (
    TextDiff,
    decode_text,
    did_you_mean,
    encode_content,
    escape_path,
    find_equal_names,
    one_line,
    read_up_to,
    tool_errors,
    unified_diff,
)
from mlx_tools.tools import (
    EffectsBy,
    Preview,
    Tool,
    ToolError,
    Words,
    current_context,
    load_words,
)

MAX_SHOWN_BYTES: Final = 5_000_000
"""Bytes of a file that a preview compares: the limit of a diff."""

_READ: Final[Effects] = frozenset(("read",))
_WRITE: Final[Effects] = frozenset(("write",))
READING: Final = EffectsBy("operation", {"read": _READ, "list": _READ})
CHANGING: Final = EffectsBy("operation", {**READING.table, "write": _WRITE, "delete": _WRITE})


def file_access_spec(*, writable: bool) -> ToolSpec:
    """Return the tool's specification.

    Without a writable root it does not mention writing.
    """
    effects = CHANGING if writable else READING
    return _load_words(writable).spec(effects, private=True)


def _load_words(writable: bool) -> Words:
    return load_words("file_access_rw" if writable else "file_access")


def file_access(roots: Sequence[Root]) -> Tool:
    """Return the tool for these roots. A relative path is searched in each of them."""
    writable = any(root.writable for root in roots)
    words = _load_words(writable)
    files, changes = FileReader(roots, words.notices), Changes(roots, words.notices)

    def run(arguments: Mapping[str, Any]) -> str:
        path = arguments["path"]
        match arguments["operation"]:
            case "read":
                return files.read(path, arguments.get("from_line"), arguments.get("lines"))
            case "list":
                pattern = arguments.get("pattern")
                return files.find(path, pattern) if pattern else files.list(path)
            case "write" | "delete" as operation if writable:
                return changes.make(operation, path, arguments.get("content"))
        operation = str(arguments["operation"])[:100]
        why = "not possible here"
        if operation in ("write", "delete"):
            why = "for folders that were named with :rw (--root DIR:rw); none was"
        raise ToolError(f"{operation} is {why}", code="not_allowed")

    def preview(arguments: Mapping[str, Any]) -> Preview | None:
        match arguments["operation"]:
            case "write" | "delete" as operation if writable:
                return changes.preview(operation, arguments["path"], arguments.get("content"))
        return None

    return Tool(file_access_spec(writable=writable), run, preview=preview)


# --- changes ------------------------------------------------------------------------------------

_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/", re.ASCII)
_DIRECTIONS: Final = frozenset(
    "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
)

Operation = Literal["write", "create", "edit", "delete"]
Candidate = tuple[Root, tuple[str, ...]]


class Changes:
    """Changes to files below some roots, and their previews. Methods raise ToolError."""

    def __init__(self, roots: Sequence[Root], notices: Mapping[str, str]) -> None:
        self._roots = roots
        self._notices = notices
        self._writable: dict[tuple[int, int], bool] = {}
        for root in roots:  # a folder that was named twice is writable if both names allow it
            may = self._writable.get(root.identity, True)
            self._writable[root.identity] = may and root.writable

    def make(self, operation: Operation, path: str, content: object = None) -> str:
        """Write or delete a file below a writable root, or create one below any root.

        A created file must not exist; its folders are created too.
        """
        content_bytes = None if operation == "delete" else encode_content(content)
        new = operation == "create"
        with tool_errors():
            root, parts = self._find(operation, path)
            with open_place(root, parts, self._writable, make=new) as place:
                _check_writable(operation, place)
                context = current_context()
                was_replaced = write_file(
                    place,
                    content_bytes,
                    new=new,
                    expected=context.expected,
                    is_cancelled=lambda: context.cancelled,
                    undo=context.undo,
                )
                if content_bytes is not None:
                    record_write(root, parts, digest_content(content_bytes), content_bytes.decode())
        key = "deleted" if content_bytes is None else "replaced" if was_replaced else "made"
        return self._notices[key].format(
            path=self._display_path(root, path), size=len(content_bytes or b"")
        )

    def preview(self, operation: Operation, path: str, content: object = None) -> Preview:
        """Return the diff of a change before `make`; for a deletion the lost content."""
        new_text = None if operation == "delete" else encode_content(content).decode()
        with tool_errors():
            root, parts = self._find(operation, path)
            shown, paths = self._display_path(root, path), {"path": _find_target(root, parts)}
            if operation == "create":
                return make_diff_preview(_make_diff(None, new_text, shown), ABSENT, paths)
            with open_place(root, parts, self._writable) as place:
                _check_writable(operation, place)
                fd = open_present(place)
                if fd is not None:
                    diff, state = _diff_file(fd, new_text, shown)
                    if new_text is not None:
                        warning_line = make_warning(root, parts, shown, state, replaces=True)
                        diff = replace(diff, text=warning_line + diff.text)
                    return make_diff_preview(diff, state, paths)
                if operation == "delete":
                    raise PathAbsent(f"there is no {place.name}")
        return make_diff_preview(_make_diff(None, new_text, shown), ABSENT, paths)

    @contextlib.contextmanager
    def open_existing(self, path: str) -> Iterator[tuple[Place, str]]:
        """Yield the place of an existing file that may be changed, and its shown path."""
        with tool_errors():
            root, parts = self._find("edit", path)
            with open_place(root, parts, self._writable) as place:
                _check_writable("edit", place)
                yield place, self._display_path(root, path)

    def preview_edit(
        self, place: Place, display_path: str, old_text: str, new_text: str, state: str
    ) -> Preview:
        """Return the preview of a change of a text."""
        paths = {"path": _find_target(place.root, place.names)}
        warning_line = make_warning(place.root, place.names, display_path, state, replaces=False)
        diff = _make_diff(old_text, new_text, display_path)
        return make_diff_preview(replace(diff, text=warning_line + diff.text), state, paths)

    def _display_path(self, root: Root, path: str) -> str:
        """Return the path to show, absolute if there are several roots."""
        path = expand_home(path)
        whole = str(root.path / path) if len(self._roots) > 1 else path
        return one_line(whole, marks=True)

    def _list_candidates(self, path: str, *, making: bool) -> list[Candidate]:
        """Return each root that the path may be in, with the path's names below it."""
        if path.endswith(("/", "/.")):
            raise WrongFileKind("the path names a folder, not a file")
        parts_by_root = [(root, root.split(path, writing=True)) for root in self._roots]
        inside = [(root, parts) for root, parts in parts_by_root if parts is not None]
        if path.startswith("~/") and any(parts[:1] != ("~",) for _, parts in inside):
            inside = [(root, parts) for root, parts in inside if parts[:1] != ("~",)]
        elif making:
            _check_intended(path)
        if not inside:
            raise PathRefused("the path lies outside the folders that may be changed")
        if making:
            for _, parts in inside:
                _check_names(parts)
        return inside

    def _find(self, operation: Operation, path: str) -> Candidate:
        """Return the root and the names of the file that a path means.

        If there is none, similar names are suggested. A new file is refused if an existing one has
        a name that looks the same.
        """
        try:
            root, parts = self._find_exact(operation, path)
        except PathAbsent as error:
            places = self._list_candidates(path, making=False)
            raise PathAbsent(f"{error}{did_you_mean(places)}") from None
        if operation in ("write", "create"):
            names = find_equal_names(root, parts, partly=True)
            if names is not None:
                raise WrongFileKind(f"there is no {parts[-1]}; did you mean {escape_path(names)}?")
        return root, parts

    def _find_exact(self, operation: Operation, path: str) -> Candidate:
        """Return the root and the names of the file that a path means.

        The first root that has the file is taken. For a new file, roots that have its folder come
        first, and among these the writable ones.
        """
        candidates = self._list_candidates(path, making=operation in ("write", "create"))
        # roots without the file: is its folder missing, is it read-only, the candidate's index
        vacant: list[tuple[bool, bool, int]] = []
        fault: Exception | None = None
        for number, (root, parts) in enumerate(candidates):
            taken, is_file = False, False
            try:
                with open_place(root, parts, self._writable) as place:
                    status = get_status(place.folder, place.name)
                    taken = status is not None
                    is_file = status is not None and stat.S_ISREG(status.st_mode)
                    vacant.append((False, not place.writable, number))
            except (PathAbsent, WrongFileKind, PathUnlisted) as error:
                fault = error if fault is None or isinstance(fault, PathAbsent) else fault
                if operation == "create" and isinstance(error, PathAbsent):
                    vacant.append((True, not root.writable, number))
            if taken and operation == "create":
                way = "; file_access can, with write, below a folder that was named with :rw"
                raise WrongFileKind(
                    f"{parts[-1]} exists already, and create_file replaces nothing"
                    f"{way if is_file else ''}"
                )
            if taken:
                return root, parts
        if vacant and operation in ("write", "create"):
            return candidates[min(vacant)[2]]
        if operation == "write" and isinstance(fault, PathAbsent):
            raise PathAbsent(f"{fault}; write makes no folders, create_file does")
        if vacant and not isinstance(fault, WrongFileKind | PathUnlisted):
            raise PathAbsent(f"there is no {candidates[vacant[0][2]][1][-1]}")
        raise fault or PathAbsent("there is no such file")


def _find_target(root: Root, parts: Sequence[str]) -> str:
    """Return the absolute path of a file, empty if the root was moved or replaced."""
    with contextlib.suppress(OSError):
        if get_identity(root.path.stat()) == root.identity:
            return str(root.path.joinpath(*parts))
    return ""


def _check_writable(operation: Operation, place: Place) -> None:
    """Refuse to change an existing file below a root that is not writable."""
    if operation != "create" and not place.writable:
        raise PathRefused(
            f"{place.name} is below a folder that may only be read; "
            "naming the folder with :rw (--root DIR:rw) allows to write and to delete"
        )


def _check_intended(path: str) -> None:
    """Refuse a path that was meant for another place, such as ``~/x`` or a URL.

    Otherwise a file of that name would be created below the root.
    """
    first, below, _ = path.partition("/")
    if first == "~" or (first.startswith("~") and below):
        raise PathRefused("~ means nothing here; paths go down from the top folder")
    if _URL.match(path):
        raise PathRefused("the path is a URL; paths go down from the top folder")


def _check_names(parts: Sequence[str]) -> None:
    """Refuse to create names with invisible characters, line breaks or backslashes."""
    for character in "".join(parts):
        if character == "\\":
            raise PathRefused("the path holds a backslash; names are divided by /")
        if unicodedata.category(character) in ("Cc", "Zl", "Zp") or character in _DIRECTIONS:
            raise PathRefused("the path holds a character that ends a line or cannot be seen")


def _diff_file(fd: int, new_text: str | None, path: str) -> tuple[TextDiff, str]:
    """Return the diff of a file with a new text, and the file's state. Close the file.

    Both come from the same bytes, even if another process writes meanwhile. The new text is None if
    the file is to be deleted.
    """
    try:
        content = read_up_to(fd, MAX_SHOWN_BYTES + 1)
        is_complete = len(content) <= MAX_SHOWN_BYTES
        size = len(content) if is_complete else os.fstat(fd).st_size
        state = digest_content(content if is_complete else fd)
    finally:
        os.close(fd)
    old_text: str | None = None
    if is_complete:
        with contextlib.suppress(ToolError):
            old_text = decode_text(content, "")
    for_good = f" (more than {MAX_UNDO_BYTES} bytes: this cannot be undone)"
    undone = for_good if size > MAX_UNDO_BYTES else ""
    if old_text is None:
        return _describe_unread(size, new_text, path, undone, whole=is_complete), state
    if new_text is None:
        deleted, diff = f"{path} is deleted{undone}: {size} bytes", _make_diff(old_text, None, path)
        return replace(diff, text=f"{deleted}\n{diff.text}" if old_text else deleted), state
    diff = _make_diff(old_text, new_text, path)
    if old_text.encode() != content:
        diff = replace(diff, text=f"{diff.text}\n(the file changes to UTF-8 without a mark)")
    return diff, state


def _describe_unread(
    size: int, new_text: str | None, path: str, warning: str, *, whole: bool
) -> TextDiff:
    """Describe the change of a file that is binary, or too large to be shown."""
    description = "which are no text" if whole else "too many to be shown"
    omitted = "" if whole else f"the present content of {path}, {size} bytes, is not shown"
    if new_text is None:
        text = f"{path} is deleted{warning}: {size} bytes, {description}"
        return TextDiff(text, f"-{size} bytes", omitted)
    diff = _make_diff(None, new_text, path)
    text = f"{path}: {size} bytes, {description}, are replaced by{warning}:\n{diff.text}"
    added = diff.counts.partition(" ")[0] or "+0"
    return TextDiff(text, f"{added} lines, -{size} bytes", omitted)


def _make_diff(old_text: str | None, new_text: str | None, path: str) -> TextDiff:
    """Return the difference of two texts of a file; one of them may be missing."""
    if old_text is None and not new_text:
        return TextDiff(f"--- /dev/null\n+++ {path}\n(the new file is empty)")
    old, new = ("/dev/null" if text is None else path for text in (old_text, new_text))
    return unified_diff(old_text or "", new_text or "", old, new)


def make_diff_preview(diff: TextDiff, state: str, paths: Mapping[str, str]) -> Preview:
    """Return the preview of a change to a file in the given state."""
    return Preview(diff.text, state, paths, counts=diff.counts, omitted=diff.omitted)


# --- ``create_file`` ----------------------------------------------------------------------------

EFFECTS: Final[Effects] = frozenset(("write",))


def create_file(roots: Sequence[Root]) -> Tool:
    """Return the tool for these roots.

    A relative path is created in the first writable root that has its folder, otherwise in the
    first root that has it.
    """
    words = load_words("create_file")
    changes = Changes(roots, words.notices)

    def run(arguments: Mapping[str, Any]) -> str:
        return changes.make("create", arguments["path"], arguments.get("content"))

    def preview(arguments: Mapping[str, Any]) -> Preview:
        return changes.preview("create", arguments["path"], arguments.get("content"))

    return Tool(words.spec(EFFECTS, needs_approval=True), run, preview=preview)
