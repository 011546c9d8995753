"""``fetch_url``: a page from the web, as text; ``web_search``: pages that a search engine finds."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib.util
import json
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Mapping,
    Sequence,
)
from typing import Any, Final

from mlx_tools.messages import Effects
from mlx_tools.paths import to_install
from mlx_tools.process import clean, visible
from mlx_tools.toolbox.urls import UrlRefused, read_url
from mlx_tools.toolbox.web_fetch import Fetcher, page_text
from mlx_tools.toolbox.worker import Bounds, WorkerFailed, ask_apart
from mlx_tools.tools import Tool, ToolError, current_context, words_of
from mlx_tools.transcript import Source, Sources

EFFECTS: Final[Effects] = frozenset(("read", "network"))
DEFAULT_RESULTS: Final = 5

_MARGIN: Final = 0.9
"""The share of a call's time that fetching may take, so that its own words come through."""

ENGINES: Final = ("duckduckgo", "brave", "mojeek")
"""Those that are asked in turn, by the names that the package ``ddgs`` has for them."""


@contextlib.asynccontextmanager
async def _in_time(tool: str, action: str, seconds: float) -> AsyncIterator[float]:
    """Gives the block the seconds that the present call has, at most ``seconds``. Raises ToolError
    where it takes longer, and where it may not use the network: policy denies such calls before
    they are made, and this holds where nobody asked it."""
    context = current_context()
    if any(part.local_only for part in context.policy.parts):
        raise ToolError(f"{tool} uses the network, which local-only forbids", code="not_allowed")
    limit = seconds if context.timeout is None else min(seconds, context.timeout * _MARGIN)
    try:
        async with asyncio.timeout(limit):
            yield limit
    except TimeoutError:
        raise ToolError(f"{action} took more than {limit:g} s", code="timeout") from None


def fetch_url(fetcher: Fetcher | None = None, seconds: float = 20.0) -> Tool:
    """The tool. ``seconds`` is what a page may take in all, redirects and reading its HTML
    included, where the call itself has not less."""
    words = words_of("fetch_url")
    fetching = fetcher or Fetcher()

    async def run(arguments: Mapping[str, Any]) -> Sources:
        async with _in_time("fetch_url", "the page", seconds) as limit:
            try:
                target = read_url(arguments["url"], fetching.local)
                page, cut = await page_text(await fetching.fetch(target), limit)
            except UrlRefused as error:
                raise ToolError(str(error), code="not_allowed") from None
        note = words.notices["cut"] if cut else "" if page.text else words.notices["empty"]
        return Sources((page,), note)

    return Tool(words.spec(EFFECTS), run)


def usual_search(searxng: str | None = None, local: Collection[str] = ()) -> Tool:
    """``web_search`` by a SearXNG at this address, else by search engines, disabled where these
    cannot be asked.

    Args:
        searxng: The address of a SearXNG, None for search engines.
        local: Hosts of this machine or its network whose pages the SearXNG may find, as
            `read_local` writes them. A search engine's results never lead there.
    """
    if searxng is not None:
        return web_search(functools.partial(ask_searxng, searxng), local=local)
    tool = web_search(functools.partial(ask_engines, ENGINES, ask_apart))
    tool.disabled_reason = missing
    return tool


def web_search(search: Search, seconds: float = 20.0, local: Collection[str] = ()) -> Tool:
    """The tool. ``search`` asks for a query; ``seconds`` is what that may take. ``local`` are hosts
    of this machine or its network that results may be on."""
    words = words_of("web_search")

    async def run(arguments: Mapping[str, Any]) -> Sources:
        async with _in_time("web_search", "the search", seconds) as limit:
            most = int(arguments.get("max_results", DEFAULT_RESULTS))
            query = " ".join(str(arguments["query"]).split())
            if not query:
                raise ToolError("there is nothing to look for", code="invalid_arguments")
            found = sources_of(await search(query, most, limit), most, local)
        return Sources(found, "" if found else words.notices["none"])

    return Tool(words.spec(EFFECTS), run)


# --- search engines -----------------------------------------------------------------------------

MAX_TITLE: Final = 200
MAX_SNIPPET: Final = 500

