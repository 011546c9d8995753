"""When a job runs, read from a text: a small grammar, and nothing is guessed.

Once: an ISO date and time, ``in 2 hours``, ``tomorrow 9:00``, ``monday at 18:00``, ``at 17:30``.
Again and again: five fields of cron, ``@daily`` and its kin, ``every weekday at 8:30``, ``every 15
minutes``, ``every 2 weeks on monday at 9:00``. Any of them may end in the zone that is meant. What
may mean two times is refused, with both. docs/scheduler.md has all of it.
"""

from __future__ import annotations

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
        (r"\b([ap])\.m\b\.?", r"\1m"),
        (r"\b(?:at )?(\d\d?) ?o'?clock\b", r"at \1"),
        (r"(?:(?<=\bat )(\d\d?)\.(\d\d)\b|\b(\d\d?)\.(\d\d)(?= ?[ap]m\b))", r"\1\3:\2\4"),
        (r"\b(\d{4})/(\d\d)/(\d\d)\b", r"\1-\2-\3"),
        (r"\bmidday\b", "noon"),
        (r"\beach\b", "every"),
        (r"\bhourly\b", "every hour"),
        (r"\b(?:daily|once a day|every single day)\b", "every day"),
        (r"\bhalf(?: an)? hour\b", "30 minutes"),
        (r"\bevery (?:third|3rd) (day|week)\b", r"every 3 \1s"),
        (r"\bevery (?:other|second|2nd) (hour|day|week)s?\b", r"every 2 \1s"),
        (rf"\bevery other ({_WEEKDAY})\b", r"every 2 weeks on \1"),
        (rf"\b(?:fortnightly|every fortnight),? on ({_WEEKDAY})\b", r"every 2 weeks on \1"),
        (r"\bevery 60 minutes\b", "every hour"),
        (r"\b(?:on )?week(day|end)s\b", r"every week\1"),
        (r"\bfirst(?= of every month| day of every month)", "1st"),
        (r"\b(?:monthly|every month),? on (?:the )?(\d\d?(?:st|nd|rd|th))", r"\1 of every month"),
        (rf"\b(?:weekly|every week),? on ({_WEEKDAY})s?\b", r"every \1"),
        (r"\bthis (?=mon|tue|wed|thu|fri|sat|sun)", ""),
    )
)
"""Words that are said otherwise, in this order, once numbers stand in digits."""

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

_PART: Final = re.compile(
    r"(?P<day>every|this|tomorrow|\w+day)? ?(?:\b(?:in the|at) )?"
    r"\b(?P<part>morning|afternoon|evening|night|tonight)\b",
    re.ASCII,
)
_HOURS: Final = {
    "morning": range(1, 12),
    "afternoon": range(12, 19),
    "evening": range(16, 24),
    "night": range(17, 24),
}
"""The hours that are called so."""

_FROM: Final = re.compile(
    rf"(?P<before>.+?),? (?:from|start(?:ing|s)?(?: on| from)?) "
    rf"(?P<start>{_DATE}|today|tomorrow|{_WEEKDAY})(?P<after>(?:,? .+)?)",
    re.ASCII,
)
_COUNTED: Final = re.compile(
    rf"every (?P<number>\d{{1,3}}) (?:days?|(?P<weeks>weeks?)(?:,? on (?P<on>{_WEEKDAY}))?)",
    re.ASCII,
)
_MONTHLY: Final = re.compile(
    r"(?:on )?(?:the )?(?P<day>\d\d?)(?:st|nd|rd|th)(?: day)? of every month", re.ASCII
)
_AHEAD: Final = re.compile(
    r"(?:in )?(?P<number>\d{1,3}|an?) (?P<unit>day|week)s?(?: from (?:now|today))?", re.ASCII
)
_MONTH: Final = "|".join(rf"{name[:3]}(?:{name[3:]})?\.?" for name in cron.MONTHS[1:])
_NTH: Final = r"\d\d?(?=(?:st|nd|rd|th)?\b)"
_DATED: Final = re.compile(
    rf"(?:the )?(?:(?P<day>{_NTH})[a-z]*(?: of)? (?P<month>{_MONTH})"
    rf"|(?P<month2>{_MONTH}) (?:the )?(?P<day2>{_NTH})[a-z]*)(?:,? (?P<year>\d{{4}}))?",
    re.ASCII,
)
_DAYS: Final = {"every day": "*", "every weekday": "1-5", "every weekend": "0,6"}

