"""When a job runs, read from a text: a small grammar, and nothing is guessed.

Once: an ISO date and time, ``in 2 hours``, ``tomorrow 9:00``, ``monday at 18:00``. Again and again:
five fields of cron, ``@daily`` and its kin, ``every weekday at 8:30``, ``every 15 minutes``.
docs/scheduler.md has all of it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from datetime import time as clock_time
from typing import Final

from mlx_tools.errors import UsageError
from mlx_tools.toolbox.clock import zone_of
from mlx_tools.toolbox.schedule import cron

EXAMPLES: Final = (
    "write a time such as 2030-01-31 17:00, tomorrow 9:00, monday 6pm, in 2 hours, "
    "every weekday at 8:30, every 15 minutes, @daily, or cron's 30 8 * * mon-fri"
)
MAX_CHARS: Final = 500
LAST_YEAR: Final = 9000
"""No job is due later: every zone can tell what time it is then."""


@dataclass(frozen=True, slots=True)
class When:
    """When a job runs, in the zone of this IANA name: as ``cron`` has it, or once, ``at`` a time in
    UTC."""

    zone: str
    cron: str | None = None
    at: datetime | None = None

    def next_after(self, moment: datetime) -> datetime | None:
        """The first time after ``moment``, in UTC; None where there is none any more."""
        if self.at is not None:
            return self.at if self.at > moment else None
        return cron.next_time(self.cron or "", zone_of(self.zone), moment)

    def __str__(self) -> str:
        if self.at is None:
            return f"{self.cron} ({self.zone})"
        return f"{self.at.astimezone(zone_of(self.zone)):%Y-%m-%d %H:%M:%S} ({self.zone})"


_WEEK: Final = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_WEEKDAY: Final = (
    "mon(?:day)?|tue(?:s|sday)?|wed(?:nesday)?|thu(?:r|rs|rsday)?|fri(?:day)?|sat(?:urday)?"
    "|sun(?:day)?"
)
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


def parse_when(text: str, zone: str, now: datetime) -> When:
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
    return When(when.zone, at=at)


def plain(text: str) -> str:
    """The text in small letters, with one space between its words."""
    return " ".join(text.split()).casefold()


def counts_from_now(text: str) -> bool:
    """Whether a text means another time whenever it is said: *in 2 hours*."""
    return _LATER.fullmatch(plain(text)) is not None


def _wrong(text: str, why: str) -> UsageError:
    return UsageError(f"{text[:100]!r} {why}", hint=EXAMPLES)


def _read(said: str, now: datetime) -> When | None:
    """What a text means, None for one that means nothing. ``now`` is in the zone that is meant.
    Raises ValueError or OverflowError for a time that there is not, `UsageError`."""
    zone = str(now.tzinfo)
    if cron.looks_like_cron(said):
        return When(zone, cron.checked(said))
    if often := _OFTEN.fullmatch(said):
        return When(zone, _so_often(int(often[1] or 1), often[2]))
    if iso := _ISO.fullmatch(said):
        read = datetime.fromisoformat(f"{iso[1]}T{iso[2]}{(iso[3] or '').upper()}")
        return When(zone, at=(read if iso[3] else read.replace(tzinfo=now.tzinfo)).astimezone(UTC))
    if later := _LATER.fullmatch(said):
        return When(zone, at=_later(int(later[1]) if later[1].isdigit() else 1, later[2], now))
    timed = _TIMED.fullmatch(said)
    if timed is None or not (timed["minute"] or timed["half"]):  # at 5: in the morning?
        return None
    day, time = (timed["day"] or "").removeprefix("on "), _time_of(timed)
    if (days := _cron_days(day)) is not None:
        return When(zone, f"{time.minute} {time.hour} * * {days}")
    at = _once(day, time, now)
    return None if at is None else When(zone, at=at)


def _time_of(timed: re.Match[str]) -> clock_time:
    """The time of day that was read. Raises ValueError for one that there is not."""
    hour, minute = int(timed["hour"]), int((timed["minute"] or ":0")[1:])
    if timed["half"]:
        if not 1 <= hour <= 12:
            raise ValueError(hour)
        hour = hour % 12 + 12 * (timed["half"] == "pm")
    return clock_time(hour, minute)


def _later(number: int, unit: str, now: datetime) -> datetime:
    """The time that is so much later: days and weeks are by the calendar."""
    length = timedelta(**{f"{unit}s": number})
    if unit in ("day", "week"):
        return _at(now.date() + length, now.time(), now)
    return now.astimezone(UTC) + length


def _once(day: str, time: clock_time, now: datetime) -> datetime | None:
    """The next time that this is the time of day, on the day that is meant; None for other days."""
    today, step = now.date(), timedelta()
    if re.fullmatch(_DATE, day, re.ASCII):
        meant = date.fromisoformat(day)
    elif day in ("today", "tomorrow"):
        meant = today + timedelta(days=day == "tomorrow")
    elif not day:
        meant, step = today, timedelta(days=1)
    elif re.fullmatch(_WEEKDAY, day):
        ahead = (_number_of(day) - today.weekday()) % 7
        meant, step = today + timedelta(days=ahead), timedelta(weeks=1)
    else:
        return None
    found = _at(meant, time, now)
    return found if found > now or not step else _at(meant + step, time, now)


def _at(day: date, time: clock_time, now: datetime) -> datetime:
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
    if not day.startswith("every ") or not all(re.fullmatch(_WEEKDAY, name) for name in names):
        return None
    return ",".join(sorted({str((_number_of(name) + 1) % 7) for name in names}))


def _number_of(weekday: str) -> int:
    """The number of a weekday from Monday, 0, by its name or the beginning of it."""
    return next(number for number, name in enumerate(_WEEK) if name.startswith(weekday))
