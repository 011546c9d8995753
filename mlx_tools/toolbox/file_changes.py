"""Changes to files below the roots, and their previews.

`file_access` writes and deletes below roots that were named with ``:rw``; `create_file` makes files
below any root. Each change can be told beforehand, as a `Preview`.
"""

from __future__ import annotations

import contextlib
import os
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Literal

from mlx_tools.store import (
    ABSENT,
    MAX_KEPT_BYTES,
    Absent,
    Place,
    Refused,
    Root,
    Unfit,
    Unlisted,
    identity_of,
    open_present,
    place_of,
    put,
    state_of,
)
from mlx_tools.toolbox.text_files import MAX_BYTES, decoded, encoded, one_line, unified_diff, up_to
from mlx_tools.tools import Preview, ToolError, current_context

_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/", re.ASCII)
_DIRECTIONS: Final = frozenset(
    "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
)

Operation = Literal["write", "create", "delete"]
Candidate = tuple[Root, tuple[str, ...]]


class Changes:
    """Changes to files below some roots, and their previews. All raise ToolError."""

    def __init__(self, roots: Sequence[Root], notices: Mapping[str, str]) -> None:
        self._roots = roots
        self._notices = notices
        self._writable: dict[tuple[int, int], bool] = {}
        for root in roots:  # a folder named twice may be written to if it may be so both times
            may = self._writable.get(root.identity, True)
            self._writable[root.identity] = may and root.writable

    def make(self, operation: Operation, path: str, content: object = None) -> str:
        """Writes or deletes a file below a root that is writable, or creates one that is not there
        yet, with its folders, below any root."""
        raw = None if operation == "delete" else encoded(content)
        new = operation == "create"
        with tool_errors():
            root, parts = self._find(operation, path)
            with place_of(root, parts, self._writable, make=new) as place:
                _check_writable(operation, place)
                context = current_context()
                replaced = put(
                    place,
                    raw,
                    new=new,
                    expected=context.expected,
                    given_up=lambda: context.cancelled,
                    undo=context.undo,
                )
        key = "deleted" if raw is None else "replaced" if replaced else "made"
        return self._notices[key].format(path=self._shown(root, path), size=len(raw or b""))

    def preview(self, operation: Operation, path: str, content: object = None) -> Preview:
        """The diff that `make` would make; of a file to be deleted what is lost."""
        after = None if operation == "delete" else encoded(content).decode()
        with tool_errors():
            root, parts = self._find(operation, path)
            shown, paths = self._shown(root, path), {"path": _led(root, parts)}
            if operation == "create":
                return Preview(_diff(None, after, shown), ABSENT, paths)
            with place_of(root, parts, self._writable) as place:
                _check_writable(operation, place)
                fd = open_present(place)
                if fd is not None:
                    return Preview(*_changed(fd, after, shown), paths)
                if operation == "delete":
                    raise Absent(f"there is no {place.name}")
        return Preview(_diff(None, after, shown), ABSENT, paths)

    def _shown(self, root: Root, path: str) -> str:
        """The path for a reader, from the top of the file system where there are several roots."""
        whole = str(root.path / path) if len(self._roots) > 1 else path
        return one_line(whole, marks=True)

    def _candidates(self, path: str, *, making: bool) -> list[Candidate]:
        """The names to walk, for every root that the path may lie in."""
        if making:
            _check_meant(path)
        if path.endswith(("/", "/.")):
            raise Unfit("the path names a folder, not a file")
        found = [(root, root.parts(path, writing=True)) for root in self._roots]
        inside = [(root, parts) for root, parts in found if parts is not None]
        if not inside:
            raise Refused("the path lies outside the folders that may be changed")
        if making:
            for _, parts in inside:
                _check_names(parts)
        return inside

    def _find(self, operation: Operation, path: str) -> Candidate:
        """The root and the names of the file that a path means: in the first root that has it;
        else, for making it, in a root that has its folder already before one that does not, in one
        that is writable before one that is not."""
        candidates = self._candidates(path, making=operation != "delete")
        vacant: list[tuple[bool, bool, int]] = []  # whether the folder is missing, is only read
        fault: Exception | None = None
        for number, (root, parts) in enumerate(candidates):
            taken = False
            try:
                with place_of(root, parts, self._writable) as place:
                    taken = place.exists()
                    vacant.append((False, not place.writable, number))
            except (Absent, Unfit, Unlisted) as error:
                fault = error if fault is None or isinstance(fault, Absent) else fault
                if operation == "create" and isinstance(error, Absent):
                    vacant.append((True, not root.writable, number))
            if taken and operation == "create":
                raise Unfit(
                    f"{parts[-1]} exists already, and create_file replaces nothing; file_access "
                    "can, with write, below a folder that was named with :rw"
                )
            if taken:
                return root, parts
        if vacant and operation != "delete":
            return candidates[min(vacant)[2]]
        if operation == "write" and isinstance(fault, Absent):
            raise Absent(f"{fault}; write makes no folders, create_file does")
        if vacant and not isinstance(fault, Unfit | Unlisted):
            raise Absent(f"there is no {candidates[vacant[0][2]][1][-1]}")
        raise fault or Absent("there is no such file")


