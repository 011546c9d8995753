"""``web_search``: pages on the web that a search engine finds."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

from mlx_tools.errors import UsageError
from mlx_tools.toolbox.fetch_url import EFFECTS, refuse_local_only, time_for
from mlx_tools.toolbox.web.search_engines import (
    DEFAULT_ENGINES,
    ENGINES,
    EngineSearch,
    Search,
    hits_of,
)
from mlx_tools.tools.context import current_context
from mlx_tools.tools.tool import Tool, ToolError
from mlx_tools.tools.tool_words import words_of
from mlx_tools.transcript.sources import Source, Sources

DEFAULT_RESULTS: Final = 5


def web_search(
    search: Search | None = None,
    engines: Sequence[str] = DEFAULT_ENGINES,
    seconds: float = 20.0,
) -> Tool:
    """The tool. ``search`` asks for a query in place of ``engines``, which are asked one after the
    other by way of the package ``ddgs``; ``seconds`` is what all of it may take. Raises UsageError
    for an engine that does not exist."""
    unknown = [engine for engine in engines if engine not in ENGINES]
    if unknown or not engines:
        raise UsageError(
            f"web.search_engines: {unknown[0] if unknown else 'nothing'!r} is no search engine",
            hint=f"some of {', '.join(ENGINES)}",
        )
    words = words_of("web_search")
    ask = search or EngineSearch(tuple(engines))

    async def run(arguments: Mapping[str, Any]) -> Sources:
        context = current_context()
        refuse_local_only(context, "web_search")
        most = int(arguments.get("max_results", DEFAULT_RESULTS))
        limit = time_for(context, seconds)
        query = " ".join(str(arguments["query"]).split())
        if not query:
            raise ToolError("there is nothing to look for", code="invalid_arguments")
        try:
            async with asyncio.timeout(limit):
                hits = hits_of(await ask(query, most, limit), most)
        except TimeoutError:
            raise ToolError(f"the search took more than {limit:g} s", code="timeout") from None
        found = tuple(Source(hit.title, hit.url, hit.text) for hit in hits)
        return Sources(found, "" if found else words.notices["none"])

    return Tool(words.spec(EFFECTS), run)
