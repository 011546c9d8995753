"""The words in which people say when: what they mean once, and what they mean again and again.

Every text here is in small letters, with one space between its words. A text that means nothing
gives None.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from datetime import time as clock_time
from typing import Final
from zoneinfo import ZoneInfo

from mlx_tools.errors import UsageError

_DAYS: Final = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_GROUPS: Final = {"day": "*", "weekday": "1-5", "weekend": "0,6", "weekend day": "0,6"}
NUMBERS: Final = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"),
    *("eleven", "twelve"),
)
_HALF: Final = ("half a", "half an")
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}

DATE: Final = r"\d{4}-\d\d-\d\d"
WEEKDAY: Final = (
    "mon(?:day)?|tue(?:s|sday)?|wed(?:nesday)?|thu(?:r|rs|rsday)?|fri(?:day)?|sat(?:urday)?"
    "|sun(?:day)?"
)
_CLOCK: Final = r"\d{1,2}:\d\d(?: ?[ap]m)?|\d{1,2} ?[ap]m|noon|midnight"
AT: Final = rf"(?:at )?(?P<time>{_CLOCK}|(?<=at )\d{{1,2}})"

_ISO: Final = re.compile(
    rf"({DATE})[t ](\d\d:\d\d(?::\d\d(?:\.\d{{1,9}})?)?)(?: ?(z|[+-]\d\d(?::?\d\d)?))?", re.ASCII
)
_ONCE: Final = re.compile(
    rf"(?:(?P<day>today|tomorrow|(?:on )?(?:{WEEKDAY}|{DATE})),? )?{AT}", re.ASCII
)
_EVERY: Final = re.compile(
    rf"(?:(?:every|each) (?P<days>[a-z, -]+?)|daily|(?:on )?(?P<plural>[a-z, ]+s)) {AT}", re.ASCII
)
_TURNED: Final = re.compile(
    rf"(?P<at>(?:at )?(?:{_CLOCK})|at \d{{1,2}}),? "
    r"(?P<day>(?:on|every|each|today|tomorrow|daily)\b.*)",
    re.ASCII,
)
_OFTEN: Final = re.compile(
    r"(?:every|each) (?:(?P<number>\d{1,4}) ?)?(?P<unit>m(?:in(?:ute)?)?|h(?:r|our)?)s?", re.ASCII
)
_AMOUNT: Final = re.compile(
    rf"(?:(?P<number>\d{{1,4}}) ?|(?P<word>half an?|an?|{'|'.join(NUMBERS)}) )"
    r"(?P<unit>s|sec(?:ond)?|m|min(?:ute)?|h|hr|hour|d|day|w|wk|week)s?"
    r"(?:,? and |, ?| |(?=\d)|$)",
    re.ASCII,
)
_LATER: Final = re.compile(r"in (?P<ahead>.+)|(?P<now>.+) from now")


def relative(said: str) -> bool:
    """Whether a text counts from the moment in which it is said."""
    return _LATER.fullmatch(said) is not None


def once(said: str, now: datetime) -> datetime | None:
    """The one time that a text means, in UTC. Raises ValueError or OverflowError for a time that
    there is not. ``now`` is in the zone that is meant."""
    if iso := _ISO.fullmatch(said):
        read = datetime.fromisoformat(f"{iso[1]}T{iso[2]}{(iso[3] or '').upper()}")
        return (read if iso[3] else read.replace(tzinfo=now.tzinfo)).astimezone(UTC)
    if later := _LATER.fullmatch(said):
        return _ahead(later["ahead"] or later["now"], now)
    said = turned(said)
    found = _ONCE.fullmatch(said)
    return _on(found["day"], time_of_day(found["time"]), now) if found else None


def repeated(said: str) -> str | None:
    """The cron expression that a text means. Raises ValueError for a time of day that there is not,
    `UsageError` for what no cron expression can say."""
    if said == "hourly":
        return "0 * * * *"
    if often := _OFTEN.fullmatch(said):
        return _so_often(int(often["number"] or 1), "hour" if often["unit"][0] == "h" else "minute")
    every = _EVERY.fullmatch(turned(said))
    if every is None:
        return None
    days: str | None = "*"
    if every["days"] is not None:
        days = _weekdays(every["days"])
    elif every["plural"] is not None:
        days = _of_plurals(every["plural"])
    if days is None:
        return None
    time = time_of_day(every["time"])
    return f"{time.minute} {time.hour} * * {days}"


def turned(said: str) -> str:
    """The day before the time, where it is said the other way round."""
    found = _TURNED.fullmatch(said)
    return f"{found['day']} {found['at']}" if found else said


def _ahead(amounts: str, now: datetime) -> datetime | None:
    """The time that is so much later: days and weeks are by the calendar."""
    calendar, passed, end = timedelta(), timedelta(), 0
    while end < len(amounts):
        amount = _AMOUNT.match(amounts, end)
        if amount is None:
            return None
        unit, half = amount["unit"][0], amount["word"] in _HALF
        if half and unit != "h":
            return None
        number = int(amount["number"] or _worth(amount["word"]))
        length = timedelta(minutes=30) if half else timedelta(**{_UNITS[unit]: number})
        if unit in "dw":
            calendar += length
        else:
            passed += length
        end = amount.end()
    if amounts[-1:] in (" ", ","):
        return None
    start = _at(now.date() + calendar, now.time(), now) if calendar else now.astimezone(UTC)
    return start + passed


def _worth(word: str) -> int:
    return NUMBERS.index(word) if word in NUMBERS else 1


def _on(day: str | None, time: clock_time, now: datetime) -> datetime:
    """The next time that this is the time of day, on the day that is meant."""
    today, day = now.date(), (day or "").removeprefix("on ")
    if re.fullmatch(DATE, day):
        return _at(date.fromisoformat(day), time, now)
    match day:
        case "today":
            return _at(today, time, now)
        case "tomorrow":
            return _at(today + timedelta(days=1), time, now)
        case "":
            ahead, step = 0, 1
        case _:
            ahead, step = days_until(day, today), 7
    found = _at(today + timedelta(days=ahead), time, now)
    return found if found > now else _at(today + timedelta(days=ahead + step), time, now)


def _at(day: date, time: clock_time, now: datetime) -> datetime:
    """A local time in UTC. One that the clock leaves out is as much later as is left out; one that
    it shows twice is the first of both."""
    assert isinstance(now.tzinfo, ZoneInfo)
    local = datetime.combine(day, time.replace(fold=0, tzinfo=None), tzinfo=now.tzinfo)
    return local.astimezone(UTC)


def time_of_day(text: str) -> clock_time:
    """A time of day. Raises ValueError for one that there is not."""
    if text in ("noon", "midnight"):
        return clock_time(12 if text == "noon" else 0)
    half = text[-2:] if text.endswith(("am", "pm")) else ""
    hour, _, minute = text.removesuffix(half).strip().partition(":")
    hours = int(hour)
    if half:
        if not 1 <= hours <= 12:
            raise ValueError(text)
        hours = hours % 12 + (12 if half == "pm" else 0)
    return clock_time(hours, int(minute or 0))


def _so_often(number: int, unit: str) -> str:
    """The cron expression of every so many minutes or hours."""
    whole, of = (60, "an hour") if unit == "minute" else (24, "a day")
    if not 1 <= number < whole or whole % number:
        raise UsageError(
            f"every {number} {unit}s does not divide {of}",
            hint=f"take a number that divides {whole}, or a cron expression",
        )
    step = "*" if number == 1 else f"*/{number}"
    return f"{step} * * * *" if unit == "minute" else f"0 {step} * * *"


def _weekdays(text: str) -> str | None:
    """The days of the week that are named, as cron writes them; None for other words."""
    if text in _GROUPS:
        return _GROUPS[text]
    numbers: set[int] = set()
    for part in re.split(r",? and |, ?", text):
        span = re.fullmatch(rf"({WEEKDAY})(?:(?: to | through | ?- ?)({WEEKDAY}))?", part)
        if span is None:
            return None
        first, last = _number_of(span[1]), _number_of(span[2] or span[1])
        numbers |= {(first + ahead) % 7 for ahead in range((last - first) % 7 + 1)}
    return ",".join(str(number) for number in sorted((day + 1) % 7 for day in numbers))


def _of_plurals(text: str) -> str | None:
    """The days that *mondays and fridays* or *weekdays* are; None for other words."""
    names = [name.removesuffix("s") for name in re.split(r",? and |, ?", text)]
    if names in (["weekday"], ["weekend"]):
        return _GROUPS[names[0]]
    return _weekdays(" and ".join(names)) if set(names) <= set(_DAYS) else None


def days_until(weekday: str, day: date) -> int:
    """How many days after ``day`` the next such weekday is, 0 where it is one."""
    return (_number_of(weekday) - day.weekday()) % 7


def _number_of(day: str) -> int:
    """The number of a weekday from Monday, 0, by its name or the beginning of it."""
    return next(number for number, name in enumerate(_DAYS) if name.startswith(day))
