"""Checks of golden transcripts as one HTML page that needs nothing else.

The page holds its style and its script and names no other file: its content security policy lets
nothing else be loaded or run. All that it shows is of others, models and tools, and is escaped; a
character that is not seen is written by its number (`mlx_tools.golden.visible`). It can be read
without its script, which only filters.
"""

from __future__ import annotations

import base64
import functools
import hashlib
from collections import Counter
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from mlx_tools.errors import UsageError
from mlx_tools.golden.difference import ROOMS, Room
from mlx_tools.golden.report_rows import rows_of, state_of
from mlx_tools.golden.report_runs import Writing
from mlx_tools.golden.results import Column, GoldenCheck
from mlx_tools.golden.visible import as_text, brief, by_number, pieces, spelled

if TYPE_CHECKING:
    from jinja2 import Template

TITLE: Final = "Golden transcripts"

MEANING: Final[dict[Room, str]] = {
    "prompt": "the words and turns that the model reads",
    "reading": "how its text is read",
    "policy": "what is decided about its calls",
    "tools": "the tools, and what they give",
    "outcome": "what a question came to",
}
"""What the rooms are, for who has not met them."""

_FOLDER: Final = Path(__file__).resolve().parent


class Html(str):
    """HTML that goes into the page as it is: what the template's escaping leaves alone."""

    __slots__ = ()

    def __html__(self) -> str:
        return str(self)


def write_report(
    checks: Sequence[GoldenCheck], path: Path, *, title: str = TITLE, made: str = ""
) -> None:
    """Writes the checks as an HTML page, those that failed first.

    A run is written out where it failed, or where its records are given; any other is one row of a
    table. ``made`` says when, or by what, the checks were made. Raises `UsageError` where the file
    cannot be written.
    """
    page = _template().generate(_page(checks, title, made))
    try:
        with path.open("w", encoding="utf-8", newline="\n") as out:
            out.writelines(page)
    except OSError as error:
        raise UsageError(
            f"{path} cannot be written: {error.strerror}",
            hint="name a file in a folder that is there, and that you may write to",
        ) from None


def _page(checks: Sequence[GoldenCheck], title: str, made: str) -> dict[str, Any]:
    """What the template is filled with."""
    cells = list(dict.fromkeys(check.cell for check in checks)) or [Column()]
    rows, runs = rows_of(checks, cells)
    writing = Writing(runs)
    return {
        "title": title,
        "made": made,
        "style": _own("report.css"),
        "script": _own("report.js"),
        "style_hash": _hash(_own("report.css")),
        "script_hash": _hash(_own("report.js")),
        "verdict": _verdict(checks, "transcript" if len(cells) == 1 else "check"),
        "counts": Counter(state_of(check) for check in checks),
        "total": len(checks),
        "rooms": _rooms(checks),
        "sampled": _sum(checks).share,
        "cells": cells,
        "sums": [_sum([c for c in checks if c.cell == cell]) for cell in cells],
        "live": any(check.mode == "live" for check in checks),
        "drawn": any(len(check.samples) > 1 for check in checks),
        "rows": rows,
        "runs": len(runs),
        "written": writing.written(),
        "shared": writing.shared,
    }


def _verdict(checks: Sequence[GoldenCheck], noun: str) -> str:
    """What all of it came to, in a sentence; ``noun`` is what was checked."""
    total = len(checks)
    failed = sum(1 for check in checks if not check.passed)
    if not total:
        return "Nothing was checked"
    if total > 1:
        noun += "s"
    if not failed:
        return f"{'The' if total == 1 else f'All {total:,}'} {noun} passed"
    return f"{failed:,} of {total:,} {noun} failed"


def _rooms(checks: Sequence[GoldenCheck]) -> list[tuple[Room, str, int, int]]:
    """The rooms: name, meaning, checks with a difference there, and differences."""
    of_checks = Counter(room for check in checks for room in check.rooms)
    of_all: Counter[str] = Counter(d.room for c in checks for s in c.samples for d in s.differences)
    return [(room, MEANING[room], of_checks[room], of_all[room]) for room in ROOMS]


def _sum(checks: Sequence[GoldenCheck]) -> GoldenCheck:
    """All runs of the checks, as one check."""
    samples = tuple(sample for check in checks for sample in check.samples)
    return GoldenCheck(name="", path="", samples=samples)


def _own(name: str) -> Html:
    """The text of a file of the page, which is ours and goes in as it is."""
    return Html((_FOLDER / name).read_text(encoding="utf-8"))


def _hash(text: str) -> str:
    """What a content security policy calls a text by."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


@functools.cache
def _template() -> Template:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=True,
        finalize=_final,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["seen"] = seen
    environment.filters["brief"] = lambda value: seen(brief(value))
    environment.filters["percent"] = _percent
    return environment.get_template("report.html.j2")


def seen(value: Any) -> Html:
    """A text as HTML, with what would not be seen in marks of its own."""
    text = as_text(value)
    if text.isascii() and text.isprintable():
        return Html(escape(text))
    out = (
        escape(part) if plain else f'<b class="x">{by_number(part)}</b>'
        for plain, part in pieces(text)
    )
    return Html("".join(out))


def _final(value: Any) -> Any:
    """Whatever is printed, and was not through `seen`: in attributes, and elsewhere."""
    if hasattr(value, "__html__"):
        return value
    return spelled(value) if isinstance(value, str) else spelled(as_text(value))


def _percent(share: tuple[float, float]) -> str:
    """An interval in percent."""
    low, high = (round(100 * end) for end in share)
    return f"{low}–{high} %"
