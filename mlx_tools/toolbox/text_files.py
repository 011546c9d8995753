"""Bytes of a file as the text that a model reads, and a text as the bytes of a file."""

from __future__ import annotations

import codecs
import os
import unicodedata
from typing import Final

from mlx_tools.tools import ToolError

MAX_BYTES: Final = 1_000_000
"""What is read of a file, and what may be written: what was written can be read back whole."""

_UTF16: Final = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_BREAKS: Final = frozenset(("Cc", "Cs", "Zl", "Zp"))
"""Categories of characters that end a line, steer a terminal, or are half a character."""


def up_to(fd: int, most: int) -> bytes:
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
