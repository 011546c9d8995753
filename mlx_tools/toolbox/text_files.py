"""Converts between the bytes of a file and the text of a model."""

from __future__ import annotations

import codecs
import mimetypes
import os
from typing import Final

from mlx_tools.tools import ToolError
from mlx_tools.unseen import FOR_MODELS, FOR_PEOPLE, escape_unseen

MAX_TEXT_BYTES: Final = 1_000_000
"""Bytes of a file that can be read, and that can be written. The limit is the same for both, so
that a written file can be read back completely."""

_UTF16: Final = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def read_up_to(fd: int, max_bytes: int) -> bytes:
    """Return at most ``max_bytes`` bytes, even if the file grows meanwhile."""
    try:
        with os.fdopen(os.dup(fd), "rb") as file:
            return file.read(max_bytes)
    except OSError as error:
        raise ToolError(f"the file cannot be read: {error.strerror}") from None


def decode_text(content: bytes, path: str, *, whole: bool = True) -> str:
    """Decode UTF-8, or UTF-16 with its mark, without a character that is cut off.

    Raises:
        ToolError: the content is binary.
    """
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
"""The first bytes of some kinds of files: offset, bytes, media type."""


def guess_kind(content: bytes, path: str) -> str:
    """Return the media type of a binary file.

    It comes from the first bytes, or from the name if that is more precise and does not contradict
    them.
    """
    kind_of_content = next(
        (kind for offset, mark, kind in _KINDS if content.startswith(mark, offset)), ""
    )
    kind_of_name = mimetypes.guess_type(path)[0] or ""
    is_archive = kind_of_content == "application/zip" and kind_of_name.startswith(
        "application/"
    )  # many are archives
    guess = kind_of_name if is_archive or not kind_of_content else kind_of_content
    return "application/octet-stream" if guess.startswith("text/") or not guess else guess


def encode_content(content: object) -> bytes:
    """Encode the whole text of a file, so that `decode_text` returns the same text.

    Raises:
        ToolError: it would read back as a different text, or is too large.
    """
    if not isinstance(content, str):
        raise ToolError("content is missing: the text of the file", code="invalid_arguments")
    raw = encode_text(content, "the content")
    if len(raw) > MAX_TEXT_BYTES:
        raise ToolError(
            f"the content has {len(raw)} bytes, and a file may be written with {MAX_TEXT_BYTES}",
            code="payload_too_large",
        )
    return raw


def encode_text(
    text: str, name: str, encoding: str = "utf-8", *, nul_allowed: bool = False
) -> bytes:
    """Encode a text, so that `decode_text` returns the same text.

    Args:
        text: the text.
        name: the argument that it comes from, for the error.
        encoding: the encoding.
        nul_allowed: True for a file that already has NUL characters.

    Raises:
        ToolError: it would read back as a different text.
    """
    fault = None
    if "\0" in text and not nul_allowed:
        fault = "a NUL character, which no text has"
    elif text.startswith("\ufeff"):
        fault = "a byte order mark (U+FEFF) at the start of the file, which is no part of a text"
    try:
        raw = text.encode(encoding)
    except UnicodeEncodeError:
        fault, raw = "half a character (a lone surrogate)", b""
    if fault is not None:
        raise ToolError(f"{name} holds {fault}", code="invalid_arguments")
    return raw


def one_line(text: str, *, marks: bool = False) -> str:
    """Escape every character that would end a line or control a terminal.

    With ``marks``, also escape invisible characters and those that change the direction of text.
    """
    return escape_unseen(text, FOR_PEOPLE if marks else FOR_MODELS)
