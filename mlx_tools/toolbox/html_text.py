"""HTML as text for a model: headings, lists, links and code in Markdown.

Parts that a reader of the page would not see are left out: scripts, styles, comments, templates,
and elements that an attribute or their own style hides. Style sheets are not read. No function is
recursive, so deep pages are no problem.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, TypedDict
from urllib.parse import urljoin

if TYPE_CHECKING:
    from justhtml import Node

_SKIPPED: Final = frozenset(
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
"""Elements on separate lines."""
_BREAKS: Final = {**dict.fromkeys(_LINES, 1), **dict.fromkeys(_PARAGRAPHS, 2)}
_HEADINGS: Final = {f"h{level}": "#" * level + " " for level in range(1, 7)}

_SPACES: Final = re.compile(r"[ \t\n\r\f\u00a0]+")
_COMMENT: Final = re.compile(r"/\*.*?(?:\*/|$)", re.DOTALL)
_END: Final = r"(?:[;!]|$)"
_ALPHA: Final = (
    rf"(?:#[0-9a-f]{{3}}0{_END}|#[0-9a-f]{{6}}00|(?:(?:rgb|hsl)a\([^);]*,|[^);]*/)0*\.?0*%?\))"
)
_COLOUR: Final = r"(?!inherit|initial|unset|revert|none)[#a-z][\da-z]*"
_DECLARATIONS: Final = r";(?:[^;]*;){0,9}"
_CLIPPED: Final = r"overflow(?:-[xy])?:(?:hidden|clip)"
_NOTHING: Final = r"(?:max-)?(?:width|height):(?:0[a-z%]*|1(?:px)?)"
_HIDING: Final = re.compile(
    r"(?:^|;)(?:-\w+-)?(?:display:none|(?:content-)?visibility:(?:hidden|collapse)"
    rf"|opacity:(?:-|\d%|\d*e-|(?=[\d.])0*(?:\.0\d*)?%?{_END})|font:[a-z]*0(?:px|/)"
    rf"|font-size:(?=[\d.])(?:[0-3]?(?:\.\d*)?(?:px|pt|{_END})|0*(?:\.[01]\d*)?(?:r?em|%))"
    r"|(?:left|right|top|inset|text-indent):(?:calc\()?-(?:\d{4}|9\d\d|[1-9]\d\d(?:r?em|v[wh]|%))"
    r"|margin(?:-\w+)?:[^;]{0,60}-(?:\d{4}|[1-9]\d\d(?:r?em|v[wh]))"
    rf"|{_NOTHING}{_DECLARATIONS}{_CLIPPED}|{_CLIPPED}{_DECLARATIONS}{_NOTHING}{_END}"
    r"|transform:[^;]{0,60}(?:scale[xy]?\(0(?:\.0\d*)?[,)]|translate[^;]{0,60}-\d{4})"
    rf"|(?:text-fill-)?color:(?:transparent|{_ALPHA})"
    rf"|color:(?P<ink>{_COLOUR}){_DECLARATIONS}background(?:-color)?:(?P=ink){_END}"
    rf"|background(?:-color)?:(?P<paper>{_COLOUR}){_DECLARATIONS}color:(?P=paper){_END}"
    r"|clip:rect\((?:[01](?:px)?,?){4}\)|clip-path:inset\((?:[5-9]\d|100)%)"
)
"""Values of a ``style`` attribute, without blanks, that hide the element, even if a later value
shows it again. These are the usual ways in which pages hide text from readers."""

_MAX_LINK: Final = 500
"""Characters of a link's target and of a picture's description. Longer ones are data."""
_MAX_DEPTH: Final = 6
"""Levels of lists and quotations that are indented."""
_MIN_MAIN_CHARS: Final = 200
"""Characters that the main part of a page needs to count as its text."""


class HtmlText(TypedDict):
    """A page's title and text; ``cut`` is True if the text was too long."""

    title: str
    text: str
    cut: bool


def read_html(html: str, url: str = "", max_chars: int = 10_000_000) -> HtmlText:
    """Return the text of a page.

    Args:
        html: the page.
        url: its address. Without one, only the words of links are shown.
        max_chars: the maximum of characters of the text.
    """
    from justhtml import JustHTML

    root = JustHTML(html, sanitize=False, scripting_enabled=True).root
    landmarks = _find_landmarks(root)
    title = base = ""
    if "title" in landmarks:
        texts = (str(c.data or "") for c in landmarks["title"].children or () if c.name == "#text")
        title = " ".join("".join(texts).split())[:300]
    if "base" in landmarks:
        base = _get_attribute(landmarks["base"], "href") or ""
    try:
        address = urljoin(url, base)
    except ValueError:
        address = url
    for part, furniture in ((landmarks.get("main"), True), (root, False), (root, True)):
        if part is None:
            continue
        writer = _MarkdownWriter(address if url else "", url, max_chars)
        _walk(part, writer, furniture=furniture)
        text = writer.result()
        if len(text) >= _MIN_MAIN_CHARS or (part is root and (furniture or text)):
            break
    return HtmlText(title=title, text=text, cut=writer.full)


