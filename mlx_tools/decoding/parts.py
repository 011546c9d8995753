"""What one tool makes of some clauses of a request: a call, or several by a list. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from mlx_tools.decoding.evidence import Plan, Planned, RequestEvidence
from mlx_tools.decoding.features import Beside, Candidate, Features
from mlx_tools.decoding.mentions import Mention
from mlx_tools.decoding.offers import Wanted, dump
from mlx_tools.decoding.outline import beside
from mlx_tools.lexical import relevance, stems
from mlx_tools.spec import ToolSpec

WIDTH: Final = 6
"""How many plans of a call are looked at side by side."""


@dataclass(frozen=True, slots=True)
class Spread:
    """A list whose items an argument has in one call each."""

    items: tuple[Planned, ...]
    odds: float
    """How much the further items suit the argument more than the first, on average."""


@dataclass(frozen=True, slots=True)
class Part:
    """What one tool makes of some clauses."""

    spec: ToolSpec
    plan: Plan
    spreads: Mapping[str, Spread]
    features: Features
    start: int
    end: int


Step = tuple[Part, tuple[str, ...]]
"""A part of the turn, and the arguments that its lists are spread over."""


def part_of(
    spec: ToolSpec, wanted: Sequence[Wanted], local: RequestEvidence, match: float, start: int
) -> Part:
    """What a tool makes of the clauses from ``start`` on, whose evidence ``local`` is. ``match`` is
    how well it matches their words against the tool that does best."""
    words = beside(spec)
    plan = local.plan(wanted, words, width=WIDTH)
    needed = [w.about.name for w in wanted if w.about.required and w.kind != "other"]
    told = [planned for planned in plan.values() if planned.candidate.mentions]
    missing = sum(name not in plan for name in needed)
    name = frozenset(stems(spec.name))
    features = {
        "turn call": 1.0,
        "turn odds": sum(min(planned.odds, 8.0) for planned in told) / 8,
        "turn told": float(len(told)),
        "turn nothing told": float(not told),
        "turn missing": float(missing),
        "turn missing share": missing / max(len(needed), 1),
        "turn relevance": max(-3.0, min(relevance(local.words, spec), 4.0)),
        "turn match": match,
        "turn named": len(name & local.words) / max(len(name), 1),
    }
    spreads = {w.about.name: spread for w in wanted if (spread := _spread(w, plan, words, local))}
    plan = {name: moved(planned, start) for name, planned in plan.items()}
    lists = {
        name: replace(spread, items=tuple(moved(item, start) for item in spread.items))
        for name, spread in spreads.items()
    }
    return Part(spec, plan, lists, features, start, start + len(local.request))


def options(part: Part) -> Iterator[tuple[Step, Features]]:
    """A part with no list spread, with each one of them, and with all."""
    yield (part, ()), part.features
    names = list(part.spreads)
    chosen = [(name,) for name in names] + ([tuple(names)] if len(names) > 1 else [])
    for some in chosen:
        features = part.features
        for name in some:
            spread = part.spreads[name]
            kind = spread.items[0].candidate.mentions[0].kind
            more = {
                f"turn spread {kind}": 1.0,
                "turn spread calls": len(spread.items) - 1.0,
                "turn spread odds": spread.odds / 8,
            }
            features = added(features, more)
        yield (part, some), features


def _spread(one: Wanted, plan: Plan, words: Beside, local: RequestEvidence) -> Spread | None:
    """The list that begins with what an argument has, if all its items suit the argument and no
    other argument has any of it."""
    scored = local.scored(one, words)
    planned = plan.get(one.about.name)
    if one.kind not in ("number", "text") or planned is None:
        return None
    if len(planned.candidate.mentions) != 1:
        return None
    own = planned.candidate.mentions[0]
    taken = [m for p in plan.values() if p is not planned for m in p.candidate.mentions]
    base = next((score for score, c in scored if c == planned.candidate), 0.0)
    best: Spread | None = None
    for run in local.lists:
        if not meet(run[0], own) or any(meet(m, t) for m in run for t in taken):
            continue
        suiting = [_suiting(item, own, scored) for item in run]
        found = [pair for pair in suiting if pair is not None]
        items = tuple(Planned(candidate, score) for score, candidate in found)
        if len(found) < len(run) or len({dump(i.candidate.value) for i in items}) < len(run):
            continue
        odds = sum(item.odds for item in items[1:]) / (len(items) - 1) - base
        if odds > _LEAST_SPREAD and (best is None or odds > best.odds):
            best = Spread(items, odds)
    return best


def _suiting(
    item: Mention, own: Mention, scored: Sequence[tuple[float, Candidate]]
) -> tuple[float, Candidate] | None:
    """The likeliest candidate that an item of a list is, of the kind of the first item's."""
    found = [
        (score, candidate)
        for score, candidate in scored
        if len(candidate.mentions) == 1
        and candidate.mentions[0].kind == own.kind
        and item.start <= candidate.mentions[0].start
        and candidate.mentions[0].end <= item.end
    ]
    return max(found, key=lambda pair: pair[0], default=None)


def meet(one: Mention, other: Mention) -> bool:
    return one.start < other.end and other.start < one.end


def moved(planned: Planned, by: int) -> Planned:
    """The same with its mentions so much further on."""
    mentions = tuple(
        replace(m, start=m.start + by, end=m.end + by) for m in planned.candidate.mentions
    )
    return replace(planned, candidate=replace(planned.candidate, mentions=mentions))


def added(one: Features, other: Features) -> Features:
    total = dict(one)
    for name, value in other.items():
        total[name] = total.get(name, 0.0) + value
    return total


_LEAST_SPREAD: Final = -4.0