_REFUSED: Final = {
    r".*\bnext\b.*": ("may mean several days", "write the date, such as 2030-01-31 17:00"),
    r"every (?:\d+ )?(?:month|year).*|(?:monthly|yearly)\b.*"
    rf"|.*(?:first|second|third|last|\d(?:st|nd|rd|th)) (?:day|{_WEEKDAY}) (?:of|in) .*": (
        "cannot be counted out",
        "write cron's five fields: 0 9 1 * * is each first of a month at 9:00",
    ),
    r".*(?<![\w:])(?:\d{1,4}[./]\d{1,2}[./]\d{1,4}|\d{1,2}/\d{1,2})\b.*": (
        "is a date that is read in two ways",
        "write dates as 2030-01-31",
    ),
}
"""What is near to a time that is read, why it is none, and what to write instead."""


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
    return _to_come(text, when, local)


def plain(text: str) -> str:
    """The text in small letters, with one space between its words."""
    return " ".join(text.replace("\u2019", "'").split()).casefold().removesuffix(".").rstrip()


def counts_from_now(text: str) -> bool:
    """Whether a text means another time whenever it is said: *in 2 hours*."""
    said = _spelled(_apart(plain(text))[0])
    return _LATER.fullmatch(said) is not None and _timed(said) is None


def _apart(said: str) -> tuple[str, str]:
    """A text without the zone that it names, and the zone, empty where it names none."""
    if (found := _IN_ZONE.fullmatch(said)) is None:
        return said, ""
    return found["time"] or found["said"], found["marked"] or found["zone"]


def _to_come(text: str, when: When, now: datetime) -> When:
    """The same, in whole seconds where it is once, never early. Raises `UsageError` where it is
    past, or too far ahead."""
    first = when.interval.start if when.interval is not None else when.at
    if first is not None and first.year > LAST_YEAR:
        raise _wrong(text, "is too far ahead")
    if when.at is None:
        return when
    at = when.at + timedelta(microseconds=-when.at.microsecond % 1_000_000)
    if at <= now:
        raise UsageError(f"{text[:100]!r} is past: it is {now:%Y-%m-%d %H:%M} in {now.tzinfo}")
    return When(when.zone, at=at)


def _wrong(text: str, why: str, hint: str = EXAMPLES) -> UsageError:
    return UsageError(f"{text[:100]!r} {why}", hint=hint)


def _near_miss(said: str, now: datetime) -> tuple[str, str]:
    """What a text lacks that means nothing, and what to write instead."""

    def means(other: str) -> bool:
        try:
            return _read(other, now) is not None
        except (ValueError, OverflowError, UsageError):
            return False

    for time in ("9:00", "15:00", "20:00"):
        if said and means(f"{said} at {time}"):
            return "says no time of day", f"write {said} at {time}"
    near = (told for pattern, told in _REFUSED.items() if re.fullmatch(pattern, said, re.ASCII))
    return next(near, ("is not understood as a time", EXAMPLES))


# --- reading it ---------------------------------------------------------------------------------


def _read(said: str, now: datetime) -> When | None:
    """What a text means, None for one that means nothing. ``now`` is in the zone that is meant.
    Raises ValueError or OverflowError for a time that there is not, `UsageError`."""
    zone = str(now.tzinfo)
    if cron.looks_like_cron(said):
        return When(zone, cron.checked(said))
    said = _spelled(said)
    if often := _OFTEN.fullmatch(said):
        return When(zone, _so_often(int(often["number"] or 1), hours=often["unit"][0] == "h"))
    if iso := _ISO.fullmatch(said):
        read = datetime.fromisoformat(f"{iso[1]}T{iso[2]}{(iso[3] or '').upper()}")
        return When(zone, at=(read if iso[3] else read.replace(tzinfo=now.tzinfo)).astimezone(UTC))
    if (interval := _interval(said, now)) is not None:
        return When(zone, interval=interval)
    timed = _timed(said)
    if timed is None:
        later = _LATER.fullmatch(said)
        at = _later(later["ahead"] or later["now"], now) if later else None
        return None if at is None else When(zone, at=at)
    day, clock = timed
    if (days := _cron_days(day)) is not None:
        time = clock.meant(day, now)
        return When(zone, f"{time.minute} {time.hour} {days}")
    at = _once(day, clock, now)
    return None if at is None else When(zone, at=at)


