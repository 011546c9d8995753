"""What a request offers for an argument, and what speaks for each offer. Pure."""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from mlx_tools.decoding.amounts import converted, numbers
from mlx_tools.decoding.arguments import About
from mlx_tools.decoding.dates import dates, layout
from mlx_tools.decoding.features import (
    Beside,
    Candidate,
    Context,
    Features,
    allowed_features,
    list_features,
    number_features,
    text_features,
)
from mlx_tools.decoding.mentions import Mention, enumerations, runs, texts
from mlx_tools.decoding.sayings import clauses_to_keep, moments, sums
from mlx_tools.lexical import stems, tool_stems
from mlx_tools.spec import ToolSpec

Kind = Literal["number", "text", "number list", "text list", "allowed", "allowed list", "other"]
"""What kind of hole an argument is; the request offers nothing for an ``other``."""

Use = tuple[str, Mention]
"""The name of an argument, and what it has of the request."""

Offer = tuple[Candidate, Features]


@dataclass(frozen=True, slots=True)
class Wanted:
    """An argument that is to have a value: what is known of it, what kind of hole it is, which
    values the schema allows or how a value is held against it."""

    about: About
    kind: Kind
    values: tuple[Any, ...] = ()
    fits: Callable[[Any], bool] = lambda value: True


