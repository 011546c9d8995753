"""HTML as text that a model can read: headings, lists, links and code in Markdown.

What a reader of the page would not see is left out: scripts, styles, comments, templates, and what
is hidden by an attribute or by the element's own style. What a style sheet hides is not known here.
Nothing recurses, so depth costs no more than length.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import urljoin

from mlx_tools.process.hidden_elements import hides

if TYPE_CHECKING:
    from justhtml import Node

SKIPPED: Final = frozenset(
    (
        *("head", "script", "style", "noscript", "template", "svg", "canvas", "iframe", "frame"),
        *("object", "embed", "applet", "audio", "video", "map", "noframes", "noembed", "param"),
        *("input", "select", "datalist", "textarea", "button", "option", "optgroup", "rp"),
        *("annotation", "annotation-xml", "dialog", "#comment", "!doctype"),
    )
)
_FURNITURE: Final = frozenset(("nav", "footer", "aside"))
_FURNITURE_ROLES: Final = frozenset(
    ("navigation", "contentinfo", "complementary", "search", "banner")
)

_PARAGRAPHS: Final = frozenset(
    (
        *("p", "h1", "h2", "h3", "h4", "h5", "h6", "blockquote", "pre", "ul", "ol", "dl", "table"),
        *("figure", "hr", "section", "article", "main", "details", "fieldset"),
    )
)
"""Elements with an empty line around them."""
_LINES: Final = frozenset(
    (
        *("div", "li", "dt", "dd", "tr", "caption", "figcaption", "header", "footer", "nav"),
        *("aside", "form", "address", "summary", "center", "body", "html", "legend", "hgroup"),
        *("thead", "tbody", "tfoot", "menu", "dir"),
    )
)
"""Elements on lines of their own."""

_SPACES: Final = re.compile(r"[ \t\n\r\f\u00a0]+")

MAX_LINK: Final = 500
MAX_DEPTH: Final = 6
"""Levels of lists and quotations that are indented."""
_ENOUGH: Final = 200
"""Characters of a page's main part that are taken for its text."""


@dataclass(frozen=True, slots=True)
class Readable:
    """A page's title and text. ``cut`` is whether the text was too long."""

    title: str
    text: str
    cut: bool


def readable(html: str, url: str, most: int) -> Readable:
    """The text of a page that stands at ``url``, at most ``most`` characters."""
    from justhtml import JustHTML

    root = JustHTML(html, sanitize=False, scripting_enabled=True).root
    first = dict(_firsts(root, ("title", "base")))
    title = " ".join(_plain_text(first["title"]).split())[:300] if "title" in first else ""
    base = str(_attribute(first["base"], "href")) if "base" in first else ""
    try:
        address = urljoin(url, base)
    except ValueError:
        address = url
    for part, furniture in ((_main_part(root), True), (root, False), (root, True)):
        if part is None:
            continue
        writer = _MarkdownWriter(address, url, most)
        _walk(part, writer, furniture=furniture)
        text = writer.result()
        if len(text) >= _ENOUGH or (part is root and (furniture or text)):
            break
    return Readable(title, text, writer.full)


def _main_part(root: Node) -> Node | None:
    """The element that says that it is the page's main part: ``main``, or the only ``article``."""
    articles: list[Node] = []
    for node in _elements(root):
        if node.name == "main" or _attribute(node, "role") == "main":
            return node
        if node.name == "article":
            articles.append(node)
    return articles[0] if len(articles) == 1 else None


def _firsts(root: Node, names: tuple[str, ...]) -> Iterator[tuple[str, Node]]:
    """The first element of each of these names, in HTML proper (a drawing has titles too)."""
    left = set(names)
    for node in _elements(root):
        if node.name in left and node.namespace in (None, "html"):
            left.discard(node.name)
            yield node.name, node
            if not left:
                return


def _elements(root: Node) -> Iterator[Node]:
    """All elements below ``root``, in order; the hidden ones and what is in them left out."""
    left = [root]
    while left:
        node = left.pop()
        if node.name.startswith("#text") or (node.name != "head" and is_hidden(node)):
            continue
        yield node
        left += reversed(node.children or ())


