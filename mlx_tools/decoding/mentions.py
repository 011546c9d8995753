"""What a request mentions that an argument may be: numbers, quoted texts, names, lists. Pure.

A small model copies badly: it writes 100 where the request says $50,000. So what the request says
is offered to it as candidates; which of them it takes stays its own choice.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Literal

from mlx_tools.lexical import stems

Kind = Literal["number", "numeral", "quoted", "name", "code", "word", "date"]

MAX_REQUEST_CHARS: Final = 8_000
MAX_MENTIONS: Final = 120
WINDOW_CHARS: Final = 48


@dataclass(frozen=True, slots=True)
class Mention:
    """A piece of the request, from ``start`` to ``end``. ``text`` is what an argument would be: a
    number in JSON, or the string itself."""

    text: str
    kind: Kind
    start: int
    end: int


_NUMBER: Final = re.compile(
    r"(?<![\w.])(?:(?<![\w)\]])[-+\u2212])?(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]{1,18})"
    r"(?:\.[0-9]{1,18})?(?:[eE][-+]?[0-9]{1,3})?(?![0-9])"
)
_SCALE: Final = re.compile(r"\s*-?(hundred|thousand|million|billion|trillion|[kK](?![a-zA-Z]))\b")
_SCALES: Final = {
    "hundred": 2,
    "thousand": 3,
    "k": 3,
    "million": 6,
    "billion": 9,
    "trillion": 12,
}
_UNITS: Final = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen"
    " sixteen seventeen eighteen nineteen twenty"
)
_TENS: Final = "thirty forty fifty sixty seventy eighty ninety"
_NUMBER_WORDS: Final = {word: number for number, word in enumerate(_UNITS.split(" "))} | {
    word: 10 * number for number, word in enumerate(_TENS.split(" "), start=3)
}
_NUMBER_WORD: Final = re.compile(rf"\b(?:{'|'.join(_NUMBER_WORDS)})\b", re.IGNORECASE)


def numbers(request: str) -> list[Mention]:
    """The numbers of a request, in order; one with a sign of percent also as a fraction."""
    request = request[:MAX_REQUEST_CHARS]
    found: list[Mention] = []
    for match in _NUMBER.finditer(request):
        literal = match[0].replace(",", "").replace("\u2212", "-").lstrip("+")
        start, end = match.span()
        scale = _SCALE.match(request, end)
        if scale is not None:
            scaled = _shifted(literal, _SCALES[scale[1].lower()])
            found.append(Mention(scaled, "number", start, scale.end()))
        found.append(Mention(_plain(literal), "number", start, end))
        if request[end : end + 2].lstrip().startswith("%") or re.match(
            r"\s*per\s?cent", request[end:]
        ):
            found.append(Mention(_shifted(literal, -2), "number", start, end))
    for match in _NUMBER_WORD.finditer(request):
        value = str(_NUMBER_WORDS[match[0].lower()])
        scale = _SCALE.match(request, match.end())
        if scale is not None:
            value = _shifted(value, _SCALES[scale[1].lower()])
        found.append(Mention(value, "numeral", match.start(), match.end()))
    found.sort(key=lambda mention: mention.start)
    return found[:MAX_MENTIONS]


def _plain(literal: str) -> str:
    sign, digits = ("-", literal[1:]) if literal.startswith("-") else ("", literal)
    head = re.match(r"[0-9]+", digits)
    assert head is not None
    return sign + (head[0].lstrip("0") or "0") + digits[head.end() :]


def _shifted(literal: str, places: int) -> str:
    """A decimal number times a power of ten, exactly."""
    from decimal import Decimal

    value = Decimal(literal).scaleb(places).normalize()
    return format(value, "f")


_QUOTED: Final = re.compile(
    r"(?<!\w)'([^'\n]{1,200})'(?!\w)|\"([^\"\n]{1,200})\"|[“„]([^”“\n]{1,200})[”“]|`([^`\n]{1,200})`"
)
_WORD: Final = r"[^\W\d_][\w'’.&-]*[\w&]|[^\W\d_]"
_CAPITAL: Final = r"(?:[A-Z\u00c0-\u00de][\w'’&-]*(?:\.(?=[A-Z\w]))?[\w'’&-]*)"
_NAME: Final = re.compile(
    rf"(?<![\w'])({_CAPITAL}(?:(?:\s+(?:of|the|de|la|del|von|van)(?=\s+[A-Z]))?"
    rf"(?:\s+|\s*,\s*(?=[A-Z]{{2}}\b)){_CAPITAL})*)"
)
_CODE: Final = re.compile(r"(?<![\w/])(?=[\w./:+#-]*[0-9/_#:])(?=[\w./:+#-]*[^\W\d_])[\w./:+#-]*\w")
_PLAIN_WORD: Final = re.compile(r"(?<![\w'’])[^\W\d_]{3,}(?:-[^\W\d_]+)*(?![\w])")
_SENTENCE: Final = re.compile(r"(?:^|[.!?:]\s+|\n\s*)\Z")


def texts(request: str) -> list[Mention]:
    """What a request quotes, names or spells in code, and its words; the more telling first."""
    request = request[:MAX_REQUEST_CHARS]
    found: list[Mention] = []
    for match in _QUOTED.finditer(request):
        inside = next(group for group in match.groups() if group is not None)
        if inside.strip():
            found.append(Mention(inside, "quoted", match.start(), match.end()))
    for match in _NAME.finditer(request):
        found += _named(request, match)
    for match in _CODE.finditer(request):
        found.append(Mention(match[0].rstrip(".:"), "code", match.start(), match.end()))
    for match in _PLAIN_WORD.finditer(request):
        if stems(match[0]):
            found.append(Mention(match[0], "word", match.start(), match.end()))
    unique: dict[str, Mention] = {}
    for mention in found:
        if not any(_covers(other, mention) for other in found):
            unique.setdefault(mention.text, mention)
    return list(unique.values())[:MAX_MENTIONS]


def _covers(whole: Mention, part: Mention) -> bool:
    """Whether a word or a piece of code is but a part of a name or a quotation."""
    within = whole.start <= part.start and part.end <= whole.end
    return within and part.kind in ("word", "code") and whole.kind in ("name", "quoted")


def _named(request: str, match: re.Match[str]) -> list[Mention]:
    """A run of capitalised words; at the start of a sentence also without its first word, which may
    be a capital for that alone."""
    start, end = match.span()
    text = match[0]
    made = []
    if not _SENTENCE.search(request[max(0, start - 8) : start] if start else ""):
        made.append(Mention(text, "name", start, end))
    else:
        rest = re.match(r"\S+\s+", text)
        if rest is not None:
            made.append(Mention(text[rest.end() :], "name", start + rest.end(), end))
    if "," in text:  # the part before the comma alone
        head = text.partition(",")[0]
        made.append(Mention(head, "name", start, start + len(head)))
    return made


_BETWEEN: Final = re.compile(r"\s*(?:,\s*(?:and|or|&)?|and|or|&|;|\s)\s*")


def lists(mentions: Sequence[Mention], request: str) -> list[list[Mention]]:
    """The runs of two or more mentions of a kind that nothing but commas and *and* stands between,
    the longest first."""
    runs: list[list[Mention]] = []
    run: list[Mention] = []
    ordered = sorted(mentions, key=lambda mention: (mention.start, -mention.end))
    kept: list[Mention] = []
    for mention in ordered:
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
            runs.append(run)
        run = []
    return sorted(runs, key=len, reverse=True)


def context(mention: Mention, request: str, words: dict[str, float]) -> float:
    """How much the words around a mention are those of an argument: ``words`` are stems and what
    each counts; a word nearer by counts more. 0 to about 2."""
    before = stems(request[max(0, mention.start - WINDOW_CHARS) : mention.start])[::-1]
    after = stems(request[mention.end : mention.end + WINDOW_CHARS])
    total = 0.0
    for side, near in ((before, 1.0), (after, 0.8)):
        for distance, stem in enumerate(side[:4]):
            total += words.get(stem, 0.0) * near / (1 + 0.6 * distance)
    return min(total, 2.0)
