"""Reads HTML into text, in a process of its own.

The question has ``html``, the page's ``url`` and ``most`` characters; the answer ``title``,
``text`` and ``cut``.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import asdict

from mlx_tools.process.html_text import read_html
from mlx_tools.process.isolated import serve


def read_page(asked: dict[str, Any]) -> dict[str, Any]:
    return asdict(read_html(asked["html"], asked["url"], int(asked["most"])))


if __name__ == "__main__":
    serve(read_page, "justhtml")