def _plain_text(node: Node) -> str:
    return "".join(str(c.data or "") for c in node.children or () if c.name == "#text")


def _attribute(node: Node, name: str) -> str | None:
    """An attribute's value, empty where it has none; None where there is no such attribute."""
    attributes = node.attrs
    if not attributes or name not in attributes:
        return None
    return attributes[name] or ""


def is_hidden(node: Node) -> bool:
    """Whether a reader of the page would not see an element, as far as it says so itself."""
    if node.name in SKIPPED:
        return not (node.name == "dialog" and _attribute(node, "open") is not None)
    if not node.attrs:
        return False
    if "hidden" in node.attrs or "popover" in node.attrs:
        return True
    if (_attribute(node, "aria-hidden") or "").lower() == "true":
        return True
    style = _attribute(node, "style")
    return style is not None and hides(style)


def _walk(root: Node, writer: _MarkdownWriter, *, furniture: bool) -> None:
    """Goes through all that can be seen below ``root``, until the text is full."""
    left: list[tuple[Node, bool]] = [(root, False)]
    while left and not writer.full:
        node, leaving = left.pop()
        if leaving:
            writer.leave(node)
        elif node.name == "#text":
            writer.text(str(node.data or ""))
        elif not is_hidden(node) and (furniture or not _is_furniture(node)):
            writer.enter(node)
            left.append((node, True))
            left += [(child, False) for child in reversed(node.children or ())]


def _is_furniture(node: Node) -> bool:
    if node.name in _FURNITURE:
        return True
    return (_attribute(node, "role") or "").lower() in _FURNITURE_ROLES


