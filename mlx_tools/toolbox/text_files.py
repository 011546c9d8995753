"""Bytes of a file as the text that a model reads, a text as the bytes of a file, and the difference
of two texts for a person who has to decide about it."""

from __future__ import annotations

import codecs
import difflib
import itertools
import mimetypes
import os
import re
import unicodedata
from collections.abc import Iterable, Iterator
from typing import Final

from mlx_tools.tools import ToolError

MAX_BYTES: Final = 1_000_000
"""Most of what is read of a file, and may be written: what was written can be read back whole."""

_UTF16: Final = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_BREAKS: Final = frozenset(("Cc", "Cs", "Zl", "Zp"))
"""Categories of characters that end a line, steer a terminal, or are half a character."""


def up_to(fd: int, most: int) -> bytes:
    """At most so many bytes; a file that grows while it is read ends there too."""
    try:
        with os.fdopen(os.dup(fd), "rb") as file:
            return file.read(most)
    except OSError as error:
        raise ToolError(f"the file cannot be read: {error.strerror}") from None


def decoded(content: bytes, path: str, *, whole: bool = True) -> str:
    """The text of UTF-8 or, with its mark, UTF-16; a character cut off at the end is left out."""
    utf16 = content.startswith(_UTF16)
    try:
        if b"\0" in content and not utf16:
            raise UnicodeError
        encoding = "utf-16" if utf16 else "utf-8-sig"
        return codecs.getincrementaldecoder(encoding)().decode(content, final=whole)
    except UnicodeError:
        raise ToolError(f"{path} is not a text file (neither UTF-8 nor UTF-16)") from None


_KINDS: Final = (
    (0, b"\x89PNG\r\n", "image/png"),
    (0, b"\xff\xd8\xff", "image/jpeg"),
    (0, b"GIF8", "image/gif"),
    *((0, start, "image/tiff") for start in (b"II*\0", b"MM\0*")),
    (8, b"WEBP", "image/webp"),
    *((4, b"ftyp" + brand, "image/heic") for brand in (b"heic", b"heix", b"mif1")),
    (4, b"ftypavif", "image/avif"),
    (0, b"%PDF-", "application/pdf"),
    (0, b"PK\x03\x04", "application/zip"),
    (0, b"\x1f\x8b", "application/gzip"),
    (0, b"SQLite format 3\0", "application/vnd.sqlite3"),
    (0, b"\x7fELF", "application/x-executable"),
    (0, b"\xcf\xfa\xed\xfe", "application/x-executable"),
    (0, b"\0asm", "application/wasm"),
)
"""What files of a kind have at which byte, and what it is called."""


def kind_of(content: bytes, path: str) -> str:
    """The media type of a file that is no text: by its name where that says more than its first
    bytes, which a name cannot contradict."""
    begins = next((kind for at, mark, kind in _KINDS if content.startswith(mark, at)), "")
    named = mimetypes.guess_type(path)[0] or ""
    holds = begins == "application/zip" and named.startswith("application/")  # many are archives
    told = named if holds or not begins else begins
    return "application/octet-stream" if told.startswith("text/") or not told else told


def encoded(content: object) -> bytes:
    """The bytes of a text, from which `decoded` makes the same text. Raises ToolError for what
    would not be read back as it was."""
    if not isinstance(content, str):
        raise ToolError("content is missing: the text of the file", code="invalid_arguments")
    fault = None
    if "\0" in content:
        fault = "a NUL character, which no text has"
    elif content.startswith("\ufeff"):
        fault = "a byte order mark (U+FEFF) at its start, which is no part of a text"
    try:
        raw = content.encode()
    except UnicodeEncodeError:
        fault, raw = "half a character (a lone surrogate)", b""
    if fault is not None:
        raise ToolError(f"the content holds {fault}", code="invalid_arguments")
    if len(raw) > MAX_BYTES:
        raise ToolError(
            f"the content has {len(raw)} bytes, and a file may be written with {MAX_BYTES}",
            code="payload_too_large",
        )
    return raw


def one_line(text: str, *, marks: bool = False) -> str:
    """The text with every character escaped that would end a line or steer a terminal; with
    ``marks`` also those that nobody sees, or that turn the direction of what is seen."""
    if text.isascii() and text.isprintable():
        return text
    unseen = _BREAKS | {"Cf"} if marks else _BREAKS
    return "".join(
        c.encode("unicode_escape").decode("ascii") if unicodedata.category(c) in unseen else c
        for c in text
    )


# --- differences --------------------------------------------------------------------------------

MAX_LINES: Final = 400
MAX_CHARS: Final = 40_000
MAX_LINE_CHARS: Final = 2_000
_CONTEXT: Final = 3
_LINE: Final = re.compile(r"[^\n]*\n|[^\n]+")
_MAX_COMPARED: Final = 2_000
"""Lines that differ at all, of either text, that are still matched with each other; beyond it they
are shown as removed and added as a whole, since matching takes more than linear time."""


def unified_diff(before: str, after: str, old: str, new: str) -> str:
    """The difference of two texts, with the names ``old`` and ``new``, as a unified diff.

    Lines end at ``\\n`` alone; every other character that nobody would see is escaped. At most
    `MAX_LINES` and `MAX_CHARS` are shown, and the last line says how many lines are left out.
    """
    shown = [f"--- {one_line(old, marks=True)}", f"+++ {one_line(new, marks=True)}"]
    if before == after:
        return "\n".join((*shown, "(no difference)"))
    size = left_out = 0
    for line in _hunks(_LINE.findall(before), _LINE.findall(after)):
        if len(line) > MAX_LINE_CHARS:
            line = f"{line[:MAX_LINE_CHARS]} … ({len(line) - MAX_LINE_CHARS} more characters)"
        size += len(line) + 1
        if left_out or len(shown) >= MAX_LINES or size > MAX_CHARS:
            left_out += 1
        else:
            shown.append(line)
    if left_out:
        shown.append(f"({left_out} more lines are not shown)")
    return "\n".join(shown)


def _hunks(before: list[str], after: list[str]) -> Iterator[str]:
    """The hunks of a diff. What both texts begin and end with is not compared again."""
    least = min(len(before), len(after))
    start = next((i for i in range(least) if before[i] != after[i]), least)
    most = least - start
    end = next((i for i in range(most) if before[-1 - i] != after[-1 - i]), most)
    if max(len(before), len(after)) - start - end > _MAX_COMPARED:
        gone, come = before[start : len(before) - end], after[start : len(after) - end]
        yield f"@@ -{start + bool(gone)},{len(gone)} +{start + bool(come)},{len(come)} @@"
        yield from _escaped([*("-" + line for line in gone), *("+" + line for line in come)])
        return
    first, kept = max(start - _CONTEXT, 0), max(end - _CONTEXT, 0)
    old, new = before[first : len(before) - kept], after[first : len(after) - kept]
    diff = itertools.islice(difflib.unified_diff(old, new, n=_CONTEXT), 2, None)
    for line in diff:
        if line.startswith("@@"):
            yield re.sub(r"(?<=[-+])\d+", lambda at: str(int(at[0]) + first), line.rstrip("\n"))
        else:
            yield from _escaped([line])


def _escaped(lines: Iterable[str]) -> Iterator[str]:
    """Lines of a diff, escaped, without their ends or with a word that they have none."""
    for line in lines:
        yield "\t".join(one_line(p, marks=True) for p in line.removesuffix("\n").split("\t"))
        if not line.endswith("\n"):
            yield "\\ No newline at end of file"
