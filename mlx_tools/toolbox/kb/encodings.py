"""Bytes as text: UTF-8, UTF-16, UTF-32, what a page names, else Windows-1252 where it can be."""

from __future__ import annotations

import re
from typing import Final

SNIFFED: Final = 8_192
"""Bytes at the beginning by which a file is known."""

BINARY: Final = "it is binary"
UNKNOWN: Final = "its encoding is not known: save it as UTF-8"

_MARKS: Final = (
    (b"\xff\xfe\0\0", "utf-32"),
    (b"\0\0\xfe\xff", "utf-32"),
    (b"\xff\xfe", "utf-16"),
    (b"\xfe\xff", "utf-16"),
)
_CHARSET: Final = re.compile(
    rb"charset\s{0,5}=\s{0,5}[\"']?(iso-8859-[0-9]{1,2}|windows-125[0-9]|cp125[0-9]|latin1|koi8-[ru]"
    rb"|shift_?jis|euc-(?:jp|kr)|iso-2022-jp|gb2312|gbk|gb18030|big5|macintosh)\b",
    re.IGNORECASE,
)
"""Encodings that a page may name: not any that Python knows, since some take quadratic time."""

_WESTERN_SHARE: Final = 0.3
_FEW: Final = 5
"""Of the characters of a text in a Western language fewer are beyond ASCII. What has more and is no
UTF-8 is Cyrillic or Chinese in an encoding of its own, and would come out as nonsense."""


_WIDE_SHARE: Final = 0.8
_UNWRITTEN: Final = re.compile(rb"[\0-\x08\x0e-\x1a\x7f]")
"""Of UTF-16 in Latin letters most second bytes are zero, and no other is a control character."""
_ODD: Final = re.compile("[\0-\x08\x0b\x0e-\x1a\x1c-\x1f\x7f-\x9f]")


_PACKED: Final = (
    *((b"PK\x03\x04", 0, "zip"), (b"PK\x05\x06", 0, "zip"), (b"PK\x07\x08", 0, "zip")),
    *((b"\x1f\x8b", 0, "gzip"), (b"1AY&SY", 4, "bzip2"), (b"\xfd7zXZ\0", 0, "xz")),
    *((b"7z\xbc\xaf\x27\x1c", 0, "7z"), (b"\x28\xb5\x2f\xfd", 0, "zstd")),
    *((b"Rar!\x1a\x07", 0, "rar"), (b"ustar", 257, "tar")),
)
"""What archives begin with, at which byte; of documents .docx, .odt and .epub are zip archives."""


class UnreadableFile(Exception):
    """A file that is not taken in; its text says why."""


def is_binary(head: bytes) -> bool:
    """Whether a file that begins so is no text, as far as that can be told from zero bytes."""
    return b"\0" in head[:SNIFFED] and b"%PDF-" not in head[:1024] and _wide(head) is None


def packed_as(head: bytes) -> str | None:
    """Which kind of archive begins so, whatever its name; None where it is none."""
    return next((name for sign, at, name in _PACKED if head.startswith(sign, at)), None)


def decoded(data: bytes) -> str:
    """The bytes as text with line ends ``\\n``. Raises `UnreadableFile` where they are none."""
    if is_binary(data):
        raise UnreadableFile(BINARY)
    text = _first_that_fits(data)
    head = text[:SNIFFED]
    if "\0" in text or len(_ODD.findall(head)) > len(head) // 50:
        raise UnreadableFile(BINARY)
    return text.replace("\r\n", "\n").replace("\r", "\n").encode("utf-8", "replace").decode()


def _first_that_fits(data: bytes) -> str:
    if (wide := _wide(data)) is not None:
        encodings = [wide]
    else:
        encodings = ["utf-8-sig"]
        if (named := _CHARSET.search(data[:2048])) is not None:
            encodings.append(named[1].decode("ascii"))
    for encoding in encodings:
        try:
            return data.decode(encoding)
        except (UnicodeError, LookupError, ValueError):
            continue
    try:
        text = data.decode("cp1252")
    except UnicodeError:
        raise UnreadableFile(UNKNOWN) from None
    signs = [c for c in text[:SNIFFED] if not c.isspace()]
    beyond = sum(1 for c in signs if not c.isascii())
    if beyond > max(_FEW, _WESTERN_SHARE * len(signs)):
        raise UnreadableFile(UNKNOWN)
    return text


def _wide(data: bytes) -> str | None:
    """The encoding of two or four bytes a character that a text is in, by its mark, or by the zero
    bytes that every second one is in it."""
    for mark, encoding in _MARKS:
        if data.startswith(mark):
            return encoding
    head = data[: min(len(data), SNIFFED) & ~1]
    for first, encoding in ((0, "utf-16-le"), (1, "utf-16-be")):
        letters, zeros = head[first::2], head[1 - first :: 2]
        if zeros.count(0) > _WIDE_SHARE * len(zeros) and not _UNWRITTEN.search(letters):
            return encoding
    return None
