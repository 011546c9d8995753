"""What a request says in whole phrases: sums in words, times to come, and what is to be written or
done. Pure.

Each is offered only to arguments that ask for such a thing: a sum to a formula, a time to an
argument whose own example is one, a clause to one that asks for a whole text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final

from mlx_tools.decoding.mentions import Mention

MAX_CHARS: Final = 8_000
"""How much of a request is looked through."""

# --- sums -------------------------------------------------------------------------------------

_N: Final = r"[$€£]?(-?\d+(?:,\d{3})*(?:\.\d+)?)(?![\w%])(?!\.\d)"
_LIST: Final = re.compile(rf"{_N}(?:(?:\s*,\s*(?:and\s+)?|\s+and\s+){_N})+", re.ASCII)
_NUMBER: Final = re.compile(r"-?\d[\d,]*(?:\.\d+)?", re.ASCII)
_LISTED: Final = {"sum": "+", "total": "+", "product": "*", "average": "mean", "mean": "mean"}


def _sum(pattern: str) -> re.Pattern[str]:
    return re.compile(rf"\b{pattern}".replace("N", _N), re.ASCII | re.IGNORECASE)


_SUMS: Final[tuple[tuple[re.Pattern[str], str], ...]] = (
    (_sum(r"divide N by N"), "{0} / {1}"),
    (_sum(r"multiply N (?:by|with) N"), "{0} * {1}"),
    (_sum(r"add N (?:and|to) N"), "{0} + {1}"),
    (_sum(r"subtract N from N"), "{1} - {0}"),
    (_sum(r"square root of N"), "sqrt({0})"),
    (re.compile(rf"(?<![\w.]){_N} divided by {_N}", re.IGNORECASE), "{0} / {1}"),
    (re.compile(rf"(?<![\w.]){_N} (?:times|multiplied (?:by|with)) {_N}", re.I), "{0} * {1}"),
    (re.compile(rf"(?<![\w.]){_N} plus {_N}", re.IGNORECASE), "{0} + {1}"),
    (re.compile(rf"(?<![\w.]){_N} minus {_N}", re.IGNORECASE), "{0} - {1}"),
    (re.compile(rf"(?<![\w.]){_N} to the power of {_N}", re.IGNORECASE), "{0} ** {1}"),
    (re.compile(rf"(?<![\w.]){_N} squared\b", re.IGNORECASE), "{0} ** 2"),
    (re.compile(rf"(?<![\w.]){_N} cubed\b", re.IGNORECASE), "{0} ** 3"),
    (
        re.compile(rf"(?<![\w.])(\d+(?:\.\d+)?) ?(?:%|per ?cent) of {_N}", re.IGNORECASE),
        "{0}% of {1}",
    ),
)


def sums(request: str) -> Iterator[Mention]:
    """Sums that are said in words, as a calculator reads them: *15 % of 260*, *divide 91 by 7*."""
    request = request[:MAX_CHARS]
    for pattern, form in _SUMS:
        for match in pattern.finditer(request):
            numbers = [group.replace(",", "") for group in match.groups()]
            yield Mention(form.format(*numbers), "sum", *match.span())
    for match in re.finditer(r"\b(sum|total|product|average|mean) of ", request, re.IGNORECASE):
        if listed := _LIST.match(request, match.end()):
            numbers = [number.replace(",", "") for number in _in_list(listed[0])]
            sign = _LISTED[match[1].lower()]
            text = f"mean({', '.join(numbers)})" if sign == "mean" else f" {sign} ".join(numbers)
            yield Mention(text, "sum", match.start(), listed.end())


def _in_list(text: str) -> list[str]:
    """The numbers of a list. A comma between thousands has no blank behind it, but three digits."""
    return re.findall(r"-?\d+(?:,\d{3}(?!\d))*(?:\.\d+)?", text, re.ASCII)


# --- times to come ----------------------------------------------------------------------------

_DAY: Final = r"(?:mon|tues|wednes|thurs|fri|satur|sun)day"
_PART: Final = r"(?:morning|afternoon|evening|night)"
_MONTH: Final = (
    r"(?:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?"
    r"|sep(?:t(?:ember)?)?|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)"
)
_HOUR: Final = (
    r"(?:\d{1,2}:\d\d(?: ?[ap]m)?|\d{1,2} ?[ap]m|\d{1,2} o['\u2019]clock|noon|midnight)"
    rf"(?: in the {_PART}| at night)?"
)
_AT: Final = rf"(?:(?:at )?{_HOUR}|at \d{{1,2}}(?: in the {_PART}| at night)?(?![.,]\d| ?%))"
_DATE: Final = (
    rf"\d{{4}}-\d\d-\d\d|the \d{{1,2}}(?:st|nd|rd|th)(?: of {_MONTH}(?:,? \d{{4}})?)?"
    rf"|{_MONTH} \d{{1,2}}(?:st|nd|rd|th)?(?:,? \d{{4}})?"
    rf"|\d{{1,2}}(?:st|nd|rd|th)? {_MONTH}(?:,? \d{{4}})?"
)
_ONE_DAY: Final = (
    rf"(?:today|tonight|this {_PART}|(?:(?:the )?day after )?tomorrow(?: {_PART})?"
    rf"|(?:on )?(?:this )?{_DAY}(?: {_PART})?|(?:on )?(?:{_DATE}))"
)
_DAYS: Final = (
    rf"(?:every (?:day|weekday|weekend|{_PART}|weekday {_PART}|{_DAY} {_PART}"
    rf"|other (?:day|week|{_DAY})|\d{{1,3}} (?:day|week)s?"
    rf"|{_DAY}(?:(?:,| and|, and) {_DAY})*)|daily"
    r"|(?:on )?the (?:first|\d{1,2}(?:st|nd|rd|th)) of (?:every|each) month)"
)
_COUNT: Final = r"(?:an?|half an|\d+|two|three|four|five|six|seven|eight|nine|ten|twelve|twenty)"
_MOMENTS: Final[tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], str]], ...]] = tuple(
    (re.compile(rf"(?<![\w:.]){pattern}(?!\w|:\d)", re.IGNORECASE), write)
    for pattern, write in (
        (rf"({_DAYS}|{_ONE_DAY}),? ({_AT})", lambda m: f"{_bare(m[1])} {_time(m[2])}"),
        (rf"({_AT}),? ({_DAYS}|{_ONE_DAY})", lambda m: f"{_bare(m[2])} {_time(m[1])}"),
        (rf"in {_COUNT} (?:day|week)s? ({_AT})", lambda m: m[0]),
        (r"in an hour and a half", lambda m: m[0]),
        (rf"in {_COUNT} (?:minute|hour|day|week)s?", lambda m: m[0]),
        (r"every (?:\d+ |two |three |half )?(?:minute|hour)s?", lambda m: m[0]),
        (rf"(?=at )({_AT})", lambda m: _time(m[1])),
    )
)


_WHICH: Final = r"(?:first|second|third|fourth|fifth|last|other|\d{1,2}(?:st|nd|rd|th))"
_BEFORE: Final = re.compile(
    rf"(?:(?<![\w-])(?:next|last|every|each|except|until|till|before|after|by|between|not|of|from"
    rf"|{_WHICH}|(?:every|each|next|last|this|on the) (?:{_WHICH} |\d+ )?"
    rf"(?:day|week|month|year|quarter|weekend)s?"
    rf"|(?:{_DAY}s?|weekdays|weekends)(?:,| and|, and)?|(?:once|twice) an? \w+"
    r"|(?:bi)?weekly|monthly|yearly|annually|quarterly|nightly|fortnightly"
    rf"|\w+ (?:day|week)s? (?:from|after)"
    r"|\d{1,4}[./-]\d{1,2}(?:[./-]\d{0,4})?),? ){1,6}(?:on )?\Z",
    re.IGNORECASE,
)
_AFTER: Final = re.compile(
    rf",? (?:(?:on |in |of )?(?:the )?(?:(?:next|this) (?:week|month|year|{_DAY})"
    rf"|{_WHICH} (?:of|day|week|month|{_DAY})"
    rf"|(?:every|each) (?:{_WHICH}|\d|day|week|month|year|hour|quarter|{_DAY}|{_MONTH}))"
    rf"|on (?:weekdays|weekends|{_DAY}s)|of (?:every|each|the) (?:month|year)"
    r"|until|till|except|but not|between|and (?:at )?\d|or (?:at )?\d"
    rf"|(?:from|start(?:s|ing)?(?: on| from)?) (?:{_DAY}|to(?:day|morrow)|next|\d))"
    r"[^.;:!?\n]{0,40}?(?= to | that |[.,;:!?\n]|\Z)",
    re.IGNORECASE,
)
"""What stands around a time and makes another one of it: *next*, *until friday*."""


def _bare(day: str) -> str:
    return re.sub(r"\Aon ", "", day, flags=re.IGNORECASE)


def _time(said: str) -> str:
    """A time of day without its *at*, which an hour alone needs."""
    return (
        said
        if re.match(r"at \d+(?:\Z| in| at)", said, re.IGNORECASE)
        else re.sub(r"\Aat ", "", said, flags=re.IGNORECASE)
    )


def moments(request: str) -> list[Mention]:
    """Times to come, as `mlx_tools.schedule` reads them: *tomorrow at 8:15*, *in 3 hours*, *every
    weekday at 7:30*. None stands within another. What makes another time of one belongs to it, so
    that *next friday at 9* is never taken for *friday at 9*."""
    found: list[Mention] = []
    request = request[:MAX_CHARS]
    for pattern, write in _MOMENTS:
        for match in pattern.finditer(request):
            start, end = match.span()
            if any(start < one.end and one.start < end for one in found):
                continue
            before = _BEFORE.search(request[max(0, start - 60) : start])
            after = _AFTER.match(request, end)
            text = write(match)
            if before or after:
                start -= len(before[0]) if before else 0
                end = after.end() if after else end
                text = request[start:end]
            found = [one for one in found if one.end <= start or end <= one.start]
            found.append(Mention(text.lower(), "moment", start, end))
    return sorted(found, key=lambda one: one.start)


def is_moment(text: str) -> bool:
    """Whether a text is such a time, and nothing else."""
    return any(pattern.fullmatch(text.strip()) for pattern, _ in _MOMENTS)


# --- what is to be written or done ------------------------------------------------------------

_BEHIND_COLON: Final = re.compile(r"(?<=\w):\s+(?=\S)")
_TO_NOTE: Final = re.compile(
    r"\b(?:note|remember|says?|saying|write)\b[^.:;!?\"]{0,80}? that (?=\w)", re.IGNORECASE
)
_REMINDERS: Final = (
    re.compile(r"\bremind(?:ed)?\b[^.:;!?\"]{0,80}? (?:to|that) (?=\w)", re.IGNORECASE),
    re.compile(r"\bremind(?:ed)? (?:\w+ +)?(?:of|about) (?=\w)", re.IGNORECASE),
)
_STOP: Final = re.compile(r"[.!?](?=\s|\Z)|\n|\Z")


def clauses_to_keep(request: str) -> Iterator[Mention]:
    """What a request gives to be written down or done later: what stands behind a colon, up to the
    end of all; behind *note that* or *remind me to*, up to the end of the sentence. A time to come
    at the end of what one is to be reminded of is no part of it."""
    request = request[:MAX_CHARS]
    times = moments(request)
    bare = request
    for time in times:
        bare = bare[: time.start] + " " * (time.end - time.start) + bare[time.end :]
    for pattern in (_BEHIND_COLON, _TO_NOTE, *_REMINDERS):
        to_come = pattern in _REMINDERS
        match = pattern.search(bare if to_come else request)
        if match is None:
            continue
        start = match.end()
        stop = None if pattern is _BEHIND_COLON else _STOP.search(bare, start)
        end = len(request) if stop is None else stop.start()
        said = (bare if to_come else request)[start:end].strip()
        if len(said) > 1 and said.count('"') % 2 == 0:
            yield Mention(said, "clause", start, end)
