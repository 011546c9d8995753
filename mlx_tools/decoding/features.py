"""What speaks for a candidate being an argument's value: features by name, and how much of each.

Their weights are fitted (``config/evidence.toml``); a feature without one counts nothing. Pure.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from mlx_tools.decoding.amounts import MONEY, PER_YEAR, dimensions, singular
from mlx_tools.decoding.arguments import About, is_file, spelling
from mlx_tools.decoding.english import FIRST, LAST, PREPOSITIONS
from mlx_tools.decoding.mentions import Mention
from mlx_tools.lexical import is_common, stem, stems

Features = dict[str, float]

_WORD: Final = re.compile(r"[^\W_]+(?:['’][^\W_]+)?")
_CUT: Final = re.compile(r"[.;,?!]\s|\b(?:and|then|while|but)\b")
_EDGE: Final = re.compile(r"[.;:?!]\s|\n")
_REACH: Final = 4


@dataclass(frozen=True, slots=True)
class Word:
    """A word of the request: where it stands, its stem, whether it says anything."""

    start: int
    end: int
    lower: str
    stem: str
    common: bool


@dataclass(frozen=True, slots=True)
class Candidate:
    """A value that the request offers, and the mentions it is made of; none for an allowed value of
    the schema."""

    value: Any
    mentions: tuple[Mention, ...] = ()

    @property
    def start(self) -> int:
        return self.mentions[0].start if self.mentions else 0


class Context:
    """The words of a request, by where they stand."""

    def __init__(self, request: str) -> None:
        self.request = request
        self.words = [
            Word(m.start(), m.end(), m[0].lower(), stem(m[0]), is_common(m[0]))
            for m in _WORD.finditer(request)
        ]
        self.stems = frozenset(stems(request))
        self._starts = [word.start for word in self.words]
        self._ends = [word.end for word in self.words]
        cuts = [match.span() for match in _CUT.finditer(request)]
        self._cut_starts = [start for start, _ in cuts]
        self._cut_ends = [end for _, end in cuts]
        self._edges = [match.start() for match in _EDGE.finditer(request)]

    def before(self, start: int) -> list[Word]:
        """The words before a place within its sentence, the nearest first."""
        edge = bisect_left(self._edges, start)
        least = self._edges[edge - 1] if edge else -1
        last = bisect_right(self._ends, start)
        found = []
        for word in self.words[max(0, last - 10) : last][::-1]:
            if word.start < least:
                break
            found.append(word)
        return found

    def after(self, end: int) -> list[Word]:
        """The words behind a place within its sentence, the nearest first."""
        edge = bisect_left(self._edges, end)
        most = self._edges[edge] if edge < len(self._edges) else len(self.request)
        first = bisect_left(self._starts, end)
        return [word for word in self.words[first : first + 8] if word.start < most]

    def near(self, mention: Mention, words: frozenset[str]) -> tuple[float, float, float]:
        """How near words of a set stand to a mention: in front of it, right behind it, and further
        behind; each 0 to about 2."""
        front = _nearness(self.before(mention.start), words)
        behind = self.after(mention.end)
        gap = self.request[mention.end : behind[0].start] if behind else "."
        right = float(bool(behind) and behind[0].stem in words and not gap.strip(" %-°"))
        return front, right, _nearness(behind, words)

    def places(self, wanted: frozenset[str]) -> list[tuple[int, int]]:
        """Where words with these stems stand."""
        return [
            (word.start, word.end) for word in self.words if word.stem in wanted and not word.common
        ]

    def bounds(self, mention: Mention) -> tuple[bool, bool]:
        """Whether a mention begins, and ends, where a phrase does: beside a word that says nothing,
        or a mark."""
        before, behind = self.before(mention.start)[:1], self.after(mention.end)[:1]
        left = not before or before[0].common or self.request[before[0].end : mention.start] != " "
        right = not behind or behind[0].common or self.request[mention.end : behind[0].start] != " "
        return left, right

    def cuts(self, start: int, end: int) -> int:
        """How many commas, full stops and *and* there are between two places."""
        if end <= start:
            return 0
        return max(bisect_right(self._cut_ends, end) - bisect_left(self._cut_starts, start), 0)

    def preposition(self, start: int) -> str:
        """The preposition right before a place, an article passed over; empty for none."""
        for word in self.before(start)[:3]:
            if word.lower in PREPOSITIONS:
                return word.lower
            if not word.common:
                break
        return ""


def _nearness(words: Sequence[Word], wanted: frozenset[str]) -> float:
    told = [word for word in words if not word.common or word.stem in wanted]
    found = sum(1 / (1 + 0.6 * n) for n, word in enumerate(told[:_REACH]) if word.stem in wanted)
    return min(found, 2.0)


def role(about: About) -> str:
    """Which of two ends an argument is, by its name: ``first``, ``last``, or neither."""
    first, last = bool(about.raw & FIRST), bool(about.raw & LAST)
    return ("first" if first else "last") if first != last else ""


@dataclass(frozen=True, slots=True)
class Beside:
    """What an argument stands beside: the other arguments, the tool's name, the stems of it, and
    those of all its words."""

    others: tuple[About, ...] = ()
    title: str = ""
    name: frozenset[str] = frozenset()
    tool: frozenset[str] = frozenset()


def number_features(mention: Mention, about: About, beside: Beside, context: Context) -> Features:
    """What speaks for a number being the value of a number argument."""
    found: Features = {f"number {mention.kind}": 1.0}
    _add_context(found, "number", mention, about, beside, context)
    year = bool(re.fullmatch("1[0-9]{3}|20[0-9]{2}", mention.text)) and mention.unit != MONEY
    found[f"number year {int(year)}{int('year' in about.raw)}"] = 1.0
    measured = dimensions({singular(mention.unit)}) if mention.unit else frozenset()
    if mention.unit == MONEY:
        measured = frozenset({MONEY})
    if measured and about.measures:
        same = bool(measured & about.measures)
        found["number dimension same" if same else "number dimension other"] = 1.0
    elif measured:
        found["number dimension unasked"] = 1.0
    if mention.unit:
        unit = stem(mention.unit)
        found["number unit named"] = float(unit in about.named)
        found["number unit described"] = float(unit in about.described)
    if mention.kind in ("percent", "fraction"):
        of_hundred = bool({"percent", "percentage"} & about.units)
        whole = any(re.fullmatch("[1-9][0-9]*(?:[.][0-9]+)?%?", text) for text in about.examples)
        part = any(re.match(r"0?\.[0-9]", text) for text in about.examples)
        part = part or "decimal" in about.units or about.default_word.startswith("0.")
        found[f"number {mention.kind} of {about.kind or 'any'}"] = 1.0
        found[f"number {mention.kind} hundred"] = float(of_hundred or (whole and not part))
        found[f"number {mention.kind} decimal"] = float(part)
        found[f"number {mention.kind} rate"] = float("rate" in about.raw)
    if mention.kind == "numeral" and mention.unit:
        counted = stem(mention.unit)
        others = any(counted in other.named for other in beside.others)
        found["number numeral of arguments"] = float(others and counted not in about.named)
        found["number numeral of tool"] = float(counted in beside.tool)
    if mention.unit == PER_YEAR:
        found["number often"] = float(bool({"frequency", "compounding"} & about.raw))
        found["number seldom"] = 1.0 - found["number often"]
    return found


def text_features(mention: Mention, about: About, beside: Beside, context: Context) -> Features:
    """What speaks for a text being the value of a text argument."""
    found: Features = {f"text {mention.kind}": 1.0}
    for kind in about.classes:
        found[f"text {mention.kind} as {kind}"] = 1.0
    _add_context(found, "text", mention, about, beside, context)
    found["text file"] = float(about.is_path and is_file(mention.text))
    left, right = context.bounds(mention)
    found[f"text {mention.kind} bounds {int(left)}{int(right)}"] = 1.0
    before = context.preposition(mention.start)
    for kind in about.classes:
        found[f"text {before or 'no'} before {kind}"] = 1.0
    words = frozenset(stems(mention.text))
    size = max(len(words), 1)
    found["text length"] = float(min(len(mention.text.split()), 6))
    share = len(words & about.named) / size
    found["text is own name" if share == 1.0 else "text has own name"] = share
    found["text own description"] = len(words & about.described) / size
    found["text of tool"] = len(words & beside.tool) / size
    found["text of others"] = float(any(words & other.named for other in beside.others))
    lower = mention.text.lower()
    if "truth" in about.classes and lower in ("true", "false"):
        found |= _truth_features(about, context, value=lower == "true")
        found["text truth"] = 1.0
    found["text listed"] = float(any(lower == value.lower() for value in about.listed))
    if about.shapes:
        same = spelling(mention.text) in about.shapes
        found["text example alike" if same else "text example unlike"] = 1.0
        comma = any("," in example for example in about.examples)
        found[f"text comma {int(comma)}{int(',' in mention.text)}"] = 1.0
    return found


def list_features(
    run: Sequence[Mention], about: About, beside: Beside, context: Context
) -> Features:
    """What speaks for a list of mentions being the value of an array argument."""
    kind = run[0].kind
    size = "one" if len(run) == 1 else "two" if len(run) == 2 else "many"
    found: Features = {f"list {size}": 1.0, f"list {kind}": 1.0, f"list {kind} {size}": 1.0}
    whole = Mention("", kind, run[0].start, run[-1].end)
    _add_context(found, "list", whole, about, beside, context)
    left, right = context.bounds(run[0])[0], context.bounds(run[-1])[1]
    found[f"list bounds {int(left)}{int(right)}"] = 1.0
    words = [frozenset(stems(mention.text)) for mention in run]
    found["list of tool"] = sum(bool(w & beside.tool) for w in words) / len(run)
    found["list own name"] = sum(bool(w & about.named) for w in words) / len(run)
    found["list length"] = sum(len(m.text.split()) for m in run) / len(run)
    if about.listed:
        listed = {value.lower() for value in about.listed}
        found["list listed"] = sum(m.text.lower() in listed for m in run) / len(run)
    return found


def allowed_features(value: Any, place: int, about: About, context: Context) -> Features:
    """What speaks for an allowed value: of an enum, or a truth value."""
    if isinstance(value, bool):
        return _truth_features(about, context, value=value)
    words = frozenset(stems(str(value)))
    share = len(words & context.stems) / len(words) if words else 0.0
    told = len(about.told_of(str(value)) & context.stems) / max(len(context.stems), 1)
    return {
        "enum told": told,
        "enum all": float(share == 1.0),
        "enum share": share,
        "enum first": float(place == 0),
        "enum default": float(str(value).lower() == about.default_word),
        "enum named": share * bool(about.named & context.stems),
    }


_NOT: Final = re.compile(
    r"\b(?:no|not|without|don['’]?t|doesn['’]?t|exclud\w+|ignor\w+|never|neglect\w*)\b",
    re.IGNORECASE,
)


def _truth_features(about: About, context: Context, *, value: bool) -> Features:
    said = "true" if value else "false"
    named = len(about.named & context.stems) / max(len(about.named), 1)
    described = len(about.described & context.stems) / max(len(about.described), 1)
    denied = bool(_NOT.search(context.request))
    return {
        f"truth {said}": 1.0,
        f"truth {said} named": named,
        f"truth {said} described": described,
        f"truth {said} denied": float(denied) * max(named, described),
        f"truth {said} default": float(about.default_word == said),
    }


def none_features(about: About, kind: str, context: Context) -> Features:
    """What speaks against every candidate: that an optional argument is left out."""
    size = max(len(about.named), 1)
    return {
        "absent": 1.0,
        f"absent {kind}": 1.0,
        "absent default": float(about.says_default),
        "absent optional": float(about.says_optional),
        "absent named": len(about.named & context.stems) / size,
        f"absent {kind} named": len(about.named & context.stems) / size,
        "absent described": min(len(about.described & context.stems), 3) / 3,
    }


def _add_context(
    found: Features, kind: str, mention: Mention, about: About, beside: Beside, context: Context
) -> None:
    """Adds what the words around a mention say."""
    front, right, behind = context.near(mention, about.named)
    found[f"{kind} name before"] = front
    found[f"{kind} name right behind"] = right
    found[f"{kind} name behind"] = behind
    described = context.near(mention, about.described)
    found[f"{kind} description before"] = described[0]
    found[f"{kind} description right behind"] = described[1]
    found[f"{kind} description behind"] = described[2]
    own = front + right
    others = [context.near(mention, other.named - about.named) for other in beside.others]
    there = max((other[0] + other[1] for other in others), default=0.0)
    found[f"{kind} elsewhere"] = max(there - own, 0.0)
    before, end = context.preposition(mention.start), role(about)
    if end and before in ("from", "to", "between", "and", "into"):
        found[f"{kind} {before} {end}"] = 1.0
