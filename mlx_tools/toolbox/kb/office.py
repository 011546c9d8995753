"""Reads PDFs, documents of office programs and books into text, in a process of its own.

Archives are read member by member, each up to a bound; XML with a document type of its own, which
could define entities, is refused.
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

from mlx_tools.toolbox.isolated import Problem

MAX_CHARS = 10_000_000
MAX_UNPACKED = 100_000_000
"""Bytes of an archive that are unpacked, in all."""

LEVELS = 6
_DAMAGED = "it is damaged, or no such document"
_AT_ONCE = 1 << 16
"""Bytes of XML that are read in one go."""


MAX_PAGES = 20_000


def read_pdf(data: str) -> dict[str, Any]:
    """The ``title`` and the ``pages`` of a PDF in base64, as far as they are within bounds."""
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
    except Exception:  # the metadata may be broken where the pages are not
        title = ""
    return {"title": title[:500], "pages": pages}


def read_office(data: str, form: str) -> dict[str, Any]:
    """The ``title`` and the ``text``, with Markdown's headings, of a document in base64; ``form``
    is the ending of its name."""
    try:
        title, text = READERS[form](base64.b64decode(data))
    except zipfile.BadZipFile:
        raise Problem(_DAMAGED) from None
    return {"title": title[:500], "text": text[:MAX_CHARS]}


# --- archives -----------------------------------------------------------------------------------


class Archive:
    """A ZIP file of which single members are read."""

    def __init__(self, data: bytes) -> None:
        self._zip = zipfile.ZipFile(io.BytesIO(data))
        self._bytes_left = MAX_UNPACKED

    def names(self) -> list[str]:
        return self._zip.namelist()

    def read(self, name: str) -> bytes | None:
        """The bytes of a member, None where there is none. Raises Problem."""
        try:
            member = self._zip.getinfo(name)
        except KeyError:
            return None
        if member.flag_bits & 1:
            raise Problem("it is encrypted")
        with self._zip.open(member) as file:
            found = file.read(self._bytes_left + 1)
        if len(found) > self._bytes_left:
            raise Problem(f"it unpacks to more than {MAX_UNPACKED // 1_000_000} MB")
        self._bytes_left -= len(found)
        return found

    def needed(self, name: str) -> bytes:
        """The bytes of a member that there must be. Raises Problem."""
        found = self.read(name)
        if found is None:
            raise Problem(_DAMAGED)
        return found


# --- XML ----------------------------------------------------------------------------------------

_LETTERS = {"tab": "\t", "br": "\n", "cr": "\n", "line-break": "\n", "s": " "}
"""Elements that stand for a letter."""


def parts(data: bytes) -> Iterator[tuple[str, str, dict[str, str]]]:
    """What XML says, in order: ``start`` and ``end`` of each element with its name, and its
    attributes where it starts, without namespaces; ``text``. Raises Problem for a document type of
    its own, and for what is no XML."""
    found: list[tuple[str, str, dict[str, str]]] = []

    def start(name: str, attributes: dict[str, str]) -> None:
        plain = {key.rpartition(" ")[2]: value for key, value in attributes.items()}
        found.append(("start", name.rpartition(" ")[2], plain))

    def entity(*_: object) -> None:
        raise Problem("its XML defines entities")

    parser = expat.ParserCreate(namespace_separator=" ")
    parser.buffer_text = True
    parser.EntityDeclHandler = entity
    parser.StartElementHandler = start
    parser.EndElementHandler = lambda name: found.append(("end", name.rpartition(" ")[2], {}))
    parser.CharacterDataHandler = lambda text: found.append(("text", text, {}))
    try:
        for at in range(0, len(data), _AT_ONCE):
            parser.Parse(data[at : at + _AT_ONCE])
            yield from found
            found.clear()
        parser.Parse(b"", True)
    except expat.ExpatError:
        raise Problem("its XML is damaged") from None
    yield from found


def starts(data: bytes | None) -> Iterator[tuple[str, dict[str, str]]]:
    """The elements, each by its name with its attributes."""
    return ((name, more) for kind, name, more in parts(data or b"<no/>") if kind == "start")


def first_text(data: bytes | None, wanted_name: str) -> str:
    """The text of the first element of this name, empty where there is none."""
    inside, said = False, list[str]()
    for kind, name, _ in parts(data or b"<no/>"):
        if kind == "text" and inside:
            said.append(name)
        elif name == wanted_name:
            inside = kind == "start" and not said
    return "".join(said).strip()


class Lines:
    """A text that grows paragraph by paragraph."""

    def __init__(self) -> None:
        self.level = 0
        self._lines: list[str] = []
        self._pieces: list[str] = []

    def say(self, text: str) -> None:
        self._pieces.append(text)

    def end(self) -> None:
        """Ends the paragraph, a heading where it has a ``level``."""
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
    """Word's form: paragraphs of runs; a style says whether one is a heading."""
    archive, lines = Archive(data), Lines()
    styles = _heading_styles(archive.read("word/styles.xml"))
    skipped = inside = 0
    contents = [archive.needed("word/document.xml")]
    contents += [archive.read(f"word/{one}.xml") or b"<no/>" for one in ("footnotes", "endnotes")]
    for kind, name, attributes in (part for content in contents for part in parts(content)):
        value, step = attributes.get("val", ""), 1 if kind == "start" else -1
        if kind == "text":
            lines.say(name if inside and not skipped else "")
        elif name in ("Fallback", "del", "moveFrom"):  # said again in another way, or taken out
            skipped += step
        elif name == "t":
            inside += step
        elif kind == "end":
            if name == "p" and not skipped:
                lines.end()
        elif name in ("tab", "br", "cr"):
            lines.say(_LETTERS[name])
        elif name == "pStyle":
            lines.level = lines.level or styles.get(value, 0)
        elif name == "outlineLvl" and value.isdigit() and int(value) < LEVELS:
            lines.level = int(value) + 1
    return first_text(archive.read("docProps/core.xml"), "title"), lines.text()