class _MarkdownWriter:
    """Writes what it is told of a page, in order, as Markdown."""

    def __init__(self, base: str, page: str, most: int) -> None:
        self.full = False
        self._base = base
        self._page = page.partition("#")[0]
        self._most = most
        self._size = 0
        self._pieces: list[str] = []
        self._due = 0  # line ends before the next word
        self._space = False
        self._lists: list[int | None] = []  # the next number of each, None where it has bullets
        self._quotes = 0
        self._level = 0  # of quotations, at the line ends that are due
        self._pre: int | None = None  # where a block of code begins
        self._link: tuple[Node, str, int | None] | None = None
        self._mark = ""  # what stands before the next word, on its line
        self._code: Node | None = None

    def result(self) -> str:
        """All that was written, without space around it."""
        return "".join(self._pieces).strip("\n ")[: self._most]

    def text(self, data: str) -> None:
        """The text of a page, its space folded unless it is code."""
        if self._pre is not None:
            self._put(data)
            return
        words = _SPACES.sub(" ", data)
        if words.startswith(" "):
            self._space = True
            words = words[1:]
        if not words:
            return
        trailing = words.endswith(" ")
        self._word(words[:-1] if trailing else words)
        self._space = trailing

    def enter(self, node: Node) -> None:
        """What stands before an element's content."""
        name = node.name
        if name in _PARAGRAPHS:
            self._line(2)
        elif name in _LINES:
            self._line(1)
        match name:
            case "br":
                self._break()
            case "hr":
                self._word("---")
                self._line(2)
            case "h1" | "h2" | "h3" | "h4" | "h5" | "h6":
                self._mark = "#" * int(name[1]) + " "
            case "ul" | "ol" | "menu" | "dir":
                self._lists.append(_start(node) if name == "ol" else None)
            case "li":
                self._item()
            case "blockquote":
                self._quotes += 1
            case "td" | "th":
                self._cell()
            case "img":
                self._image(node)
            case "a":
                self._open_link(node)
            case "pre":
                self._flush()
                self._pre = len(self._pieces)
            case "code" if self._pre is None and self._code is None:
                self._flush()
                self._put("`")
                self._code = node

    def leave(self, node: Node) -> None:
        """What stands after it."""
        name = node.name
        match name:
            case "ul" | "ol" | "menu" | "dir" if self._lists:
                self._lists.pop()
            case "blockquote" if self._quotes:
                self._quotes -= 1
            case "a":
                self._close_link(node)
            case "pre":
                self._fence()
            case "code" if node is self._code:
                self._code = None
                if self._pieces[-1] == "`":
                    self._pieces.pop()
                else:
                    self._put("`")
        if name in _PARAGRAPHS:
            self._mark = ""
            self._line(2)
        elif name in _LINES:
            self._line(1)

    def _line(self, count: int) -> None:
        """A line ends here, and an empty one follows where ``count`` is 2."""
        if self._pre is None:
            count = 1 if self._lists else count
            self._level = min(self._level, self._quotes) if self._due else self._quotes
            self._due = max(self._due, count)
            self._space = False

    def _break(self) -> None:
        if self._pre is not None:
            self._put("\n")
        else:
            self._line(2 if self._due else 1)

    def _put(self, text: str) -> None:
        self._pieces.append(text)
        self._size += len(text)
        self.full = self.full or self._size > self._most

    def _flush(self) -> None:
        """Writes the line ends, indentation and space that are due."""
        if self._due and self._pieces:
            quote = "> " * min(self._level, MAX_DEPTH)
            self._put("\n" if self._due == 1 else f"\n{quote.rstrip()}\n")
        if self._due or not self._pieces:
            depth = len(self._lists) - (1 if self._mark else 0)
            self._put("> " * min(self._quotes, MAX_DEPTH) + "  " * min(max(depth, 0), MAX_DEPTH))
        elif self._space:
            self._put(" ")
        self._due, self._space = 0, False
        if self._mark:
            self._put(self._mark)
            self._mark = ""

    def _word(self, words: str) -> None:
        if not words:
            return
        self._flush()
        if self._link is not None and self._link[2] is None:
            self._link = (*self._link[:2], len(self._pieces))
        self._put(words)

    def _item(self) -> None:
        number = self._lists[-1] if self._lists else None
        if number is None:
            self._mark = "- "
        else:
            self._mark = f"{number}. "
            self._lists[-1] = number + 1

    def _cell(self) -> None:
        """A bar before all cells of a row but the first that has words."""
        if not self._due and self._pieces:
            self._space = False
            self._put(" | ")

    def _image(self, node: Node) -> None:
        if {_attribute(node, "width"), _attribute(node, "height")} & {"0", "1"}:
            return  # nobody sees it: it counts who reads the page
        words = " ".join((_attribute(node, "alt") or "")[:MAX_LINK].split())
        if words:
            self._word(f"![{words}]")

    def _open_link(self, node: Node) -> None:
        target = self._target(_attribute(node, "href") or "")
        if self._link is None and target:
            self._link = (node, target, None)

    def _close_link(self, node: Node) -> None:
        if self._link is None or self._link[0] is not node:
            return
        _, target, start = self._link
        self._link = None
        if start is None:
            return
        words = "".join(self._pieces[start:])
        if words in (target, target.removesuffix("/")):
            return
        if "\n" in words:
            self._put(f" ({target})")
            return
        del self._pieces[start:]
        self._size -= len(words)
        self._put(f"[{words}]({target})")

    def _target(self, href: str) -> str:
        """Where a link leads, empty where that is no other page."""
        href = "".join(href[: 2 * MAX_LINK].split())
        if not href or href.startswith("#"):
            return ""
        try:
            target = urljoin(self._base, href)
        except ValueError:
            return ""
        if len(target) > MAX_LINK or not target.lower().startswith(("https://", "http://")):
            return ""
        if target.partition("#")[0] == self._page or not target.isprintable():
            return ""
        return target.replace("(", "%28").replace(")", "%29")

    def _fence(self) -> None:
        if self._pre is None:
            return
        code = "".join(self._pieces[self._pre :]).strip("\n")
        del self._pieces[self._pre :]
        self._pre = None
        if code.strip():
            longest = max((len(run) for run in re.findall(r"`{3,}", code)), default=2)
            fence = "`" * (longest + 1)
            self._pieces.append(f"{fence}\n{code}\n{fence}")
        self._line(2)


def _start(node: Node) -> int:
    text = _attribute(node, "start") or ""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 7 else 1
