"""Files as documents: which of them hold text, what it is, and what it is called."""

from __future__ import annotations

import base64
import functools
import itertools
import json
import re
from collections.abc import Iterator
from importlib import metadata
from pathlib import PurePath
from typing import Any, Final

from msgspec import Struct

from mlx_tools.paths import to_install
from mlx_tools.toolbox.kb.passages import MAX_HEADING_CHARS, Passage, passages
from mlx_tools.toolbox.web_fetch import find_charset, split_bom
from mlx_tools.toolbox.worker import Bounds, WorkerFailed, run_apart

READER: Final = "4"
"""The version of what is done here: a file that an earlier one has read is read again."""

MAX_TEXT_BYTES: Final = 10_000_000
MAX_PACKED_BYTES: Final = 100_000_000
"""Of a PDF, and of what an office program writes: pictures are most of it."""
SNIFFED: Final = 8_192
"""Bytes at the beginning by which a file is known."""

BINARY: Final = "it is binary"
UNKNOWN: Final = "its encoding is not known: save it as UTF-8"

PDF: Final = ".pdf"
_NOTEBOOK: Final = ".ipynb"
_HTML: Final = frozenset((".html", ".htm", ".xhtml"))
_FORMS: Final = {
    **dict.fromkeys((".md", ".markdown", ".mdown", ".mkd", ".mdx", ".qmd", ".rmd"), "markdown"),
    **dict.fromkeys((".rst", ".rest"), "rst"),
    **dict.fromkeys((".txt", ".text", ".org", ".adoc", ".asciidoc", ".log", ".tex"), "text"),
    **dict.fromkeys((".csv", ".tsv", ""), "text"),
}
"""How a text of this suffix is cut; all others are code."""

_OFFICE: Final = frozenset((".docx", ".odt", ".rtf", ".pages", ".epub"))
"""What is read by `mlx_tools.toolbox.kb.office`."""

_UNREAD: Final = frozenset(
    (".doc", ".mobi", ".xls", ".xlsx", ".ods", ".numbers", ".ppt", ".pptx", ".odp", ".key")
)
"""What people take for text, and is not read here: they are told of each."""

_MOST_OUTPUT: Final = 2_000
"""Characters of what a notebook's cell printed that are kept."""

_PRIVATE_KEY: Final = re.compile(rb"\A\s{0,64}-----BEGIN [A-Z ]{0,40}PRIVATE KEY")
_FIRST_STRING: Final = re.compile(
    r"\A(?:\s|#[^\n]*\n|//[^\n]*\n)*(?:[rRuU]?(?:\"\"\"|''')|/\*+)\s*([^\n\"*]{3,})"
)
_FRONT: Final = re.compile(r"\A---[ \t]*\r?\n((?:.*\n)*?)---[ \t]*\r?(?:\n|\Z)")
_FRONT_TITLE: Final = re.compile(r"^title[ \t]*:[ \t]+(\S[^\n]*)", re.MULTILINE | re.IGNORECASE)
_HEADING_LINES: Final = 50

_ODD: Final = re.compile("[\0-\x08\x0b\x0e-\x1a\x1c-\x1f\x7f-\x9f]")
_WESTERN_SHARE: Final = 0.3
_FEW: Final = 5
"""Of the characters of a text in a Western language fewer are beyond ASCII. What has more and is no
UTF-8 is Cyrillic or Chinese in an encoding of its own, and would come out as nonsense."""


class UnreadableFile(Exception):
    """A file that is not taken in; its text says why."""


class Document(Struct, frozen=True):
    """The text of a file, what it is called, and its passages.

    ``pages`` are the characters at which each page begins, of a file that has pages. Where the text
    is not the file as it stands, its passages are in line 0.
    """

    title: str
    text: str
    passages: tuple[Passage, ...]
    pages: tuple[int, ...] = ()


def suffix_of(name: str) -> str:
    """The ending by which a file's form is known, in small letters."""
    return PurePath(name).suffix.lower()


def reader_of(name: str) -> str:
    """What reads a file of this name: where that is another than before, it is read again."""
    suffix = suffix_of(name)
    return (
        f"{READER} {_pdf_reader()}" if suffix == PDF else READER + " office" * (suffix in _OFFICE)
    )