_CPU_SECONDS: Final = 10
_MEMORY_MB: Final = 4000
"""Reserved rather than used: the library starts threads."""
_ENGINE_SECONDS: Final = 8.0
_MAX_ANSWER: Final = 5_000_000
_NO_JSON: Final = "the SearXNG does not answer in JSON: add json to search.formats in settings.yml"
_SLOW: Final = "too slow"
_FAULTS: Final = {
    "DNSError": "not online, or the name cannot be looked up",
    "ConnectError": "it cannot be reached",
    "ConnectionError": "it cannot be reached",
    "imeout": _SLOW,
    "timed out": _SLOW,
}
"""What stands in the errors of ``ddgs`` and of the client below it, and what it comes to."""


Search = Callable[[str, int, float], Awaitable[Iterable[Mapping[str, Any]]]]
"""Asks for a query: at most so many hits, within so many seconds. Each hit has ``url``, ``title``
and ``text``. Raises ToolError."""


def missing() -> str | None:
    """The reason why there can be no search here, None where there can be."""
    with contextlib.suppress(ImportError, ValueError):
        if importlib.util.find_spec("ddgs") is not None:
            return None
    return f"the package ddgs is not installed ({to_install('web')})"


AskApart = Callable[[str, str, dict[str, Any], Bounds], Awaitable[dict[str, Any]]]


async def ask_engines(
    engines: Sequence[str], ask: AskApart, query: str, max_results: int, seconds: float
) -> list[Mapping[str, Any]]:
    """The hits of the first of these engines that has any, each asked by way of the package
    ``ddgs`` in a process of its own. The next one hears of a query only where those before it found
    nothing or failed."""
    share = min(seconds / len(engines), _ENGINE_SECONDS)
    bounds = Bounds(share, _CPU_SECONDS, _MEMORY_MB, most=1_000_000)
    faults: dict[str, list[str]] = {}  # engines by what was wrong with them
    for engine in engines:
        question = {"query": query, "engine": engine, "most": max_results, "seconds": share}
        try:
            hits = (await ask("isolated.search", "ddgs.engines", question, bounds))["hits"]
        except WorkerFailed as error:
            said = _SLOW if error.beyond else error.problem or "failed"
            known = (plain for sign, plain in _FAULTS.items() if sign in said)
            faults.setdefault(next(known, clean(said, 80)), []).append(engine)
            continue
        if hits:
            return list(hits)
    if sum(map(len, faults.values())) == len(engines):
        listed = (f"{', '.join(failed)}: {why}" for why, failed in faults.items())
        raise ToolError(f"no search engine answered: {'; '.join(listed)}")
    return []


async def ask_searxng(
    address: str, query: str, max_results: int, seconds: float
) -> list[Mapping[str, Any]]:
    """The hits of the SearXNG at this address, by the interface that gives JSON."""
    import httpx

    url = f"{address.rstrip('/')}/search"
    asked = {"q": query, "format": "json"}
    try:
        async with (
            httpx.AsyncClient(trust_env=False, timeout=seconds) as client,
            client.stream("GET", url, params=asked) as response,
        ):
            if response.status_code == httpx.codes.FORBIDDEN:
                raise ToolError(_NO_JSON)
            response.raise_for_status()
            body = bytearray()
            async for piece in response.aiter_bytes():
                body += piece
                if len(body) > _MAX_ANSWER:
                    raise ToolError("the SearXNG's answer is too long")
        hits = json.loads(body)["results"]
    except httpx.HTTPStatusError as error:
        raise ToolError(f"the SearXNG answered {error.response.status_code}") from None
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        told = clean(str(error), 200) or type(error).__name__
        raise ToolError(f"the SearXNG at {address} cannot be asked: {told}") from None
    except (ValueError, LookupError, TypeError, RecursionError):
        raise ToolError(_NO_JSON) from None
    if not isinstance(hits, list):
        raise ToolError(_NO_JSON)
    found = [hit for hit in hits if isinstance(hit, dict)]
    return [{**hit, "text": hit.get("content")} for hit in found[:max_results]]


def sources_of(
    results: Iterable[Mapping[str, Any]], max_results: int, local: Collection[str] = ()
) -> tuple[Source, ...]:
    """The results of a search, fit to be shown: pages on the web and on ``local`` hosts alone, each
    once, cut short."""
    sources: dict[str, Source] = {}
    for one in results:
        try:
            url = read_url(str(one.get("url") or ""), local).url
        except UrlRefused:
            continue
        title, text = (visible(str(one.get(key) or "")) for key in ("title", "text"))
        source = Source(clean(title, MAX_TITLE) or url, url, clean(text, MAX_SNIPPET))
        sources.setdefault(url, source)
        if len(sources) == max_results:
            break
    return tuple(sources.values())
