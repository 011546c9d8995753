"""When, in the many words that people have for it, said again in the few that are read.

*The first of every month at 9*, *tonight at 8*, *in an hour and a half*: each becomes a text that
`phrases` and `interval` read, or a cron expression. What may mean two things is refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Final

from mlx_tools.errors import UsageError
from mlx_tools.toolbox.schedule.phrases import DATE, NUMBERS, WEEKDAY, days_until
from mlx_tools.toolbox.schedule.time_of_day import clock_of, part_of, time_meant

_MONTHS: Final = (
    *("january", "february", "march", "april", "may", "june", "july", "august"),
    *("september", "october", "november", "december"),
)
_MONTH: Final = "|".join(rf"{name[:3]}(?:{name[3:]})?\.?" for name in _MONTHS) + r"|sept\.?"
_ORD: Final = r"(?:(\d{1,2})(?:st|nd|rd|th)|first)"
_DAY: Final = r"(?P<day>\d{1,2})(?:st|nd|rd|th)?"
_DATED: Final = tuple(
    re.compile(
        rf"(?:on )?(?:(?P<week>{WEEKDAY}),? )?(?:on )?(?:the )?{form}(?:,? (?P<year>\d{{4}}))?",
        re.ASCII,
    )
    for form in (
        rf"{_DAY}(?: of)? (?P<month>{_MONTH})",
        rf"(?P<month>{_MONTH}) (?:the )?{_DAY}",
    )
)
_THE: Final = re.compile(
    rf"(?:on )?(?:(?P<week>{WEEKDAY}),? )?the (?P<day>\d{{1,2}})(?:st|nd|rd|th)", re.ASCII
)
_MONTHLY: Final = tuple(
    re.compile(form, re.ASCII)
    for form in (
        rf"(?:on )?(?:the )?{_ORD}(?: day)? of (?:every|each) month",
        rf"(?:(?:every|each) month|monthly|once a month),? on (?:the )?{_ORD}",
        rf"(?:every|each) {_ORD}(?: day)? of (?:the|a) month",
    )
)
_YEARLY: Final = re.compile(
    r"(?:(?:every|each) year,?|yearly,?|annually,?|once a year,?|(?:every|each)) (?P<date>.+)",
    re.ASCII,
)
_AHEAD: Final = re.compile(
    rf"(?:in (?P<n>\d{{1,3}}|an?|{'|'.join(NUMBERS[1:])}) (?P<u>day|week)s?"
    rf"|(?P<n2>\d{{1,3}}|an?|{'|'.join(NUMBERS[1:])}) (?P<u2>day|week)s? from (?:now|today))",
    re.ASCII,
)
_SOON: Final = timedelta(days=300)
"""A date without a year is refused that does not come within this time: it may be one that has just
passed, and was meant for this year."""

_TENS: Final = {"twenty": 20, "thirty": 30, "forty": 40, "fifty": 50}
_TEENS: Final = {
    f"{stem}teen": number
    for number, stem in enumerate(("thir", "four", "fif", "six", "seven", "eigh", "nine"), 13)
}
_COUNT: Final = re.compile(
    rf"\b(?:({'|'.join(_TEENS)})|({'|'.join(_TENS)})(?:[- ]({'|'.join(NUMBERS[1:10])}))?)"
    r"(?= (?:seconds?|minutes?|mins?|hours?|days?)\b)",
    re.ASCII,
)
_N: Final = rf"(\d{{1,3}}|{'|'.join(NUMBERS[1:])})"
_AMOUNTS: Final = tuple(
    (re.compile(rf"\b(?:{pattern})(?!\w)", re.ASCII), instead)
    for pattern, instead in (
        (r"three[- ]quarters of an hour", "45 minutes"),
        (r"(?:a )?quarter(?: of an)?[- ]hour", "15 minutes"),
        (r"half(?: an)?[- ]hour", "half an hour"),
        (r"(?:an|one) hour and a half|(?:one|1) and a half hours?", "90 minutes"),
        (rf"{_N} and a half hours", r"\1 hours and 30 minutes"),
        (r"(\d{1,3})\.50? ?(?:hours?|hrs?|h)", r"\1 hours and 30 minutes"),
    )
)
_EVERY: Final = tuple(
    (re.compile(pattern, re.ASCII), instead)
    for pattern, instead in (
        (r"(every|each) half an hour", "every 30 minutes"),
        (r"(every|each) (?:other|second|2nd) hour", "every 2 hours"),
        (r"(every|each) (?:60 minutes|sixty minutes)", "every hour"),
    )
)
_OFTEN: Final = re.compile(
    rf"(every|each) ({'|'.join(NUMBERS[1:])}) (minutes?|mins?|hours?)", re.ASCII
)
_DAYS: Final = tuple(
    (re.compile(pattern, re.ASCII), instead)
    for pattern, instead in (
        (r"(every|each) (?:work(?:ing)?|business) ?day", "every weekday"),
        (r"(?:on )?(?:work(?:ing)?|business) ?days", "every weekday"),
        (r"once a day|(every|each) single day", "every day"),
        (
            rf"(?:weekly|once a week|(?:every|each) week),? on ((?:{WEEKDAY})"
            rf"(?:(?:,? and |, ?)(?:{WEEKDAY}))*)",
            r"every \1",
        ),
        (rf"(?:weekly|once a week|(?:every|each) week),? on ({WEEKDAY})s", r"every \1"),
        (rf"(?:fortnightly|(?:every|each) fortnight),? on ({WEEKDAY})", r"every 2 weeks on \1"),
        (r"every 2nd (day|week)(.*)", r"every 2 \1s\2"),
        (r"every 3rd (day|week)(.*)", r"every 3 \1s\2"),
        (r"every 4th (day|week)(.*)", r"every 4 \1s\2"),
    )
)
_FROM: Final = re.compile(r"(?P<before>.+?)(?P<from>,? (?:from|start(?:ing|s)?) .+)", re.ASCII)
_ONE: Final = re.compile(rf"today|tomorrow|(?:on )?(?:{WEEKDAY})|(?:on )?{DATE}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a text comes to. ``cron`` is whether that is a cron expression."""

    text: str
    cron: bool = False