def limit_of(name: str) -> int:
    """How many bytes a file of this name may have."""
    return MAX_PACKED_BYTES if suffix_of(name) in {PDF, *_OFFICE} else MAX_TEXT_BYTES


def read_document(name: str, data: bytes) -> Document:
    """What a file of this name and content says. Raises `UnreadableFile`."""
    suffix = suffix_of(name)
    if suffix in _UNREAD:
        raise UnreadableFile(
            f"files of the form {suffix} are not read: save it as PDF, HTML or text"
        )
    if suffix in _OFFICE:
        return _read_office(name, data)
    if is_binary(data):
        raise UnreadableFile(BINARY)
    if suffix == PDF or data.startswith(b"%PDF-"):
        return read_pdf(name, data)
    if _PRIVATE_KEY.match(data):
        raise UnreadableFile("it is a private key")
    text = decode_text(data)
    if suffix in _HTML or (not suffix and text[:200].lstrip().lower().startswith("<!doctype html")):
        from mlx_tools.toolbox.html_text import read_html

        page = read_html(text)
        title = page["title"] or _prose_title(page["text"])
        return _document(title, name, page["text"], "markdown", is_generated=True)
    if suffix == _NOTEBOOK and (cells := _read_notebook(text)) is not None:
        return _document(_prose_title(cells), name, cells, "markdown", is_generated=True)
    form = _FORMS.get(suffix, "code")
    title_of_form = {"code": _code_title, "text": _first_line}.get(form, _prose_title)
    return _document(title_of_form(text), name, text, form)


def _document(
    title: str,
    name: str,
    text: str,
    form: str,
    pages: tuple[int, ...] = (),
    *,
    is_generated: bool = False,
) -> Document:
    """The document of a text; ``is_generated`` is whether the text is not the file as it stands."""
    line = " ".join(title.split()) or name
    short = line if len(line) <= MAX_HEADING_CHARS else line[: MAX_HEADING_CHARS - 1] + "…"
    found = passages(text, form)
    if is_generated:
        found = [one._replace(line=0, end_line=0) for one in found]
    return Document(short, text, tuple(found), pages)


# --- PDF ----------------------------------------------------------------------------------------
#
# By pypdf, in a process of its own: a PDF can be a bomb, of streams that unpack without end and
# objects that hold themselves.

BOUNDS: Final = Bounds(seconds=60, cpu_seconds=60, memory_mb=1_500)
"""What one file may take."""

_PAGE_END: Final = "\n\n"


@functools.cache
def _pdf_reader() -> str:
    """What reads a PDF here: ``pypdf`` and its version, empty where it is missing."""
    try:
        return f"pypdf {metadata.version('pypdf')}"
    except metadata.PackageNotFoundError:
        return ""


def read_pdf(name: str, data: bytes, bounds: Bounds = BOUNDS) -> Document:
    """A PDF, its pages' texts one after the other. Raises `UnreadableFile`."""
    if not _pdf_reader():
        raise UnreadableFile(f"reading it takes pypdf: {to_install('pdf')}")
    found = _read_apart("read_pdf", "pypdf", {"data": data}, bounds)
    ends = [*itertools.accumulate(len(page) + len(_PAGE_END) for page in found["pages"])]
    text = _PAGE_END.join(found["pages"])
    if not text.strip():
        raise UnreadableFile("it holds no text (scanned pages?)")
    return _document(found["title"], name, text, "text", (0, *ends[:-1]), is_generated=True)


# --- office programs, books ---------------------------------------------------------------------


def _read_office(name: str, data: bytes) -> Document:
    question = {"data": data, "form": suffix_of(name)}
    found = _read_apart("read_office", "justhtml", question, BOUNDS)
    text = decode_text(str(found["text"]).encode("utf-8", "replace"))
    if not text.strip():
        raise UnreadableFile("it holds no text")
    return _document(
        found["title"] or _prose_title(text), name, text, "markdown", is_generated=True
    )


def _read_apart(
    work: str, package: str, question: dict[str, Any], bounds: Bounds
) -> dict[str, Any]:
    """What `mlx_tools.toolbox.kb.office` makes of a file's ``data``. Raises `UnreadableFile`."""
    asked = {**question, "data": base64.b64encode(question["data"]).decode()}
    try:
        return run_apart(f"kb.office.{work}", package, asked, bounds)
    except WorkerFailed as error:
        why = f" within {bounds.seconds:g} s and {bounds.memory_mb} MB" if error.beyond else ""
        why = f": {error.problem}" if error.problem else why
        raise UnreadableFile(f"it cannot be read{why}") from None


