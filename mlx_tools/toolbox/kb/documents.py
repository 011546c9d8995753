"""Files as documents: which of them hold text, what it is, and what it is called."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Final

from mlx_tools.toolbox.kb.chunks import MAX_HEADING_CHARS, Passage, passages
from mlx_tools.toolbox.kb.encodings import UnreadableFile, decoded, packed_as
from mlx_tools.toolbox.kb.html import read_html
from mlx_tools.toolbox.kb.notebook import read_notebook
from mlx_tools.toolbox.kb.pdf import PAGE_END, read_pdf

READER: Final = "2"
"""The version of what is done here: a file that an earlier one has read is read again."""

MAX_TEXT_BYTES: Final = 10_000_000
MAX_PDF_BYTES: Final = 100_000_000

_MARKDOWN: Final = frozenset((".md", ".markdown", ".mdown", ".mkd", ".mdx", ".qmd", ".rmd"))
_RST: Final = frozenset((".rst", ".rest"))
_HTML: Final = frozenset((".html", ".htm", ".xhtml"))
_TEX: Final = frozenset((".tex",))
_PROSE: Final = frozenset(
    (".txt", ".text", ".org", ".adoc", ".asciidoc", ".log", ".csv", ".tsv", "")
)
_NOTEBOOK: Final = ".ipynb"
_OFFICE: Final = frozenset(
    (
        *(".doc", ".docx", ".odt", ".rtf", ".pages", ".epub", ".mobi", ".xls", ".xlsx", ".ods"),
        *(".numbers", ".ppt", ".pptx", ".odp", ".key"),
    )
)
"""What people take for text, and is not read here: they are told of each."""

PDF: Final = ".pdf"
_WRITTEN: Final = _MARKDOWN | _RST | _HTML | _TEX | _PROSE | {PDF, _NOTEBOOK}

_PRIVATE_KEY: Final = re.compile(rb"\A\s{0,64}-----BEGIN [A-Z ]{0,40}PRIVATE KEY")
_RST_MARK: Final = re.compile(r"^(?:\.\. [\w:-]+|:[\w ]+:|[=~^\"'*+#-]{3,}[ \t]*)$", re.MULTILINE)
_FIRST_STRING: Final = re.compile(
    r"\A(?:\s|#[^\n]*\n|//[^\n]*\n)*(?:[rRuU]?(?:\"\"\"|''')|/\*+)\s*([^\n\"*]{3,})"
)
_FRONT: Final = re.compile(r"\A---[ \t]*\n(?:(?!---[ \t]*$)[^\n]*\n)*?---[ \t]*\n", re.MULTILINE)
_FRONT_TITLE: Final = re.compile(r"^title[ \t]*:[ \t]*(\S[^\n]*)", re.MULTILINE | re.IGNORECASE)
_HASHES: Final = re.compile(r"^#{1,6}[ \t]+(\S[^\n]*)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Document:
    """The text of a file, what it is called, and its passages.

    Of a file with pages, ``pages`` are the characters at which each page begins. Where the text is
    not the file as it stands, ``lines`` are the lines of the file in which each line of the text
    begins, from 1, or 0 where that means nothing.
    """

    title: str
    text: str
    passages: tuple[Passage, ...]
    pages: tuple[int, ...] = ()
    lines: tuple[int, ...] = ()


def suffix_of(name: str) -> str:
    """The ending by which a file's form is known, in small letters."""
    return PurePath(name).suffix.lower()


def is_prose(name: str) -> bool:
    """Whether a file of this name is written for people, and not for a machine."""
    return suffix_of(name) in _WRITTEN


def limit_of(name: str) -> int:
    """How many bytes a file of this name may have."""
    return MAX_PDF_BYTES if suffix_of(name) == PDF else MAX_TEXT_BYTES


def read_document(name: str, data: bytes) -> Document:
    """What a file of this name and content says. Raises `UnreadableFile`."""
    suffix = suffix_of(name)
    if suffix in _OFFICE:
        raise UnreadableFile(
            f"files of the form {suffix} are not read: save it as PDF, HTML or text"
        )
    if (kind := packed_as(data)) is not None:
        raise UnreadableFile(f"it is packed ({kind}), and nothing is unpacked")
    if suffix == PDF or data.startswith(b"%PDF-"):
        return _pages(name, data)
    if _PRIVATE_KEY.match(data):
        raise UnreadableFile("it is a private key")
    text = decoded(data)
    if suffix in _HTML or (
        suffix == "" and text[:200].lstrip().lower().startswith("<!doctype html")
    ):
        page = read_html(text)
        title = page.title or _markdown_title(page.text)
        return replace(_document(title, name, page.text, "markdown"), lines=page.lines)
    if suffix == _NOTEBOOK and (cells := read_notebook(text)) is not None:
        document = _document(_markdown_title(cells), name, cells, "markdown")
        return replace(document, lines=(0,) * (cells.count("\n") + 1))
    form, title_of = _form(suffix, text)
    return _document(title_of(text), name, text, form)


def _form(suffix: str, text: str) -> tuple[str, Callable[[str], str]]:
    """How a text is cut, and how its title is found."""
    if suffix in _MARKDOWN:
        return "markdown", _markdown_title
    if suffix in _RST or (suffix in (".txt", "") and _RST_MARK.search(text[:4_000])):
        return "rst", _first_line
    if suffix in _TEX:
        return "tex", lambda text: ""
    if suffix in _PROSE:
        return "text", _first_line
    return "code", _code_title


def _document(title: str, name: str, text: str, form: str) -> Document:
    return Document(_short(title) or name, text, tuple(passages(text, form)))


def _pages(name: str, data: bytes) -> Document:
    """A PDF, its pages' texts one after the other."""
    try:
        title, pages = read_pdf(data)
    except ValueError as error:
        raise UnreadableFile(str(error)) from None
    starts, at = [], 0
    for page in pages:
        starts.append(at)
        at += len(page) + len(PAGE_END)
    text = PAGE_END.join(pages)
    if not text.strip():
        raise UnreadableFile("it holds no text (scanned pages?)")
    found = passages(text)
    lines = (0,) * (text.count("\n") + 1)
    return Document(_short(title) or name, text, tuple(found), tuple(starts), lines)


def _markdown_title(text: str) -> str:
    """What a text calls itself before it begins, or its first heading."""
    if (front := _FRONT.match(text[:20_000])) is not None:
        if (named := _FRONT_TITLE.search(front[0])) is not None:
            return named[1].strip("\"' ")
        text = text[front.end() :]
    found = _HASHES.search(text[:20_000])
    return found[1].rstrip("# ") if found else _first_line(text)


def _first_line(text: str) -> str:
    """The first line that says something, if it is as short as a title."""
    for line in text[:4_000].split("\n"):
        words = line.strip()
        if any(c.isalnum() for c in words) and not words.startswith(("..", ":")):
            return words if len(words) <= MAX_HEADING_CHARS else ""
    return ""


def _code_title(text: str) -> str:
    """The first sentence of what the file says of itself."""
    found = _FIRST_STRING.match(text[:4_000])
    return found[1].strip(" \t'\"/") if found else ""


def _short(title: str) -> str:
    line = " ".join(title.split())
    return line if len(line) <= MAX_HEADING_CHARS else line[: MAX_HEADING_CHARS - 1] + "…"
