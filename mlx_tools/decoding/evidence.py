"""What the words of a request say of the choices that a call is made of."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from mlx_tools.decoding.arguments import About
from mlx_tools.decoding.features import Beside, Candidate, Features, none_features
from mlx_tools.decoding.mentions import Mention
from mlx_tools.decoding.offers import Kind, Offers, Use, Wanted, dump, overlapping
from mlx_tools.decoding.weights import Weights, fitted_weights
from mlx_tools.lexical import stems, tool_stems
from mlx_tools.messages import ToolCall
from mlx_tools.spec import ToolSpec


@dataclass(frozen=True, slots=True)
class Planned:
    """What suits an argument best of all that the request says, and by how much more than none."""

    candidate: Candidate
    odds: float


Plan = Mapping[str, Planned]
"""What arguments are to have, by their names."""

_NOTHING: Final[Plan] = {}


@dataclass(frozen=True, slots=True)
class _Partial:
    """A plan in the making."""

    total: float = 0.0
    made: tuple[tuple[str, Planned], ...] = ()
    used: tuple[Use, ...] = ()

    def grown(self, name: str, candidate: Candidate, odds: float) -> _Partial:
        return _Partial(
            self.total + odds,
            (*self.made, (name, Planned(candidate, odds))),
            (*self.used, *((name, mention) for mention in candidate.mentions)),
        )


class RequestEvidence:
    """The evidence of one request, less what calls already answered it."""

    def __init__(
        self,
        request: str,
        weights: Weights,
        answered: Sequence[ToolCall] = (),
        tools: Sequence[ToolSpec] = (),
    ) -> None:
        self.request = request
        self.weights = weights
        self._offers = Offers(request, tools)
        self._known: dict[object, list[tuple[float, Candidate]]] = {}
        self._used: list[Use] = []
        self._earlier: list[Use] = []
        self._answered = bool(answered)
        self._had = {text.casefold() for call in answered for text in _leaves(call.arguments)}
        specs = {spec.name: spec for spec in tools}
        self._covered = {
            stem
            for call in answered
            for stem in (
                *stems(call.name),
                *(tool_stems(specs[call.name]) if call.name in specs else ()),
                *stems(" ".join(_strings(call.arguments))),
            )
        }

    # --- the call ---

    @property
    def left(self) -> frozenset[str]:
        """The stems of the request less those of the calls already answered."""
        return self._offers.context.stems - self._covered

    @property
    def rest(self) -> str:
        """The words of the request that are left, as one text."""
        return " ".join(stem for stem in stems(self.request) if stem not in self._covered)

    @property
    def has_answered(self) -> bool:
        """Whether calls of this request are answered already."""
        return self._answered

    def is_news(self, candidate: Candidate) -> bool:
        """Whether no call already answered had all of a candidate."""
        return not all(mention.text.casefold() in self._had for mention in candidate.mentions)

    @property
    def words(self) -> frozenset[str]:
        """The stems of the request."""
        return self._offers.context.stems

    @property
    def covered(self) -> frozenset[str]:
        """The stems that calls already answered, and what earlier calls of this turn have."""
        earlier = (stem for _, mention in self._earlier for stem in stems(mention.text))
        return frozenset(self._covered).union(earlier)

    def is_fresh(self, candidate: Candidate) -> bool:
        """Whether no earlier call of this turn has any of a candidate."""
        return not any(overlapping(self._earlier, m) for m in candidate.mentions)

    def lists(self, name: str) -> tuple[bool, bool]:
        """Of the lists of the request that hold what an earlier call has for an argument: whether
        one holds more, and whether one is used up."""
        had = {mention.start for one, mention in self._earlier if one == name}
        used = {mention.start for _, mention in self._earlier}
        left = done = False
        for run in self._offers.lists:
            starts = {mention.start for mention in run}
            if starts & had:
                left, done = left or not starts <= used, done or starts <= used
        return left, done

    def unused(self) -> float:
        """The share of the request's numbers, names and quotations that no earlier call has."""
        said = [*self._offers.numbers, *self._offers.strong]
        left = [m for m in said if not overlapping(self._earlier, m)]
        return len(left) / max(len(said), 1)

    # --- arguments ---

    def score(self, features: Features) -> float:
        """What features say together, as a natural logarithm of odds."""
        weights = self.weights.features
        return sum(weights.get(name, 0.0) * value for name, value in features.items())

    def none(self, kind: Kind, about: About) -> float:
        """What speaks for none of the candidates: for leaving an optional argument out, or for the
        model's own words where it is required."""
        if about.required:
            return self.weights.free
        return self.score(none_features(about, kind, self._offers.context))

    # --- plans ---

    def plan(
        self, wanted: Sequence[Wanted], beside: Beside, *, fresh: bool = False
    ) -> dict[str, Planned]:
        """Which argument is to have what: all of them together as likely as can be, and nothing for
        two of them.

        An argument that nothing speaks for more than against is left out; with ``fresh``, also one
        for which all is in an earlier call. Found by a beam search in the arguments' order.
        """
        beam: list[_Partial] = [_Partial()]
        for one in wanted:
            scored = self._scored(one, beside)
            none = self.none(one.kind, one.about)
            if fresh:
                scored = [pair for pair in scored if pair[1].mentions and self.is_fresh(pair[1])]
            grown = list(beam)
            for partial in beam:
                for score, candidate in scored[:_BRANCHES]:
                    if any(overlapping(partial.used, m) for m in candidate.mentions):
                        continue
                    odds = score + self._placed(one, candidate, partial.used) - none
                    if odds > 0:
                        grown.append(partial.grown(one.about.name, candidate, odds))
            grown.sort(key=lambda partial: -partial.total)
            beam = grown[:_BEAM]
        return dict(beam[0].made)

    def _scored(self, one: Wanted, beside: Beside) -> list[tuple[float, Candidate]]:
        """What may fill an argument, the likeliest first, by all but what calls have already."""
        key = (beside.name, one.about, one.kind, dump(one.values))
        found = self._known.get(key)
        if found is None:
            offers = self._offers.of(one, beside)
            scored = [(self.score(features), candidate) for candidate, features in offers]
            found = sorted(scored, key=lambda pair: -pair[0])[:_MOST_CANDIDATES]
            self._known[key] = found
        return found

    def _placed(self, one: Wanted, candidate: Candidate, used: Sequence[Use]) -> float:
        return self.score(self._offers.placing(one, candidate, used, self._earlier))

    def plan_again(self, wanted: Sequence[Wanted], beside: Beside) -> dict[str, Planned]:
        """A plan for another call of a tool: what no call of this turn has yet, and for the other
        arguments what they had."""
        made = self.plan(wanted, beside, fresh=True)
        for one in wanted:
            had = [mention for name, mention in self._earlier if name == one.about.name]
            if one.about.name in made or not had:
                continue
            last = [c for _, c in self._scored(one, beside) if c.mentions[-1:] == (had[-1],)]
            if last:
                best = max(last, key=lambda candidate: len(candidate.mentions))
                made[one.about.name] = Planned(best, _AS_BEFORE)
        return made

    # --- choices ---

    def ranked(
        self, one: Wanted, beside: Beside, plan: Plan = _NOTHING
    ) -> list[tuple[Candidate, float]]:
        """What may fill an argument, the likeliest first, each with what speaks for it more than
        for none: a natural logarithm of odds. What ``plan`` has for another argument is taken."""
        taken = [
            (name, mention)
            for name, planned in plan.items()
            if name != one.about.name
            for mention in planned.candidate.mentions
        ]
        own = plan.get(one.about.name)
        none = self.none(one.kind, one.about)
        found = []
        for score, candidate in self._scored(one, beside):
            odds = score + self._placed(one, candidate, [*taken, *self._used]) - none
            if own is not None and own.candidate.value == candidate.value:
                odds = max(odds, own.odds) + self.weights.planned
            found.append((candidate, odds))
        found.sort(key=lambda pair: -pair[1])
        best: dict[str, tuple[Candidate, float]] = {}
        for pair in found:
            best.setdefault(dump(pair[0].value), pair)
        return list(best.values())

    def member(self, about: About, plan: Plan) -> float:
        """The odds that an optional argument is given: those of what it is to have, or what speaks
        against it where the request has nothing for it."""
        planned = plan.get(about.name)
        if planned is not None:
            return planned.odds
        return min(-self.none("other", about), 0.0)

    def allowed(self, values: Sequence[Any], about: About, plan: Plan) -> list[float]:
        """What speaks for each of the allowed values, which differ: a bias to the model's own
        likelihoods."""
        best = dict.fromkeys(map(dump, values), -math.inf)
        one = Wanted(about, "allowed", tuple(values))
        for candidate, features in self._offers.of(one, Beside()):
            odds = self.score(features) + self._placed(one, candidate, self._used)
            if (planned := plan.get(about.name)) and planned.candidate.value == candidate.value:
                odds = max(odds, planned.odds) + self.weights.planned
            key = dump(candidate.value)
            best[key] = max(best[key], odds)
        return [self.bias(odds) for odds in best.values()]

    def bias(self, odds: float) -> float:
        """What odds count beside the model's own likelihoods. Bounded, so that a model that is
        sure gets its way; 0 where the request has no words to judge by."""
        if not self._offers.context.stems:
            return 0.0
        return max(-_BOUND, min(odds, _BOUND)) * self.weights.request

    def is_sure(self, ranked: Sequence[float]) -> bool:
        """Whether the first of the odds is so far ahead of the second, and of none, that the model
        is not asked."""
        second = max(ranked[1] if len(ranked) > 1 else 0.0, 0.0)
        return ranked[0] - second >= self.weights.sure

    def spent(self, kind: Kind) -> bool:
        """Whether arguments have all that the request could have said for such a hole."""
        mentions = self._offers.numbers if kind == "number" else self._offers.texts
        said = [m for m in mentions if m.kind not in ("word", "phrase")]
        return bool(said) and all(map(self._taken, said))

    def next_call(self) -> None:
        """Begins another call: what an argument had is not taken by the arguments of this one."""
        self._earlier += self._used
        self._used = []

    def use(self, name: str, candidate: Candidate) -> None:
        """Takes note that the argument ``name`` has this of the request."""
        self._used += [(name, mention) for mention in candidate.mentions]

    def use_text(self, name: str, kind: Kind, value: str) -> None:
        """The same of a value that the model wrote: the first such of the request that is free."""
        mentions = self._offers.numbers if kind == "number" else self._offers.texts
        same = [m for m in mentions if m.text == value]
        free = [m for m in same if not self._taken(m)]
        self._used += [(name, mention) for mention in (free or same)[:1]]

    def whole(self, written: str) -> str:
        """``written``, or the name, quotation or code of the request that it is a part of."""
        if not written.strip() or len(written) > _MAX_PART:
            return written
        inside = re.compile(rf"(?<!\w){re.escape(written)}(?!\w)", re.IGNORECASE)
        for mention in self._offers.texts:
            strong = mention.kind in ("quoted", "name", "code")
            if strong and mention.text != written and inside.search(mention.text):
                return mention.text
        return written

    def _taken(self, mention: Mention) -> bool:
        return bool(overlapping(self._used, mention))


