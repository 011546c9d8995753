"""When a job runs, read from a text: a small grammar, and nothing is guessed.

Once: an ISO date and time, ``in 2 hours``, ``tomorrow 9:00``, ``monday at 18:00``. Again and again:
five fields of cron, ``@daily`` and its kin, ``every weekday at 8:30``, ``every 15 minutes``.
docs/scheduler.md has all of it.
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

from msgspec import Struct

from mlx_tools.errors import UsageError
from mlx_tools.toolbox.clock import zone_of

EXAMPLES: Final = (
    "write a time such as 2030-01-31 17:00, tomorrow 9:00, monday 6pm, in 2 hours, "
    "every weekday at 8:30, every 15 minutes, @daily, or cron's 30 8 * * mon-fri"
)
MAX_CHARS: Final = 500
LAST_YEAR: Final = 9000
"""No job is due later: every zone can tell what time it is then."""


class Schedule(Struct, frozen=True, forbid_unknown_fields=True):
    """When a job runs, in the zone of this IANA name: as ``cron`` has it, or once, ``at`` a time in
    UTC."""

    zone: str
    cron: str | None = None
    at: datetime | None = None

    def next_after(self, moment: datetime) -> datetime | None:
        """The first time after ``moment``, in UTC; None where there is none any more."""
        if self.at is not None:
            return self.at if self.at > moment else None
        return next_time(self.cron or "", zone_of(self.zone), moment)

    def __str__(self) -> str:
        if self.at is None:
            return f"{self.cron} ({self.zone})"
        return f"{self.at.astimezone(zone_of(self.zone)):%Y-%m-%d %H:%M:%S} ({self.zone})"


_WEEKDAYS: Final = {
    name: number
    for number, names in enumerate(
        (
            *("mon monday", "tue tues tuesday", "wed wednesday", "thu thur thurs thursday"),
            *("fri friday", "sat saturday", "sun sunday"),
        )
    )
    for name in names.split()
}
"""Days of the week, which begins with Monday, 0."""

_DATE: Final = r"\d{4}-\d\d-\d\d"
_ISO: Final = re.compile(
    rf"({_DATE})[t ](\d\d:\d\d(?::\d\d(?:\.\d{{1,9}})?)?)(?: ?(z|[+-]\d\d(?::?\d\d)?))?", re.ASCII
)
_LATER: Final = re.compile(r"in (\d{1,4}|an?) ?(second|minute|hour|day|week)s?", re.ASCII)
_OFTEN: Final = re.compile(r"every (?:(\d{1,2}) )?(minute|hour)s?", re.ASCII)
_TIMED: Final = re.compile(
    r"(?:(?P<day>.*?),? )??(?:at )?(?P<hour>\d\d?)(?P<minute>:\d\d)?(?: ?(?P<half>[ap]m))?",
    re.ASCII,
)
"""A day, or none, and a time of day."""

_DAYS: Final = {"every day": "*", "daily": "*", "every weekday": "1-5"}


def parse_when(text: str, zone: str, now: datetime) -> Schedule:
    """What a text means in a zone of this IANA name, said at ``now``.

    Raises `UsageError` for a text that is no such time, and for a time that is past.
    """
    local = now.astimezone(zone_of(zone))
    try:
        when = _read(plain(text) if len(text) <= MAX_CHARS else "", local)
    except (OverflowError, ValueError):
        raise _wrong(text, "is no date and time that there is") from None
    if when is None:
        raise _wrong(text, "is not understood as a time")
    if when.at is None:
        return when
    if when.at.year > LAST_YEAR:
        raise _wrong(text, "is too far ahead")
    at = when.at + timedelta(microseconds=-when.at.microsecond % 1_000_000)  # never early
    if at <= now:
        raise UsageError(f"{text[:100]!r} is past: it is {local:%Y-%m-%d %H:%M} in {local.tzinfo}")
    return Schedule(when.zone, at=at)


def plain(text: str) -> str:
    """The text in small letters, with one space between its words."""
    return " ".join(text.split()).casefold()


def counts_from_now(text: str) -> bool:
    """Whether a text means another time whenever it is said: *in 2 hours*."""
    return _LATER.fullmatch(plain(text)) is not None


def _wrong(text: str, reason: str) -> UsageError:
    return UsageError(f"{text[:100]!r} {reason}", hint=EXAMPLES)


def _read(text: str, now: datetime) -> Schedule | None:
    """What a text means, None for one that means nothing. ``now`` is in the zone that is meant.
    Raises ValueError or OverflowError for a time that there is not, `UsageError`."""
    zone = str(now.tzinfo)
    if looks_like_cron(text):
        return Schedule(zone, normalize_cron(text))
    if often := _OFTEN.fullmatch(text):
        return Schedule(zone, _so_often(int(often[1] or 1), often[2]))
    if iso := _ISO.fullmatch(text):
        read = datetime.fromisoformat(f"{iso[1]}T{iso[2]}{(iso[3] or '').upper()}")
        return Schedule(
            zone, at=(read if iso[3] else read.replace(tzinfo=now.tzinfo)).astimezone(UTC)
        )
    if later := _LATER.fullmatch(text):
        length = timedelta(**{f"{later[2]}s": int(later[1]) if later[1].isdigit() else 1})
        if later[2] in ("day", "week"):  # by the calendar
            return Schedule(zone, at=_to_utc(now.date() + length, now.time(), now))
        return Schedule(zone, at=now.astimezone(UTC) + length)
    timed = _TIMED.fullmatch(text)
    if timed is None or not (timed["minute"] or timed["half"]):  # at 5: in the morning?
        return None
    day, time = (timed["day"] or "").removeprefix("on "), _time_of(timed)
    if (days := _cron_days(day)) is not None:
        return Schedule(zone, f"{time.minute} {time.hour} * * {days}")
    at = _next_at(day, time, now)
    return None if at is None else Schedule(zone, at=at)


def _time_of(timed: re.Match[str]) -> clock_time:
    """The time of day that was read. Raises ValueError for one that there is not."""
    hour, minute = int(timed["hour"]), int((timed["minute"] or ":0")[1:])
    if timed["half"]:
        if not 1 <= hour <= 12:
            raise ValueError(hour)
        hour = hour % 12 + 12 * (timed["half"] == "pm")
    return clock_time(hour, minute)


def _next_at(day: str, time: clock_time, now: datetime) -> datetime | None:
    """The next time that this is the time of day, on the day that is meant; None for other days."""
    today, step = now.date(), timedelta()
    if re.fullmatch(_DATE, day, re.ASCII):
        meant = date.fromisoformat(day)
    elif day in ("today", "tomorrow"):
        meant = today + timedelta(days=day == "tomorrow")
    elif not day:
        meant, step = today, timedelta(days=1)
    elif day in _WEEKDAYS:
        ahead = (_WEEKDAYS[day] - today.weekday()) % 7
        meant, step = today + timedelta(days=ahead), timedelta(weeks=1)
    else:
        return None
    found = _to_utc(meant, time, now)
    return found if found > now or not step else _to_utc(meant + step, time, now)


def _to_utc(day: date, time: clock_time, now: datetime) -> datetime:
    """A local time in UTC. One that the clock leaves out is as much later as is left out; one that
    it shows twice is the first of both."""
    local = datetime.combine(day, time.replace(fold=0, tzinfo=None), tzinfo=now.tzinfo)
    return local.astimezone(UTC)


def _so_often(number: int, unit: str) -> str:
    """The cron expression of every so many minutes or hours."""
    whole, of = (24, "a day") if unit == "hour" else (60, "an hour")
    if not 1 <= number < whole or whole % number:
        raise UsageError(
            f"every {number} {unit}s does not divide {of}",
            hint=f"take a number that divides {whole}, or a cron expression",
        )
    step = "*" if number == 1 else f"*/{number}"
    return f"0 {step} * * *" if unit == "hour" else f"{step} * * * *"


def _cron_days(day: str) -> str | None:
    """The last field of cron for days of each week, None for other days."""
    if day in _DAYS:
        return _DAYS[day]
    names = re.split(r",? and |, ?", day.removeprefix("every "))
    if not day.startswith("every ") or not all(name in _WEEKDAYS for name in names):
        return None
    return ",".join(sorted({str((_WEEKDAYS[name] + 1) % 7) for name in names}))


# --- cron -----------------------------------------------------------------------------------------

# What is taken is what cron on Debian takes: numbers, names, ranges, lists and steps; its rules
# for the two kinds of days and for changed clocks hold (crontab(5), cron(8)). What other programs
# have beyond that, such as seconds, ``L``, ``?`` and ``#``, is refused.

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
_CRON_WEEK: Final = ("sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday")
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
            if last and low and not high and self.names is _CRON_WEEK:  # fri-sun
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
    _Field("day of the week", 0, 7, _CRON_WEEK),
)


def looks_like_cron(text: str) -> bool:
    """Whether somebody meant a cron expression, be it one that is wrong."""
    fields = text.split()
    first = bool(fields) and set(fields[0]) <= set("0123456789*/,-")
    five = len(fields) in (5, 6) and not fields[1][0].isalpha()  # 5 in the afternoon tomorrow
    return text.startswith("@") or (first and (five or "*" in fields))


def normalize_cron(text: str) -> str:
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
    if next(_parsed(text).dates(date(2000, 1, 1)), None) is None:
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
def _parsed(text: str) -> _Cron:
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
            found.update(_shown_times(local) if cron.by_face else [first_shown(local)])
    return sorted(found)


def next_time(expression: str, zone: ZoneInfo, start: datetime) -> datetime | None:
    """The first time after ``start`` at which the expression is due, in UTC; None where there is
    none any more.

    ``expression`` is one that `normalize_cron` gave. Where hour and minute are named, a time that a
    changed clock leaves out is due right after the gap, and one that it shows twice is due the
    first time. Where one of them begins with ``*`` the clock's face counts, as often as it shows
    the time.
    """
    cron, found, until = _parsed(expression), None, date.max
    try:
        # from the day before: a clock that is set back at midnight shows the end of a day again
        for day in cron.dates(start.astimezone(zone).date() - _DAY):
            if day > until:
                break
            times = _times(cron, day, zone)
            if (place := bisect_right(times, start)) < len(times):
                found = times[place] if found is None else min(found, times[place])
                until = min(until, day + _DAY)
    except (OverflowError, ValueError):  # the end of the calendar
        return found
    return found


def first_shown(local: datetime) -> datetime:
    """When a time of a zone that is named in full is due, in UTC: the first time that the clock
    shows it, or right after the gap that leaves it out."""
    shown = _shown_times(local)
    return shown[0] if shown else _after_gap(local)


def _shown_times(local: datetime) -> list[datetime]:
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
