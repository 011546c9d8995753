"""``fetch_url``: a page from the web, as text."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from mlx_tools.messages import Effects
from mlx_tools.toolbox.web.fetch import Fetcher
from mlx_tools.toolbox.web.page import told_of
from mlx_tools.toolbox.web.urls import UrlRefused, read_url
from mlx_tools.tools.context import ToolContext, current_context
from mlx_tools.tools.tool import Tool, ToolError
from mlx_tools.tools.tool_words import words_of
from mlx_tools.transcript.sources import Source, Sources

EFFECTS: Final[Effects] = frozenset(("read", "network"))

MARGIN: Final = 0.9
"""The share of a call's time that fetching may take, so that its own words come through."""


def fetch_url(fetcher: Fetcher | None = None, seconds: float = 20.0) -> Tool:
    """The tool. ``seconds`` is what a page may take in all, redirects and reading its HTML
    included, where the call itself has not less."""
    words = words_of("fetch_url")
    fetching = fetcher or Fetcher()

    async def run(arguments: Mapping[str, Any]) -> Sources:
        context = current_context()
        refuse_local_only(context, "fetch_url")
        limit = time_for(context, seconds)
        try:
            target = read_url(arguments["url"])
            async with asyncio.timeout(limit):
                page = await fetching.fetch(target)
                told = await told_of(page, limit)
        except UrlRefused as error:
            raise ToolError(str(error), code="not_allowed") from None
        except TimeoutError:
            raise ToolError(f"the page took more than {limit:g} s", code="timeout") from None
        note = words.notices["cut"] if told.cut else "" if told.text else words.notices["empty"]
        return Sources((Source(told.title, told.url, told.text),), note)

    return Tool(words.spec(EFFECTS), run)


def refuse_local_only(context: ToolContext, name: str) -> None:
    """Policy denies such calls before they are made; this holds where nobody asked it. Raises
    ToolError."""
    if any(part.local_only for part in context.policy.parts):
        raise ToolError(f"{name} uses the network, which local-only forbids", code="not_allowed")


def time_for(context: ToolContext, seconds: float) -> float:
    """The seconds that a call has, at most ``seconds``."""
    return seconds if context.timeout is None else min(seconds, context.timeout * MARGIN)