def _spelled(said: str) -> str:
    """The same with one spelling for what has several."""
    said = re.sub(
        rf"\b(?:{'|'.join(filter(None, _NUMBERS))})\b", lambda m: str(_NUMBERS.index(m[0])), said
    )
    for pattern, instead in _SPELLINGS:
        said = pattern.sub(instead, said)
    return said


@dataclass(frozen=True, slots=True)
class _Clock:
    """A time of day as it was said: an hour and minute, what says which half of the day is meant
    (``am``, ``pm``, or a part of the day), and whether none does and it may be either."""

    text: str
    hour: int
    minute: int
    half: str = ""
    part: str = ""
    either: bool = False

    def meant(self, day: str, now: datetime) -> clock_time:
        """The time of day that is meant on a day. Raises ValueError for one that there is not,
        `UsageError` for what may be two, or cannot be."""
        if self.half and not 1 <= self.hour <= 12:
            raise ValueError(self.text)
        if self.part:
            return self._in_part()
        if self.half:
            return clock_time(self.hour % 12 + 12 * (self.half == "pm"), self.minute)
        if not self.either or not 1 <= self.hour <= 12:
            return clock_time(self.hour, self.minute)
        early, late = (clock_time(self.hour % 12 + more, self.minute) for more in (0, 12))
        plain = late if self.hour == 12 else early
        ahead = [one for one in (early, late) if one > now.time()]
        if day == "today" and len(ahead) == 1:
            return ahead[0]
        # an hour by itself is that of a clock of 24 where that comes first; never one of the night
        first = (ahead or [early])[0] == plain
        if self.hour >= 6 and day != "today" and (day or first):
            return plain
        faces = f"{early.hour}:{early.minute:02} or {late.hour}:{late.minute:02}"
        raise UsageError(f"{self.text!r} may mean {faces}", hint=f"write {faces}")

    def _in_part(self) -> clock_time:
        hours = {"am": [self.hour % 12], "pm": [self.hour % 12 + 12]}.get(self.half)
        if hours is None:
            hours = [self.hour, self.hour + 12] if 1 <= self.hour < 12 else [self.hour]
        fit = [hour for hour in hours if hour in _HOURS[self.part]]
        if not fit:
            raise UsageError(
                f"{self.text!r} is not in the {self.part}, or in one of two",
                hint="write the day, and the time as 9:00 or 21:00",
            )
        return clock_time(fit[0], self.minute)


def _timed(said: str) -> tuple[str, _Clock] | None:
    """A text without the time of day with which it begins or ends, and that; None where there is
    none. In a part of a day that is named a bare number is an hour."""
    part = ""
    if found := _PART.search(said):
        part = "night" if found["part"] == "tonight" else found["part"]
        today = found["part"] == "tonight" or found["day"] == "this"
        day = "today" if today else "every day" if found["day"] == "every" else found["day"] or ""
        said = " ".join(f"{said[: found.start()]} {day} {said[found.end() :]}".split())
        said = re.sub(r"(?<!at )(?<![\d:-])\b(\d\d?)\b(?![:\d-]| ?[ap]m)", r"at \1", said, count=1)
    for form in _TIMED:
        found = form.fullmatch(said)
        if found is None:
            continue
        text, day = said.replace(found["day"], "").strip(", "), found["day"].removeprefix("on ")
        if found["name"]:
            again = day.startswith("every") or _cron_days(day) is not None
            if found["name"] == "midnight" and day and not again:
                raise UsageError(
                    f"{said[:100]!r} may be where the day begins or where it ends",
                    hint="write 0:00, and the day that begins then",
                )
            noon = found["name"] == "noon"
            return day, _Clock(text, 12, 0, part=part) if noon else _Clock(text, 0, 0)
        hour = int(found["hour"] or found["whole"] or found["bare"])
        half = found["half"] or found["half2"] or ""
        either = found["bare"] is not None
        return day, _Clock(text, hour, int(found["minute"] or 0), half, part, either)
    return None


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


def _once(day: str, clock: _Clock, now: datetime) -> datetime | None:
    """The next time that this is the time of day, on the day that is meant; None for other days."""
    today, step = now.date(), 0
    if re.fullmatch(_DATE, day):
        meant = date.fromisoformat(day)
    elif day in ("today", "tomorrow", "the day after tomorrow"):
        meant = today + ("today", "tomorrow", "the day after tomorrow").index(day) * _DAY
    elif ahead := _AHEAD.fullmatch(day):
        number = int(ahead["number"]) if ahead["number"].isdigit() else 1
        meant = today + number * (7 * _DAY if ahead["unit"] == "week" else _DAY)
    elif dated := _DATED.fullmatch(day):
        meant = _date(dated, today)
    elif not day:
        meant, step = today, 1
    elif re.fullmatch(_WEEKDAY, day):
        meant, step = _next_such(day, today), 7
    else:
        return None
    time = clock.meant(day, now)
    found = _at(meant, time, now)
    return found if found > now or not step else _at(meant + step * _DAY, time, now)


