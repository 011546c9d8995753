"""``fetch_url``: a web page as text. ``web_search``: results of a search engine."""

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
from mlx_tools.toolbox import (
    Bounds,
    Fetcher,
    UrlRefused,
    WorkerFailed,
    extract_text,
    read_url,
    run_in_worker,
)
from mlx_tools.tools import Tool, ToolError, current_context, load_words
from mlx_tools.transcript import Source, Sources

EFFECTS: Final[Effects] = frozenset(("read", "network"))
DEFAULT_RESULTS: Final = 5

_MARGIN: Final = 0.9
"""The share of a call's time that a fetch may take. The rest is for the tool's own error."""

_SECONDS: Final = 20.0
"""Seconds for a page or a search if the call has no time limit."""

ENGINES: Final = ("duckduckgo", "brave", "mojeek")
"""The search engines in the order of their use, by their names in the package ``ddgs``."""


@contextlib.asynccontextmanager
async def _limit_time(tool: str, action: str, seconds: float | None) -> AsyncIterator[float]:
    """Yield the seconds that the call has, at most ``seconds`` if that is not None.

    Policies deny calls to the network in local-only mode; this check is for callers without one.

    Raises:
        ToolError: the block takes longer, or may not use the network.
    """
    context = current_context()
    if any(part.local_only for part in context.policy.parts):
        raise ToolError(f"{tool} uses the network, which local-only forbids", code="not_allowed")
    given = _SECONDS if context.timeout is None else context.timeout * _MARGIN
    limit = given if seconds is None else min(seconds, given)
    try:
        async with asyncio.timeout(limit):
            yield limit
    except TimeoutError:
        raise ToolError(f"{action} took more than {limit:g} s", code="timeout") from None


def fetch_url(fetcher: Fetcher | None = None, seconds: float | None = None) -> Tool:
    """Return the tool.

    Args:
        fetcher: fetches pages.
        seconds: the time limit for a page, including redirects and its HTML. None for the limit of
            the call.
    """
    words = load_words("fetch_url")
    page_fetcher = fetcher or Fetcher()

    async def run(arguments: Mapping[str, Any]) -> Sources:
        async with _limit_time("fetch_url", "the page", seconds) as limit:
            try:
                target = read_url(arguments["url"], page_fetcher.local)
                page, cut = await extract_text(await page_fetcher.fetch(target), limit)
            except UrlRefused as error:
                raise ToolError(str(error), code="not_allowed") from None
        note = words.notices["cut"] if cut else "" if page.text else words.notices["empty"]
        return Sources((page,), note)

    return Tool(words.spec(EFFECTS), run)


def make_search(searxng: str | None = None, local: Collection[str] = ()) -> Tool:
    """Return ``web_search`` with a SearXNG, or with search engines.

    It is disabled if search engines cannot be used.

    Args:
        searxng: the address of a SearXNG, None for search engines.
        local: hosts of this machine or its network whose pages the SearXNG may find, in the form of
            `read_local`. A search engine's results never lead there.
    """
    if searxng is not None:
        return web_search(functools.partial(ask_searxng, searxng), local=local)
    tool = web_search(functools.partial(ask_engines, ENGINES, run_in_worker))
    tool.disabled_reason = find_missing_package
    return tool


def web_search(search: Search, seconds: float | None = None, local: Collection[str] = ()) -> Tool:
    """Return the tool.

    Args:
        search: searches for a query.
        seconds: the time limit for a search. None for the limit of the call.
        local: hosts of this machine or its network that results may lead to.
    """
    words = load_words("web_search")

    async def run(arguments: Mapping[str, Any]) -> Sources:
        async with _limit_time("web_search", "the search", seconds) as limit:
            max_results = int(arguments.get("max_results", DEFAULT_RESULTS))
            query = " ".join(str(arguments["query"]).split())
            if not query:
                raise ToolError("there is nothing to look for", code="invalid_arguments")
            sources = make_sources(await search(query, max_results, limit), max_results, local)
        return Sources(sources, "" if sources else words.notices["none"])

    return Tool(words.spec(EFFECTS), run)