def _heading_styles(data: bytes | None) -> dict[str, int]:
    """The level of each style that is a heading: by its outline level, or by its name, which is
    English in every language of Word's."""
    found: dict[str, int] = {}
    style = ""
    for name, attributes in starts(data):
        value = attributes.get("val", "")
        named = re.fullmatch(r"heading ([1-9])", value, re.IGNORECASE)
        if name == "style":
            style = attributes.get("styleId", "")
        elif name == "name" and (named or value.lower() == "title"):
            found[style] = int(named[1]) if named else 1
        elif name == "outlineLvl" and value.isdigit() and int(value) < LEVELS:
            found.setdefault(style, int(value) + 1)
    return found


def read_odt(data: bytes) -> tuple[str, str]:
    """OpenDocument's form: headings and paragraphs by name."""
    archive, lines = Archive(data), Lines()
    skipped = inside = 0
    for kind, name, attributes in parts(archive.needed("content.xml")):
        step = 1 if kind == "start" else -1
        if kind == "text":
            lines.say(name if inside and not skipped else "")
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
            lines.say(_LETTERS[name])
    return first_text(archive.read("meta.xml"), "title"), lines.text()


def read_epub(data: bytes) -> tuple[str, str]:
    """A book: pages of HTML, in the order that its spine says."""
    from mlx_tools.toolbox.html_text import read_html

    archive = Archive(data)
    roots = [
        attributes.get("full-path", "")
        for name, attributes in starts(archive.needed("META-INF/container.xml"))
        if name == "rootfile"
    ]
    place = roots[0] if roots else ""
    described = archive.needed(place)
    files: dict[str, str] = {}
    spine: list[str] = []
    for name, attributes in starts(described):
        if name == "item":
            files[attributes.get("id", "")] = attributes.get("href", "")
        elif name == "itemref":
            spine.append(attributes.get("idref", ""))
    pages, size = list[str](), 0
    for one in dict.fromkeys(spine):
        name = normpath(join(dirname(place), unquote(files.get(one, ""))))
        page = archive.read(name) if size < MAX_CHARS else None
        if page is not None:
            pages.append(read_html(page.decode("utf-8", "replace"))["text"])
            size += len(pages[-1])
    return first_text(described, "title"), "\n\n".join(filter(None, pages))


# --- Pages --------------------------------------------------------------------------------------
#
# Since 2013 a document is a ZIP file of archives, each a run of objects in protocol buffers, packed
# by Snappy. Of the objects one kind holds text (TSWP.StorageArchive).

_TEXT_OBJECT = 2001
_BODY = 0
_NOT_READ = (1, 4)
"""Kinds of text that no page shows as its own: headers and footers, and tables' notes."""

_MARKS = re.compile("[\ufffc\u0004\u0005\u000e\u000f]")
"""Stand for pictures, notes and breaks."""


def read_pages(data: bytes) -> tuple[str, str]:
    """Apple's form, of Pages '13 and later."""
    archive = Archive(data)
    inner = archive.read("Index.zip")
    archive = Archive(inner) if inner is not None else archive
    texts: list[tuple[int, str]] = []
    for name in archive.names():
        if name.startswith("Index/") and name.endswith(".iwa"):
            texts += _texts(_chunks(archive.needed(name)))
    if not texts and not any(name.endswith(".iwa") for name in archive.names()):
        raise Problem(_DAMAGED)
    found = [text for kind, text in sorted(texts, key=lambda one: one[0] != _BODY)]
    text = "\n\n".join(one.strip() for one in found if one.strip())
    return "", _MARKS.sub("", text.replace("\u2028", "\n").replace("\u2029", "\n"))


