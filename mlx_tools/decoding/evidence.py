"""What the words of a request say of the choices that a call is made of."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from mlx_tools.decoding.arguments import About
from mlx_tools.decoding.features import Beside, Candidate, none_features
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
_MOST_CANDIDATES: Final = 40
_BRANCHES: Final = 10
_BEAM: Final = 24
"""How many candidates of an argument, and how many plans, are looked at side by side."""
_BOUND: Final = 4.5
"""So much at most the request's words count against the model's likelihoods."""


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
        self._tools = tuple(tools)
        self._answered = tuple(answered)
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
        return bool(self._answered)

    def has_had(self, spec: ToolSpec, plan: Plan) -> bool:
        """Whether a call of the tool with all that a plan has was answered already."""
        planned = {name: one.candidate.value for name, one in plan.items()}
        return any(
            call.name == spec.name
            and all(call.arguments.get(name) == value for name, value in planned.items())
            for call in self._answered
        )

    def is_news(self, candidate: Candidate) -> bool:
        """Whether no call already answered had all of a candidate."""
        return not all(mention.text.casefold() in self._had for mention in candidate.mentions)

    @property
    def words(self) -> frozenset[str]:
        """The stems of the request."""
        return self._offers.context.stems

    @property
    def mentions(self) -> Sequence[Mention]:
        """The texts of the request that may be values."""
        return self._offers.texts

    @property
    def strong(self) -> list[Mention]:
        """The numbers of the request and its names, quotations and the like."""
        numbers = [m for m in self._offers.numbers if m.kind != "numeral"]
        return [*numbers, *self._offers.strong]

    @property
    def lists(self) -> Sequence[Sequence[Mention]]:
        """Its lists of values: those of numbers and names first, then those of plain words."""
        return self._offers.lists

    def of_clauses(self, start: int, end: int) -> RequestEvidence:
        """The evidence of a part of the request, as if it were all of it."""
        if end - start == len(self.request):
            return self
        return RequestEvidence(self.request[start:end], self.weights, (), self._tools)

    # --- arguments ---

    def none(self, kind: Kind, about: About) -> float:
        """What speaks for none of the candidates: for leaving an optional argument out, or for the
        model's own words where it is required."""
        if about.required:
            return self.weights.free
        return self.weights.score(none_features(about, kind, self._offers.context))

    # --- plans ---

    def plan(
        self, wanted: Sequence[Wanted], beside: Beside, *, width: int = _BEAM
    ) -> dict[str, Planned]:
        """Which argument is to have what: all of them together as likely as can be, and nothing for
        two of them.

        An argument that nothing speaks for more than against is left out. Found by a beam search in
        the arguments' order, with ``width`` plans side by side.
        """
        beam: list[_Partial] = [_Partial()]
        for one in wanted:
            scored = self.scored(one, beside)
            none = self.none(one.kind, one.about)
            grown = list(beam)
            for partial in beam:
                for score, candidate in scored[: min(_BRANCHES, width)]:
                    if any(overlapping(partial.used, m) for m in candidate.mentions):
                        continue
                    odds = score + self._placed(one, candidate, partial.used) - none
                    if odds > 0:
                        grown.append(partial.grown(one.about.name, candidate, odds))
            grown.sort(key=lambda partial: -partial.total)
            beam = grown[:width]
        return dict(beam[0].made)

    def scored(self, one: Wanted, beside: Beside) -> list[tuple[float, Candidate]]:
        """What may fill an argument, the likeliest first, by all but what calls have already."""
        key = (beside.name, one.about, one.kind, dump(one.values))
        found = self._known.get(key)
        if found is None:
            offers = self._offers.of(one, beside)
            scored = [(self.weights.score(features), candidate) for candidate, features in offers]
            found = sorted(scored, key=lambda pair: -pair[0])[:_MOST_CANDIDATES]
            self._known[key] = found
        return found

    def _placed(self, one: Wanted, candidate: Candidate, used: Sequence[Use]) -> float:
        return self.weights.score(self._offers.placing(one, candidate, used))

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
        for score, candidate in self.scored(one, beside):
            odds = score + self._placed(one, candidate, [*taken, *self._used]) - none
            if own is not None and own.candidate.value == candidate.value:
                odds += self.weights.planned
            found.append((candidate, odds))
        if own is not None:  # it may be another call's
            found.append((own.candidate, own.odds + self.weights.planned))
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
            odds = self.weights.score(features) + self._placed(one, candidate, self._used)
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