def _find_landmarks(root: Node) -> dict[str, Node]:
    """Return the first HTML ``title`` and ``base``, and the ``main`` part.

    Titles of SVG pictures do not count. The main part is the element that declares it, or the only
    ``article``. Hidden elements and their content do not count.
    """
    landmarks: dict[str, Node] = {}
    articles: list[Node] = []
    pending = [root]
    while pending:
        node = pending.pop()
        name = node.name
        if name.startswith("#text") or (name != "head" and _is_hidden(node)):
            continue
        if name in ("title", "base") and node.namespace in (None, "html"):
            landmarks.setdefault(name, node)
        elif name == "main" or _get_attribute(node, "role") == "main":
            landmarks.setdefault("main", node)
        elif name == "article":
            articles.append(node)
        pending += reversed(node.children or ())
    if len(articles) == 1:
        landmarks.setdefault("main", articles[0])
    return landmarks


def _get_attribute(node: Node, name: str) -> str | None:
    """Return an attribute's value, "" if it has none, None without the attribute."""
    attributes = node.attrs
    if not attributes or name not in attributes:
        return None
    return attributes[name] or ""


def _is_hidden(node: Node) -> bool:
    """Return whether an element hides itself from a reader."""
    if node.name in _SKIPPED:
        return not (node.name == "dialog" and _get_attribute(node, "open") is not None)
    if not node.attrs:
        return False
    if "hidden" in node.attrs or "popover" in node.attrs:
        return True
    if (_get_attribute(node, "aria-hidden") or "").lower() == "true":
        return True
    style = _SPACES.sub("", _COMMENT.sub("", _get_attribute(node, "style") or "")).lower()
    return "\\" in style or _HIDING.search(style) is not None


def _walk(root: Node, writer: _MarkdownWriter, *, furniture: bool) -> None:
    """Write all visible elements below ``root``, until the text is full."""
    pending: list[tuple[Node, bool]] = [(root, False)]
    while pending and not writer.full:
        node, is_end = pending.pop()
        if is_end:
            writer.leave(node)
        elif node.name == "#text":
            writer.text(str(node.data or ""))
        elif not _is_hidden(node) and (furniture or not _is_furniture(node)):
            writer.enter(node)
            pending.append((node, True))
            pending += [(child, False) for child in reversed(node.children or ())]


def _is_furniture(node: Node) -> bool:
    if node.name in _FURNITURE:
        return True
    return (_get_attribute(node, "role") or "").lower() in _FURNITURE_ROLES