def _leaves(value: Any) -> list[str]:
    if isinstance(value, Mapping):
        return [text for item in value.values() for text in _leaves(item)]
    if isinstance(value, list):
        return [text for item in value for text in _leaves(item)]
    return [value if isinstance(value, str) else dump(value)]


def _strings(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping):
        return [text for item in value.values() for text in _strings(item)]
    if isinstance(value, list):
        return [text for item in value for text in _strings(item)]
    return []


_MOST_CANDIDATES: Final = 40
_BRANCHES: Final = 10
_BEAM: Final = 24
"""How many candidates of an argument, and how many plans, are looked at side by side."""
_BOUND: Final = 4.5
"""So much at most the request's words count against the model's likelihoods."""
_AS_BEFORE: Final = 4.0
"""The odds of what an argument had in the call before, where nothing new is for it."""
_MAX_PART: Final = 200


def guidance(
    request: str,
    answered: Sequence[ToolCall] = (),
    tools: Sequence[ToolSpec] = (),
    weight: float = 1.0,
) -> RequestEvidence:
    """The evidence of a request that is made with ``tools`` at hand. ``weight`` is what its words
    count against the model's own likelihoods: more for a weak model."""
    weights = replace(fitted_weights(), request=weight)
    return RequestEvidence(request, weights, answered, tools)
