"""Asks a search engine, in a process of its own.

The question has ``query``, ``engine``, ``most`` results and ``seconds``; the answer ``hits``, each
with ``title``, ``url`` and ``text``, or ``error``.
"""

from __future__ import annotations

from typing import Any

from mlx_tools.process.isolated import serve


def search(asked: dict[str, Any]) -> dict[str, Any]:
    from ddgs import DDGS
    from ddgs.engines import ENGINES
    from ddgs.exceptions import DDGSException

    engine = str(asked["engine"])
    if engine not in ENGINES.get("text", {}):  # else all engines would be asked
        return {"error": f"the installed ddgs knows no engine {engine}"}
    try:
        with DDGS(timeout=max(1, int(asked["seconds"]))) as asking:
            found = asking.text(asked["query"], backend=engine, max_results=int(asked["most"]))
    except DDGSException as error:
        if "No results" in str(error):
            return {"hits": []}
        return {"error": str(error)[:1000]}
    return {
        "hits": [
            {"title": hit.get("title"), "url": hit.get("href"), "text": hit.get("body")}
            for hit in found
        ]
    }


if __name__ == "__main__":
    serve(search, "ddgs.engines")
