"""Whether a request asks for a call, and of which tool. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Final

from mlx_tools.decoding.arguments import is_file
from mlx_tools.decoding.english import VERBS
from mlx_tools.decoding.evidence import RequestEvidence
from mlx_tools.decoding.features import Candidate, Features
from mlx_tools.decoding.outline import beside, outline
from mlx_tools.lexical import Ranking, stem, stems, tool_stems
from mlx_tools.spec import MUTATING, ToolSpec

_LOOKED_AT: Final = 8
"""For so many of the best matches it is looked at what the request has for their arguments."""
_ONES_OWN: Final = re.compile(r"\b(?:I|my)\b(?!['’])")
_DOING: Final = frozenset(map(stem, (*VERBS, "say", "mean", "look", "read", "answer")))
"""The request speaks of what is the user's own, which no model knows; and the words that name no
thing of theirs, but what is done with it."""

_QUESTION: Final = re.compile("[?？؟]")
_LOOK_UP: Final = 3.0
"""The odds of looking a question up, chosen by hand: a weak model does, another one may answer."""


def call_odds(
    evidence: RequestEvidence, tools: Sequence[ToolSpec], *, look_up: bool = False
) -> list[float]:
    """For each tool the odds, by the request's words, that it is called first and not none of them:
    natural logarithms.

    With ``look_up`` a question that speaks for no tool is one for those that search what is the
    user's own.
    """
    calling, answer = opening_features(evidence, tools)
    against = evidence.weights.score(answer)
    odds = [evidence.weights.score(features) - against for features in calling]
    asks = look_up and not evidence.has_answered and _QUESTION.search(evidence.request)
    if asks and max(odds, default=0.0) <= 0:
        odds = [_LOOK_UP if _searches(tool) else one for tool, one in zip(tools, odds, strict=True)]
    return odds


def _searches(spec: ToolSpec) -> bool:
    """Whether a tool takes any words, and answers with what is the user's own."""
    needed = [one for one in outline(spec) if one.about.required]
    return (
        spec.private
        and spec.possible_effects.isdisjoint(MUTATING)
        and len(needed) == 1
        and needed[0].kind == "text"
        and not needed[0].about.is_path
    )


def opening_features(
    evidence: RequestEvidence, tools: Sequence[ToolSpec]
) -> tuple[list[Features], Features]:
    """What speaks for a first call of each tool, and for an answer instead."""
    left = evidence.left
    matches = Ranking(tools).scores(evidence.rest)
    best = max(matches, default=0.0)
    order = sorted(range(len(tools)), key=lambda number: -matches[number])
    looked_at = set(order[:_LOOKED_AT])
    things = left - _DOING if _ONES_OWN.search(evidence.request) else frozenset()
    found = []
    for number, (spec, match) in enumerate(zip(tools, matches, strict=True)):
        name = frozenset(stems(spec.name))
        shared = sum(1 for stem in tool_stems(spec) if stem in left)
        own = spec.private and bool(things & tool_stems(spec).keys())
        features = {
            "first of one's own": float(own),
            "first match": match / best if best > 0 else 0.0,
            "first match at all": math.log1p(match),
            "first shared": math.log1p(shared),
            "first named": len(name & left) / max(len(name), 1),
            "first coverage": shared / max(len(left), 1),
        }
        if number in looked_at:
            features |= _filled(evidence, spec, shared)
        found.append(features)
    answer = {
        "answer": 1.0,
        "answer of few words": 1 / (1 + len(left)),
        "answer of many tools": math.log(max(len(tools), 1)),
        "answer again": float(evidence.has_answered),
    }
    return found, answer


def _filled(evidence: RequestEvidence, spec: ToolSpec, shared: int) -> Features:
    """What speaks for a tool by what the request has for its arguments; ``shared`` is how many
    words it shares with the tool."""
    wanted = [one for one in outline(spec) if one.about.required]
    plan = evidence.plan(wanted, beside(spec))
    told = [p for p in plan.values() if p.candidate.mentions and evidence.is_news(p.candidate)]
    size = max(len(wanted), 1)
    formula = any(p.candidate.mentions[0].kind in ("formula", "sum") for p in told)
    keeps = any(p.candidate.mentions[0].kind in ("clause", "moment") for p in told)
    opens = any(one.about.is_path for one in wanted) and any(
        mention.kind == "code"
        and is_file(mention.text)
        and evidence.is_news(Candidate(mention.text, (mention,)))
        for mention in evidence.mentions
    )
    return {
        "first opens": float(opens),
        "first keeps": float(keeps and shared > 0),
        "first computes": float(formula and any("formula" in w.about.classes for w in wanted)),
        "first has all": float(bool(wanted) and len(told) == len(wanted)),
        "first has": len(told) / size,
        "first odds": min(sum(planned.odds for planned in told) / size, 8.0) / 8,
        "first wants nothing": float(not wanted),
    }
