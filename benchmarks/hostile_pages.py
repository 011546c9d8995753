"""Hostile pages read into text: how long the slowest takes, how much memory the largest.

    python benchmarks/hostile_pages.py [--pages 1040] [--out FILE]

Pages of some kinds that are known to be hard on parsers, each of another size up to a megabyte, and
pages of tags thrown together, are read as `fetch_url` reads them: in a process of its own, within
the same limits. Counted is how each ended, how long it took and the most memory that any of these
processes used. Deterministic but for the times.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import random
import resource
import sys
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from typing import Any

from mlx_tools.toolbox.urls import read_url
from mlx_tools.toolbox.web_fetch import (
    CPU_SECONDS,
    MAX_TEXT,
    MEMORY_MB,
    FetchedPage,
    Media,
    extract_text,
)
from mlx_tools.tools import ToolError

MOST_BYTES = 1_000_000
SECONDS = 60.0
"""More than the tool has, so that what a busy machine is slow at does not count as given up: the
limit of a processor's time is the one that holds."""

AT_ONCE = 2

Kind = Callable[[int, random.Random], str]


def repeated(piece: str, end: str = "") -> Kind:
    """One piece again and again."""
    return lambda size, _: piece * (size // len(piece)) + end


def numbered(piece: str, before: str = "", end: str = "") -> Kind:
    """A piece with a number, which is another one each time."""

    def page(size: int, _: random.Random) -> str:
        count = size // (len(piece) + 4)
        return before + "".join(piece.format(n) for n in range(count)) + end

    return page


def formatting(size: int, _: random.Random) -> str:
    """Each paragraph begins all open elements of formatting anew: a page grows by itself."""
    opened = "".join(f"<font color={n}>" for n in range(size // 60))
    return opened + "<p></p>" * (size // 14)


def thrown(size: int, rolled: random.Random) -> str:
    """Tags, text and half tags in no order."""
    names = [
        *("a", "b", "p", "div", "table", "tr", "td", "ul", "li", "select", "option", "form", "svg"),
        *(
            "math",
            "template",
            "script",
            "style",
            "title",
            "textarea",
            "font",
            "i",
            "nobr",
            "button",
        ),
        *("frameset", "html", "body", "head", "caption", "col", "foreignObject", "mi", "plaintext"),
    ]
    pieces, left = [], size
    while left > 0:
        name = rolled.choice(names)
        piece = rolled.choice(
            [f"<{name}>", f"</{name}>", f"<{name} x={left}", "text ", "&#x0;", "<!--", "-->", "]]>"]
        )
        pieces.append(piece)
        left -= len(piece)
    return "".join(pieces)


KINDS: dict[str, Kind] = {
    "div in div": repeated("<div>", "x"),
    "div closed at the end": lambda size, _: "<div>" * (size // 11) + "</div>" * (size // 11),
    "b in b": repeated("<b>", "x"),
    "distinct formatting": numbered("<font color={}>", end="x"),
    "formatting begun anew": formatting,
    "a around div": repeated("<a><div>", "x"),
    "p in div": repeated("<div><p>", "x"),
    "tables in cells": repeated("<table><tr><td>", "x"),
    "tables in tables": repeated("<table>", "x"),
    "text in tables": repeated("<table>x", "x"),
    "lists in lists": repeated("<ul><li>", "x"),
    "quotations": repeated("<blockquote>", "x"),
    "links": numbered("<a href=/{}>x</a> "),
    "attributes": numbered("a{}=1 ", before="<div ", end=">x"),
    "one attribute again": numbered("a=1 ", before="<div ", end=">x"),
    "a long attribute": lambda size, _: f"<p style='{'a:b;' * (size // 4)}'>x",
    "an open quote": repeated('<a href="'),
    "styles that hide": repeated('<p style="display:none">x</p>'),
    "comments opened": repeated("<!--"),
    "comments": repeated("<!-- x -->", "x"),
    "entities": repeated("&notit;&amp;&#65;"),
    "ampersands": repeated("&"),
    "less-than": repeated("<"),
    "closing tags": repeated("</p></br>"),
    "drawings": repeated("<svg><g>", "x"),
    "formulas": repeated("<math><mi><p>", "x"),
    "templates": repeated("<template>", "x"),
    "choices": repeated("<select><option>", "x"),
    "forms": repeated("<form><div>", "x"),
    "headings": repeated("<h1>", "x"),
    "code in code": repeated("<pre><code>`", "x"),
    "thrown together": thrown,
}


async def read(html: str) -> tuple[str, float, int]:
    """The end of the reading of a page, its seconds, and the number of its characters."""
    media = Media("html", "utf-8")
    page = FetchedPage(read_url("https://example.org/"), media, html.encode())
    started = perf_counter()
    try:
        told, cut = await extract_text(page, SECONDS)
        ended = ("cut" if cut else "read", len(told.text))
    except ToolError as error:
        ended = ("given up" if "too much" in str(error) else f"failed: {error}", 0)
    return ended[0], perf_counter() - started, ended[1]


async def measure(count: int) -> dict[str, Any]:
    """Reads so many pages, and tells what came of them, by kind."""
    found: dict[str, dict[str, Any]] = {
        kind: {"endings": Counter(), "slowest": 0.0} for kind in KINDS
    }
    gate = asyncio.Semaphore(AT_ONCE)
    longest = 0

    async def one(number: int) -> None:
        nonlocal longest
        rolled = random.Random(number)
        kind = list(KINDS)[number % len(KINDS)]
        share = (number // len(KINDS) + 1) / -(-count // len(KINDS))
        async with gate:
            html = KINDS[kind](max(200, round(MOST_BYTES * share**3)), rolled)
            ended, seconds, size = await read(html)
        found[kind]["endings"][ended] += 1
        print(f"\r{number}", end="", file=sys.stderr, flush=True)
        found[kind]["slowest"] = max(found[kind]["slowest"], round(seconds, 2))
        longest = max(longest, size)

    await asyncio.gather(*map(one, range(count)))
    largest = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return {
        "pages": count,
        "slowest": max(row["slowest"] for row in found.values()),
        "largest_mb": round(largest / (1_000_000 if sys.platform == "darwin" else 1000)),
        "longest_text": longest,
        "kinds": {k: {**row, "endings": dict(row["endings"])} for k, row in found.items()},
    }


def table(found: dict[str, Any]) -> str:
    """The kinds as a Markdown table, the slowest first."""
    rows = ["| pages | read | cut | given up | slowest |", "| --- | --- | --- | --- | --- |"]
    for kind, row in sorted(found["kinds"].items(), key=lambda item: -item[1]["slowest"]):
        counts = [row["endings"].get(ending, 0) for ending in ("read", "cut", "given up")]
        rows.append(f"| {kind} | {' | '.join(map(str, counts))} | {row['slowest']:.1f} s |")
    return "\n".join(rows)


def main() -> None:
    """Measures, prints, and writes what was found."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--pages", type=int, default=1040)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    options = parser.parse_args()
    started = perf_counter()
    found = asyncio.run(measure(options.pages))
    kept = {
        "command": f"python benchmarks/hostile_pages.py --pages {options.pages}",
        "made": datetime.now(UTC).date().isoformat(),
        "machine": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        "limits": {"cpu_seconds": CPU_SECONDS, "memory_mb": MEMORY_MB, "text": MAX_TEXT},
        "seconds": round(perf_counter() - started),
        "found": found,
    }
    options.out.write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")
    print(table(found))
    print(f"\n{found['pages']} pages, slowest {found['slowest']} s, {found['largest_mb']} MB")


if __name__ == "__main__":
    main()
