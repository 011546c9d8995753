"""Parses the times of a job. The grammar is small, and nothing is guessed.

Once: an ISO date and time, ``in 2 hours``, ``tomorrow 9:00``, ``monday at 18:00``. Repeatedly: five
fields of cron, ``@daily`` and similar words, ``every weekday at 8:30``, ``every 15 minutes``.
docs/scheduler.md describes the grammar.
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

import msgspec
from msgspec import Struct

from mlx_tools.errors import UsageError, require_instance, require_text
from mlx_tools.toolbox import find_zone

EXAMPLES: Final = (
    "write a time such as 2030-01-31 17:00, tomorrow 9:00, monday 6pm, in 2 hours, "
    "every weekday at 8:30, every 15 minutes, @daily, or cron's 30 8 * * mon-fri"
)
MAX_CHARS: Final = 500
LAST_YEAR: Final = 9000
"""The last year of a job. Python's calendar ends in 9999, and time zones need a margin."""


class Schedule(Struct, frozen=True, forbid_unknown_fields=True):
    """The times at which a job runs."""

    zone: str
    """The IANA name of the time zone."""
    cron: str | None = None
    """A cron expression for repeated runs."""
    run_at: datetime | None = msgspec.field(name="at", default=None)
    """The time in UTC of a single run."""

    def next_after(self, moment: datetime) -> datetime | None:
        """Return the first time after ``moment``, in UTC, or None."""
        if self.run_at is not None:
            return self.run_at if self.run_at > moment else None
        return find_next_time(self.cron or "", find_zone(self.zone), moment)

    def __str__(self) -> str:
        if self.run_at is None:
            return f"{self.cron} ({self.zone})"
        return f"{self.run_at.astimezone(find_zone(self.zone)):%Y-%m-%d %H:%M:%S} ({self.zone})"


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
"""Weekdays by name; Monday is 0."""

_DATE: Final = r"\d{4}-\d\d-\d\d"
_ISO: Final = re.compile(
    rf"({_DATE})[t ](\d\d:\d\d(?::\d\d(?:\.\d{{1,9}})?)?)(?: ?(z|[+-]\d\d(?::?\d\d)?))?", re.ASCII
)
_DELAY: Final = re.compile(r"in (\d{1,4}|an?) ?(second|minute|hour|day|week)s?", re.ASCII)
_INTERVAL: Final = re.compile(r"every (?:(\d{1,2}) )?(minute|hour)s?", re.ASCII)
_TIMED: Final = re.compile(
    r"(?:(?P<day>.*?),? )??(?:at )?(?P<hour>\d\d?)(?P<minute>:\d\d)?(?: ?(?P<half>[ap]m))?",
    re.ASCII,
)
"""A day, or none, and a time of day."""

_DAYS: Final = {"every day": "*", "daily": "*", "every weekday": "1-5"}


def parse_when(text: str, zone: str, now: datetime) -> Schedule:
    """Parse a text in the zone of this IANA name, relative to ``now``.

    Raises:
        UsageError: it is no time, or the time is past.
    """
    require_text("text", text, "give a time such as tomorrow 9:00")
    require_text("zone", zone, "give a time zone such as Europe/Berlin")
    require_instance("now", now, datetime, "give a datetime with its zone")
    local = now.astimezone(find_zone(zone))
    try:
        when = _parse(normalize_text(text) if len(text) <= MAX_CHARS else "", local)
    except (OverflowError, ValueError):
        raise _make_error(text, "is no date and time that there is") from None
    if when is None:
        raise _make_error(text, "is not understood as a time")
    if when.run_at is None:
        return when
    if when.run_at.year > LAST_YEAR:
        raise _make_error(text, "is too far ahead")
    run_at = when.run_at + timedelta(
        microseconds=-when.run_at.microsecond % 1_000_000
    )  # rounded up, so that no job is early
    if run_at <= now:
        raise UsageError(f"{text[:100]!r} is past: it is {local:%Y-%m-%d %H:%M} in {local.tzinfo}")
    return Schedule(when.zone, run_at=run_at)


def normalize_text(text: str) -> str:
    """Return the text in lower case, with one space between its words."""
    return " ".join(text.split()).casefold()


def counts_from_now(text: str) -> bool:
    """Return whether a text means a time relative to now, such as *in 2 hours*."""
    return _DELAY.fullmatch(normalize_text(text)) is not None


def _make_error(text: str, reason: str) -> UsageError:
    return UsageError(f"{text[:100]!r} {reason}", hint=EXAMPLES)