def _date(dated: re.Match[str], today: date) -> date:
    """The date that is named: the next such, where no year is."""
    name = (dated["month"] or dated["month2"])[:3]
    month = next(n for n, whole in enumerate(cron.MONTHS) if whole.startswith(name))
    meant = date(int(dated["year"] or today.year), month, int(dated["day"] or dated["day2"]))
    return meant if dated["year"] or meant >= today else meant.replace(year=today.year + 1)


def _at(day: date, time: clock_time, now: datetime) -> datetime:
    """A local time in UTC. One that the clock leaves out is as much later as is left out; one that
    it shows twice is the first of both."""
    local = datetime.combine(day, time.replace(fold=0, tzinfo=None), tzinfo=now.tzinfo)
    return local.astimezone(UTC)


def _interval(said: str, now: datetime) -> Interval | None:
    """Every so many days, counted from the day that is named, else from the next time that the
    clock shows the time; where it falls on a weekday, from the first such day from then on. None
    for another text."""
    named = _FROM.fullmatch(said)
    timed = _timed(f"{named['before']}{named['after']}" if named else said)
    counted = _COUNTED.fullmatch(timed[0]) if timed is not None else None
    if timed is None or counted is None:
        return None
    days = int(counted["number"]) * (7 if counted["weeks"] else 1)
    if not days:
        raise UsageError(f"{counted[0]!r} is no interval", hint="write every 2 days at 9:00")
    time, on, today = timed[1].meant("every", now), counted["on"] or "", now.date()
    start = named["start"] if named else ""
    if not start or re.fullmatch(_WEEKDAY, start):
        weekday = start or on
        first = _next_such(weekday, today) if weekday else today
        if cron.first_shown(datetime.combine(first, time, now.tzinfo)) <= now:
            first += 7 * _DAY if weekday else _DAY
    elif start[0].isdigit():
        first = date.fromisoformat(start)
    else:
        first = today + _DAY * (start == "tomorrow")
    return Interval(days, _next_such(on, first) if on else first, time)


def _so_often(number: int, *, hours: bool) -> str:
    """The cron expression of every so many minutes or hours."""
    whole, of = (24, "a day") if hours else (60, "an hour")
    if not 1 <= number < whole or whole % number:
        raise UsageError(
            f"every {number} {'hours' if hours else 'minutes'} does not divide {of}",
            hint=f"take a number that divides {whole}, or a cron expression",
        )
    step = "*" if number == 1 else f"*/{number}"
    return f"0 {step} * * *" if hours else f"{step} * * * *"


def _cron_days(day: str) -> str | None:
    """The last three fields of cron for days of each week or month, None for other days."""
    if day in _DAYS:
        return f"* * {_DAYS[day]}"
    if monthly := _MONTHLY.fullmatch(day):
        if not 1 <= int(monthly["day"]) <= 28:
            raise UsageError(f"{day!r}: not every month has that day", hint="take one from 1 to 28")
        return f"{int(monthly['day'])} * *"
    every, plural = day.startswith("every "), day.endswith("s")
    numbers: set[int] = set()
    for part in re.split(r",? and |, ?", day.removeprefix("every ")):
        name = part.removesuffix("s") if plural and not every else part
        span = re.fullmatch(rf"({_WEEKDAY})(?:(?: to | through | ?- ?)({_WEEKDAY}))?", name)
        if span is None or not (every or name in _WEEK):
            return None
        first, last = _number_of(span[1]), _number_of(span[2] or span[1])
        numbers |= {(first + ahead) % 7 for ahead in range((last - first) % 7 + 1)}
    if not (every or plural):
        return None
    return f"* * {','.join(str(number) for number in sorted((one + 1) % 7 for one in numbers))}"


def _next_such(weekday: str, day: date) -> date:
    """The first such weekday from a day on."""
    return day + (_number_of(weekday) - day.weekday()) % 7 * _DAY


def _number_of(weekday: str) -> int:
    """The number of a weekday from Monday, 0, by its name or the beginning of it."""
    return next(number for number, name in enumerate(_WEEK) if name.startswith(weekday))