# --- search engines -----------------------------------------------------------------------------

MAX_TITLE: Final = 200
MAX_SNIPPET: Final = 500

_WORK: Final = "plugins.web.engines.search"
"""The function that uses an engine, in a separate process."""
_CPU_SECONDS: Final = 10
_MEMORY_MB: Final = 4000
"""Megabytes, most of which are only reserved, because the library starts threads."""
_ENGINE_SECONDS: Final = 8.0
"""Seconds for one engine, so that there is time for another one."""
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
"""Texts in errors of ``ddgs`` and its HTTP client, and their plain meaning."""


Search = Callable[[str, int, float], Awaitable[Iterable[Mapping[str, Any]]]]
"""Searches for a query, with a maximum of hits and of seconds. Each hit has ``url``, ``title`` and
``text``. Raises ToolError."""


def find_missing_package() -> str | None:
    """Return the reason why search engines cannot be used here, or None."""
    with contextlib.suppress(ImportError, ValueError):
        if importlib.util.find_spec("ddgs") is not None:
            return None
    return f"the package ddgs is not installed ({to_install('web')})"


AskApart = Callable[[str, str, dict[str, Any], Bounds], Awaitable[dict[str, Any]]]


async def ask_engines(
    engines: Sequence[str], ask: AskApart, query: str, max_results: int, seconds: float
) -> list[Mapping[str, Any]]:
    """Return the hits of the first engine that has any.

    Each is used through the package ``ddgs`` in a separate process. An engine gets the query only
    if those before it found nothing or failed.
    """
    share = min(seconds / len(engines), _ENGINE_SECONDS)
    bounds = Bounds(share, _CPU_SECONDS, _MEMORY_MB, max_output_bytes=1_000_000)
    faults: dict[str, list[str]] = {}  # the engines of each fault
    for engine in engines:
        question = {"query": query, "engine": engine, "max_results": max_results, "seconds": share}
        try:
            hits = (await ask(_WORK, "ddgs.engines", question, bounds))["hits"]
        except WorkerFailed as error:
            message = _SLOW if error.over_limit else error.problem or "failed"
            plain_faults = (plain for sign, plain in _FAULTS.items() if sign in message)
            faults.setdefault(next(plain_faults, clean(message, 80)), []).append(engine)
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
    """Return the hits of the SearXNG at this address, by its JSON interface."""
    import httpx

    url = f"{address.rstrip('/')}/search"
    parameters = {"q": query, "format": "json"}
    try:
        async with (
            httpx.AsyncClient(trust_env=False, timeout=seconds) as client,
            client.stream("GET", url, params=parameters) as response,
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
        message = clean(str(error), 200) or type(error).__name__
        raise ToolError(f"the SearXNG at {address} cannot be asked: {message}") from None
    except (ValueError, LookupError, TypeError, RecursionError):
        raise ToolError(_NO_JSON) from None
    if not isinstance(hits, list):
        raise ToolError(_NO_JSON)
    valid_hits = [hit for hit in hits if isinstance(hit, dict)]
    return [{**hit, "text": hit.get("content")} for hit in valid_hits[:max_results]]


def make_sources(
    results: Iterable[Mapping[str, Any]], max_results: int, local: Collection[str] = ()
) -> tuple[Source, ...]:
    """Return the allowed results of a search, without duplicates and shortened.

    Allowed are pages on the internet and on ``local`` hosts.
    """
    sources: dict[str, Source] = {}
    for result in results:
        try:
            url = read_url(str(result.get("url") or ""), local).url
        except UrlRefused:
            continue
        title, text = (visible(str(result.get(key) or "")) for key in ("title", "text"))
        source = Source(clean(title, MAX_TITLE) or url, url, clean(text, MAX_SNIPPET))
        sources.setdefault(url, source)
        if len(sources) == max_results:
            break
    return tuple(sources.values())
