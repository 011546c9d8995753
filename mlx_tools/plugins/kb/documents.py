"""Reads files as documents: their text, title and passages."""

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
from mlx_tools.plugins.kb.passages import MAX_HEADING_CHARS, Passage, split_passages
from mlx_tools.toolbox import Bounds, WorkerFailed, find_charset, run_worker, split_bom

READER: Final = "4"
"""The version of this code. A file that an earlier version has read is read again."""

MAX_TEXT_BYTES: Final = 10_000_000
MAX_PACKED_BYTES: Final = 100_000_000
"""Bytes of a PDF or an office document, most of which are pictures."""
SNIFFED: Final = 8_192
"""Bytes at the beginning of a file that show its kind."""

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
"""The form of a text by suffix, which decides how it is cut. All other suffixes mean code."""

_OFFICE: Final = frozenset((".docx", ".odt", ".rtf", ".pages", ".epub"))
"""Suffixes that `mlx_tools.plugins.kb.office` reads."""

_UNREAD: Final = frozenset(
    (".doc", ".mobi", ".xls", ".xlsx", ".ods", ".numbers", ".ppt", ".pptx", ".odp", ".key")
)
"""Suffixes of texts in forms that are not read here. Such files are reported."""

_MAX_OUTPUT_CHARS: Final = 2_000
"""Characters of a notebook cell's output that are indexed."""

_PRIVATE_KEY: Final = re.compile(rb"\A\s{0,64}-----BEGIN [A-Z ]{0,40}PRIVATE KEY")
_FIRST_STRING: Final = re.compile(
    r"\A(?:\s|#[^\n]*\n|//[^\n]*\n)*(?:[rRuU]?(?:\"\"\"|''')|/\*+)\s*([^\n\"*]{3,})"
)
_FRONT: Final = re.compile(r"\A---[ \t]*\r?\n((?:.*\n)*?)---[ \t]*\r?(?:\n|\Z)")
_FRONT_TITLE: Final = re.compile(r"^title[ \t]*:[ \t]+(\S[^\n]*)", re.MULTILINE | re.IGNORECASE)
_HEADING_LINES: Final = 50

_CONTROLS: Final = re.compile("[\0-\x08\x0b\x0e-\x1a\x1c-\x1f\x7f-\x9f]")
_WESTERN_SHARE: Final = 0.3
_MIN_FOREIGN_CHARS: Final = 5
"""Characters beyond ASCII that any text may have. If there are more, their share decides. In a
Western language it is smaller than `_WESTERN_SHARE`. A text with a larger share that is not UTF-8
is for example Cyrillic or Chinese in another encoding, and would be read as nonsense."""


class UnreadableFile(Exception):
    """A file that is not added; the message says why."""


class Document(Struct, frozen=True):
    """The text of a file, its title, and its passages."""

    title: str
    text: str
    passages: tuple[Passage, ...]
    """Its passages. Their line is 0 if the text differs from the file's content."""
    pages: tuple[int, ...] = ()
    """The offset of each page, for a file with pages."""


def get_suffix(name: str) -> str:
    """Return the suffix that shows a file's form, in lower case."""
    return PurePath(name).suffix.lower()


def find_reader(name: str) -> str:
    """Return the reader of a file. If it differs from before, the file is read again."""
    suffix = get_suffix(name)
    return (
        f"{READER} {_find_pdf_reader()}"
        if suffix == PDF
        else READER + " office" * (suffix in _OFFICE)
    )


def find_limit(name: str) -> int:
    """Return the maximum of bytes of a file with this name."""
    return MAX_PACKED_BYTES if get_suffix(name) in {PDF, *_OFFICE} else MAX_TEXT_BYTES


