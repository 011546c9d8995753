"""Searches: a question to one engine after the other, until one of them finds something."""

from __future__ import annotations

import importlib.util
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from mlx_tools.process import clean, visible
from mlx_tools.toolbox.web.urls import UrlRefused, read_url
from mlx_tools.toolbox.web.worker import Bounds, WorkerFailed, ask_script
from mlx_tools.tools.context import ToolError

ENGINES: Final = ("duckduckgo", "brave", "mojeek", "startpage", "yahoo", "wikipedia")
"""Those that can be asked, by the names that the package ``ddgs`` has for them."""

DEFAULT_ENGINES: Final = ("duckduckgo", "brave", "mojeek")

MAX_TITLE: Final = 200
MAX_SNIPPET: Final = 500

_CPU_SECONDS: Final = 10
_MEMORY_MB: Final = 4000
"""Reserved rather than used: the library starts threads."""
_ENGINE_SECONDS: Final = 8.0
_SLOW: Final = "too slow"
_FAULTS: Final = {
    "DNSError": "not online, or the name cannot be looked up",
    "ConnectError": "it cannot be reached",
    "ConnectionError": "it cannot be reached",
    "imeout": _SLOW,
    "timed out": _SLOW,
}
"""What stands in the errors of ``ddgs`` and of the client below it, and what it comes to."""


@dataclass(frozen=True, slots=True)
class SearchResult:
    """One thing that was found: where it stands, what it is called, a few words of it."""

    url: str
    title: str
    text: str


Search = Callable[[str, int, float], Awaitable[Iterable[Mapping[str, Any]]]]
"""Asks for a query: at most so many hits, within so many seconds. Each hit has ``url``, ``title``
and ``text``. Raises ToolError."""


def missing() -> str | None:
    """Why there can be no search here, None where there can be."""
    try:
        found = importlib.util.find_spec("ddgs") is not None
    except (ImportError, ValueError):
        found = False
    if not found:
        return "the package ddgs is not installed (pip install 'mlx-tools[web]')"
    return None


AskScript = Callable[[str, str, dict[str, Any], Bounds], Awaitable[dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class EngineSearch:
    """Asks these engines in turn by way of the package ``ddgs``, each in a process of its own. The
    next one hears of a query only where those before it found nothing or failed."""

    engines: tuple[str, ...]
    ask: AskScript = ask_script

    async def __call__(self, query: str, most: int, seconds: float) -> list[Mapping[str, Any]]:
        share = min(seconds / max(1, len(self.engines)), _ENGINE_SECONDS)
        told: dict[str, list[str]] = {}  # engines by what was wrong with them
        for engine in self.engines:
            question = {"query": query, "engine": engine, "most": most, "seconds": share}
            bounds = Bounds(share, _CPU_SECONDS, _MEMORY_MB, most=1_000_000)
            try:
                found = await self.ask("search_script", "ddgs", question, bounds)
            except WorkerFailed as error:
                told.setdefault(_SLOW if error.beyond else "failed", []).append(engine)
                continue
            hits = found.get("hits")
            if isinstance(hits, list) and hits:
                return [hit for hit in hits if isinstance(hit, dict)]
            if "error" in found:
                told.setdefault(_fault(str(found["error"])), []).append(engine)
        if sum(map(len, told.values())) == len(self.engines):
            faults = "; ".join(f"{', '.join(engines)}: {why}" for why, engines in told.items())
            raise ToolError(f"no search engine answered: {faults}")
        return []


def _fault(said: str) -> str:
    """What the library said of a failure, in plain words where it is one of those that it knows."""
    known = (plain for sign, plain in _FAULTS.items() if sign in said)
    return next(known, clean(said, 80))


def hits_of(found: Iterable[Mapping[str, Any]], most: int) -> list[SearchResult]:
    """What a search gave, made fit to be shown: pages on the web alone, each once, cut short."""
    hits: dict[str, SearchResult] = {}
    for one in found:
        try:
            url = read_url(str(one.get("url") or "")).url
        except UrlRefused:
            continue
        title, text = (visible(str(one.get(key) or "")) for key in ("title", "text"))
        hits.setdefault(
            url, SearchResult(url, clean(title, MAX_TITLE) or url, clean(text, MAX_SNIPPET))
        )
        if len(hits) == most:
            break
    return list(hits.values())
