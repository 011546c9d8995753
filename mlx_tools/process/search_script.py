"""Asks a search engine, in a process of its own.

Standard input has an object: ``query``, ``engine``, ``most`` results, ``seconds``, ``limits``.
Standard output gets ``hits``, each with ``title``, ``url`` and ``text``, or ``error``.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from mlx_tools.process.resource_limits import answer, set_limits


def main() -> None:
    """Answers one question."""
    import ddgs.engines  # noqa: F401 - before no file may be written: compiled, it comes quicker

    asked = json.load(sys.stdin.buffer)
    set_limits(asked["limits"])
    answer(_search(asked))


def _search(asked: dict[str, Any]) -> dict[str, Any]:
    from ddgs import DDGS
    from ddgs.engines import ENGINES
    from ddgs.exceptions import DDGSException

    engine = str(asked["engine"])
    if engine not in ENGINES.get("text", {}):  # else all engines would be asked
        return {"error": f"the installed ddgs knows no engine {engine}"}
    try:
        with DDGS(timeout=max(1, int(asked["seconds"]))) as search:
            found = search.text(asked["query"], backend=engine, max_results=int(asked["most"]))
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
    main()