def read_document(name: str, data: bytes) -> Document:
    """Return the document of a file. Raises `UnreadableFile`."""
    suffix = get_suffix(name)
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
        from mlx_tools.toolbox import read_html

        page = read_html(text)
        title = page["title"] or _find_prose_title(page["text"])
        return _make_document(title, name, page["text"], "markdown", is_generated=True)
    if suffix == _NOTEBOOK and (cells := _read_notebook(text)) is not None:
        return _make_document(_find_prose_title(cells), name, cells, "markdown", is_generated=True)
    form = _FORMS.get(suffix, "code")
    title_of_form = {"code": _find_code_title, "text": _find_first_line}.get(
        form, _find_prose_title
    )
    return _make_document(title_of_form(text), name, text, form)


def _make_document(
    title: str,
    name: str,
    text: str,
    form: str,
    pages: tuple[int, ...] = (),
    *,
    is_generated: bool = False,
) -> Document:
    """Return the document of a text.

    ``is_generated`` is True if the text differs from the file's content.
    """
    line = " ".join(title.split()) or name
    short = line if len(line) <= MAX_HEADING_CHARS else line[: MAX_HEADING_CHARS - 1] + "…"
    document_passages = split_passages(text, form)
    if is_generated:
        document_passages = [passage._replace(line=0, end_line=0) for passage in document_passages]
    return Document(short, text, tuple(document_passages), pages)


# --- PDF ----------------------------------------------------------------------------------------
#
# By pypdf, in a separate process: a PDF can be a bomb, with streams that unpack without end and
# objects that contain themselves.

BOUNDS: Final = Bounds(seconds=60, cpu_seconds=60, memory_mb=1_500)
"""The limits for one file. They are a choice."""

_PAGE_END: Final = "\n\n"


@functools.cache
def _find_pdf_reader() -> str:
    """Return the reader of PDFs: ``pypdf`` with its version, empty if it is missing."""
    try:
        return f"pypdf {metadata.version('pypdf')}"
    except metadata.PackageNotFoundError:
        return ""


def read_pdf(name: str, data: bytes, bounds: Bounds = BOUNDS) -> Document:
    """Return a PDF as a document, page after page. Raises `UnreadableFile`."""
    if not _find_pdf_reader():
        raise UnreadableFile(f"reading it takes pypdf: {to_install('pdf')}")
    result = _read_in_worker("read_pdf", "pypdf", {"data": data}, bounds)
    ends = [*itertools.accumulate(len(page) + len(_PAGE_END) for page in result["pages"])]
    text = _PAGE_END.join(result["pages"])
    if not text.strip():
        raise UnreadableFile("it holds no text (scanned pages?)")
    return _make_document(result["title"], name, text, "text", (0, *ends[:-1]), is_generated=True)


# --- office programs, books ---------------------------------------------------------------------


def _read_office(name: str, data: bytes) -> Document:
    question = {"data": data, "form": get_suffix(name)}
    result = _read_in_worker("read_office", "justhtml", question, BOUNDS)
    text = decode_text(str(result["text"]).encode("utf-8", "replace"))
    if not text.strip():
        raise UnreadableFile("it holds no text")
    return _make_document(
        result["title"] or _find_prose_title(text), name, text, "markdown", is_generated=True
    )


def _read_in_worker(
    work: str, package: str, question: dict[str, Any], bounds: Bounds
) -> dict[str, Any]:
    """Return the result of `mlx_tools.plugins.kb.office` for a file's ``data``.

    Raises:
        UnreadableFile: the file cannot be read.
    """
    request = {**question, "data": base64.b64encode(question["data"]).decode()}
    try:
        return run_worker(f"plugins.kb.office.{work}", package, request, bounds)
    except WorkerFailed as error:
        reason = (
            f" within {bounds.seconds:g} s and {bounds.memory_mb} MB" if error.over_limit else ""
        )
        reason = f": {error.problem}" if error.problem else reason
        raise UnreadableFile(f"it cannot be read{reason}") from None


# --- notebooks ----------------------------------------------------------------------------------


def _read_notebook(source: str) -> str | None:
    """Return the cells of a Jupyter notebook as Markdown, None if it is no notebook.

    The cells are texts, code in fences, and outputs.
    """
    try:
        cells = json.loads(source)["cells"]
        return "\n\n".join(part for cell in cells for part in _render_cell(cell) if part.strip())
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None


