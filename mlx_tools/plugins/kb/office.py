"""Reads PDFs, office documents and books as text, in a separate process.

Archives are read member by member, each up to a limit. XML that defines entities is refused.
"""

from __future__ import annotations

import base64
import io
import logging
import re
import zipfile
from collections.abc import Callable, Iterator
from posixpath import dirname, join, normpath
from typing import Any
from urllib.parse import unquote
from xml.parsers import expat

from mlx_tools.toolbox import Problem

MAX_CHARS = 10_000_000
MAX_UNPACKED = 100_000_000
"""Bytes that are unpacked of an archive."""

LEVELS = 6
_DAMAGED = "it is damaged, or no such document"
_CHUNK_BYTES = 1 << 16
"""Bytes of XML that are parsed at once."""


MAX_PAGES = 20_000
_BROKEN_METADATA = (ArithmeticError, LookupError, OSError, RuntimeError, TypeError, ValueError)


def read_pdf(data: str) -> dict[str, Any]:
    """Return the ``title`` and the ``pages`` of a PDF in base64, within limits."""
    import pypdf

    logging.disable(logging.CRITICAL)
    reader = pypdf.PdfReader(io.BytesIO(base64.b64decode(data)), strict=False)
    if reader.is_encrypted and not reader.decrypt(""):
        raise Problem("it is encrypted")
    pages, size = list[str](), 0
    for page in reader.pages:
        if len(pages) >= MAX_PAGES or size >= MAX_CHARS:
            break
        text = (page.extract_text() or "").encode("utf-8", "replace").decode()
        text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "")
        pages.append(text[: MAX_CHARS - size])
        size += len(text)
    try:
        title = str((reader.metadata and reader.metadata.title) or "")
    except _BROKEN_METADATA:  # the pages may be readable all the same
        title = ""
    return {"title": title[:500], "pages": pages}


def read_office(data: str, form: str) -> dict[str, Any]:
    """Return the ``title`` and the ``text``, in Markdown, of a document in base64.

    ``form`` is the suffix of its name.
    """
    try:
        title, text = READERS[form](base64.b64decode(data))
    except zipfile.BadZipFile:
        raise Problem(_DAMAGED) from None
    return {"title": title[:500], "text": text[:MAX_CHARS]}


# --- archives -----------------------------------------------------------------------------------


class Archive:
    """A ZIP file whose members are read one by one."""

    def __init__(self, data: bytes) -> None:
        self._zip = zipfile.ZipFile(io.BytesIO(data))
        self._bytes_left = MAX_UNPACKED

    def names(self) -> list[str]:
        return self._zip.namelist()

    def read(self, name: str) -> bytes | None:
        """Return the bytes of a member, or None. Raises Problem."""
        try:
            member = self._zip.getinfo(name)
        except KeyError:
            return None
        if member.flag_bits & 1:
            raise Problem("it is encrypted")
        with self._zip.open(member) as file:
            content = file.read(self._bytes_left + 1)
        if len(content) > self._bytes_left:
            raise Problem(f"it unpacks to more than {MAX_UNPACKED // 1_000_000} MB")
        self._bytes_left -= len(content)
        return content

    def read_required(self, name: str) -> bytes:
        """Return the bytes of a member that must exist. Raises Problem."""
        content = self.read(name)
        if content is None:
            raise Problem(_DAMAGED)
        return content


# --- XML ----------------------------------------------------------------------------------------

_LETTERS = {"tab": "\t", "br": "\n", "cr": "\n", "line-break": "\n", "s": " "}
"""Elements that mean a character."""


def iter_parts(data: bytes) -> Iterator[tuple[str, str, dict[str, str]]]:
    """Yield the parts of XML in order: ``start``, ``end`` and ``text``.

    Names have no namespaces; a start has its attributes.

    Raises:
        Problem: it defines entities, or is no XML.
    """
    pending: list[tuple[str, str, dict[str, str]]] = []

    def start(name: str, attributes: dict[str, str]) -> None:
        plain = {key.rpartition(" ")[2]: value for key, value in attributes.items()}
        pending.append(("start", name.rpartition(" ")[2], plain))

    def entity(*_: object) -> None:
        raise Problem("its XML defines entities")

    parser = expat.ParserCreate(namespace_separator=" ")
    parser.buffer_text = True
    parser.EntityDeclHandler = entity
    parser.StartElementHandler = start
    parser.EndElementHandler = lambda name: pending.append(("end", name.rpartition(" ")[2], {}))
    parser.CharacterDataHandler = lambda text: pending.append(("text", text, {}))
    try:
        for offset in range(0, len(data), _CHUNK_BYTES):
            parser.Parse(data[offset : offset + _CHUNK_BYTES])
            yield from pending
            pending.clear()
        parser.Parse(b"", True)
    except expat.ExpatError:
        raise Problem("its XML is damaged") from None
    yield from pending


