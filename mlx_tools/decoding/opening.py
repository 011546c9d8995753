"""Whether a request asks for a call, and of which tool. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from mlx_tools.decoding.evidence import RequestEvidence
from mlx_tools.decoding.features import Features
from mlx_tools.decoding.outline import beside, outline
from mlx_tools.lexical import Ranking, stems, tool_stems
from mlx_tools.spec import ToolSpec

_LOOKED_AT: Final = 8
"""For so many of the best matches it is looked at what the request has for their arguments."""


def call_odds(evidence: RequestEvidence, tools: Sequence[ToolSpec]) -> list[float]:
    """For each tool the odds, by the request's words, that it is called first and not none of them:
    natural logarithms."""
    calling, answer = opening_features(evidence, tools)
    against = evidence.weights.score(answer)
    return [evidence.weights.score(features) - against for features in calling]


def opening_features(
    evidence: RequestEvidence, tools: Sequence[ToolSpec]
) -> tuple[list[Features], Features]:
    """What speaks for a first call of each tool, and for an answer instead."""
    left = evidence.left
    matches = Ranking(tools).scores(evidence.rest)
    best = max(matches, default=0.0)
    order = sorted(range(len(tools)), key=lambda number: -matches[number])
    looked_at = set(order[:_LOOKED_AT])
    found = []
    for number, (spec, match) in enumerate(zip(tools, matches, strict=True)):
        name = frozenset(stems(spec.name))
        shared = sum(1 for stem in tool_stems(spec) if stem in left)
        features = {
            "first match": match / best if best > 0 else 0.0,
            "first match at all": math.log1p(match),
            "first shared": math.log1p(shared),
            "first named": len(name & left) / max(len(name), 1),
            "first coverage": shared / max(len(left), 1),
        }
        if number in looked_at:
            features |= _filled(evidence, spec)
        found.append(features)
    answer = {
        "answer": 1.0,
        "answer of few words": 1 / (1 + len(left)),
        "answer of many tools": math.log(max(len(tools), 1)),
        "answer again": float(evidence.has_answered),
    }
    return found, answer


def _filled(evidence: RequestEvidence, spec: ToolSpec) -> Features:
    """What speaks for a tool by what the request has for its arguments."""
    wanted = [one for one in outline(spec) if one.about.required]
    plan = evidence.plan(wanted, beside(spec))
    told = [p for p in plan.values() if p.candidate.mentions and evidence.is_news(p.candidate)]
    size = max(len(wanted), 1)
    formula = any(p.candidate.mentions[0].kind == "formula" for p in told)
    return {
        "first computes": float(formula and any("formula" in w.about.classes for w in wanted)),
        "first has all": float(bool(wanted) and len(told) == len(wanted)),
        "first has": len(told) / size,
        "first odds": min(sum(planned.odds for planned in told) / size, 8.0) / 8,
        "first wants nothing": float(not wanted),
    }
