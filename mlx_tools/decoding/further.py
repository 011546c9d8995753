"""Whether a request asks for another call after those that are made, and of which tool. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Final

from mlx_tools.decoding.evidence import RequestEvidence
from mlx_tools.decoding.features import Features
from mlx_tools.decoding.outline import beside, outline
from mlx_tools.lexical import relevance, tool_stems
from mlx_tools.spec import ToolSpec

_JOINT: Final = re.compile(
    r"\b(?:also|then|another|additionally|as well|both|each|respectively|again|moreover"
    r"|second(?:ly)?|after that|next|finally|plus|too|separately|furthermore|lastly)\b",
    re.IGNORECASE,
)
_AND: Final = re.compile(r"\band\b|;|\?\s+\S|\.\s+[A-Z]")


def next_tool(
    evidence: RequestEvidence, tools: Sequence[ToolSpec], made: Sequence[ToolSpec]
) -> ToolSpec | None:
    """The tool that the request asks for besides the calls ``made``, by its words; None for no more
    calls. The evidence has noted what those calls have."""
    calling, enough = call_features(evidence, tools, made)
    odds = [evidence.score(features) for features in calling]
    best = max(range(len(tools)), key=lambda number: (odds[number], -number))
    return tools[best] if odds[best] > evidence.score(enough) else None


def call_features(
    evidence: RequestEvidence, tools: Sequence[ToolSpec], made: Sequence[ToolSpec]
) -> tuple[list[Features], Features]:
    """What speaks for a call of each tool after those that are made, and for no more."""
    request = evidence.request
    joints, ands = len(_JOINT.findall(request)), len(_AND.findall(request))
    left = evidence.unused()
    covered = frozenset(stem for spec in made for stem in tool_stems(spec))
    found = []
    for spec in tools:
        kind = "again" if spec.name in {one.name for one in made} else "other"
        features = _of_tool(evidence, spec, covered, kind)
        features[f"call {kind} joints"] = min(joints, 3) / 3
        features[f"call {kind} ands"] = min(ands, 4) / 4
        features[f"call {kind} left"] = left
        found.append(features)
    enough = {
        "calls enough": 1.0,
        "calls many": math.log(len(made)),
        "calls one tool": float(len(tools) == 1),
        "calls all tools": float(len({one.name for one in made}) == len(tools)),
    }
    return found, enough


def _of_tool(
    evidence: RequestEvidence, spec: ToolSpec, covered: frozenset[str], kind: str
) -> Features:
    wanted = outline(spec)
    words = beside(spec)
    plan = evidence.plan(wanted, words)
    only = evidence.plan(wanted, words, fresh=True)
    told = {name: planned for name, planned in plan.items() if planned.candidate.mentions}
    fresh = {name: p for name, p in told.items() if evidence.is_fresh(p.candidate)}
    needed = [one.about.name for one in wanted if one.about.required and one.kind != "other"]
    lists = [evidence.lists(name) for name in needed]
    relevant = relevance(evidence.words - covered - evidence.covered, spec)
    odds = [min(planned.odds, 8.0) for planned in only.values()]
    size = max(len(needed), 1)
    return {
        f"call {kind}": 1.0,
        f"call {kind} fresh": sum(name in fresh for name in needed) / size,
        f"call {kind} nothing fresh": float(not fresh),
        f"call {kind} fresh odds": min(sum(p.odds for p in fresh.values()), 12.0) / 12,
        f"call {kind} only fresh": sum(name in only for name in needed) / size,
        f"call {kind} only fresh all": float(all(name in only for name in needed)),
        f"call {kind} only fresh odds": min(sum(odds), 16.0) / 16,
        f"call {kind} only fresh best": max(odds, default=0.0) / 8,
        f"call {kind} missing": 1 - sum(name in plan for name in needed) / size,
        f"call {kind} relevance": max(-3.0, min(relevant, 4.0)),
        f"call {kind} all relevance": max(-3.0, min(relevance(evidence.words, spec), 4.0)),
        f"call {kind} list left": float(any(left for left, _ in lists)),
        f"call {kind} list done": float(any(done for _, done in lists)),
        f"call {kind} no arguments": float(not needed),
    }
