"""The clauses of a request: what its calls are planned from. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Literal

from mlx_tools.decoding.mentions import Mention

Cut = Literal["", "stop", "then", "comma and", "and", "comma"]
"""What stands before a clause; nothing before the first."""

MAX_CLAUSES: Final = 9


@dataclass(frozen=True, slots=True)
class Clause:
    """A piece of the request, from ``start`` to ``end``, and what stands before it."""

    start: int
    end: int
    cut: Cut = ""


_CUT: Final = re.compile(
    r"[.?!;:]+[\"')\]]*\s+|\n+"
    r"|,?\s+(?:and\s+)?(?:then|finally|lastly|also|additionally)\s+"
    r"|,\s+(?:(?:and|or|but|while|plus)\s+)?"
    r"|\s+(?:and|while|plus|but|or|as\s+well\s+as|followed\s+by)\s+",
    re.IGNORECASE,
)
_THEN: Final = re.compile("then|final|last|also|addit", re.IGNORECASE)
_WHOLE: Final = ("quoted", "name", "place", "date", "formula", "bracket")
_MAX_WHOLE: Final = 60
"""A longer quotation has clauses of its own."""
_STRONGEST: Final[Sequence[Cut]] = ("stop", "then", "comma and", "and", "comma")


def clauses(
    request: str, mentions: Sequence[Mention], lists: Sequence[Sequence[Mention]]
) -> list[Clause]:
    """Cuts a request at marks and at words that join; not within a name or a quotation, nor within
    one of ``lists`` of numbers or names. Of more than `MAX_CLAUSES` the weakest cuts are left out.
    """
    whole = [m for m in mentions if m.kind in _WHOLE and m.end - m.start < _MAX_WHOLE]
    gaps = [
        (one.end, other.start)
        for run in lists
        for one, other in pairwise(run)
        if one.kind == other.kind != "phrase"
    ]
    found = []
    for match in _CUT.finditer(request):
        start, end = match.span()
        if end >= len(request) or any(m.start < start and end < m.end for m in whole):
            continue
        if any(a <= start + 1 and end <= b + 1 for a, b in gaps):
            continue
        found.append((_kind(match[0]), start, end))
    found.sort(key=lambda cut: _STRONGEST.index(cut[0]))
    cuts = sorted(found[: MAX_CLAUSES - 1], key=lambda cut: cut[1])
    starts: list[tuple[int, Cut]] = [(0, ""), *((end, kind) for kind, _, end in cuts)]
    ends = [*(start for _, start, _ in cuts), len(request)]
    return [Clause(start, end, kind) for (start, kind), end in zip(starts, ends, strict=True)]


def _kind(text: str) -> Cut:
    if text.strip()[:1] in (".", "?", "!", ";", ":", ""):
        return "stop"
    if _THEN.search(text):
        return "then"
    if "," not in text:
        return "and"
    return "comma and" if text.strip(", \n") else "comma"
