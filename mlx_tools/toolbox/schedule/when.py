"""When a job runs, read from a text: a small grammar, and nothing is guessed.

Once: an ISO date and time, ``in 2 hours``, ``tomorrow 9:00``, ``monday at 18:00``, ``at 17:30``.
Again and again: five fields of cron, ``@daily`` and its kin, ``every weekday at 8:30``, ``every 15
minutes``, ``every 2 weeks on monday at 9:00``. Any of them may end in the zone that is meant. What
may mean two times is refused. docs/scheduler.md has all of it.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from datetime import time as clock_time
from typing import Final
from zoneinfo import ZoneInfo

from mlx_tools.errors import UsageError
from mlx_tools.toolbox.clock import zone_of
from mlx_tools.toolbox.schedule import cron

EXAMPLES: Final = (
    "write a time such as 2030-01-31 17:00, tomorrow 9:00, in 2 hours, every weekday at 8:30, "
    "every 2 days at 9:00, every 15 minutes, @daily, or cron's 30 8 * * mon-fri"
)
MAX_CHARS: Final = 500
LAST_YEAR: Final = 9000
"""No job is due later: every zone can tell what time it is then."""

_DAY: Final = timedelta(days=1)


# --- what a time is -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Interval:
    """Every ``days`` days from ``start`` on, when the clock shows ``time``: what no cron expression
    can say.

    Days are those of the calendar: months, leap years and changed clocks shift nothing. What a
    changed clock leaves out, or shows twice, is due as cron has it for a time that is named.
    """

    days: int
    start: date
    time: clock_time

    def next_after(self, moment: datetime, zone: ZoneInfo) -> datetime | None:
        """The first time after ``moment``, in UTC; None where the calendar ends."""
        try:
            # from the day before: a clock that is set back at midnight shows its end again
            passed = (moment.astimezone(zone).date() - _DAY - self.start).days
            day = self.start + timedelta(days=max(0, -(-passed // self.days)) * self.days)
            while (due := cron.first_shown(datetime.combine(day, self.time, zone))) <= moment:
                day += timedelta(days=self.days)
        except (OverflowError, ValueError):
            return None
        return due

    def __str__(self) -> str:
        return f"every {self.days} days at {self.time:%H:%M} from {self.start}"


@dataclass(frozen=True, slots=True)
class When:
    """When a job runs, in the zone of this IANA name: as ``cron`` has it, each ``interval``, or
    once, ``at`` a time in UTC."""

    zone: str
    cron: str | None = None
    at: datetime | None = None
    interval: Interval | None = None

    def next_after(self, moment: datetime) -> datetime | None:
        """The first time after ``moment``, in UTC; None where there is none any more."""
        if self.at is not None:
            return self.at if self.at > moment else None
        zone = zone_of(self.zone)
        if self.interval is not None:
            return self.interval.next_after(moment, zone)
        return cron.next_time(self.cron or "", zone, moment)

    def __str__(self) -> str:
        if self.at is None:
            return f"{self.interval or self.cron} ({self.zone})"
        return f"{self.at.astimezone(zone_of(self.zone)):%Y-%m-%d %H:%M:%S} ({self.zone})"


# --- the grammar --------------------------------------------------------------------------------

_WEEK: Final = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_NUMBERS: Final = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"),
    *("eleven", "twelve", "", "", "fifteen", "", "", "", "", "twenty"),
)
_WEEKDAY: Final = (
    "mon(?:day)?|tue(?:s|sday)?|wed(?:nesday)?|thu(?:r|rs|rsday)?|fri(?:day)?|sat(?:urday)?"
    "|sun(?:day)?"
)
_DATE: Final = r"\d{4}-\d\d-\d\d"
_ZONE: Final = r"[a-z_]+(?:/[a-z][a-z0-9_+-]*)+|utc|gmt"
_IN_ZONE: Final = re.compile(
    rf"(?P<time>.*\S) ?\[(?P<marked>{_ZONE})\]|(?P<said>.*?\S) (?:in )?(?P<zone>{_ZONE})", re.ASCII
)

_SPELLINGS: Final = tuple(
    (re.compile(pattern, re.ASCII), instead)
    for pattern, instead in (
        *((rf"\b{word}\b", str(number)) for number, word in enumerate(_NUMBERS) if word),
        (r"\b([ap])\.m\b\.?", r"\1m"),
        (r"\beach\b", "every"),
        (r"\bhourly\b", "every hour"),
        (r"\b(?:daily|once a day)\b", "every day"),
        (r"\bevery (?:other|second) (hour|day|week)s?\b", r"every 2 \1s"),
        (rf"\bevery other ({_WEEKDAY})\b", r"every 2 weeks on \1"),
        (r"\b(?:on )?week(day|end)s\b", r"every week\1"),
        (rf"(?:\bon )?\b({'|'.join(_WEEK)})s\b", r"every \1"),
    )
)
"""Words that are said otherwise, in this order."""

_ISO: Final = re.compile(
    rf"({_DATE})[t ](\d\d:\d\d(?::\d\d(?:\.\d{{1,9}})?)?)(?: ?(z|[+-]\d\d(?::?\d\d)?))?", re.ASCII
)
_AMOUNT: Final = re.compile(
    r"(?:(?P<number>\d{1,4}) ?|an? )(?P<unit>s|sec(?:ond)?|m|min(?:ute)?|h|hr|hour|d|day|w|wk|week)"
    r"s?(?:,? and |, ?| |(?=\d)|$)",
    re.ASCII,
)
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_LATER: Final = re.compile(r"in (?P<ahead>.+)|(?P<now>.+) from now", re.ASCII)
_OFTEN: Final = re.compile(
    r"every (?:(?P<number>\d{1,4}) ?)?(?P<unit>m(?:in(?:ute)?)?|h(?:r|our)?)s?", re.ASCII
)

_CLOCK: Final = (
    r"(?:at )?(?:(?P<name>noon|midnight)|(?P<hour>\d\d?):(?P<minute>\d\d)(?: ?(?P<half>[ap]m))?"
    r"|(?P<whole>\d\d?) ?(?P<half2>[ap]m))|at (?P<bare>\d\d?)"
)
_TIMED: Final = tuple(
    re.compile(form, re.ASCII)
    for form in (rf"(?P<day>.*?),? ?(?:{_CLOCK})", rf"(?:{_CLOCK}),? ?(?P<day>.*)")
)
"""A day and a time of day, in either order."""

_COUNTED: Final = re.compile(
    rf"every (?P<number>\d{{1,3}}) (?:days?|(?P<weeks>weeks?)(?:,? on (?P<on>{_WEEKDAY}))?)",
    re.ASCII,
)
_SPAN: Final = re.compile(rf"({_WEEKDAY})(?:(?: to | through | ?- ?)({_WEEKDAY}))?", re.ASCII)
_DAYS: Final = {"every day": "*", "every weekday": "1-5", "every weekend": "0,6"}
_TWO_DATES: Final = re.compile(
    r".*(?<![\w:])(?:\d{1,4}[./]\d{1,2}[./]\d{1,4}|\d{1,2}/\d{1,2})\b.*", re.ASCII
)


def parse_when(text: str, zone: str, now: datetime) -> When:
    """What a text means in a zone of this IANA name, or in the one that it ends in, said at
    ``now``.

    Raises `UsageError` for a text that is no such time, and for a time that is past.
    """
    said, named = _apart(plain(text) if len(text) <= MAX_CHARS else "")
    iso = _ISO.fullmatch(said)
    if named and iso is not None and iso[3]:
        raise _wrong(text, "has both an offset and a zone", "leave one of them out")
    local = now.astimezone(zone_of(named or zone))
    try:
        when = _read(said, local)
    except (OverflowError, ValueError):
        raise _wrong(text, "is no date and time that there is") from None
    if when is None:
        raise _wrong(text, *_near_miss(said, local))
    first = when.interval.start if when.interval is not None else when.at
    if first is not None and first.year > LAST_YEAR:
        raise _wrong(text, "is too far ahead")
    if when.at is None:
        return when
    at = when.at + timedelta(microseconds=-when.at.microsecond % 1_000_000)  # never early
    if at <= now:
        raise UsageError(f"{text[:100]!r} is past: it is {local:%Y-%m-%d %H:%M} in {local.tzinfo}")
    return When(when.zone, at=at)


def plain(text: str) -> str:
    """The text in small letters, with one space between its words."""
    return " ".join(text.split()).casefold().removesuffix(".").rstrip()


def counts_from_now(text: str) -> bool:
    """True where a text means another time whenever it is said: *in 2 hours*."""
    return _LATER.fullmatch(_apart(plain(text))[0]) is not None


def _apart(said: str) -> tuple[str, str]:
    """A text without the zone that it names, and the zone, empty where it names none."""
    if (found := _IN_ZONE.fullmatch(said)) is None:
        return said, ""
    return found["time"] or found["said"], found["marked"] or found["zone"]


def _wrong(text: str, why: str, hint: str = EXAMPLES) -> UsageError:
    return UsageError(f"{text[:100]!r} {why}", hint=hint)


def _near_miss(said: str, now: datetime) -> tuple[str, str]:
    """The fault of a text that means nothing, and what to write instead."""
    with contextlib.suppress(ValueError, OverflowError, UsageError):
        if said and _read(f"{said} at 9:00", now) is not None:
            return "says no time of day", f"write {said} at 9:00"
    if _TWO_DATES.fullmatch(said):
        return "is a date that is read in two ways", "write dates as 2030-01-31"
    return "is not understood as a time", EXAMPLES


# --- reading it ---------------------------------------------------------------------------------


def _read(said: str, now: datetime) -> When | None:
    """The time that a text means, None for one that means nothing. ``now`` is in the zone that is
    meant. Raises ValueError or OverflowError for a time that there is not, `UsageError`."""
    zone = str(now.tzinfo)
    if cron.looks_like_cron(said):
        return When(zone, cron.checked(said))
    for pattern, instead in _SPELLINGS:
        said = pattern.sub(instead, said)
    if often := _OFTEN.fullmatch(said):
        return When(zone, _so_often(int(often["number"] or 1), hours=often["unit"][0] == "h"))
    if iso := _ISO.fullmatch(said):
        read = datetime.fromisoformat(f"{iso[1]}T{iso[2]}{(iso[3] or '').upper()}")
        return When(zone, at=(read if iso[3] else read.replace(tzinfo=now.tzinfo)).astimezone(UTC))
    if later := _LATER.fullmatch(said):
        at = _later(later["ahead"] or later["now"], now)
        return None if at is None else When(zone, at=at)
    found = next((found for form in _TIMED if (found := form.fullmatch(said))), None)
    if found is None:
        return None
    day = found["day"].removeprefix("on ")
    time = _clock_time(found, day)
    if counted := _COUNTED.fullmatch(day):
        return When(zone, interval=_interval(counted, time, now))
    if (days := _cron_days(day)) is not None:
        return When(zone, f"{time.minute} {time.hour} {days}")
    at = _once(day, time, now)
    return None if at is None else When(zone, at=at)


def _clock_time(found: re.Match[str], day: str) -> clock_time:
    """The time of day that was said. Raises ValueError for one that there is not, `UsageError` for
    what may be two."""
    if found["name"]:
        if found["name"] == "midnight" and day and not day.startswith("every"):
            raise UsageError(
                f"{found[0][:100]!r} may be where the day begins or where it ends",
                hint="write 0:00, and the day that begins then",
            )
        return clock_time(12 if found["name"] == "noon" else 0)
    hour = int(found["hour"] or found["whole"] or found["bare"])
    if half := found["half"] or found["half2"]:
        if not 1 <= hour <= 12:
            raise ValueError(found[0])
        hour = hour % 12 + 12 * (half == "pm")
    elif found["bare"] and 1 <= hour <= 12 and (hour < 6 or day in ("", "today")):
        faces = f"{hour % 12}:00 or {hour % 12 + 12}:00"
        raise UsageError(f"{found[0][:100]!r} may mean {faces}", hint=f"write {faces}")
    return clock_time(hour, int(found["minute"] or 0))


def _later(amounts: str, now: datetime) -> datetime | None:
    """The time that is so much later: days and weeks are by the calendar."""
    calendar, passed, end = timedelta(), timedelta(), 0
    while end < len(amounts):
        amount = _AMOUNT.match(amounts, end)
        if amount is None:
            return None
        unit = amount["unit"][0]
        length = timedelta(**{_UNITS[unit]: int(amount["number"] or 1)})
        if unit in "dw":
            calendar += length
        else:
            passed += length
        end = amount.end()
    if amounts[-1:] in (" ", ","):
        return None
    start = _at(now.date() + calendar, now.time(), now) if calendar else now.astimezone(UTC)
    return start + passed


def _once(day: str, time: clock_time, now: datetime) -> datetime | None:
    """The next time that this is the time of day, on the day that is meant; None for other days."""
    today, step = now.date(), 0
    if re.fullmatch(_DATE, day):
        meant = date.fromisoformat(day)
    elif day in ("today", "tomorrow"):
        meant = today + _DAY * (day == "tomorrow")
    elif not day:
        meant, step = today, 1
    elif re.fullmatch(_WEEKDAY, day):
        meant, step = _next_such(day, today), 7
    else:
        return None
    found = _at(meant, time, now)
    return found if found > now or not step else _at(meant + step * _DAY, time, now)


def _at(day: date, time: clock_time, now: datetime) -> datetime:
    """A local time in UTC. One that the clock leaves out is as much later as is left out; one that
    it shows twice is the first of both."""
    local = datetime.combine(day, time.replace(fold=0, tzinfo=None), tzinfo=now.tzinfo)
    return local.astimezone(UTC)


def _interval(counted: re.Match[str], time: clock_time, now: datetime) -> Interval:
    """Every so many days, counted from the next time that the clock shows the time, on the weekday
    where one is named."""
    days = int(counted["number"]) * (7 if counted["weeks"] else 1)
    if not days:
        raise UsageError(f"{counted[0]!r} is no interval", hint="write every 2 days at 9:00")
    first = _next_such(counted["on"], now.date()) if counted["on"] else now.date()
    if cron.first_shown(datetime.combine(first, time, now.tzinfo)) <= now:
        first += 7 * _DAY if counted["on"] else _DAY
    return Interval(days, first, time)


def _so_often(number: int, *, hours: bool) -> str:
    """The cron expression of every so many minutes or hours."""
    if (number, hours) == (60, False):
        number, hours = 1, True
    whole, of = (24, "a day") if hours else (60, "an hour")
    if not 1 <= number < whole or whole % number:
        raise UsageError(
            f"every {number} {'hours' if hours else 'minutes'} does not divide {of}",
            hint=f"take a number that divides {whole}, or a cron expression",
        )
    step = "*" if number == 1 else f"*/{number}"
    return f"0 {step} * * *" if hours else f"{step} * * * *"


def _cron_days(day: str) -> str | None:
    """The last three fields of cron for days of each week, None for other days."""
    if day in _DAYS:
        return f"* * {_DAYS[day]}"
    if not day.startswith("every "):
        return None
    numbers: set[int] = set()
    for part in re.split(r",? and |, ?", day):
        if (span := _SPAN.fullmatch(part.removeprefix("every "))) is None:
            return None
        first, last = _number_of(span[1]), _number_of(span[2] or span[1])
        numbers |= {(first + ahead + 1) % 7 for ahead in range((last - first) % 7 + 1)}
    return f"* * {','.join(map(str, sorted(numbers)))}"


def _next_such(weekday: str, day: date) -> date:
    """The first such weekday from a day on."""
    return day + (_number_of(weekday) - day.weekday()) % 7 * _DAY


def _number_of(weekday: str) -> int:
    """The number of a weekday from Monday, 0, by its name or the beginning of it."""
    return next(number for number, name in enumerate(_WEEK) if name.startswith(weekday))