class _MarkdownWriter:
    """Writes the elements of a page, in order, as Markdown."""

    def __init__(self, base: str, page: str, max_chars: int) -> None:
        self.full = False
        self._base = base
        self._page = page.partition("#")[0]
        self._max_chars = max_chars
        self._size = 0
        self._pieces: list[str] = []
        self._due = 0  # line ends before the next word
        self._space = False
        self._lists: list[int | None] = []  # the next number of each list, None for bullets
        self._quotes = 0
        self._level = 0  # of quotations, at the pending line ends
        self._pre: int | None = None  # the piece that an open block of code begins with
        self._link: tuple[Node, str, int | None] | None = None
        self._mark = ""  # the mark before the next word, on its line
        self._code: Node | None = None

    def result(self) -> str:
        """Return the text without surrounding blanks."""
        return "".join(self._pieces).strip("\n ")[: self._max_chars]

    def text(self, data: str) -> None:
        """Write text; blanks are folded unless it is code."""
        if self._pre is not None:
            self._append(data)
            return
        words = _SPACES.sub(" ", data)
        self._space = self._space or words.startswith(" ")
        if words.strip(" "):
            self._word(words.strip(" "))
            self._space = words.endswith(" ")

    def enter(self, node: Node) -> None:
        """Write the start of an element."""
        name = node.name
        if name in _BREAKS:
            self._end_line(_BREAKS[name])
        match name:
            case "br" if self._pre is not None:
                self._append("\n")
            case "br":
                self._end_line(2 if self._due else 1)
            case "hr":
                self._word("---")
                self._end_line(2)
            case "ol":
                start = _get_attribute(node, "start") or ""
                plain = start.isascii() and start.isdecimal() and len(start) < 7
                self._lists.append(int(start) if plain else 1)
            case "ul" | "menu" | "dir":
                self._lists.append(None)
            case "li":
                number = self._lists[-1] if self._lists else None
                self._mark = "- " if number is None else f"{number}. "
                if number is not None:
                    self._lists[-1] = number + 1
            case "blockquote":
                self._quotes += 1
            case "td" | "th" if not self._due and self._pieces:  # not for the first cell with words
                self._space = False
                self._append(" | ")
            case "img":
                words = " ".join((_get_attribute(node, "alt") or "")[:_MAX_LINK].split())
                tiny = {_get_attribute(node, "width"), _get_attribute(node, "height")} & {"0", "1"}
                if words and not tiny:  # a tiny picture only counts readers
                    self._word(f"![{words}]")
            case "a":
                target = self._target(_get_attribute(node, "href") or "")
                if self._link is None and target:
                    self._link = (node, target, None)
            case "pre":
                self._flush()
                self._pre = len(self._pieces)
            case "code" if self._pre is None and self._code is None:
                self._flush()
                self._append("`")
                self._code = node
            case _:
                self._mark = _HEADINGS.get(name, self._mark)

    def leave(self, node: Node) -> None:
        """Write the end of an element."""
        name = node.name
        match name:
            case "ul" | "ol" | "menu" | "dir" if self._lists:
                self._lists.pop()
            case "blockquote" if self._quotes:
                self._quotes -= 1
            case "a" if self._link is not None and self._link[0] is node:
                self._close_link(*self._link[1:])
            case "pre" if self._pre is not None:
                self._fence(self._pre)
            case "code" if node is self._code:
                self._code = None
                if self._pieces[-1] == "`":
                    self._pieces.pop()
                else:
                    self._append("`")
        if name in _PARAGRAPHS:
            self._mark = ""
        if name in _BREAKS:
            self._end_line(_BREAKS[name])

    def _end_line(self, count: int) -> None:
        """End the line, with an empty line after it if ``count`` is 2."""
        if self._pre is None:
            count = 1 if self._lists else count
            self._level = min(self._level, self._quotes) if self._due else self._quotes
            self._due = max(self._due, count)
            self._space = False

    def _append(self, text: str) -> None:
        self._pieces.append(text)
        self._size += len(text)
        self.full = self.full or self._size > self._max_chars

    def _flush(self) -> None:
        """Write the pending line ends, indentation and blanks."""
        if self._due and self._pieces:
            quote = "> " * min(self._level, _MAX_DEPTH)
            self._append("\n" if self._due == 1 else f"\n{quote.rstrip()}\n")
        if self._due or not self._pieces:
            depth = len(self._lists) - (1 if self._mark else 0)
            self._append(
                "> " * min(self._quotes, _MAX_DEPTH) + "  " * min(max(depth, 0), _MAX_DEPTH)
            )
        elif self._space:
            self._append(" ")
        self._due, self._space = 0, False
        if self._mark:
            self._append(self._mark)
            self._mark = ""

    def _word(self, words: str) -> None:
        self._flush()
        if self._link is not None and self._link[2] is None:
            self._link = (*self._link[:2], len(self._pieces))
        self._append(words)

    def _close_link(self, target: str, start: int | None) -> None:
        self._link = None
        words = "" if start is None else self._pop_text(start)
        if not words:
            return
        if words in (target, target.removesuffix("/")):
            self._append(words)
        elif "\n" in words:
            self._append(f"{words} ({target})")
        else:
            self._append(f"[{words}]({target})")

    def _pop_text(self, start: int) -> str:
        """Remove and return the text from a piece on."""
        text = "".join(self._pieces[start:])
        del self._pieces[start:]
        self._size -= len(text)
        return text

    def _target(self, href: str) -> str:
        """Return the address of a link, empty if it does not lead to another page."""
        href = "".join(href[: 2 * _MAX_LINK].split())
        if not href or href.startswith("#") or not self._base:
            return ""
        try:
            target = urljoin(self._base, href)
        except ValueError:
            return ""
        if len(target) > _MAX_LINK or not target.lower().startswith(("https://", "http://")):
            return ""
        if target.partition("#")[0] == self._page or not target.isprintable():
            return ""
        return target.replace("(", "%28").replace(")", "%29")

    def _fence(self, start: int) -> None:
        code = self._pop_text(start).strip("\n")
        self._pre = None
        if code.strip():
            longest = max((len(run) for run in re.findall(r"`{3,}", code)), default=2)
            fence = "`" * (longest + 1)
            self._append(f"{fence}\n{code}\n{fence}")
        self._end_line(2)
