"""What a request mentions that an argument may be: numbers, quotations, names, lists. Pure.

A small model copies badly: it writes 100 where the request says $50,000. So what the request says
is offered to it as candidates; which of them it takes stays its own choice.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Literal

from mlx_tools.decoding import dates
from mlx_tools.decoding.english import NO_VALUES, SHORT, VERBS
from mlx_tools.lexical import is_common

Kind = Literal[
    "number",
    "numeral",
    "percent",
    "fraction",
    "scaled",
    "converted",
    "quoted",
    "name",
    "place",
    "part",
    "piece",
    "code",
    "formula",
    "bracket",
    "digits",
    "amount",
    "phrase",
    "word",
    "date",
    "sum",
    "moment",
    "clause",
]
"""What a mention is spelled like. ``percent`` is a number before a sign of percent, ``fraction``
the same by hundred; ``scaled`` has its *thousand* counted in and ``converted`` is in another unit.
``place`` is two names with a comma between, ``part`` what stands before or behind the *of* of a
name, ``piece`` any other part of a name or a quotation. ``bracket`` is what stands in brackets,
with them, ``digits`` a number as text, ``amount`` a number with its unit. The last three are of
`mlx_tools.decoding.sayings`."""

MAX_REQUEST_CHARS: Final = 8_000
MAX_MENTIONS: Final = 240
MAX_PHRASE_WORDS: Final = 5


@dataclass(frozen=True, slots=True)
class Mention:
    """A piece of the request, from ``start`` to ``end``. ``text`` is what an argument would be: a
    number in JSON, or the string itself. ``unit`` is the word behind a number, or its currency."""

    text: str
    kind: Kind
    start: int
    end: int
    unit: str = ""


_QUOTED: Final = re.compile(
    r"(?<!\w)'((?:[^'\n]|(?<=\w)'(?=\w)){1,400})'(?!\w)"
    r"|\"([^\"\n]{1,400})\"|[“„]([^”“\n]{1,400})[”“]|`([^`\n]{1,400})`|[‘]([^’\n]{1,400})[’](?!\w)"
)
_CAPITAL: Final = (
    r"(?:[A-Z\u00c0-\u00de][\w'’&-]{0,60}(?:\.(?=[A-Z\w]))?[\w'’&.-]{0,60}(?<![.'’-]))"
)
_JOINT: Final = r"(?:\s+(?:of|the|de|la|del|von|van|and\s+the|of\s+the|for)(?=\s+[A-Z]))"
_NAME: Final = re.compile(
    rf"(?<![\w'’-])({_CAPITAL}(?:{_JOINT}{{0,2}}\s+(?:{_CAPITAL}|&|[0-9]+(?![\w.,%]*\d))){{0,11}})"
)
_RUN: Final = rf"{_CAPITAL}(?:\s+{_CAPITAL}){{0,11}}"
_PLACE: Final = re.compile(rf"({_RUN}),\s*({_RUN})\.?")
_INITIALS: Final = re.compile(r"(?:[A-Z]\.){2,}")
_TOKEN: Final = re.compile(r"[^\s,;()\[\]{}\"'“”`?!]+")
_MATHS: Final = re.compile(
    r"[-+*/^=().0-9]*(?:(?:(?<![a-zA-Z])[a-zA-Z](?![a-zA-Z])|sin|cos|tan|log|ln|exp|sqrt|pi|lambda)"
    r"[-+*/^=().0-9:]*)*"
)
_PLAIN: Final = re.compile(r"(?<![\w'’])[^\W\d_]+(?:['’-][^\W\d_]+)*(?![\w])")
_SENTENCE: Final = re.compile(r"(?:\A|[.!?:]\s+|\n\s*|,\s+(?=\Z))[\"'“(]*\Z")
_AMOUNT: Final = re.compile(
    r"(?<![\w.])([0-9]+(?:[.,][0-9]+)*|\b(?:one|two|three|four|five|six|seven|eight|nine|ten))"
    r"([\s-]?)([a-zA-Z]+)(?!\w)"
)

_OF: Final = frozenset(("of", "in", "the", "and", "for", "on", "to", "a"))


def texts(request: str) -> list[Mention]:
    """What a request quotes, names or spells in code, and its words and phrases, each piece once:
    the more telling kind first."""
    request = request[:MAX_REQUEST_CHARS]
    unique: dict[tuple[str, int], Mention] = {}
    for mention in _found(request):
        if mention.text.strip():
            unique.setdefault((mention.text, mention.start), mention)
        if len(unique) >= MAX_MENTIONS:
            break
    return list(unique.values())


def _found(request: str) -> Iterator[Mention]:
    quoted = list(_quotations(request))
    yield from quoted
    days = [Mention(request[a:b], "date", a, b) for a, b in dates.spans(request)]
    yield from days
    names = [
        name
        for name in _names(request)
        if not any(name.start < day.end and day.start < name.end for day in days)
    ]
    yield from names
    yield from _codes(request)
    yield from _phrases(request, [*quoted, *days, *names])


def _quotations(request: str) -> Iterator[Mention]:
    """What stands in quotation marks; where that is all of the request, what is in it does."""
    begins = 1 if request[:1] in "\"'“‘" and request.rstrip()[-1:] in "\"'”’" else 0
    for match in _QUOTED.finditer(request, begins):
        text = next(group for group in match.groups() if group is not None)
        yield Mention(text, "quoted", *match.span())


def _names(request: str) -> Iterator[Mention]:
    """Runs of capitalised words, pairs of them with a comma between, and parts of both."""
    for match in _PLACE.finditer(request):
        start, end = match.span()
        at = _begins(request, start, match[1])
        text = request[at:end]
        yield Mention(text if _INITIALS.search(text) else text.rstrip("."), "place", at, end)
    for match in _NAME.finditer(request):
        start, end = match.span(1)
        at = _begins(request, start, match[1])
        if at >= end or is_common(request[at:end]):
            continue
        text = request[at:end]
        own = re.match(r"(.+)['’]s\Z", text)
        if own is not None:
            text, end = own[1], at + own.end(1)
        yield Mention(text, "name", at, end)
        if at == start and _SENTENCE.search(request[max(0, start - 8) : start]):
            cut = re.match(r"\S+\s+", text)  # its first word may be a capital for that alone
            if cut is not None:
                yield Mention(text[cut.end() :], "name", at + cut.end(), end)
        for inner in re.finditer(rf"{_JOINT}{{1,2}}\s+", text):
            yield Mention(text[: inner.start()], "part", at, at + inner.start())
            yield Mention(text[inner.end() :], "part", at + inner.end(), end)
        numbered = re.match(r"(.*\D)\s+[0-9]+$", text)
        if numbered is not None:
            yield Mention(numbered[1], "part", at, at + numbered.end(1))


def _begins(request: str, start: int, text: str) -> int:
    """Where a run of capitals begins in truth: behind the verb or the question word that begins
    its sentence."""
    if not _SENTENCE.search(request[max(0, start - 8) : start]):
        return start
    first = re.match(r"[\w'’]+\s*", text)
    if first is None:
        return start
    word = re.split("['’]", first[0].strip())[0]
    if not (is_common(word) or word.lower() in VERBS):
        return start
    joints = re.match(r"(?:[a-z]+\s+)*", text[first.end() :])
    return start + first.end() + (joints.end() if joints is not None else 0)


def _codes(request: str) -> Iterator[Mention]:
    """Ids, dates, addresses, paths, formulas, numbers as text and with their units."""
    yield from _formulas(request)
    for match in re.finditer(r"\[[^\[\]\n]{1,400}\]|\{[^{}\n]{1,400}\}", request):
        yield Mention(match[0], "bracket", *match.span())
    for match in _TOKEN.finditer(request):
        text = match[0].rstrip(".:")
        if text.isdigit() or not re.search(r"[\w]", text):
            continue
        if re.search(r"[0-9/_@#:\\]|\w\.\w|\w#|[a-z][A-Z]", text):
            yield Mention(text, "code", match.start(), match.start() + len(text))
    for match in _AMOUNT.finditer(request):
        yield Mention(match[0], "amount", *match.span())
    for match in re.finditer(r"(?<![\w.])[0-9]+(?:[.,][0-9]+)*(?![\w])", request):
        yield Mention(match[0], "digits", *match.span())


def _formulas(request: str) -> Iterator[Mention]:
    """Runs of what stands in formulas alone: *y = 3x^2 + 2x - 1*, and without what it equals."""
    run: list[re.Match[str]] = []
    for match in [*re.finditer(r"[^\s,;?!\"'`]+", request), None]:
        if match is not None and _MATHS.fullmatch(match[0]) and match[0].lower() not in SHORT:
            run.append(match)
            continue
        if run:
            start, end = run[0].start(), run[-1].end()
            text = request[start:end].rstrip(".:")
            if re.search(r"[a-zA-Z0-9)]\s*[-\^*/+=(]+\s*[a-zA-Z0-9(]", text) and re.search(
                r"[0-9^*=]", text
            ):
                yield Mention(text, "formula", start, start + len(text))
                head, equals, body = text.partition("=")
                if equals and body.strip():
                    yield Mention(body.strip(), "formula", start + len(head) + 1, end)
        run = []


def _phrases(request: str, named: Sequence[Mention]) -> Iterator[Mention]:
    """Single words that say something, and runs of words within a phrase."""
    runs: list[list[re.Match[str]]] = [[]]
    for match in _PLAIN.finditer(request):
        if runs[-1] and request[runs[-1][-1].end() : match.start()] != " ":
            runs.append([])
        runs[-1].append(match)
    for run in runs:
        for first in range(len(run)):
            if is_common(run[first][0]) or run[first][0].lower() in NO_VALUES:
                continue
            for last in range(first, min(first + MAX_PHRASE_WORDS, len(run))):
                words = run[first : last + 1]
                if is_common(words[-1][0]) or words[-1][0].lower() in NO_VALUES:
                    continue
                if any(is_common(word[0]) and word[0].lower() not in _OF for word in words):
                    break
                start, end = words[0].start(), words[-1].end()
                if any(name.start <= start and end <= name.end for name in named):
                    kind: Kind = "piece"
                else:
                    kind = "word" if first == last else "phrase"
                yield Mention(request[start:end], kind, start, end)


_BETWEEN: Final = re.compile(r"\s*(?:,\s*(?:and|or|&)?|and|or|&|;|/|\s)\s*", re.IGNORECASE)


def runs(mentions: Sequence[Mention], request: str) -> list[list[Mention]]:
    """The runs of two or more mentions that nothing but commas and *and* stands between."""
    found: list[list[Mention]] = []
    run: list[Mention] = []
    kept: list[Mention] = []
    for mention in sorted(mentions, key=lambda mention: (mention.start, -mention.end)):
        if not kept or mention.start >= kept[-1].end:
            kept.append(mention)
    for before, after in pairwise([*kept, None]):
        if before is None:
            break
        run = run or [before]
        if after is not None and _BETWEEN.fullmatch(request[before.end : after.start]):
            run.append(after)
            continue
        if len(run) > 1:
            found.append(run)
        run = []
    return found


_COMMA: Final = re.compile(r"\s*,\s*(?:and\s+|or\s+)?|\s+(?:and|or|&)\s+")
_EDGE: Final = re.compile(r"[.?!;:()\[\]\n]|\s-\s")


def enumerations(request: str) -> list[list[Mention]]:
    """Plain words and phrases that are listed with commas or *and*: in *with red apples, pears and
    bread* the three. Where the first item begins and the last one ends is not known, so there is
    one list for each number of words that they may have."""
    found: list[list[Mention]] = []
    start = 0
    for edge in [*(match.start() for match in _EDGE.finditer(request)), len(request)]:
        clause = request[start:edge]
        cuts = list(_COMMA.finditer(clause))
        if cuts and len(cuts) <= _MAX_LISTED:
            found += _enumerated(clause, cuts, start)
        start = edge + 1
    return found[:MAX_MENTIONS]


_MAX_LISTED: Final = 12


def _enumerated(clause: str, cuts: Sequence[re.Match[str]], offset: int) -> list[list[Mention]]:
    edges = [0, *(at for cut in cuts for at in cut.span()), len(clause)]
    spans = list(zip(edges[::2], edges[1::2], strict=True))
    made = []
    for first in range(len(spans) - 1):
        inner = spans[first + 1 : -1]
        if any(len(clause[a:b].split()) > MAX_PHRASE_WORDS for a, b in inner):
            continue
        heads = _ends(clause, *spans[first], last=True)
        tails = _ends(clause, *spans[-1], last=False)
        for head in heads:
            for tail in tails:
                items = [head, *inner, tail]
                made.append(
                    [
                        Mention(clause[a:b].strip(), "phrase", a + offset, b + offset)
                        for a, b in items
                    ]
                )
    return [items for items in made if all(item.text for item in items)]


def _ends(clause: str, start: int, end: int, *, last: bool) -> list[tuple[int, int]]:
    """The last, or the first, one to three words of a span, as long as they say something."""
    words = [(m.start() + start, m.end() + start) for m in re.finditer(r"\S+", clause[start:end])]
    spans = []
    for count in range(1, min(3, len(words)) + 1):
        chosen = words[-count:] if last else words[:count]
        a, b = chosen[0][0], chosen[-1][1]
        edge = clause[slice(*(chosen[0] if last else chosen[-1]))]
        if is_common(edge.strip("'\"")):
            break
        spans.append((a, b))
    return spans
