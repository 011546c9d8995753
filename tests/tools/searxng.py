"""A search engine on loopback that answers as SearXNG does, and the pages that it finds."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import parse_qs, quote, unquote, urlsplit

from mlx_tools.paths import config_dir
from tests.tools.web_server import Asked, Site, site


@contextmanager
def search_engine(pages: Mapping[str, str]) -> Iterator[Site | None]:
    """Serve the pages, by their titles, and a search that finds them all in this order.

    The user's own file of settings names both. Without pages there is none.
    """
    if not pages:
        yield None
        return

    def serve(asked: Asked) -> None:
        url = urlsplit(asked.path)
        if url.path == "/search":
            place = f"http://localhost:{asked.fields['host'].rpartition(':')[2]}"
            results = [_result(f"{place}/{quote(title)}", title) for title in pages]
            query = parse_qs(url.query)["q"][0]
            body = {"query": query, "number_of_results": 0, "results": results}
            asked.answer(json.dumps(body), "application/json")
        else:
            title = unquote(url.path[1:])
            asked.answer(f"<title>{title}</title><main><h1>{title}</h1><p>{pages[title]}</main>")

    with site(serve) as server:
        place = f"localhost:{server.port}"
        config_dir().mkdir(parents=True, exist_ok=True)
        text = f'[web]\nsearxng = "http://{place}"\nlocal_hosts = ["{place}"]\n'
        (config_dir() / "config.toml").write_text(text)
        yield server


def _result(url: str, title: str) -> dict[str, object]:
    return {
        "url": url,
        "title": title,
        "content": f"A tutorial: {title}",
        "engine": "duckduckgo",
        "score": 1.0,
        "category": "general",
    }
