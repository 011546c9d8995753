"""Markdown as HTML of the page: no foreign tags or pictures, no hidden address."""

from __future__ import annotations

import functools
import logging
from collections.abc import MutableMapping, Sequence
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from mlx_tools.app import Html, escape_html

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token

_log = logging.getLogger(__name__)
MAX_CHARS: Final = 100_000
"""A longer text is shown unchanged: rendering it could take seconds."""

_SCHEMES: Final = ("http", "https", "mailto")

_TABLE: Final = '<div class="scrolls" tabindex="0" role="region" aria-label="Table"><table>'

_CODE: Final = '<pre class="code" tabindex="0" role="region" aria-label="Code"><code>'


def draw_markdown(text: str) -> Html:
    """Return a text of Markdown as HTML.

    The result has only tags that are made here. A link shows its host, if its text does not. A
    picture becomes its description, since loading it would reveal where it is read.
    """
    if len(text) > MAX_CHARS:
        return _plain(text)
    try:
        return Html(_renderer().render(text))
    # the library may fail in any way on a text that was made to break it
    except Exception as error:
        _log.info("an answer is shown as plain text: %s", type(error).__name__)
        return _plain(text)


def _plain(text: str) -> Html:
    return Html(f'<pre class="prose">{escape_html(text)}</pre>')


@functools.cache
def _renderer() -> MarkdownIt:
    from markdown_it import MarkdownIt

    made = MarkdownIt("commonmark", {"html": False, "breaks": True})
    made.enable(["table", "strikethrough"])
    made.validateLink = _is_safe  # type: ignore[method-assign]
    rules = {
        "text": _text,
        "code_inline": _inline_code,
        "code_block": _code,
        "fence": _code,
        "image": _image,
        "link_open": _link_open,
        "link_close": _link_close,
        "heading_open": lambda *_: "<h3>",
        "heading_close": lambda *_: "</h3>\n",
        "table_open": lambda *_: _TABLE,
        "table_close": lambda *_: "</table></div>\n",
        "th_open": lambda *_: "<th>",
        "td_open": lambda *_: "<td>",
        "ordered_list_open": _list_open,
    }
    made.renderer.rules |= rules  # type: ignore[attr-defined]
    return made


def _is_safe(url: str) -> bool:
    """Return whether a link is allowed: it leads to the web or to a mail address."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme.lower() in _SCHEMES and url.isprintable()


Tokens = Sequence["Token"]


def _text(tokens: Tokens, index: int, *_: Any) -> Html:
    return escape_html(tokens[index].content)


def _inline_code(tokens: Tokens, index: int, *_: Any) -> str:
    return f"<code>{escape_html(tokens[index].content)}</code>"


def _code(tokens: Tokens, index: int, *_: Any) -> str:
    text = escape_html(tokens[index].content.removesuffix("\n"))
    return f"{_CODE}{text}</code></pre>\n"


def _image(tokens: Tokens, index: int, *_: Any) -> str:
    token = tokens[index]
    name = escape_html(token.content or "no description")
    address = str(token.attrGet("src") or "")
    shown = f' <span class="host">{escape_html(address[:200])}</span>' if address else ""
    return f'<span class="picture">Picture: {name}{shown}</span>'


def _link_open(tokens: Tokens, index: int, options: Any, env: MutableMapping[str, Any]) -> str:
    address = str(tokens[index].attrGet("href") or "")
    env.setdefault("links", []).append((address, index))
    return f'<a href="{escape_html(address)}" rel="noopener noreferrer nofollow" target="_blank">'


def _link_close(tokens: Tokens, index: int, options: Any, env: MutableMapping[str, Any]) -> str:
    address, begin = env["links"].pop()
    said = "".join(token.content for token in tokens[begin:index])
    host = urlsplit(address).hostname or address
    shown = "" if said in (address, host) else f' <span class="host">({escape_html(host)})</span>'
    return f"</a>{shown}"


def _list_open(tokens: Tokens, index: int, *_: Any) -> str:
    start = tokens[index].attrGet("start")
    return f'<ol start="{int(start)}">' if start is not None else "<ol>"