def _led(root: Root, parts: Sequence[str]) -> str:
    """Where a path leads that is walked without following a link; nowhere by a root that is no
    longer where it was."""
    with contextlib.suppress(OSError):
        if identity_of(root.path.stat()) == root.identity:
            return str(root.path.joinpath(*parts))
    return ""


def _check_writable(operation: Operation, place: Place) -> None:
    """Refuses to change what is below a root that is not writable; a file may be new there."""
    if operation != "create" and not place.writable:
        raise Refused(
            f"{place.name} is below a folder that may only be read; "
            "naming the folder with :rw (--root DIR:rw) allows to write and to delete"
        )


@contextlib.contextmanager
def tool_errors(failed: str = "the file cannot be changed") -> Iterator[None]:
    """Makes of what a walk and a change raise what a model reads; ``failed`` is said of what the
    system raises."""
    try:
        yield
    except Refused as error:
        raise ToolError(str(error), code="not_allowed") from None
    except (Unfit, Absent) as error:
        raise ToolError(str(error)) from None
    except OSError as error:
        raise ToolError(f"{failed}: {error.strerror}") from None


def _check_meant(path: str) -> None:
    """Refuses what was meant as another place; it could be made all the same, below the root."""
    first, below, _ = path.partition("/")
    if first == "~" or (first.startswith("~") and below):
        raise Refused("~ means nothing here; paths go down from the top folder")
    if _URL.match(path):
        raise Refused("the path is a URL; paths go down from the top folder")


def _check_names(parts: Sequence[str]) -> None:
    """Refuses to make names that divide elsewhere, or that nobody could read."""
    for character in "".join(parts):
        if character == "\\":
            raise Refused("the path holds a backslash; names are divided by /")
        if unicodedata.category(character) in ("Cc", "Zl", "Zp") or character in _DIRECTIONS:
            raise Refused("the path holds a character that ends a line or cannot be seen")


def _changed(fd: int, after: str | None, path: str) -> tuple[str, str]:
    """What becomes of a file that gets the text ``after``, or is deleted, for a person; and the
    file's state. Both are of the same bytes, whoever writes meanwhile. Closes the file."""
    try:
        content = up_to(fd, MAX_BYTES + 1)
        whole = len(content) <= MAX_BYTES
        size = len(content) if whole else os.fstat(fd).st_size
        state = state_of(content if whole else fd)
    finally:
        os.close(fd)
    before: str | None = None
    told = "which are no text" if whole else "too many to be shown"
    if whole:
        with contextlib.suppress(ToolError):
            before = decoded(content, "")
    for_good = f" (more than {MAX_KEPT_BYTES} bytes: this cannot be undone)"
    undone = for_good if size > MAX_KEPT_BYTES else ""
    if after is None:
        text = f"{path} is deleted{undone}: {size} bytes"
        if before is None:
            return f"{text}, {told}", state
        return f"{text}\n{_diff(before, None, path)}" if before else text, state
    if before is None:
        head = f"{path}: {size} bytes, {told}, are replaced by{undone}:"
        return f"{head}\n{_diff(None, after, path)}", state
    recoded = before.encode() != content
    changed = "\n(the file changes to UTF-8 without a mark)" if recoded else ""
    return _diff(before, after, path) + changed, state


def _diff(before: str | None, after: str | None, path: str) -> str:
    """The difference of two texts of a file, of which one may be none."""
    if before is None and not after:
        return f"--- /dev/null\n+++ {path}\n(the new file is empty)"
    old, new = ("/dev/null" if text is None else path for text in (before, after))
    return unified_diff(before or "", after or "", old, new)