def _render_cell(cell: Any) -> Iterator[str]:
    text = "".join(cell["source"])
    if cell["cell_type"] != "code":
        yield text
        return
    printed = (
        "".join(output.get("text") or output.get("data", {}).get("text/plain", ""))
        for output in cell.get("outputs", ())
    )
    for block in (text, "\n".join(printed)[:_MAX_OUTPUT_CHARS]):
        if block.strip():
            yield f"```\n{block.strip()}\n```"


# --- titles -------------------------------------------------------------------------------------


def split_front_matter(text: str) -> tuple[str, str]:
    """Return the lines between two ``---`` at the start of a text, and the rest."""
    match = _FRONT.match(text[:20_000])
    return (match[1], text[match.end() :]) if match is not None else ("", text)


def find_title(text: str) -> str:
    """Return a Markdown text's own title, or its first heading, or an empty text.

    Lines in a block of code are no headings.
    """
    head, body = split_front_matter(text)
    if (title_match := _FRONT_TITLE.search(head)) is not None:
        return title_match[1].strip("\"' \r")
    previous_line, fence = "", ""
    for line in map(str.strip, body.split("\n", _HEADING_LINES)[:_HEADING_LINES]):
        if line.startswith(("```", "~~~")):
            fence = "" if line.startswith(fence) and fence else fence or line[:3]
        elif not fence and re.match(r"#{1,6}[ \t]", line):
            return line.strip("# \t")
        elif not fence and previous_line and line and not line.strip("="):
            return previous_line
        previous_line = line
    return ""


def _find_prose_title(text: str) -> str:
    return find_title(text) or _find_first_line(split_front_matter(text)[1])


def _find_first_line(text: str) -> str:
    """Return the first line with words, if it is short enough for a title."""
    for line in text[:4_000].split("\n"):
        words = line.strip()
        if any(c.isalnum() for c in words) and not words.startswith(("..", ":", "\\", "%")):
            return words if len(words) <= MAX_HEADING_CHARS else ""
    return ""


def _find_code_title(text: str) -> str:
    """Return the first sentence of the file's own docstring or comment."""
    match = _FIRST_STRING.match(text[:4_000])
    return match[1].strip(" \t'\"/") if match else ""


# --- encodings ----------------------------------------------------------------------------------


def is_binary(head: bytes, name: str = "") -> bool:
    """Return whether a file is binary, by zero bytes in its beginning.

    False for documents, by their ``name``, because these are read in another way.
    """
    if get_suffix(name) in _OFFICE:
        return False
    return b"\0" in head[:SNIFFED] and b"%PDF-" not in head[:1024] and split_bom(head)[0] is None


def decode_text(data: bytes) -> str:
    r"""Return the bytes as text with line ends ``\n``.

    The encoding is UTF-8, UTF-16 with its mark, the one that a web page names, or Windows-1252 if
    that is possible.

    Raises:
        UnreadableFile: the bytes are no text.
    """
    mark, data = split_bom(data)
    for encoding in (mark,) if mark else ("utf-8", find_charset(data) or "utf-8"):
        try:
            text = data.decode(encoding)
            break
        except ValueError:
            continue
    else:
        text = _decode_western(data)
    head = text[:SNIFFED]
    if "\0" in text or len(_CONTROLS.findall(head)) > len(head) // 50:
        raise UnreadableFile(BINARY)
    return text.replace("\r\n", "\n").replace("\r", "\n").encode("utf-8", "replace").decode()


def _decode_western(data: bytes) -> str:
    try:
        text = data.decode("cp1252")
    except ValueError:
        raise UnreadableFile(UNKNOWN) from None
    signs = [c for c in text[:SNIFFED] if not c.isspace()]
    if sum(not c.isascii() for c in signs) > max(_MIN_FOREIGN_CHARS, _WESTERN_SHARE * len(signs)):
        raise UnreadableFile(UNKNOWN)
    return text
