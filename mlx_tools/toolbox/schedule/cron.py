"""Cron expressions of five fields: what they mean, and when they are due next.

What is taken is what cron on Debian takes: numbers, names, ranges, lists and steps; its rules for
the two kinds of days and for changed clocks hold (crontab(5), cron(8)). What other programs have
beyond that, such as seconds, ``L``, ``?`` and ``#``, is refused.
"""

from __future__ import annotations

import functools
import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from datetime import time as clock_time
from typing import Final
from zoneinfo import ZoneInfo

from mlx_tools.errors import UsageError

SHORTHANDS: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}

MONTHS: Final = (
    *("", "january", "february", "march", "april", "may", "june", "july", "august"),
    *("september", "october", "november", "december"),
)
_WEEK: Final = ("sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday")
_PART: Final = re.compile(r"(?:(\*)|(\w+)(?:-(\w+))?)(?:/(\d{1,2}))?", re.ASCII)

_YEARS: Final = 50
"""How far ahead is looked: a 29th of February that has to be a Sunday may be forty years away."""

_DAY: Final = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class _Field:
    """A field's name, its numbers, and the names that its numbers from 0 on have."""

    name: str
    least: int
    most: int
    names: tuple[str, ...] = ()

    def read(self, text: str) -> tuple[str, tuple[int, ...]]:
        """The field with numbers for names, and all numbers that it means. A number with steps goes
        on to the field's end. Raises ValueError for what is no such field."""
        plain: list[str] = []
        numbers: set[int] = set()
        for part in text.split(","):
            read = _PART.fullmatch(part)
            if read is None:
                raise ValueError(part)
            star, first, last, step = read.groups()
            low = self.least if star else self._number(first)
            high = self.most if star or (step and not last) else self._number(last or first)
            if last and low and not high and self.names is _WEEK:  # fri-sun
                high = 7
            if not self.least <= low <= high <= self.most:
                raise ValueError(part)
            numbers |= set(range(low, high + 1, int(step or 1)))
            span = star or (f"{low}-{high}" if last else f"{low}")
            plain.append(f"{span}/{int(step)}" if step else span)
        return ",".join(plain), tuple(sorted(numbers))

    def _number(self, text: str) -> int:
        if text.isdigit() and len(text) <= 2:
            return int(text)
        for number, name in enumerate(self.names):
            if name and text in (name, name[:3]):
                return number
        raise ValueError(text)


_FIELDS: Final = (
    _Field("minute", 0, 59),
    _Field("hour", 0, 23),
    _Field("day of the month", 1, 31),
    _Field("month", 1, 12, MONTHS),
    _Field("day of the week", 0, 7, _WEEK),
)


def looks_like_cron(text: str) -> bool:
    """Whether somebody meant a cron expression, be it one that is wrong."""
    fields = text.split()
    first = bool(fields) and set(fields[0]) <= set("0123456789*/,-")
    five = len(fields) in (5, 6) and not fields[1][0].isalpha()  # 5 in the afternoon tomorrow
    return text.startswith("@") or (first and (five or "*" in fields))


def checked(text: str) -> str:
    """The expression in five fields of numbers. Raises `UsageError` that names the field."""
    text = " ".join(text.split()).casefold()
    if text.startswith("@"):
        if text not in SHORTHANDS:
            raise UsageError(f"{text[:50]} is no time", hint=f"one of {', '.join(SHORTHANDS)}")
        return SHORTHANDS[text]
    fields = text.split(" ")
    if len(fields) != len(_FIELDS):
        names = ", ".join(field.name for field in _FIELDS)
        raise UsageError(
            f"a cron expression has 5 fields, and {text[:100]!r} has {len(fields)}",
            hint=f"{names}; 30 8 * * mon-fri is every weekday at 8:30",
        )
    for number, field in enumerate(_FIELDS):
        try:
            fields[number], _ = field.read(fields[number])
        except ValueError:
            raise UsageError(
                f"{fields[number][:50]!r} is no {field.name} of a cron expression",
                hint="numbers, names (mon, jan), ranges 1-5, lists 1,15 and steps */10",
            ) from None
    text = " ".join(fields)
    if next(_read(text).dates(date(2000, 1, 1)), None) is None:
        raise UsageError(f"there is no day that {text!r} means", hint="is there such a date?")
    return text