class Offers:
    """What one request offers to calls of ``tools``.

    ``numbers`` and ``texts`` are its mentions, ``lists`` the runs of them that are one list.
    """

    def __init__(self, request: str, tools: Sequence[ToolSpec] = ()) -> None:
        self.request = request
        self.context = Context(request)
        self.numbers = numbers(request)
        self.texts = texts(request)
        self._sums = list(sums(request))
        self._moments = moments(request)
        self._clauses = list(clauses_to_keep(request))
        self.strong = [mention for mention in self.texts if mention.kind in STRONG]
        self.lists = [
            *runs(_with_units(self.numbers, request), request),
            *(run for run in runs(self.strong, request) if not _is_place(run, request)),
            *enumerations(request),
        ]
        self._telling = _telling(tools, self.context)
        self._places: Mapping[Kind, Sequence[int]] = {
            "number": sorted({m.start for m in self.numbers if m.kind != "numeral"}),
            "text": sorted({m.start for m in self.strong}),
            "number list": sorted({run[0].start for run in runs(self.numbers, request)}),
        }
        self._ranks = {
            mention.start: place
            for run in reversed(self.lists)
            if run[0].kind != "phrase"
            for place, mention in enumerate(run)
        }
        self._before = {
            mention.start: [other.start for other in run[:place]]
            for run in self.lists
            for place, mention in enumerate(run)
        }

    def of(self, one: Wanted, beside: Beside) -> list[Offer]:
        """What may fill an argument, and what speaks for it whatever calls have already; a value as
        often as the request has it."""
        if one.kind == "allowed":
            return [
                offer
                for number, value in enumerate(one.values)
                for offer in self._allowed(value, number, one.about)
            ]
        if one.kind == "allowed list":
            return self._allowed_list(one, beside)
        made: list[Offer] = []
        known: dict[str, bool] = {}
        for run in self._runs(one):
            literals = [_value(mention, one.kind) for mention in run]
            value = literals if one.kind.endswith("list") else literals[0]
            key = dump(value)
            if key not in known:
                known[key] = one.fits(value)
            if known[key]:
                features = self._features(one, run, beside)
                made.append((Candidate(value, tuple(run)), features))
        return made

    def _allowed(self, value: Any, place: int, about: About) -> list[Offer]:
        features = allowed_features(value, place, about, self.context)
        found = []
        if isinstance(value, str) and value.strip():
            pattern = rf"(?<!\w){re.escape(value)}(?!\w)"
            for match in list(re.finditer(pattern, self.request, re.IGNORECASE))[:_OCCURRENCES]:
                mention = Mention(value, "word", *match.span())
                around = self._around("allowed", [mention], Beside())
                found.append((Candidate(value, (mention,)), features | around))
        return found or [(Candidate(value), features)]

    def _allowed_list(self, one: Wanted, beside: Beside) -> list[Offer]:
        """The allowed items that the request has all words of, in its order."""
        run = []
        for value in one.values:
            words = frozenset(stems(value)) if isinstance(value, str) else frozenset()
            spans = self.context.places(words)
            if words and words <= self.context.stems and spans:
                run.append(Mention(value, "word", *spans[0]))
        run.sort(key=lambda mention: mention.start)
        value = [mention.text for mention in run]
        if not run or not one.fits(value):
            return []
        features = self._features(one, run, beside)
        return [(Candidate(value, tuple(run)), features | {"list allowed": 1.0})]

    # --- features ---

    def _features(self, one: Wanted, run: Sequence[Mention], beside: Beside) -> Features:
        if one.kind == "number":
            found = number_features(run[0], one.about, beside, self.context)
        elif one.kind == "text":
            found = text_features(run[0], one.about, beside, self.context)
        else:
            found = list_features(run, one.about, beside, self.context)
        return found | self._around(one.kind, run, beside)

    def _around(self, kind: Kind, run: Sequence[Mention], beside: Beside) -> Features:
        """What speaks for mentions by where they stand in the request."""
        found: Features = {}
        start, end = run[0].start, run[-1].end
        found[f"{kind} late"] = start / max(len(self.request), 1)
        spans = self.context.places(beside.name)
        if spans:
            gap = min(max(start - b, a - end, 0) for a, b in spans)
            found[f"{kind} far from tool"] = min(gap, _FAR) / _FAR
        if self._has_several(beside):
            near = {
                name: min(self._distance(a, b, start, end) for a, b in spans)
                for name, spans in self._telling.items()
                if spans
            }
            own = near.pop(beside.title)
            other = min(near.values())
            found[f"{kind} nearer to another tool"] = float(other < own)
            found[f"{kind} cut from its tool"] = float(min(own // _CUT, 3)) / 3
            found[f"{kind} cut from another tool"] = float(min(other // _CUT, 3)) / 3
        return found

    def _has_several(self, beside: Beside) -> bool:
        """Whether the request has words that tell this tool and another one from the others."""
        said = [name for name, spans in self._telling.items() if spans]
        return len(said) > 1 and beside.title in said

    def _distance(self, a: int, b: int, start: int, end: int) -> int:
        """How far two pieces of the request are apart, in characters; each comma, full stop and
        *and* between them counts as many more."""
        if b <= start:
            return start - b + _CUT * self.context.cuts(b, start)
        return max(a - end, 0) + _CUT * self.context.cuts(end, a)

    def placing(
        self,
        one: Wanted,
        candidate: Candidate,
        used: Sequence[Use],
    ) -> Features:
        """What speaks for a candidate by what this call has already."""
        if not candidate.mentions:
            return {}
        kind = one.kind
        start, end = candidate.mentions[0].start, candidate.mentions[-1].end
        found: Features = {}
        if used:
            found |= self._distances(kind, start, end, used)
        if any(overlapping(used, mention) for mention in candidate.mentions):
            found[f"{kind} taken"] = 1.0
        before = self._before.get(start, ())
        if any(not _touches(used, place) for place in before):
            found[f"{kind} later in its list"] = 1.0
        places = self._places.get(kind, ())
        free = next((p for p in places if not _touches(used, p)), None)
        if start == free:
            several = sum(bool(spans) for spans in self._telling.values()) > 1
            found[f"{kind} first of several" if several else f"{kind} first"] = 1.0
        return found

    def _distances(self, kind: Kind, start: int, end: int, used: Sequence[Use]) -> Features:
        found: Features = {}
        gap = min(max(start - one.end, one.start - end, 0) for _, one in used)
        found[f"{kind} far"] = min(gap, _FAR) / _FAR
        cuts = min(
            self.context.cuts(one.end, start) + self.context.cuts(end, one.start) for _, one in used
        )
        found[f"{kind} apart"] = min(cuts, 4) / 4
        ranks = [self._ranks[one.start] for _, one in used if one.start in self._ranks]
        if ranks and start in self._ranks:
            same = self._ranks[start] == ranks[0]
            found[f"{kind} rank alike" if same else f"{kind} rank unlike"] = 1.0
        return found

    # --- what there is ---

    def _runs(self, one: Wanted) -> list[list[Mention]]:
        kind, about = one.kind, one.about
        if kind == "number":
            return [[mention] for mention in self._amounts(about)]
        if kind == "text":
            return [[mention] for mention in self._strings(about)]
        if kind == "number list":
            plain = [m for m in self._amounts(about) if m.kind != "numeral"]
            listed = runs(plain, self.request)
            return [
                *listed,
                *([a, b] for a, b in _pairs(plain, self.request)),
                *([m] for m in plain),
            ]
        if kind == "other":
            return []
        listed = [*runs(self.strong, self.request), *enumerations(self.request)]
        return [*listed, *([mention] for mention in self.texts)]

    def _amounts(self, about: About) -> list[Mention]:
        found = []
        for mention in self.numbers:
            other = converted(mention, about.units) if mention.unit else None
            found += [mention] if other is None else [other, mention]
        return found

    def _strings(self, about: About) -> list[Mention]:
        form = layout(about.description, about.form)
        days = [
            Mention(day.strftime(form), "date", start, end)
            for day, start, end in dates(self.request)
            if form
        ]
        listed = [
            Mention(value, "word", 0, 0)
            for value in about.listed
            if "truth" in about.classes
            or (set(stems(value)) and set(stems(value)) <= self.context.stems)
        ]
        plain = [m for m in self.texts if m.kind != "formula" or not about.is_path]
        return [*days, *self._said(about), *plain, *listed]

    def _said(self, about: About) -> Sequence[Mention]:
        """Whole phrases, for an argument that asks for what they are."""
        if "formula" in about.classes:
            return self._sums
        if about.is_moment:
            return self._moments
        return self._clauses if about.is_whole_text else ()


def _is_place(run: Sequence[Mention], request: str) -> bool:
    """Whether a list is a place, and where that is: *Austin, Texas*."""
    names = {mention.kind for mention in run} == {"name"}
    return names and len(run) == 2 and request[run[0].end : run[1].start].strip() == ","


def _telling(tools: Sequence[ToolSpec], context: Context) -> dict[str, list[tuple[int, int]]]:
    """Where the request has the words that tell each tool from most of the others."""
    found: dict[str, list[tuple[int, int]]] = {}
    named = {tool.name: frozenset(stems(tool.name)) for tool in tools}
    described = {tool.name: frozenset(tool_stems(tool)) for tool in tools}
    for words in (named, described):
        shared = Counter(stem for own in words.values() for stem in own)
        most = max(len(words) / 2, 1)
        for name, own in words.items():
            if not found.get(name):
                telling = frozenset(stem for stem in own if shared[stem] <= most)
                found[name] = context.places(telling)
    return found


def overlapping(used: Sequence[Use], mention: Mention) -> list[str]:
    """The arguments that have some of a mention."""
    return [n for n, one in used if mention.start < one.end and one.start < mention.end]


def _touches(used: Sequence[Use], place: int) -> bool:
    return any(one.start <= place < one.end for _, one in used)


_OCCURRENCES: Final = 4
STRONG: Final = ("quoted", "name", "code", "formula", "digits")
"""The kinds of texts that are values more often than not."""
_CUT: Final = 1000
_FAR: Final = 200
"""Characters from which on a distance counts as far."""


def _with_units(numbers: Sequence[Mention], request: str) -> list[Mention]:
    """Numbers as far as their units go, so that *20 minutes and 15 minutes* is a list."""
    made = []
    for mention in numbers:
        rest = request[mention.end : mention.end + len(mention.unit) + 1]
        long = mention.unit and rest.strip(" -").lower() == mention.unit
        made.append(replace(mention, end=mention.end + len(rest)) if long else mention)
    return made


def _pairs(mentions: Sequence[Mention], request: str) -> list[tuple[Mention, Mention]]:
    """Two numbers that *to* or *and* stands between, with but a word or two more."""
    found = []
    for one, other in itertools.pairwise(mentions):
        between = request[one.end : other.start].lower().split()
        if one.end <= other.start and len(between) <= 4 and {"to", "and", "-"} & set(between):
            found.append((one, other))
    return found


def _value(mention: Mention, kind: Kind) -> Any:
    return json.loads(mention.text) if kind.startswith("number") else mention.text


def dump(value: Any) -> str:
    """A value in JSON as protocol lines have it."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