def _parse(text: str, now: datetime) -> Schedule | None:
    """Parse a text in the zone of ``now``. None if it is not understood.

    Raises:
        ValueError, OverflowError: there is no such time.
        UsageError: the text is wrong in a way that has its own message.
    """
    zone = str(now.tzinfo)
    if looks_like_cron(text):
        return Schedule(zone, normalize_cron(text))
    if interval := _INTERVAL.fullmatch(text):
        return Schedule(zone, _make_interval(int(interval[1] or 1), interval[2]))
    if iso := _ISO.fullmatch(text):
        parsed = datetime.fromisoformat(f"{iso[1]}T{iso[2]}{(iso[3] or '').upper()}")
        return Schedule(
            zone, run_at=(parsed if iso[3] else parsed.replace(tzinfo=now.tzinfo)).astimezone(UTC)
        )
    if delay := _DELAY.fullmatch(text):
        length = timedelta(**{f"{delay[2]}s": int(delay[1]) if delay[1].isdigit() else 1})
        if delay[2] in ("day", "week"):  # calendar days, which need not have 24 hours
            return Schedule(zone, run_at=_to_utc(now.date() + length, now.time(), now))
        return Schedule(zone, run_at=now.astimezone(UTC) + length)
    timed = _TIMED.fullmatch(text)
    if timed is None or not (timed["minute"] or timed["half"]):  # "at 5" could be am or pm
        return None
    day, time = (timed["day"] or "").removeprefix("on "), _read_time(timed)
    if (days := _read_days(day)) is not None:
        return Schedule(zone, f"{time.minute} {time.hour} * * {days}")
    run_at = _find_next(day, time, now)
    return None if run_at is None else Schedule(zone, run_at=run_at)


def _read_time(timed: re.Match[str]) -> clock_time:
    """Return the matched time of day.

    Raises:
        ValueError: there is no such time.
    """
    hour, minute = int(timed["hour"]), int((timed["minute"] or ":0")[1:])
    if timed["half"]:
        if not 1 <= hour <= 12:
            raise ValueError(hour)
        hour = hour % 12 + 12 * (timed["half"] == "pm")
    return clock_time(hour, minute)


def _find_next(day: str, time: clock_time, now: datetime) -> datetime | None:
    """Return the next such time on the named day. None if ``day`` names no day."""
    today, step = now.date(), timedelta()
    if re.fullmatch(_DATE, day, re.ASCII):
        wanted_day = date.fromisoformat(day)
    elif day in ("today", "tomorrow"):
        wanted_day = today + timedelta(days=day == "tomorrow")
    elif not day:
        wanted_day, step = today, timedelta(days=1)
    elif day in _WEEKDAYS:
        days_ahead = (_WEEKDAYS[day] - today.weekday()) % 7
        wanted_day, step = today + timedelta(days=days_ahead), timedelta(weeks=1)
    else:
        return None
    candidate = _to_utc(wanted_day, time, now)
    return candidate if candidate > now or not step else _to_utc(wanted_day + step, time, now)


def _to_utc(day: date, time: clock_time, now: datetime) -> datetime:
    """Return a local time in UTC.

    A time that the clock skips is later by the length of the gap. If the clock shows a time twice,
    the first one is meant.
    """
    local = datetime.combine(day, time.replace(fold=0, tzinfo=None), tzinfo=now.tzinfo)
    return local.astimezone(UTC)


def _make_interval(number: int, unit: str) -> str:
    """Return the cron expression for an interval of minutes or hours."""
    whole, period_name = (24, "a day") if unit == "hour" else (60, "an hour")
    if not 1 <= number < whole or whole % number:
        raise UsageError(
            f"every {number} {unit}s does not divide {period_name}",
            hint=f"take a number that divides {whole}, or a cron expression",
        )
    step = "*" if number == 1 else f"*/{number}"
    return f"0 {step} * * *" if unit == "hour" else f"{step} * * * *"


def _read_days(day: str) -> str | None:
    """Return the last field of cron for weekdays, None for other days."""
    if day in _DAYS:
        return _DAYS[day]
    names = re.split(r",? and |, ?", day.removeprefix("every "))
    if not day.startswith("every ") or not all(name in _WEEKDAYS for name in names):
        return None
    return ",".join(sorted({str((_WEEKDAYS[name] + 1) % 7) for name in names}))


# --- cron -----------------------------------------------------------------------------------------

# The syntax is that of cron on Debian: numbers, names, ranges, lists and steps. Its rules for the
# two kinds of days and for changed clocks apply too (crontab(5), cron(8)). Extensions of other
# programs, such as seconds, ``L``, ``?`` and ``#``, are refused.

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
"""Years that are searched. A 29th of February that must be a Sunday may be forty years away."""

