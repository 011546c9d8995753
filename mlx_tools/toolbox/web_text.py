"""A response's body: read within limits, its media type, and the text that it is."""

from __future__ import annotations

import codecs
import re
from collections.abc import AsyncIterator
from typing import Final, Literal, NamedTuple

from mlx_tools.process import clean
from mlx_tools.tools import ToolError

ENCODING: Final = "identity"
"""What is asked for. A body that comes packed is refused."""


async def read_body(pieces: AsyncIterator[bytes], encoding: str, limit: int) -> tuple[bytes, bool]:
    """The body that comes in ``pieces``, in the encoding that the server names, and whether there
    was more: no more than ``limit`` bytes are read. Raises ToolError."""
    if encoding.strip().lower() not in ("", ENCODING):
        raise ToolError(f"the page is packed as {clean(encoding, 60)}, which was not asked for")
    data = bytearray()
    async for piece in pieces:
        data += piece[: limit + 1 - len(data)]
        if len(data) > limit:
            return bytes(data[:limit]), True
    return bytes(data), False


# --- media types and charsets -------------------------------------------------------------------

Kind = Literal["html", "text", "unknown"]

_CHARSET = re.compile(r";\s*charset\s*=\s*[\"']?([A-Za-z0-9_.:-]{1,40})", re.ASCII | re.IGNORECASE)
_META = re.compile(
    rb"<meta[^>]{0,500}?charset\s{0,20}=\s{0,20}[\"']?\s{0,20}([A-Za-z0-9_.:-]{1,40})",
    re.IGNORECASE,
)
_META_BYTES: Final = 1024
"""Where browsers look for a charset in the page itself (HTML standard, prescan)."""

_TAG = re.compile(rb"<(?:!doctype\s{1,20}html|html|head|body)\b", re.IGNORECASE)
_HTML: Final = frozenset(("text/html", "application/xhtml+xml"))
_TEXT: Final = frozenset(
    (
        *("application/json", "application/xml", "application/yaml", "application/x-yaml"),
        *("application/toml", "application/javascript", "application/x-ndjson", "application/sql"),
        *("application/x-sh", "application/graphql", "message/rfc822"),
    )
)
_MARKS: Final = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_WIDER: Final = {
    "ascii": "cp1252",
    "big5": "big5hkscs",
    "euc_kr": "cp949",
    "gb2312": "gb18030",
    "gbk": "gb18030",
    "iso8859-1": "cp1252",
    "iso8859-11": "cp874",
    "iso8859-9": "cp1254",
    "shift_jis": "cp932",
    "tis-620": "cp874",
    "utf-16": "utf-16-le",
}
"""Encodings that are read as a wider one, as browsers do (WHATWG Encoding Standard)."""
_READ: Final = frozenset(
    (
        *("utf-8", "utf-16-le", "utf-16-be", "gb18030", "cp932", "cp949", "big5hkscs", "euc_jp"),
        *("iso2022_jp", "koi8-r", "koi8-u", "mac-roman", "mac-cyrillic", "cp866", "cp874"),
        *(f"cp{number}" for number in range(1250, 1259)),
        *(f"iso8859-{number}" for number in (2, 3, 4, 5, 6, 7, 8, 10, 13, 14, 15, 16)),
    )
)
"""Encodings of pages. Python knows others that are no such thing, and some that unpack."""


class Media(NamedTuple):
    """How a body is read, by its media type, and the charset that was declared, empty where none
    was."""

    kind: Kind
    charset: str = ""


def media_of(declared: str) -> Media:
    """The meaning of a ``Content-Type`` field. Raises ToolError for what is no text."""
    declared = declared[:1000]
    name = declared.partition(";")[0].strip().lower()
    found = _CHARSET.search(declared)
    charset = found[1] if found else ""
    if name in _HTML:
        return Media("html", charset)
    if not name or name == "application/octet-stream":
        return Media("unknown", charset)
    if name == "text/event-stream":
        raise ToolError(f"the server sends a stream without an end ({name})")
    if name in _TEXT or name.startswith("text/") or name.endswith(("+json", "+xml", "+yaml")):
        return Media("text", charset)
    raise ToolError(
        f"this is no text but {clean(name, 100)}; only text, HTML, JSON and the like can be read"
    )


def is_html(media: Media, data: bytes) -> bool:
    """True if a body is HTML: by its type, and where none was declared by how it begins."""
    if media.kind != "unknown":
        return media.kind == "html"
    begin = data[:_META_BYTES].lstrip()
    return begin.startswith(b"<") and _TAG.search(begin) is not None


def text_of(media: Media, data: bytes) -> str:
    """A body as text: by its byte order mark, else as declared, else as the page itself says, else
    UTF-8, else Windows-1252. A byte that does not fit becomes U+FFFD. Raises ToolError where it is
    no text at all."""
    declared, data = marked(data)
    declared = declared or _known(media.charset) or (named(data) if is_html(media, data) else None)
    if declared is not None:
        return _text(data.decode(declared, "replace"))
    try:
        return _text(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        cut_off = error.reason == "unexpected end of data" and error.start > 0
        return _text(data.decode("utf-8" if cut_off else "cp1252", "replace"))


def marked(data: bytes) -> tuple[str | None, bytes]:
    """The charset of the byte order mark, None where there is none, and what follows the mark."""
    for mark, name in _MARKS:
        if data.startswith(mark):
            return name, data.removeprefix(mark)
    return None, data


def named(data: bytes) -> str | None:
    """The charset that a page says itself that it is in."""
    meta = _META.search(data[:_META_BYTES])
    found = _known(meta[1].decode("ascii")) if meta else None
    # it could not have been read as ASCII up to here
    return "utf-8" if found is not None and found.startswith("utf-16") else found


def _known(label: str) -> str | None:
    """The charset of a label, None where there is no such charset for pages."""
    try:
        name = codecs.lookup(label).name if label else ""
    except (LookupError, ValueError):
        return None
    name = _WIDER.get(name, name)
    return name if name in _READ else None


def _text(text: str) -> str:
    if "\0" in text[:4096]:
        raise ToolError("this is no text: it holds bytes that no text has")
    return text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "\ufffd")