def _chunks(data: bytes) -> bytes:
    """An archive's chunks, each behind a zero and its length in three bytes."""
    at, found = 0, bytearray()
    while at + 4 <= len(data):
        size = int.from_bytes(data[at + 1 : at + 4], "little")
        found += _snappy(data[at + 4 : at + 4 + size], MAX_UNPACKED - len(found))
        at += 4 + size
    return bytes(found)


def _snappy(data: bytes, max_bytes: int) -> bytes:
    """Snappy's raw form: pieces as they are, and copies of what came before."""
    length, at = _varint(data, 0)
    out = bytearray()
    while at < len(data):
        tag = data[at]
        kind, size = tag & 3, tag >> 2
        at += 1
        if kind == 0:
            if size >= 60:
                more = size - 59
                size = int.from_bytes(data[at : at + more], "little")
                at += more
            out += data[at : at + size + 1]
            at += size + 1
        else:
            if kind == 1:
                size, far = (size & 7) + 3, (tag >> 5) << 8 | data[at]
            else:
                far = int.from_bytes(data[at : at + 2 * kind - 2], "little")
            at += 1 if kind == 1 else 2 * kind - 2
            size += kind == 1 or 1
            if not 0 < far <= len(out):
                raise Problem("it is damaged")
            start = len(out) - far
            piece = bytes(out[start : start + size])
            out += (piece * (size // len(piece) + 1))[:size]
        if len(out) > min(length, max_bytes):
            raise Problem("it is damaged, or unpacks to too much")
    return bytes(out)


def _varint(data: bytes, offset: int) -> tuple[int, int]:
    """A number, and where it ends."""
    value = 0
    for shift in range(0, 64, 7):
        value |= (data[offset] & 127) << shift
        offset += 1
        if data[offset - 1] < 128:
            break
    return value, offset


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a message, each with its number; those of a fixed size are left out."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(data, at)
            yield key >> 3, value
        elif kind == 2:
            size, at = _varint(data, at)
            yield key >> 3, data[at : at + size]
            at += size
        elif kind in (1, 5):
            at += 8 if kind == 1 else 4
        else:
            raise Problem("it is damaged")


def _texts(data: bytes) -> Iterator[tuple[int, str]]:
    """The texts of an archive's objects, each with the kind it is of."""
    at = 0
    while at < len(data):
        size, at = _varint(data, at)
        described, at = data[at : at + size], at + size
        for number, message in _fields(described):
            if number != 2 or not isinstance(message, bytes):
                continue
            facts = dict(_fields(message))
            kind, length = facts.get(1, 0), facts.get(3, 0)
            if not isinstance(length, int):
                raise Problem("it is damaged")
            content, at = data[at : at + length], at + length
            if kind != _TEXT_OBJECT:
                continue
            fields = list(_fields(content))
            of = next((value for number, value in fields if number == 1), _BODY)
            pieces = [value for number, value in fields if number == 3 and isinstance(value, bytes)]
            if isinstance(of, int) and of not in _NOT_READ:
                yield of, "".join(piece.decode("utf-8", "replace") for piece in pieces)


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
"""Groups that are no text of the document."""


def read_rtf(data: bytes) -> tuple[str, str]:
    """Rich text: what stands in groups that are text, letters by the document's code page."""
    if not data.lstrip().startswith(b"{\\rtf"):
        raise Problem(_DAMAGED)
    page = re.search(rb"\\ansicpg(\d{1,5})", data[:4_000])
    encoding = f"cp{page[1].decode()}" if page else "cp1252"
    out: list[str] = []
    raw = bytearray()  # letters of several bytes stand in several escapes
    stack, shown, fallback, skip = list[tuple[bool, int]](), True, 1, 0

    def flush() -> None:
        try:
            out.append(raw.decode(encoding, "replace"))
        except LookupError:
            out.append(raw.decode("cp1252", "replace"))
        raw.clear()

    for found in _RTF.finditer(data):
        brace, word, number = found["brace"], found["word"], found["number"]
        byte = bytes.fromhex(found["hex"].decode()) if found["hex"] else b""
        if skip and (byte or found["text"]):  # stands for a letter that was written by its number
            text = found["text"] or b""
            byte, skip = text[skip:], max(0, skip - max(1, len(text)))
        else:
            byte = byte or found["text"] or b""
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
        elif word in _HIDDEN or found["sign"] == b"*":
            shown = False
        elif word == b"uc":
            fallback = int(number or 1)
        elif word == b"u" and number:
            code = int(number) % 65_536
            out.append(chr(code) if shown else "")
            skip = fallback
        elif shown:
            out.append(_BREAKS.get(word or found["sign"] or b"", ""))
    flush()
    text = "".join(out).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    title = re.search(rb"\{\\title ([^{}\\]{1,200})\}", data[:100_000])
    return title[1].decode(encoding, "replace") if title else "", text.strip()


READERS: dict[str, Callable[[bytes], tuple[str, str]]] = {
    ".docx": read_docx,
    ".odt": read_odt,
    ".epub": read_epub,
    ".pages": read_pages,
    ".rtf": read_rtf,
}