_DAY: Final = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class _Field:
    """A field: its name, its range, and the names of its numbers from 0 on."""

    name: str
    minimum: int
    maximum: int
    names: tuple[str, ...] = ()

    def read(self, text: str) -> tuple[str, tuple[int, ...]]:
        """Return the field with numbers for names, and all its numbers.

        A number with steps goes on to the field's end.

        Raises:
            ValueError: it is no such field.
        """
        parts: list[str] = []
        numbers: set[int] = set()
        for part in text.split(","):
            match = _PART.fullmatch(part)
            if match is None:
                raise ValueError(part)
            star, first, last, step = match.groups()
            low = self.minimum if star else self._number(first)
            high = self.maximum if star or (step and not last) else self._number(last or first)
            if last and low and not high and self.names is _CRON_WEEK:  # fri-sun
                high = 7
            if not self.minimum <= low <= high <= self.maximum:
                raise ValueError(part)
            numbers |= set(range(low, high + 1, int(step or 1)))
            span = star or (f"{low}-{high}" if last else f"{low}")
            parts.append(f"{span}/{int(step)}" if step else span)
        return ",".join(parts), tuple(sorted(numbers))

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
    """Return whether a text is meant as a cron expression, even if it is wrong."""
    fields = text.split()
    begins_like_cron = bool(fields) and set(fields[0]) <= set("0123456789*/,-")
    has_five_fields = (
        len(fields) in (5, 6) and not fields[1][0].isalpha()
    )  # not "5 in the afternoon tomorrow"
    return text.startswith("@") or (begins_like_cron and (has_five_fields or "*" in fields))


def normalize_cron(text: str) -> str:
    """Return the expression in five fields of numbers.

    Raises:
        UsageError: a field is wrong; the message names it.
    """
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
    if next(_parse_cron(text).dates(date(2000, 1, 1)), None) is None:
        raise UsageError(f"there is no day that {text!r} means", hint="is there such a date?")
    return text


@dataclass(frozen=True, slots=True)
class _Cron:
    """A parsed expression."""

    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: tuple[int, ...]
    months: tuple[int, ...]
    weekdays: tuple[int, ...]
    follows_clock: bool
    """True if hour or minute begins with ``*``."""
    needs_both: bool
    """True if one of the fields for days begins with ``*``, so both must match."""

    def dates(self, first: date) -> Iterator[date]:
        """Yield the matching dates from ``first`` on, for fifty years."""
        day, last = first, first.year + _YEARS
        while day.year <= last:
            if day.month not in self.months:
                day = (day.replace(day=28) + timedelta(days=4)).replace(day=1)
                continue
            matches = (
                day.day in self.days,
                {day.isoweekday(), day.isoweekday() % 7} & {*self.weekdays},
            )
            if all(matches) if self.needs_both else any(matches):
                yield day
            day += _DAY


@functools.lru_cache(maxsize=256)
def _parse_cron(text: str) -> _Cron:
    fields = text.split(" ")
    numbers = (field.read(text)[1] for field, text in zip(_FIELDS, fields, strict=True))
    minutes, hours, days, months, weekdays = numbers
    by_face, both = (any(fields[n][0] == "*" for n in pair) for pair in ((0, 1), (2, 4)))
    return _Cron(minutes, hours, days, months, weekdays, by_face, both)


@functools.lru_cache(maxsize=256)
def _list_times(cron: _Cron, day: date, zone: ZoneInfo) -> list[datetime]:
    """Return the due times of an expression on a date, in UTC, sorted."""
    times: set[datetime] = set()
    for hour in cron.hours:
        for minute in cron.minutes:
            local = datetime.combine(day, clock_time(hour, minute), zone)
            times.update(
                _list_shown_times(local) if cron.follows_clock else [find_first_shown(local)]
            )
    return sorted(times)


def find_next_time(expression: str, zone: ZoneInfo, start: datetime) -> datetime | None:
    """Return the first due time after ``start``, in UTC, or None.

    If hour and minute are named, a time that a changed clock skips is due right after the gap. A
    time that it shows twice is due only the first time. If hour or minute begins with ``*``, the
    expression is due each time that the clock shows the time.

    Args:
        expression: the result of `normalize_cron`.
        zone: the time zone.
        start: the time to begin after.
    """
    cron, next_due, last_date = _parse_cron(expression), None, date.max
    try:
        # from the day before, because a clock that is set back at midnight repeats the end of a day
        for day in cron.dates(start.astimezone(zone).date() - _DAY):
            if day > last_date:
                break
            times = _list_times(cron, day, zone)
            if (index := bisect_right(times, start)) < len(times):
                next_due = times[index] if next_due is None else min(next_due, times[index])
                last_date = min(last_date, day + _DAY)
    except (OverflowError, ValueError):  # the end of the calendar
        return next_due
    return next_due


def find_first_shown(local: datetime) -> datetime:
    """Return the first time that the clock shows a local time, in UTC.

    If it is in a gap, the result is right after the gap.
    """
    shown = _list_shown_times(local)
    return shown[0] if shown else _find_gap_end(local)


def _list_shown_times(local: datetime) -> list[datetime]:
    """Return the times in UTC at which the clock shows a local time: none, one or two."""
    times = {local.replace(fold=fold).astimezone(UTC): None for fold in (0, 1)}
    local_time = local.replace(tzinfo=None)
    return [
        t for t in times if t.astimezone(local.tzinfo).replace(tzinfo=None, fold=0) == local_time
    ]


def _find_gap_end(local: datetime) -> datetime:
    """Return the end of the gap with this local time, in UTC.

    It is found by bisection, because `zoneinfo` has no list of a zone's changes.
    """
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