def has_clock(said: str) -> bool:
    """Whether a text names a time of day."""
    try:
        return clock_of(*part_of(_tidied(said))) is not None
    except ValueError:
        return True


def in_few_words(said: str, now: datetime) -> Meaning:
    """The same in words that are read, or as it was. ``now`` is in the zone that is meant. Raises
    ValueError for a time that there is not, `UsageError` for what may mean two things."""
    said = _tidied(said)
    if often := _often(said):
        return Meaning(often)
    rest, part = part_of(said)
    found = clock_of(rest, part)
    start = ""
    if found is None and (later := _FROM.fullmatch(rest)):
        found, start = clock_of(later["before"], part), later["from"]
    if found is None:
        return Meaning(said)
    day, clock = found
    day = _day(day, now)
    if clock.name == "midnight" and not part and _ONE.fullmatch(day):
        raise UsageError(
            f"{said[:100]!r} may be where the day begins or where it ends",
            hint="write 0:00, and the day that begins then",
        )
    time, later_days = time_meant(clock, part, day, now)
    if later_days and day == "today":
        day = f"{now.date() + timedelta(days=later_days)}"
    if (cron := _cron_days(day)) is not None:
        return Meaning(f"{time.minute} {time.hour} {cron}", cron=True)
    return Meaning(f"{day}{start} at {time:%H:%M}".strip())


def _tidied(said: str) -> str:
    """The same with one spelling for what has several."""
    said = said.replace("\u2019", "'")
    said = re.sub(r" ?\bo'?clock\b", " o'clock", said)
    said = re.sub(r"\bmidday\b", "noon", said)
    said = re.sub(r"\b(\d{4})/(\d\d)/(\d\d)\b", r"\1-\2-\3", said)
    said = re.sub(rf"\b({WEEKDAY})\.(?= )", r"\1", said)
    said = _COUNT.sub(lambda m: str(_counted(m)), said)
    for pattern, instead in _AMOUNTS:
        said = pattern.sub(instead, said)
    if said.startswith("in "):
        said = re.sub(r"(?:'s?)? time\Z| from now\Z", "", said)
    return said


