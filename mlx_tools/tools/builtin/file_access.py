"""``file_access``: reads files and lists folders below the roots that were named."""

from __future__ import annotations

import codecs
import heapq
import itertools
import os
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from mlx_tools.spec import Effects
from mlx_tools.tools.builtin.rooted import Absent, Refused, Root, Unfit
from mlx_tools.tools.builtin.words import words_of
from mlx_tools.tools.tool import EffectsBy, Tool, ToolError

MAX_READ_BYTES: Final = 1_000_000
MAX_ENTRIES: Final = 1_000
MAX_SCANNED: Final = 100_000
"""Entries of one folder that are looked at, so that a folder of millions takes bounded time."""

_READ: Final[Effects] = frozenset(("read",))
EFFECTS: Final = EffectsBy("operation", {"read": _READ, "list": _READ})

_BREAKS: Final = frozenset(("Cc", "Cs", "Zl", "Zp"))
"""Categories of characters that end a line, steer a terminal, or are half a character."""

_UTF16: Final = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def file_access(roots: Sequence[Root]) -> Tool:
    """The tool for these roots. A relative path is looked for in each, in order."""
    words = words_of("file_access")
    files = _Files(roots, words.notices)
    operations: Mapping[str, Callable[[str], str]] = {"read": files.read, "list": files.list}

    def run(arguments: Mapping[str, Any]) -> str:
        operation = operations.get(arguments["operation"])
        if operation is None:
            raise ToolError(f"{arguments['operation']} is not possible here", code="not_allowed")
        return operation(arguments["path"])

    return Tool(words.spec(EFFECTS, private=True), run)


class _Files:
    def __init__(self, roots: Sequence[Root], notices: Mapping[str, str]) -> None:
        self._roots = roots
        self._notices = notices

    def read(self, path: str) -> str:
        """A text file, whole up to `MAX_READ_BYTES`. Raises ToolError."""
        fd = self._open(path, Root.open_file)
        try:
            size = os.fstat(fd).st_size
            content = _up_to(fd, MAX_READ_BYTES + 1)
        finally:
            os.close(fd)
        cut = len(content) > MAX_READ_BYTES
        text = _decoded(content[:MAX_READ_BYTES], path, whole=not cut)
        if not cut:
            return text
        kept, size = MAX_READ_BYTES, max(size, len(content))
        return text + self._notices["cut"].format(kept=kept, size=size)

    def list(self, path: str) -> str:
        """The entries of a folder in order, one a line. Raises ToolError."""
        if len(self._roots) > 1 and path in ("", ".", "./"):
            return "\n".join(f"{root.path}/" for root in self._roots)
        fd = self._open(path, Root.open_folder)
        try:
            with os.scandir(fd) as found:
                entries = itertools.islice(found, MAX_SCANNED + 1)
                first = heapq.nsmallest(MAX_ENTRIES + 1, map(_shown, entries))
        except OSError as error:
            raise ToolError(f"{path}: {error.strerror}") from None
        finally:
            os.close(fd)
        if not first:
            return self._notices["empty"]
        if len(first) > MAX_ENTRIES:
            first[MAX_ENTRIES:] = [self._notices["more"].format(kept=MAX_ENTRIES)]
        return "\n".join(first)

    def _open(self, path: str, how: Callable[[Root, Sequence[str]], int]) -> int:
        """A descriptor in the first root that has something at the path."""
        fault: Exception | None = None
        for root in self._roots:
            try:
                parts = root.parts(path)
                if parts is not None:
                    return how(root, parts)
            except Refused as error:
                raise ToolError(str(error), code="not_allowed") from None
            except (Unfit, Absent) as error:  # another root may have it
                fault = error if fault is None or isinstance(fault, Absent) else fault
        if fault is not None:
            raise ToolError(str(fault))
        raise ToolError("the path lies outside the folders that may be seen", code="not_allowed")


def _up_to(fd: int, most: int) -> bytes:
    """At most so many bytes; a file that grows while it is read ends there too."""
    pieces: list[bytes] = []
    left = most
    while left > 0:
        try:
            piece = os.read(fd, min(left, 1 << 16))
        except OSError as error:
            raise ToolError(f"the file cannot be read: {error.strerror}") from None
        if not piece:
            break
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)


def _decoded(content: bytes, path: str, *, whole: bool) -> str:
    """The text of UTF-8 or, with its mark, UTF-16; a character cut off at the end is left out."""
    utf16 = content.startswith(_UTF16)
    try:
        if b"\0" in content and not utf16:
            raise UnicodeError
        encoding = "utf-16" if utf16 else "utf-8-sig"
        return codecs.getincrementaldecoder(encoding)().decode(content, final=whole)
    except UnicodeError:
        raise ToolError(f"{path} is not a text file (neither UTF-8 nor UTF-16)") from None


def _shown(entry: os.DirEntry[str]) -> str:
    """The name of an entry and what it is; a character that would break the line is escaped."""
    name = "".join(
        c.encode("unicode_escape").decode("ascii") if unicodedata.category(c) in _BREAKS else c
        for c in entry.name
    )
    try:
        if entry.is_symlink():
            return name + "@"
        return name + "/" if entry.is_dir(follow_symlinks=False) else name
    except OSError:
        return name