# --- notebooks ----------------------------------------------------------------------------------


def _read_notebook(source: str) -> str | None:
    """The cells of a Jupyter notebook as Markdown: what stands in them, code in fences, and what
    they printed; None where this is no notebook."""
    try:
        cells = json.loads(source)["cells"]
        return "\n\n".join(part for cell in cells for part in _of_cell(cell) if part.strip())
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None


def _of_cell(cell: Any) -> Iterator[str]:
    text = "".join(cell["source"])
    if cell["cell_type"] != "code":
        yield text
        return
    printed = (
        "".join(output.get("text") or output.get("data", {}).get("text/plain", ""))
        for output in cell.get("outputs", ())
    )
    for block in (text, "\n".join(printed)[:_MOST_OUTPUT]):
        if block.strip():
            yield f"```\n{block.strip()}\n```"


# --- titles -------------------------------------------------------------------------------------


def front_matter(text: str) -> tuple[str, str]:
    """The lines between two ``---`` with which a text begins, and the text below them."""
    found = _FRONT.match(text[:20_000])
    return (found[1], text[found.end() :]) if found is not None else ("", text)


def title_of(text: str) -> str:
    """What a Markdown text calls itself before it begins, or its first heading, empty where it has
    none. What looks like a heading in a block of code is none."""
    head, body = front_matter(text)
    if (named := _FRONT_TITLE.search(head)) is not None:
        return named[1].strip("\"' \r")
    before, fence = "", ""
    for line in map(str.strip, body.split("\n", _HEADING_LINES)[:_HEADING_LINES]):
        if line.startswith(("```", "~~~")):
            fence = "" if line.startswith(fence) and fence else fence or line[:3]
        elif not fence and re.match(r"#{1,6}[ \t]", line):
            return line.strip("# \t")
        elif not fence and before and line and not line.strip("="):
            return before
        before = line
    return ""


def _prose_title(text: str) -> str:
    return title_of(text) or _first_line(front_matter(text)[1])


def _first_line(text: str) -> str:
    """The first line that says something, if it is as short as a title."""
    for line in text[:4_000].split("\n"):
        words = line.strip()
        if any(c.isalnum() for c in words) and not words.startswith(("..", ":", "\\", "%")):
            return words if len(words) <= MAX_HEADING_CHARS else ""
    return ""


def _code_title(text: str) -> str:
    """The first sentence of what the file says of itself."""
    found = _FIRST_STRING.match(text[:4_000])
    return found[1].strip(" \t'\"/") if found else ""


# --- encodings ----------------------------------------------------------------------------------


def is_binary(head: bytes, name: str = "") -> bool:
    """True where a file that begins so is no text, as far as zero bytes tell; one of a ``name``
    that promises a document is looked at whole."""
    if suffix_of(name) in _OFFICE:
        return False
    return b"\0" in head[:SNIFFED] and b"%PDF-" not in head[:1024] and split_bom(head)[0] is None


def decode_text(data: bytes) -> str:
    """The bytes as text with line ends ``\\n``: UTF-8, UTF-16 with its mark, what a page names, or
    Windows-1252 where it can be. Raises `UnreadableFile` where they are none."""
    mark, data = split_bom(data)
    for encoding in (mark,) if mark else ("utf-8", find_charset(data) or "utf-8"):
        try:
            text = data.decode(encoding)
            break
        except ValueError:
            continue
    else:
        text = _western(data)
    head = text[:SNIFFED]
    if "\0" in text or len(_ODD.findall(head)) > len(head) // 50:
        raise UnreadableFile(BINARY)
    return text.replace("\r\n", "\n").replace("\r", "\n").encode("utf-8", "replace").decode()


def _western(data: bytes) -> str:
    try:
        text = data.decode("cp1252")
    except ValueError:
        raise UnreadableFile(UNKNOWN) from None
    signs = [c for c in text[:SNIFFED] if not c.isspace()]
    if sum(not c.isascii() for c in signs) > max(_FEW, _WESTERN_SHARE * len(signs)):
        raise UnreadableFile(UNKNOWN)
    return text