def iter_starts(data: bytes | None) -> Iterator[tuple[str, dict[str, str]]]:
    """Return the elements, each with its name and its attributes."""
    return (
        (name, attributes)
        for kind, name, attributes in iter_parts(data or b"<no/>")
        if kind == "start"
    )


def find_first_text(data: bytes | None, wanted_name: str) -> str:
    """Return the text of the first element of this name, or an empty text."""
    inside, pieces = False, list[str]()
    for kind, name, _ in iter_parts(data or b"<no/>"):
        if kind == "text" and inside:
            pieces.append(name)
        elif name == wanted_name:
            inside = kind == "start" and not pieces
    return "".join(pieces).strip()


class Lines:
    """A text that grows by paragraphs."""

    def __init__(self) -> None:
        self.level = 0
        self._lines: list[str] = []
        self._pieces: list[str] = []

    def add(self, text: str) -> None:
        self._pieces.append(text)

    def end(self) -> None:
        """End the paragraph; it is a heading if it has a ``level``."""
        text = "".join(self._pieces).strip()
        if text and self.level:
            text = f"{'#' * min(self.level, LEVELS)} {' '.join(text.split())}"
        if text:
            self._lines += [text, ""]
        self.level = 0
        self._pieces.clear()

    def text(self) -> str:
        self.end()
        return "\n".join(self._lines).strip("\n")


def read_docx(data: bytes) -> tuple[str, str]:
    """Read Word's format: paragraphs of runs. Headings are shown by their style."""
    archive, lines = Archive(data), Lines()
    styles = _find_heading_styles(archive.read("word/styles.xml"))
    skipped = inside = 0
    contents = [archive.read_required("word/document.xml")]
    contents += [
        archive.read(f"word/{note_name}.xml") or b"<no/>" for note_name in ("footnotes", "endnotes")
    ]
    for kind, name, attributes in (part for content in contents for part in iter_parts(content)):
        value, step = attributes.get("val", ""), 1 if kind == "start" else -1
        if kind == "text":
            lines.add(name if inside and not skipped else "")
        elif name in ("Fallback", "del", "moveFrom"):  # duplicated or deleted text
            skipped += step
        elif name == "t":
            inside += step
        elif kind == "end":
            if name == "p" and not skipped:
                lines.end()
        elif name in ("tab", "br", "cr"):
            lines.add(_LETTERS[name])
        elif name == "pStyle":
            lines.level = lines.level or styles.get(value, 0)
        elif name == "outlineLvl" and value.isdigit() and int(value) < LEVELS:
            lines.level = int(value) + 1
    return find_first_text(archive.read("docProps/core.xml"), "title"), lines.text()


def _find_heading_styles(data: bytes | None) -> dict[str, int]:
    """Return the level of each style that is a heading.

    It is one by its outline level, or by its name, which is English in every language of Word.
    """
    levels: dict[str, int] = {}
    style = ""
    for name, attributes in iter_starts(data):
        value = attributes.get("val", "")
        name_match = re.fullmatch(r"heading ([1-9])", value, re.IGNORECASE)
        if name == "style":
            style = attributes.get("styleId", "")
        elif name == "name" and (name_match or value.lower() == "title"):
            levels[style] = int(name_match[1]) if name_match else 1
        elif name == "outlineLvl" and value.isdigit() and int(value) < LEVELS:
            levels.setdefault(style, int(value) + 1)
    return levels


def read_odt(data: bytes) -> tuple[str, str]:
    """Read OpenDocument's format: headings and paragraphs by name."""
    archive, lines = Archive(data), Lines()
    skipped = inside = 0
    for kind, name, attributes in iter_parts(archive.read_required("content.xml")):
        step = 1 if kind == "start" else -1
        if kind == "text":
            lines.add(name if inside and not skipped else "")
        elif name in ("tracked-changes", "annotation"):
            skipped += step
        elif name in ("h", "p"):
            if kind == "end" or not inside:
                lines.end()
            if kind == "start" and not inside:
                level = attributes.get("outline-level", "1")
                lines.level = int(level) if name == "h" and level.isdigit() else 0
            inside += step
        elif kind == "start" and name in ("tab", "line-break", "s") and inside:
            lines.add(_LETTERS[name])
    return find_first_text(archive.read("meta.xml"), "title"), lines.text()


