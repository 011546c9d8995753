"""What the words of a request say of the choices that a call is made of."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from mlx_tools.decoding.choice import Option
from mlx_tools.decoding.dates import dates, layout
from mlx_tools.decoding.mentions import Mention, context, lists, numbers, texts
from mlx_tools.decoding.shape import Schema
from mlx_tools.lexical import Ranking, relevance, stems
from mlx_tools.messages import ToolCall
from mlx_tools.spec import ToolSpec

Filling = Literal["number", "text"]
"""What kind of hole a mention may fill."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """How much each kind of evidence counts, in natural logarithms of odds; the model's own
    likelihood counts 1. docs/call-quality.md says how they were found."""

    call: float = 0.3
    """What the model's own odds of a call against an answer count; the words' count 1."""
    call_bias: float = 0.75
    """Added to the odds of a call."""
    name: float = 4.0
    """What the best match of a tool's words counts against no match at all."""
    value: float = 3.0
    """That the request names an allowed value."""
    member: float = 2.0
    """That the request speaks of an optional argument."""
    insist: float = 1.5
    """From how much of ``member`` on an optional argument is given though the model would end."""
    number: float = 4.0
    """That a number stands in the request."""
    numeral: float = 3.0
    """That it is written as a word."""
    date: float = 5.0
    """That a date is in the request, written as the argument wants it."""
    quoted: float = 3.0
    """That a text is quoted in the request."""
    named: float = 2.0
    """That it is a name."""
    code: float = 2.0
    """That it is spelled like code: a formula, a path, a time."""
    word: float = -1.0
    """That it is a mere word of it."""
    context: float = 2.0
    """That the words around it are those of the argument; see `mentions.context`."""
    elsewhere: float = -1.5
    """That they are those of another argument."""
    unused: float = 1.0
    """That an optional argument is meant while the request says something no argument has yet."""
    flag: float = 2.0
    """That a switch which the request names is to be on."""
    spent: float = 3.0
    """That an array ends where the request says nothing more that could go into it."""
    used: float = -6.0
    """That another argument has it already."""


@dataclass(frozen=True, slots=True)
class About:
    """What is known of an argument: its name, its description, its schema's ``format``."""

    name: str = ""
    description: str = ""
    form: str = ""

    @property
    def words(self) -> dict[str, float]:
        """Its stems, and what each counts: those of the name most."""
        said = dict.fromkeys(stems(self.description), 0.5)
        return said | dict.fromkeys(stems(self.name), 1.0)