@dataclass(frozen=True, slots=True)
class _Cron:
    """An expression, read. ``by_face``: hour or minute begins with ``*``; ``both``: one of the two
    fields for days does, so that both have to fit."""

    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: tuple[int, ...]
    months: tuple[int, ...]
    weekdays: tuple[int, ...]
    by_face: bool
    both: bool

    def dates(self, first: date) -> Iterator[date]:
        """The dates from ``first`` on that fit, for fifty years."""
        day, last = first, first.year + _YEARS
        while day.year <= last:
            if day.month not in self.months:
                day = (day.replace(day=28) + timedelta(days=4)).replace(day=1)
                continue
            fits = (
                day.day in self.days,
                {day.isoweekday(), day.isoweekday() % 7} & {*self.weekdays},
            )
            if all(fits) if self.both else any(fits):
                yield day
            day += _DAY


@functools.lru_cache(maxsize=256)
def _read(text: str) -> _Cron:
    fields = text.split(" ")
    read = (field.read(text)[1] for field, text in zip(_FIELDS, fields, strict=True))
    minutes, hours, days, months, weekdays = read
    by_face, both = (any(fields[n][0] == "*" for n in pair) for pair in ((0, 1), (2, 4)))
    return _Cron(minutes, hours, days, months, weekdays, by_face, both)


@functools.lru_cache(maxsize=256)
def _times(cron: _Cron, day: date, zone: ZoneInfo) -> list[datetime]:
    """When an expression is due on a date, in UTC, in order."""
    found: set[datetime] = set()
    for hour in cron.hours:
        for minute in cron.minutes:
            local = datetime.combine(day, clock_time(hour, minute), zone)
            found.update(_shown(local) if cron.by_face else [first_shown(local)])
    return sorted(found)


def next_time(expression: str, zone: ZoneInfo, after: datetime) -> datetime | None:
    """The first time after ``after`` at which the expression is due, in UTC; None where there is
    none any more.

    ``expression`` is one that `checked` gave. Where hour and minute are named, a time that a
    changed clock leaves out is due right after the gap, and one that it shows twice is due the
    first time. Where one of them begins with ``*`` the clock's face counts, as often as it shows
    the time.
    """
    cron, found, until = _read(expression), None, date.max
    try:
        # from the day before: a clock that is set back at midnight shows the end of a day again
        for day in cron.dates(after.astimezone(zone).date() - _DAY):
            if day > until:
                break
            times = _times(cron, day, zone)
            if (place := bisect_right(times, after)) < len(times):
                found = times[place] if found is None else min(found, times[place])
                until = min(until, day + _DAY)
    except (OverflowError, ValueError):  # the end of the calendar
        return found
    return found


def first_shown(local: datetime) -> datetime:
    """When a time of a zone that is named in full is due, in UTC: the first time that the clock
    shows it, or right after the gap that leaves it out."""
    shown = _shown(local)
    return shown[0] if shown else _after_gap(local)


def _shown(local: datetime) -> list[datetime]:
    """When the clock shows a time of its zone, in UTC: once, twice or never."""
    times = {local.replace(fold=fold).astimezone(UTC): None for fold in (0, 1)}
    wanted = local.replace(tzinfo=None)
    return [t for t in times if t.astimezone(local.tzinfo).replace(tzinfo=None, fold=0) == wanted]


def _after_gap(local: datetime) -> datetime:
    """When a gap ends that leaves out this local time, in UTC."""
    early = local.replace(fold=1).astimezone(UTC)  # by the clock after the gap, so before it
    late = local.replace(fold=0).astimezone(UTC)
    offset = late.astimezone(local.tzinfo).utcoffset()
    while late - early > timedelta(seconds=1):
        middle = early + timedelta(seconds=(late - early).total_seconds() // 2)
        if middle.astimezone(local.tzinfo).utcoffset() == offset:
            late = middle
        else:
            early = middle
    return late
