"""Bytes of a file as the text that a model reads, and a text as the bytes of a file."""

from __future__ import annotations

import codecs
import mimetypes
import os
import unicodedata
from typing import Final

from mlx_tools.tools import ToolError

MAX_BYTES: Final = 1_000_000
"""Most of what is read of a file, and may be written: what was written can be read back whole."""

_UTF16: Final = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_BREAKS: Final = frozenset(("Cc", "Cs", "Zl", "Zp"))
"""Categories of characters that end a line, steer a terminal, or are half a character."""


def up_to(fd: int, max_bytes: int) -> bytes:
    """At most so many bytes; a file that grows while it is read ends there too."""
    try:
        with os.fdopen(os.dup(fd), "rb") as file:
            return file.read(max_bytes)
    except OSError as error:
        raise ToolError(f"the file cannot be read: {error.strerror}") from None


def decode_text(content: bytes, path: str, *, whole: bool = True) -> str:
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


def encode_text(content: object) -> bytes:
    """The bytes of a text, from which `decode_text` makes the same text. Raises ToolError for what
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
    if text.isprintable():  # then it has no character of these categories
        return text
    unseen = _BREAKS | {"Cf"} if marks else _BREAKS
    return "".join(
        c.encode("unicode_escape").decode("ascii") if unicodedata.category(c) in unseen else c
        for c in text
    )