class RequestEvidence:
    """The evidence of one request, less what calls already answered it."""

    def __init__(self, request: str, weights: Weights, answered: Sequence[ToolCall] = ()) -> None:
        self.request = request
        self.weights = weights
        self._stems = set(stems(request))
        self._numbers = numbers(request)
        self._texts = texts(request)
        self._used: list[tuple[int, int]] = []
        self._covered = {
            stem
            for call in answered
            for stem in (*stems(call.name), *stems(" ".join(_strings(call.arguments))))
        }

    # --- the call ---

    def call(self, tools: Sequence[ToolSpec]) -> float:
        """The odds, by its words, that the request asks for one of the tools."""
        return max((relevance(self._stems - self._covered, tool) for tool in tools), default=-9.0)

    def names(self, tools: Sequence[ToolSpec]) -> list[float]:
        """For each tool, how much the words speak for it: 0 for the best, less for the others."""
        left = [word for word in stems(self.request) if word not in self._covered]
        scores = Ranking(tools).scores(" ".join(left) if left else self.request)
        best = max(scores, default=0.0)
        if best <= 0:
            return [0.0 for _ in scores]
        return [self.weights.name * (score / best - 1) for score in scores]

    # --- arguments ---

    @property
    def insists(self) -> float:
        """The bias from which an optional member is given whatever the model says."""
        return self.weights.insist

    def value(self, value: Any) -> float:
        """That an allowed value is meant: the request has all its words."""
        if not isinstance(value, str):
            return 0.0
        words = set(stems(value))
        if not words:
            return 0.0
        return self.weights.value * len(words & self._stems) / len(words)

    def flag(self, about: About) -> float:
        """That a switch is to be on: the request names it."""
        words = set(stems(about.name)) - _COUNTING
        return self.weights.flag if words and words <= self._stems else 0.0

    def member(self, about: About, schema: Mapping[str, Any]) -> float:
        """That an optional member is meant: the request speaks of it, and has a value for it."""
        words = set(stems(about.name)) - _COUNTING
        named = len(words & self._stems) / len(words) if words else 0.0
        values = schema.get("enum")
        if isinstance(values, list):
            listed = max((self.value(value) for value in values), default=0.0)
            return self.weights.member * max(named / 2, listed / self.weights.value)
        kind = schema.get("type")
        if kind == "boolean":
            return self.weights.member * named
        if kind not in ("integer", "number", "string"):
            return self.weights.member * named / 2
        free = [
            context(mention, self.request, about.words)
            for mention in self._mentions("text" if kind == "string" else "number", about)
            if mention.kind != "word" and not self._taken(mention)
        ]
        if not free:
            return self.weights.member * (named / 2 if kind == "string" else -1.0)
        return max(self.weights.member * max(min(max(free), 1.0), named / 2), self.weights.unused)

    # --- candidates for a hole ---

    def candidates(self, kind: Filling, about: About, others: Sequence[About] = ()) -> list[Option]:
        """What the request says that may fill a hole, the literal in JSON, with what speaks for it.

        ``about`` is the argument, ``others`` are those beside it.
        """
        best: dict[str, float] = {}
        for mention in self._mentions(kind, about):
            literal = mention.text if kind == "number" else _dump(mention.text)
            bias = self._bias(mention) + self._around(mention, about, others)
            best[literal] = max(bias, best.get(literal, -math.inf))
        return [Option(literal, bias) for literal, bias in best.items()]

    def listed(
        self, kind: Filling, about: About, others: Sequence[About] = ()
    ) -> list[list[Mention]]:
        """The lists of the request that may fill an array, the likeliest first."""
        runs = lists([m for m in self._mentions(kind, about) if m.kind != "word"], self.request)

        def bias(run: list[Mention]) -> tuple[float, int]:
            taken = self.weights.used if any(map(self._taken, run)) else 0.0
            return taken + self._around(run[0], about, others), -run[0].start

        return sorted(runs, key=bias, reverse=True)

    def spent(self, kind: Filling, about: About) -> bool:
        """Whether arguments have all that the request could have said for such a hole."""
        said = [m for m in self._mentions(kind, about) if m.kind != "word"]
        return bool(said) and all(map(self._taken, said))

    def use(self, kind: Filling, value: str, about: About) -> None:
        """Takes note that an argument has a value of the request: the first such that is free."""
        spans = [(m.start, m.end) for m in self._mentions(kind, about) if m.text == value]
        free = [span for span in spans if span not in self._used]
        self._used += (free or spans)[:1]

    def whole(self, written: str) -> str:
        """``written``, or the name, quotation or code of the request that it is a part of."""
        if not written.strip() or len(written) > _MAX_PART:
            return written
        inside = re.compile(rf"(?<!\w){re.escape(written)}(?!\w)", re.IGNORECASE)
        for mention in self._texts:
            if mention.kind != "word" and mention.text != written and inside.search(mention.text):
                return mention.text
        return written

    def _mentions(self, kind: Filling, about: About) -> list[Mention]:
        if kind == "number":
            return self._numbers
        form = layout(about.description, about.form)
        if form is None:
            return self._texts
        days = [
            Mention(day.strftime(form), "date", start, end)
            for day, start, end in dates(self.request)
        ]
        return [*days, *self._texts]

    def _bias(self, mention: Mention) -> float:
        weights = self.weights
        kinds = {
            "number": weights.number,
            "numeral": weights.numeral,
            "date": weights.date,
            "quoted": weights.quoted,
            "name": weights.named,
            "code": weights.code,
            "word": weights.word,
        }
        return kinds[mention.kind] + (weights.used if self._taken(mention) else 0.0)

    def _around(self, mention: Mention, about: About, others: Sequence[About]) -> float:
        here = context(mention, self.request, about.words)
        there = max((context(mention, self.request, other.words) for other in others), default=0.0)
        return self.weights.context * here + self.weights.elsewhere * max(there - here, 0.0)

    def _taken(self, mention: Mention) -> bool:
        return any(mention.start < end and start < mention.end for start, end in self._used)


def _strings(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping):
        return [text for item in value.values() for text in _strings(item)]
    if isinstance(value, list):
        return [text for item in value for text in _strings(item)]
    return []


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


_MAX_PART: Final = 200
_COUNTING: Final = frozenset(stems("num number count amount total name type id"))
"""Words of argument names that say nothing of their own."""


def about(name: str, schema: Schema) -> About:
    """What a member's name and its schema, references followed, say of it."""
    if not isinstance(schema, Mapping):
        return About(name)
    said, form = schema.get("description"), schema.get("format")
    return About(name, said if isinstance(said, str) else "", form if isinstance(form, str) else "")


def guidance(request: str, answered: Sequence[ToolCall] = ()) -> RequestEvidence:
    """The evidence of a request, by the weights that hold for any model."""
    return RequestEvidence(request, Weights(), answered)