def read_epub(data: bytes) -> tuple[str, str]:
    """Read a book: pages of HTML, in the order of its spine."""
    from mlx_tools.toolbox import read_html

    archive = Archive(data)
    roots = [
        attributes.get("full-path", "")
        for name, attributes in iter_starts(archive.read_required("META-INF/container.xml"))
        if name == "rootfile"
    ]
    place = roots[0] if roots else ""
    package = archive.read_required(place)
    files: dict[str, str] = {}
    spine: list[str] = []
    for name, attributes in iter_starts(package):
        if name == "item":
            files[attributes.get("id", "")] = attributes.get("href", "")
        elif name == "itemref":
            spine.append(attributes.get("idref", ""))
    pages, size = list[str](), 0
    for item_id in dict.fromkeys(spine):
        name = normpath(join(dirname(place), unquote(files.get(item_id, ""))))
        page = archive.read(name) if size < MAX_CHARS else None
        if page is not None:
            pages.append(read_html(page.decode("utf-8", "replace"))["text"])
            size += len(pages[-1])
    return find_first_text(package, "title"), "\n\n".join(filter(None, pages))


# --- Pages --------------------------------------------------------------------------------------
#
# Since 2013 a document is a ZIP file of archives. Each has a series of objects in protocol buffers,
# compressed by Snappy. Texts are in one kind of object (TSWP.StorageArchive).

_TEXT_OBJECT = 2001
_BODY = 0
_SKIPPED_KINDS = (1, 4)
"""Kinds of text that are not on the document's pages: headers and footers, and notes of tables."""

_MARKS = re.compile("[\ufffc\u0004\u0005\u000e\u000f]")
"""Characters in place of pictures, notes and breaks."""


def read_pages(data: bytes) -> tuple[str, str]:
    """Read Apple's format, of Pages '13 and later."""
    archive = Archive(data)
    inner_archive = archive.read("Index.zip")
    archive = Archive(inner_archive) if inner_archive is not None else archive
    texts: list[tuple[int, str]] = []
    for name in archive.names():
        if name.startswith("Index/") and name.endswith(".iwa"):
            texts += _iter_texts(_unpack_chunks(archive.read_required(name)))
    if not texts and not any(name.endswith(".iwa") for name in archive.names()):
        raise Problem(_DAMAGED)
    contents = [text for kind, text in sorted(texts, key=lambda entry: entry[0] != _BODY)]
    text = "\n\n".join(entry.strip() for entry in contents if entry.strip())
    return "", _MARKS.sub("", text.replace("\u2028", "\n").replace("\u2029", "\n"))


def _unpack_chunks(data: bytes) -> bytes:
    """Unpack an archive's chunks, each after a zero and its length in three bytes."""
    offset, content = 0, bytearray()
    while offset + 4 <= len(data):
        size = int.from_bytes(data[offset + 1 : offset + 4], "little")
        content += unpack_snappy(data[offset + 4 : offset + 4 + size], MAX_UNPACKED - len(content))
        offset += 4 + size
    return bytes(content)


