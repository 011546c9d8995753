"""The calls of a whole turn, planned by the words of the request. Pure.

A request is cut into clauses. Runs of clauses that lie side by side are planned as if each were a
request of its own, for the tools that match it; a list in it may be spread over several calls. Of
all ways to put such runs together the likeliest one is taken, by weights that are fitted. What a
call lacks it has from another one.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from mlx_tools.decoding.clauses import clauses
from mlx_tools.decoding.evidence import Plan, Planned, RequestEvidence
from mlx_tools.decoding.features import Candidate, Features
from mlx_tools.decoding.mentions import Mention
from mlx_tools.decoding.offers import dump
from mlx_tools.decoding.outline import beside, outline
from mlx_tools.decoding.parts import WIDTH, Part, Step, added, meet, moved, options, part_of
from mlx_tools.lexical import Ranking
from mlx_tools.spec import ToolSpec


@dataclass(frozen=True, slots=True)
class PlannedCall:
    """A call of a turn: the tool, what its arguments are to have, and which part of the request
    speaks of it."""

    spec: ToolSpec
    plan: Plan
    start: int
    end: int

    def in_clauses(self) -> Plan:
        """The plan with its mentions as they stand in that part."""
        return {name: moved(planned, -self.start) for name, planned in self.plan.items()}


@dataclass(frozen=True, slots=True)
class _Way:
    """A way to make the turn, as far as it is made."""

    score: float = 0.0
    steps: tuple[Step, ...] = ()
    features: Features = field(default_factory=dict)


class TurnPlanner:
    """Plans the turn of one request. ``weights`` are those of the ways; the arguments are planned
    once, with the weights of the evidence."""

    def __init__(self, evidence: RequestEvidence, tools: Sequence[ToolSpec]) -> None:
        self.weights = evidence.weights
        self._evidence = evidence
        self._request = evidence.request
        self._tools = tools
        self._outlines = {spec.name: outline(spec) for spec in tools}
        self._wholes: dict[str, Plan] = {}
        self._clauses = clauses(self._request, evidence.mentions, evidence.lists)
        self._together = bool(_RESPECTIVELY.search(self._request))

    def plan(self) -> list[PlannedCall]:
        """The calls of the likeliest way; none without tools."""
        ways = self.ways()
        if not ways:
            return []
        return max(ways, key=lambda way: self.weights.score(way[1]))[0]

    def ways(self) -> list[tuple[list[PlannedCall], Features]]:
        """The likeliest ways by their parts, each with what speaks for it as a whole."""
        made = []
        for way in self._searched():
            calls = self._calls(way.steps)
            made.append((calls, way.features | self._of_whole(calls)))
        return made

    # --- the search ---

    def _searched(self) -> list[_Way]:
        """The likeliest ways through the clauses, up to `_WAYS`: a beam search."""
        parts = self._parts
        reached: list[list[_Way]] = [[_Way()]]
        for last in range(len(self._clauses)):
            found: list[_Way] = []
            for first in range(last + 1):
                cut: Features = {f"turn cut {self._clauses[first].cut}": 1.0} if first else {}
                if first == last:
                    found += [self._grown(way, (), cut | _SKIPPED) for way in reached[first]]
                for step, features in parts.get((first, last), ()):
                    here = added(features, cut)
                    score = self.weights.score(here)
                    found += [self._grown(way, (step,), here, score) for way in reached[first]]
            found.sort(key=lambda way: -way.score)
            reached.append(found[:_WAYS])
        return [way for way in reached[-1] if way.steps]

    def _grown(
        self, way: _Way, steps: tuple[Step, ...], features: Features, score: float | None = None
    ) -> _Way:
        if score is None:
            score = self.weights.score(features)
        if steps and way.steps:
            name = steps[0][0].spec.name
            if way.steps[-1][0].spec.name == name:
                kind = "turn same tool"
            else:
                had = any(part.spec.name == name for part, _ in way.steps)
                kind = "turn tool again" if had else "turn new tool"
            if not steps[0][0].features["turn match"]:
                kind += ", unsaid"
            features = features | {kind: 1.0}
            score += self.weights.score({kind: 1.0})
        return _Way(way.score + score, (*way.steps, *steps), added(way.features, features))

    @functools.cached_property
    def _parts(self) -> dict[tuple[int, int], list[tuple[Step, Features]]]:
        """What the tools make of every run of clauses, by its first and last."""
        ranking = Ranking(self._tools)
        found = {}
        for first, one in enumerate(self._clauses):
            for last, other in enumerate(self._clauses[first:], first):
                start, end = one.start, other.end
                long = last - first >= _LONGEST or end - start > _LONGEST_CHARS
                if long and end - start < len(self._request):
                    continue
                matches = ranking.scores(self._request[start:end])
                parts = self._parts_of(start, end, matches)
                found[first, last] = [option for part in parts for option in options(part)]
        return found

    def _parts_of(self, start: int, end: int, matches: Sequence[float]) -> Iterator[Part]:
        best = max(matches, default=0.0)
        order = sorted(range(len(self._tools)), key=lambda number: -matches[number])
        local: RequestEvidence | None = None
        for number in order[:_TOOLS]:
            if matches[number] < best * _LEAST_MATCH:
                continue
            local = local or self._evidence.of_clauses(start, end)
            match = matches[number] / best if best > 0 else 0.0
            spec = self._tools[number]
            yield part_of(spec, self._outlines[spec.name], local, match, start)

    # --- the calls of a way ---

    def _calls(self, steps: Sequence[Step]) -> list[PlannedCall]:
        made: list[PlannedCall] = []
        for part, names in steps:
            for items in self._together_or_each([part.spreads[name].items for name in names]):
                plan = dict(part.plan)
                for name, item in zip(names, items, strict=True):
                    plan[name] = Planned(item.candidate, part.plan[name].odds)
                made.append(PlannedCall(part.spec, plan, part.start, part.end))
        made = made[:_CALLS]
        return _each_once([self._completed(call, n, made) for n, call in enumerate(made)])

    def _together_or_each(
        self, lists: Sequence[Sequence[Planned]]
    ) -> Iterator[tuple[Planned, ...]]:
        """The items of several lists one with one, where the request says *respectively*, else each
        with each."""
        if self._together and len({len(items) for items in lists}) == 1:
            return zip(*lists, strict=True)
        return itertools.islice(itertools.product(*lists), _CALLS)

    def _completed(
        self, call: PlannedCall, number: int, calls: Sequence[PlannedCall]
    ) -> PlannedCall:
        """A call with what it lacks, or has on weak grounds, out of the nearest other one, and what
        all of them lack out of the whole request."""
        plan = dict(call.plan)
        near = [*enumerate(calls)]
        near.sort(key=lambda p: (p[1].spec != call.spec, abs(p[0] - number), p[0] > number))
        for one in self._outlines[call.spec.name]:
            own = call.plan.get(one.about.name)
            if own is None and not one.about.required:
                continue
            if own is not None and (own.odds >= _WEAK or one.kind.startswith("allowed")):
                continue
            least = own.odds + _STRONGER if own is not None else -100.0
            others = (c.plan.get(one.about.name) for n, c in near if n != number)
            found = next((o for o in others if o is not None and o.odds > least), None)
            if found is None and own is None:
                found = self._whole(call.spec).get(one.about.name)
            if found is not None:
                plan[one.about.name] = found
        return replace(call, plan=plan)

    def _whole(self, spec: ToolSpec) -> Plan:
        """What all of the request has for the arguments of a tool."""
        plan = self._wholes.get(spec.name)
        if plan is None:
            plan = self._evidence.plan(self._outlines[spec.name], beside(spec), width=WIDTH)
            self._wholes[spec.name] = plan
        return plan

    # --- a way as a whole ---

    def _of_whole(self, calls: Sequence[PlannedCall]) -> Features:
        several = float(len(calls) > 1)
        names = {call.spec.name for call in calls}
        used = [m for c in calls for p in c.plan.values() for m in p.candidate.mentions]
        said = self._evidence.strong
        left = [m for m in said if not any(meet(m, u) for u in used)]
        unused = len(left)
        cut, rivals = self._left_of_lists(calls, used), self._rivals(calls, left)
        return {
            "turn lists cut": float(min(cut, 3)),
            "turn list cut": float(cut > 0),
            "turn rivals": float(min(rivals, 4)),
            "turn a rival": float(rivals > 0),
            "turn calls": float(len(calls)),
            "turn one call": 1.0 - several,
            "turn tools": float(len(names)),
            "turn all tools": float(len(names) == len(self._tools)),
            "turn several of one tool": several * float(len(self._tools) == 1),
            "turn several joints": several * min(len(_JOINT.findall(self._request)), 3) / 3,
            "turn several ands": several * min(len(_AND.findall(self._request)), 4) / 4,
            "turn unused": float(min(unused, 4)),
            "turn unused share": unused / max(len(said), 1),
        }

    def _left_of_lists(self, calls: Sequence[PlannedCall], used: Sequence[Mention]) -> int:
        """How many lists of numbers or names have an item that an argument has, alone, and another
        one that no call has."""
        own = [p.candidate.mentions[0] for c in calls for p in c.plan.values() if _alone(p)]
        return sum(
            any(meet(m, one) for m in run for one in own)
            and not all(any(meet(m, u) for u in used) for m in run)
            for run in self._evidence.lists
            if run[0].kind != "phrase"
        )

    def _rivals(self, calls: Sequence[PlannedCall], left: Sequence[Mention]) -> int:
        """How many of the mentions that are left suit an argument of a call about as well as what
        it has."""
        found = set()
        for call in calls:
            words = beside(call.spec)
            for one in self._outlines[call.spec.name]:
                planned = call.plan.get(one.about.name)
                if planned is None or not _alone(planned):
                    continue
                scored = self._evidence.scored(one, words)
                own = next((s for s, c in scored if c == planned.candidate), None)
                for score, candidate in scored:
                    if own is None or score < own - _RIVAL:
                        break
                    found |= {m.start for m in left if _meets(candidate, m)}
        return len(found)


def _alone(planned: Planned) -> bool:
    return len(planned.candidate.mentions) == 1


def _meets(candidate: Candidate, mention: Mention) -> bool:
    return any(meet(one, mention) for one in candidate.mentions)


def _each_once(calls: Sequence[PlannedCall]) -> list[PlannedCall]:
    known: dict[tuple[str, str], PlannedCall] = {}
    for call in calls:
        values = {name: call.plan[name].candidate.value for name in sorted(call.plan)}
        known.setdefault((call.spec.name, dump(values)), call)
    return list(known.values())


_SKIPPED: Final[Features] = {"turn skipped": 1.0}
_WAYS: Final = 60
_LONGEST: Final = 5
_LONGEST_CHARS: Final = 1000
"""So many clauses and characters at most speak of one call, where not all of them do."""
_TOOLS: Final = 3
_LEAST_MATCH: Final = 0.4
"""How many ways, plans and tools are looked at side by side, and which tools match too little."""
_CALLS: Final = 8
_WEAK: Final = 2.0
_STRONGER: Final = 2.0
"""Below which odds, and by how much more, what another call has is taken instead."""
_RIVAL: Final = 3.0
"""By how much less a rival may suit an argument."""
_RESPECTIVELY: Final = re.compile(r"\brespectively\b", re.IGNORECASE)
_JOINT: Final = re.compile(
    r"\b(?:also|then|another|additionally|as well|both|each|respectively|again|moreover"
    r"|second(?:ly)?|after that|next|finally|plus|too|separately|furthermore|lastly)\b",
    re.IGNORECASE,
)
_AND: Final = re.compile(r"\band\b|;|\?\s+\S|\.\s+[A-Z]")


def plan_turn(evidence: RequestEvidence, tools: Sequence[ToolSpec]) -> list[PlannedCall]:
    """The calls that a request asks for, less those already answered."""
    planned = TurnPlanner(evidence, tools).plan()
    return [call for call in planned if not evidence.has_had(call.spec, call.plan)] or planned[:1]
