"""``file_access`` and ``create_file``: reading, listing, writing and deleting below named roots."""

from __future__ import annotations

import base64
import contextlib
import heapq
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from mlx_tools.messages import Effects, ToolSpec
from mlx_tools.store import Absent, Refused, Root, Unfit, Unlisted
from mlx_tools.toolbox.file_changes import Changes
from mlx_tools.toolbox.text_files import MAX_BYTES, decoded, kind_of, one_line, up_to
from mlx_tools.tools import EffectsBy, Preview, Tool, ToolError, Words, words_of

MAX_ENTRIES: Final = 1_000
MAX_SCANNED: Final = 100_000
"""Entries of one folder that are looked at, so that a folder of millions takes bounded time."""

MAX_ENCODED: Final = 2_400
"""Bytes that are no text which are shown, in base64: of more nothing is of use to a reader."""

_READ: Final[Effects] = frozenset(("read",))
_WRITE: Final[Effects] = frozenset(("write",))
READING: Final = EffectsBy("operation", {"read": _READ, "list": _READ})
CHANGING: Final = EffectsBy("operation", {**READING.table, "write": _WRITE, "delete": _WRITE})


def file_access_spec(*, writable: bool) -> ToolSpec:
    """The tool's spec. Where no root is writable a model is not shown that files could be."""
    effects = CHANGING if writable else READING
    return _words(writable).spec(effects, private=True)


def _words(writable: bool) -> Words:
    return words_of("file_access_rw" if writable else "file_access")


def file_access(roots: Sequence[Root]) -> Tool:
    """The tool for these roots. A relative path is looked for in each, in order."""
    writable = any(root.writable for root in roots)
    words = _words(writable)
    files, changes = _Files(roots, words.notices), Changes(roots, words.notices)

    def run(arguments: Mapping[str, Any]) -> str:
        path = arguments["path"]
        match arguments["operation"]:
            case "read":
                return files.read(path)
            case "list":
                return files.list(path)
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


class _Files:
    def __init__(self, roots: Sequence[Root], notices: Mapping[str, str]) -> None:
        self._roots = roots
        self._notices = notices

    def read(self, path: str) -> str:
        """A text file, whole up to `MAX_BYTES`; of any other what it is, and its bytes where they
        are few. Raises ToolError."""
        fd = open_below(self._roots, path)
        try:
            size = os.fstat(fd).st_size
            content = up_to(fd, MAX_BYTES + 1)
        finally:
            os.close(fd)
        cut, size = len(content) > MAX_BYTES, max(size, len(content))
        try:
            text = decoded(content[:MAX_BYTES], path, whole=not cut)
        except ToolError:
            told = "binary" if size <= MAX_ENCODED else "large_binary"
            return self._notices[told].format(
                path=one_line(path),
                kind=kind_of(content, path),
                size=size,
                data=base64.b64encode(content[:MAX_ENCODED]).decode(),
            )
        return text + self._notices["cut"].format(kept=MAX_BYTES, size=size) if cut else text

    def list(self, path: str) -> str:
        """The entries of a folder in order, one a line. Raises ToolError."""
        if len(self._roots) > 1 and path in ("", ".", "./"):
            return "\n".join(f"{root.path}/" for root in self._roots)
        fd, root, parts = _opened(self._roots, path, Root.open_listing)
        try:
            with os.scandir(fd) as found:
                entries = itertools.islice(found, MAX_SCANNED + 1)
                first = heapq.nsmallest(MAX_ENTRIES + 1, _lines(root, parts, entries))
        except OSError as error:
            raise ToolError(f"{path}: {error.strerror}") from None
        finally:
            os.close(fd)
        if not first:
            return self._notices["empty"]
        if len(first) > MAX_ENTRIES:
            first[MAX_ENTRIES:] = [self._notices["more"].format(kept=MAX_ENTRIES)]
        return "\n".join(first)


def open_below(roots: Sequence[Root], path: str) -> int:
    """A descriptor of a file in the first root that has something at the path. Raises
    ToolError."""
    return _opened(roots, path, Root.open_file)[0]


def _opened(
    roots: Sequence[Root], path: str, how: Callable[[Root, Sequence[str]], int]
) -> tuple[int, Root, Sequence[str]]:
    """A descriptor in the first root that has something at the path, that root, and the names below
    it. Raises ToolError."""
    fault: Exception | None = None
    for root in roots:
        try:
            parts = root.parts(path)
            if parts is not None:
                return how(root, parts), root, parts
        except (Unlisted, Unfit, Absent) as error:  # another root may have it
            fault = error if fault is None or isinstance(fault, Absent) else fault
        except Refused as error:
            raise ToolError(str(error), code="not_allowed") from None
    if isinstance(fault, Unlisted):
        raise ToolError(str(fault), code="not_allowed")
    if fault is not None:
        raise ToolError(str(fault))
    raise ToolError("the path lies outside the folders that may be seen", code="not_allowed")


def _lines(root: Root, above: Sequence[str], entries: Iterable[os.DirEntry[str]]) -> Iterator[str]:
    """The names of the entries that may be seen, or lead to such, each with what it is; a character
    that would break the line is escaped."""
    for entry in entries:
        mark = ""
        with contextlib.suppress(OSError):
            folder = entry.is_dir(follow_symlinks=False)
            mark = "/" if folder else "@" if entry.is_symlink() else ""
        names = (*above, entry.name)
        if root.patterns.fit(names) or (mark == "/" and root.patterns.lead_on(names)):
            yield one_line(entry.name) + mark


# --- ``create_file`` ----------------------------------------------------------------------------

EFFECTS: Final[Effects] = frozenset(("write",))


def create_file(roots: Sequence[Root]) -> Tool:
    """The tool for these roots. A relative path is made in the first root that has its folder, one
    that is writable before one that is not."""
    words = words_of("create_file")
    changes = Changes(roots, words.notices)

    def run(arguments: Mapping[str, Any]) -> str:
        return changes.make("create", arguments["path"], arguments.get("content"))

    def preview(arguments: Mapping[str, Any]) -> Preview:
        return changes.preview("create", arguments["path"], arguments.get("content"))

    return Tool(words.spec(EFFECTS, needs_approval=True), run, preview=preview)
