"""The part of ``web_search`` that runs in a separate process."""

from __future__ import annotations

from typing import Any

from mlx_tools.toolbox import Problem


def search(query: str, engine: str, max_results: int, seconds: float) -> dict[str, Any]:
    """Return at most ``max_results`` ``hits`` of a search engine.

    Each has ``title``, ``url`` and ``text``.
    """
    from ddgs import DDGS
    from ddgs.engines import ENGINES
    from ddgs.exceptions import DDGSException

    if engine not in ENGINES.get("text", {}):  # an unknown name would mean all engines
        raise Problem(f"the installed ddgs knows no engine {engine}")
    try:
        with DDGS(timeout=max(1, int(seconds))) as client:
            results = client.text(query, backend=engine, max_results=max_results)
    except DDGSException as error:
        if "No results" in str(error):
            return {"hits": []}
        raise Problem(str(error)[:1000]) from None
    return {
        "hits": [
            {"title": hit.get("title"), "url": hit.get("href"), "text": hit.get("body")}
            for hit in results
        ]
    }
