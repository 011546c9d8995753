"""mlx-lm's own server, which also writes down what each request cost it.

    COUNTS=FILE python benchmarks/counted_server.py --model DIR --port N

A stream that is closed early reports no usage, so a client cannot tell what its prompt cost. The
server knows: it looks the prompt up in its cache, and puts what it read and wrote back into it.
Both calls are listened to; nothing else is touched. A JSON line a request goes to ``COUNTS``:
``prompt`` (tokens), ``uncached`` (of these, those that were read anew), ``generated`` (tokens, None
where the request failed) and ``seconds`` (from taking the request up to putting it back). Requests
with a seed alone are counted, which all of ours are.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

from mlx_lm import server
from mlx_lm.models.cache import LRUPromptCache

COUNTS = os.environ["COUNTS"]


def main() -> None:
    row: dict[str, Any] = {}
    fetch = LRUPromptCache.fetch_nearest_cache
    insert = LRUPromptCache.insert_cache
    serve = server.ResponseGenerator._serve_single

    def fetched(self: Any, model: Any, tokens: Any) -> Any:
        cache, rest = fetch(self, model, tokens)
        row.update(prompt=len(tokens), uncached=len(rest))
        return cache, rest

    def inserted(self: Any, model: Any, tokens: Any, *more: Any, **named: Any) -> Any:
        row["generated"] = len(tokens) - row.get("prompt", 0)
        return insert(self, model, tokens, *more, **named)

    def served(self: Any, request: Any, stream: Any) -> Any:
        row.clear()
        row.update(prompt=None, uncached=None, generated=None)
        began = time.perf_counter()
        try:
            return serve(self, request, stream)
        finally:
            row["seconds"] = round(time.perf_counter() - began, 4)
            with open(COUNTS, "a", encoding="utf-8") as file:  # noqa: PTH123
                file.write(json.dumps(row) + "\n")

    LRUPromptCache.fetch_nearest_cache = fetched
    LRUPromptCache.insert_cache = inserted
    server.ResponseGenerator._serve_single = served
    server.main()


if __name__ == "__main__":
    main()