def unpack_snappy(data: bytes, max_bytes: int) -> bytes:
    """Unpack Snappy's raw format: literal pieces, and copies of earlier bytes."""
    length, offset = _read_varint(data, 0)
    output = bytearray()
    while offset < len(data):
        tag = data[offset]
        kind, size = tag & 3, tag >> 2
        offset += 1
        if kind == 0:
            if size >= 60:
                extra_bytes = size - 59
                size = int.from_bytes(data[offset : offset + extra_bytes], "little")
                offset += extra_bytes
            output += data[offset : offset + size + 1]
            offset += size + 1
        else:
            if kind == 1:
                size, distance = (size & 7) + 3, (tag >> 5) << 8 | data[offset]
            else:
                distance = int.from_bytes(data[offset : offset + 2 * kind - 2], "little")
            offset += 1 if kind == 1 else 2 * kind - 2
            size += kind == 1 or 1
            if not 0 < distance <= len(output):
                raise Problem("it is damaged")
            start = len(output) - distance
            piece = bytes(output[start : start + size])
            output += (piece * (size // len(piece) + 1))[:size]
        if len(output) > min(length, max_bytes):
            raise Problem("it is damaged, or unpacks to too much")
    return bytes(output)


def _read_varint(data: bytes, offset: int) -> tuple[int, int]:
    """Return a number, and the offset after it."""
    value = 0
    for shift in range(0, 64, 7):
        value |= (data[offset] & 127) << shift
        offset += 1
        if data[offset - 1] < 128:
            break
    return value, offset


def _iter_fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the fields of a message with their numbers, without those of fixed size."""
    offset = 0
    while offset < len(data):
        key, offset = _read_varint(data, offset)
        kind = key & 7
        if kind == 0:
            value, offset = _read_varint(data, offset)
            yield key >> 3, value
        elif kind == 2:
            size, offset = _read_varint(data, offset)
            yield key >> 3, data[offset : offset + size]
            offset += size
        elif kind in (1, 5):
            offset += 8 if kind == 1 else 4
        else:
            raise Problem("it is damaged")


def _iter_texts(data: bytes) -> Iterator[tuple[int, str]]:
    """Yield the texts of an archive's objects, each with its kind."""
    offset = 0
    while offset < len(data):
        size, offset = _read_varint(data, offset)
        header, offset = data[offset : offset + size], offset + size
        for number, message in _iter_fields(header):
            if number != 2 or not isinstance(message, bytes):
                continue
            facts = dict(_iter_fields(message))
            kind, length = facts.get(1, 0), facts.get(3, 0)
            if not isinstance(length, int):
                raise Problem("it is damaged")
            content, offset = data[offset : offset + length], offset + length
            if kind != _TEXT_OBJECT:
                continue
            fields = list(_iter_fields(content))
            text_kind = next((value for number, value in fields if number == 1), _BODY)
            pieces = [value for number, value in fields if number == 3 and isinstance(value, bytes)]
            if isinstance(text_kind, int) and text_kind not in _SKIPPED_KINDS:
                yield text_kind, "".join(piece.decode("utf-8", "replace") for piece in pieces)


# --- RTF ----------------------------------------------------------------------------------------

_RTF = re.compile(
    rb"\\'(?P<hex>[0-9a-fA-F]{2})|\\(?P<word>[a-zA-Z]{1,32})(?P<number>-?\d{1,10})? ?"
    rb"|\\(?P<sign>[^a-zA-Z])|(?P<brace>[{}])|[\r\n]+|(?P<text>[^\\{}\r\n]+)"
)
_BREAKS = {
    **dict.fromkeys((b"par", b"line", b"row", b"sect", b"page"), "\n"),
    **dict.fromkeys((b"tab", b"cell"), "\t"),
    b"emdash": "—",
    b"endash": "–",
    b"bullet": "•",
    b"lquote": "‘",
    b"rquote": "’",
    b"ldblquote": "“",
    b"rdblquote": "”",
    b"~": "\u00a0",
    b"_": "-",
    b"\n": "\n",
    b"\r": "\n",
    b"\\": "\\",
    b"{": "{",
    b"}": "}",
}
_HIDDEN = frozenset(
    (
        *(b"fonttbl", b"colortbl", b"stylesheet", b"info", b"pict", b"object", b"fldinst"),
        *(b"header", b"footer", b"headerl", b"headerr", b"footerl", b"footerr", b"listtable"),
        *(b"headerf", b"footerf", b"xe", b"tc", b"themedata", b"datastore"),
    )
)
"""Groups without text of the document."""


def read_rtf(data: bytes) -> tuple[str, str]:
    """Read rich text: the text of visible groups, in the document's code page."""
    if not data.lstrip().startswith(b"{\\rtf"):
        raise Problem(_DAMAGED)
    page = re.search(rb"\\ansicpg(\d{1,5})", data[:4_000])
    encoding = f"cp{page[1].decode()}" if page else "cp1252"
    parts: list[str] = []
    raw = bytearray()  # a character of several bytes has several escapes
    stack, shown, fallback, skip = list[tuple[bool, int]](), True, 1, 0

    def flush() -> None:
        try:
            parts.append(raw.decode(encoding, "replace"))
        except LookupError:
            parts.append(raw.decode("cp1252", "replace"))
        raw.clear()

    for match in _RTF.finditer(data):
        brace, word, number = match["brace"], match["word"], match["number"]
        byte = bytes.fromhex(match["hex"].decode()) if match["hex"] else b""
        # a replacement for a character that came before by its number
        if skip and (byte or match["text"]):
            text = match["text"] or b""
            byte, skip = text[skip:], max(0, skip - max(1, len(text)))
        else:
            byte = byte or match["text"] or b""
        if byte:
            raw += byte if shown else b""
            continue
        if raw != b"":
            flush()
        if brace == b"{":
            stack.append((shown, fallback))
        elif brace == b"}":
            shown, fallback = stack.pop() if stack else (True, 1)
            skip = 0
        elif word in _HIDDEN or match["sign"] == b"*":
            shown = False
        elif word == b"uc":
            fallback = int(number or 1)
        elif word == b"u" and number:
            code = int(number) % 65_536
            parts.append(chr(code) if shown else "")
            skip = fallback
        elif shown:
            parts.append(_BREAKS.get(word or match["sign"] or b"", ""))
    flush()
    text = "".join(parts).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    title = re.search(rb"\{\\title ([^{}\\]{1,200})\}", data[:100_000])
    return title[1].decode(encoding, "replace") if title else "", text.strip()


READERS: dict[str, Callable[[bytes], tuple[str, str]]] = {
    ".docx": read_docx,
    ".odt": read_odt,
    ".epub": read_epub,
    ".pages": read_pages,
    ".rtf": read_rtf,
}
