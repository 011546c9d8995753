"""Every so many days or weeks, counted from a day: what no cron expression can say."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from datetime import time as clock_time
from typing import Any, Final
from zoneinfo import ZoneInfo

from mlx_tools.errors import UsageError
from mlx_tools.toolbox.schedule import phrases
from mlx_tools.toolbox.schedule.cron import first_shown

_ORDINALS: Final = {"other": 2, "second": 2, "third": 3, "fourth": 4}
_MANY: Final = "|".join((r"\d{1,3}", *phrases.NUMBERS, *_ORDINALS))
_COUNTED: Final = re.compile(
    rf"(?:every|each) (?:(?P<days>{_MANY}) days?"
    rf"|(?P<weeks>{_MANY}) weeks?(?:,? on (?P<on>{phrases.WEEKDAY}))?"
    rf"|other (?P<other>{phrases.WEEKDAY})),? {phrases.AT}",
    re.ASCII,
)
_FROM: Final = re.compile(
    rf"(?P<before>.+?),? (?:from|start(?:ing|s)?(?: on| from)?) "
    rf"(?P<start>{phrases.DATE}|today|tomorrow|{phrases.WEEKDAY})"
    r"(?P<after>(?:,? .+)?)",
    re.ASCII,
)

_FIXED: Final = {"today": 0, "tomorrow": 1}
"""Days that count, in days from today, whether or not the time has passed on them."""


@dataclass(frozen=True, slots=True)
class Interval:
    """Every ``days`` days from ``start`` on, when the clock shows ``time``.

    Days are those of the calendar: months, leap years and changed clocks shift nothing. What a
    changed clock leaves out, or shows twice, is due as cron has it for a time that is named.
    """

    days: int
    start: date
    time: clock_time

    def __post_init__(self) -> None:
        if self.days < 1:
            raise ValueError(f"every {self.days} days is no interval")

    def next_after(self, moment: datetime, zone: ZoneInfo) -> datetime | None:
        """The first time after ``moment``, in UTC; None where the calendar ends."""
        try:
            # from the day before: a clock that is set back at midnight shows its end again
            passed = (moment.astimezone(zone).date() - timedelta(days=1) - self.start).days
            day = self.start + timedelta(days=max(0, -(-passed // self.days)) * self.days)
            while (due := first_shown(datetime.combine(day, self.time, zone))) <= moment:
                day += timedelta(days=self.days)
        except (OverflowError, ValueError):
            return None
        return due

    def __str__(self) -> str:
        return f"every {self.days} days at {self.time:%H:%M} from {self.start}"

    def to_json(self) -> dict[str, Any]:
        """The interval as JSON values; `from_json` reads them back."""
        return {"days": self.days, "start": f"{self.start}", "time": f"{self.time:%H:%M}"}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Interval:
        """The interval that `to_json` wrote. Raises KeyError, TypeError or ValueError for anything
        else."""
        start, time = date.fromisoformat(value["start"]), clock_time.fromisoformat(value["time"])
        return cls(value["days"], start, time)


def counted(said: str, now: datetime) -> Interval | None:
    """The interval that a text means, in small letters with one space between its words; None for
    another text. ``now`` is in the zone that is meant.

    It is counted from the day that the text names, else from the next time that the clock shows the
    time; where it falls on a weekday, from the first such day from then on.

    Raises `UsageError` for an interval of no days, ValueError for a day or time that there is not.
    """
    named = _FROM.fullmatch(said)
    if named is not None:
        said = f"{named['before']}{named['after']}"
    found = _COUNTED.fullmatch(phrases.turned(said))
    if found is None:
        return None
    days = _number(found["days"]) if found["days"] else 7 * _number(found["weeks"] or "other")
    if not days:
        raise UsageError(f"{said[:100]!r} is no interval", hint="write every 2 days at 9:00")
    time, on = phrases.time_of_day(found["time"]), found["on"] or found["other"] or ""
    start = _first_day(named["start"] if named is not None else "", on, time, now)
    return Interval(days, start, time)


def _first_day(named: str, on: str, time: clock_time, now: datetime) -> date:
    """The day that is counted from: by the day that is named, if one is, and the weekday on which
    it has to fall, if it has to."""
    today = now.date()
    if not named:
        return _upcoming(on, time, now)
    if named[0].isdigit():
        first = date.fromisoformat(named)
    elif named in _FIXED:
        first = today + timedelta(days=_FIXED[named])
    else:
        first = _upcoming(named, time, now)
    return first + timedelta(days=phrases.days_until(on, first) if on else 0)


def _upcoming(weekday: str, time: clock_time, now: datetime) -> date:
    """The next such day, any day where it is empty, on which the time is still to come."""
    today = now.date()
    day = today + timedelta(days=phrases.days_until(weekday, today) if weekday else 0)
    past = first_shown(datetime.combine(day, time, now.tzinfo)) <= now
    return day + timedelta(days=7 if weekday else 1) if past else day


def _number(word: str) -> int:
    if word.isdigit():
        return int(word)
    return _ORDINALS.get(word) or phrases.NUMBERS.index(word)
