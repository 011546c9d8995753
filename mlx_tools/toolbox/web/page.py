"""A page's text: HTML made readable in a process of its own, other texts as they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from mlx_tools.process import visible
from mlx_tools.toolbox.web.fetch import FetchedPage
from mlx_tools.toolbox.web.media import is_html, text_of
from mlx_tools.toolbox.web.worker import Bounds, WorkerFailed, ask_script
from mlx_tools.tools.context import ToolError

MAX_TEXT: Final = 1_000_000
"""Characters of a page's text."""

CPU_SECONDS: Final = 10
MEMORY_MB: Final = 1000


@dataclass(frozen=True, slots=True)
class PageText:
    """A page as a model reads it. ``cut`` is whether it was longer, on the way or as text."""

    url: str
    title: str
    text: str
    cut: bool


async def told_of(page: FetchedPage, seconds: float) -> PageText:
    """The text of a page, made within ``seconds``. Raises ToolError where it is no text, and where
    its HTML would take too much to read."""
    url, data = page.target.url, page.body.data
    text = text_of(page.media, data)
    if not is_html(page.media, data):
        return PageText(
            url, "", visible(text[:MAX_TEXT]).strip("\n"), page.body.cut or len(text) > MAX_TEXT
        )
    question = {"html": text, "url": url, "most": MAX_TEXT}
    bounds = Bounds(seconds=seconds, cpu_seconds=CPU_SECONDS, memory_mb=MEMORY_MB)
    try:
        found = await ask_script("page_script", "justhtml", question, bounds)
        title, body = str(found["title"]), str(found["text"])
    except WorkerFailed as error:
        why = "it would take too much time or memory" if error.beyond else "its reader failed"
        raise ToolError(f"the page's HTML cannot be read, {why}: {url}") from None
    cut = page.body.cut or bool(found.get("cut"))
    return PageText(url, visible(title), visible(body), cut)