def _counted(found: re.Match[str]) -> int:
    if found[1]:
        return _TEENS[found[1]]
    return _TENS[found[2]] + (NUMBERS.index(found[3]) if found[3] else 0)


def _often(said: str) -> str:
    """Every so many minutes or hours, in digits; empty for another text."""
    if found := _OFTEN.fullmatch(said):
        return f"every {NUMBERS.index(found[2])} {found[3]}"
    for pattern, instead in _EVERY:
        if pattern.fullmatch(said):
            return instead
    return ""


def _day(day: str, now: datetime) -> str:
    """The day in words that are read, as it was where it is none of these."""
    today = now.date()
    for pattern, instead in _DAYS:
        if found := pattern.fullmatch(day):
            return found.expand(instead)
    if re.fullmatch(r"(?:on )?(?:the )?day after tomorrow", day):
        return f"{today + timedelta(days=2)}"
    if ahead := _AHEAD.fullmatch(day):
        return f"{_ahead(ahead, today)}"
    if this := re.fullmatch(rf"(?:on )?this ({WEEKDAY})", day):
        if not days_until(this[1], today):
            raise UsageError(f"{day!r} is said on that day", hint="write today, or the date")
        return this[1]
    for form in _DATED:
        if dated := form.fullmatch(day):
            return f"{_dated(dated, today)}"
    if the := _THE.fullmatch(day):
        return f"{_next(the, now)}"
    return day


def _ahead(found: re.Match[str], today: date) -> date:
    word, unit = found["n"] or found["n2"], found["u"] or found["u2"]
    number = int(word) if word.isdigit() else NUMBERS.index(word) if word in NUMBERS else 1
    return today + timedelta(days=number * (7 if unit == "week" else 1))


def _dated(found: re.Match[str], today: date) -> date:
    """The date that is named: the next such, where no year is."""
    month, day = _month(found["month"]), int(found["day"])
    if found["year"]:
        return _held(date(int(found["year"]), month, day), found)
    this = date(today.year, month, day)
    meant = this if this >= today else date(today.year + 1, month, day)
    if meant - today > _SOON:
        raise UsageError(f"{found[0]!r} may be past", hint=f"write the year: {meant}")
    return _held(meant, found)


def _next(found: re.Match[str], now: datetime) -> date:
    """The next day of this number, in this month or the next one."""
    today, day = now.date(), int(found["day"])
    if day == today.day:
        raise UsageError(f"{found[0]!r} is said on that day", hint="write today, or the date")
    month = today if day > today.day else today.replace(day=28) + timedelta(days=4)
    try:
        return _held(month.replace(day=day), found)
    except ValueError:
        raise UsageError(
            f"{found[0]!r}: there is no such day in that month", hint="write the date"
        ) from None


def _held(meant: date, found: re.Match[str]) -> date:
    """The date, held against the weekday that is named with it."""
    if found["week"] and days_until(found["week"], meant):
        raise UsageError(f"{meant} is no {found['week']}", hint="leave out one of them")
    return meant


def _cron_days(day: str) -> str | None:
    """The last three fields of cron for a day of each month or year, None for other days."""
    for form in _MONTHLY:
        if monthly := form.fullmatch(day):
            number = int(monthly[1] or 1)
            if not 1 <= number <= 28:
                raise UsageError(
                    f"{day!r}: not every month has that day", hint="take one from 1 to 28"
                )
            return f"{number} * *"
    yearly = _YEARLY.fullmatch(day)
    for form in _DATED:
        dated = form.fullmatch(yearly["date"]) if yearly else None
        if dated is not None and not dated["year"] and not dated["week"]:
            date(2000, _month(dated["month"]), int(dated["day"]))
            return f"{int(dated['day'])} {_month(dated['month'])} *"
    return None


def _month(name: str) -> int:
    return next(n for n, month in enumerate(_MONTHS, 1) if month.startswith(name[:3]))
