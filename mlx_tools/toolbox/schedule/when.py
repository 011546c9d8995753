"""When a job runs, read from a text: a small grammar, and nothing is guessed.

Once: an ISO date and time, ``in 2 hours``, ``tomorrow 9:00``, ``monday at 18:00``, ``at 17:30``.
Again and again: five fields of cron, ``@daily`` and its kin, ``every weekday at 8:30``, ``every 15
minutes``, ``every 2 weeks on monday at 9:00``. Any of them may end in the zone that is meant.
docs/scheduler.md has all of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from mlx_tools.errors import UsageError
from mlx_tools.toolbox.schedule import cron, phrases, wordings
from mlx_tools.toolbox.schedule.interval import Interval, counted
from mlx_tools.toolbox.schedule.phrases import WEEKDAY
from mlx_tools.toolbox.schedule.tables import LAST_YEAR
from mlx_tools.toolbox.schedule.zones import zone_of

_FIRST_OF_MONTH: Final = "write cron's five fields: 0 9 1 * * is each first of a month at 9:00"
_NTH: Final = re.compile(
    r"(?:on )?(?:the |every |each )?(?:first|second|third|fourth|last|\d(?:st|nd|rd|th)) "
    rf"(?:day|{WEEKDAY})"
    r" (?:of|in) (?:every|each|the) (?:month|year)\b.*",
    re.ASCII,
)
_EXAMPLES: Final = {"morning": "9:00", "afternoon": "15:00"}
_THIRD: Final = re.compile(
    rf"(?P<before>every|each) (?P<count>third|3rd|fourth|4th) (?P<day>{WEEKDAY})\b(?P<after>.*)",
    re.ASCII,
)


def near_miss(said: str, means: Callable[[str], bool]) -> tuple[str, str] | None:
    """What a text lacks that means nothing, and what to write instead. ``means`` says whether
    another text means something."""
    if not said:
        return None
    part = re.search(r"\b(?:morning|afternoon|evening|night|tonight|nightly)\b", said)
    time = _EXAMPLES.get(part[0], "20:00") if part else "9:00"
    if means(f"{said} at {time}"):
        return "says no time of day", f"write {said} at {time}"
    if said.startswith("next ") and means(_with_time(said.removeprefix("next "))):
        return "may mean two days", f"write {said.removeprefix('next ')} for the first, or the date"
    if re.search(r"\bnext (?:week|month|year)\b", said):
        return "may mean several days", "write the date, such as 2030-01-31 17:00"
    other = re.sub(r"\b(?:second|2nd) ", "other ", said, count=1)
    if other != said and means(_with_time(other)):
        return "may mean two things", f"write {other} for one of two"
    if _THIRD.fullmatch(said):
        return "may mean two things", "write every 3 weeks on monday at 9:00, or the dates"
    if re.match(r"every (?:\d+ |other |second )?(?:month|year)|monthly|yearly", said):
        return "cannot be counted out", _FIRST_OF_MONTH
    if _NTH.fullmatch(said):
        return "cannot be counted out", _FIRST_OF_MONTH
    if re.search(r"(?<![\w:])(?:\d{1,4}[./]\d{1,2}[./]\d{1,4}|\d{1,2}/\d{1,2})\b", said):
        return "is a date that is read in two ways", "write dates as 2030-01-31"
    return _several(said, means)


def _several(said: str, means: Callable[[str], bool]) -> tuple[str, str] | None:
    """What there is to say of a text that leaves open how often, or says several times."""
    for before in ("in", "every"):
        if means(f"{before} {said}"):
            return "may be once or again and again", f"write {before} {said}"
    first, also, second = said.rpartition(" and ")
    if (
        also
        and not said.startswith("in ")
        and means(first)
        and re.match(r"(?:at )?\d|noon|midnight", second)
    ):
        return "names several times", "make a job for each of them"
    return None


def _with_time(said: str) -> str:
    return said if re.search(r"\d|noon|midnight", said) else f"{said} at noon"


EXAMPLES: Final = (
    "write a time such as 2030-01-31 17:00, tomorrow 9:00, in 2 hours, every weekday at 8:30, "
    "every 2 days at 9:00, every 15 minutes, @daily, or cron's 30 8 * * mon-fri"
)
MAX_CHARS: Final = 500

_ZONE: Final = r"[a-z_]+(?:/[a-z][a-z0-9_+-]*)+|utc|gmt"
_IN_ZONE: Final = re.compile(
    rf"(?P<time>.*\S) ?\[(?P<marked>{_ZONE})\]|(?P<said>.*?\S) (?:in )?(?P<zone>{_ZONE})"
    rf"|(?:cron_)?tz=(?P<first>{_ZONE}) (?P<then>.+)",
    re.ASCII,
)
_OFFSET: Final = re.compile(r".*:\d\d(?:\.\d{1,9})? ?(?:z|[+-]\d\d(?::?\d\d)?)", re.ASCII)


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

    def to_json(self) -> dict[str, Any]:
        """The time as JSON values; `from_json` reads them back. A version that knows no intervals
        finds nothing in one that it could take for something else."""
        if self.interval is not None:
            return {"zone": self.zone, "interval": self.interval.to_json()}
        return {"zone": self.zone, "cron": self.cron, "at": self.at and self.at.isoformat()}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> When:
        """The time that `to_json` wrote. Raises KeyError, TypeError or ValueError for anything
        else."""
        if "interval" in value:
            return cls(value["zone"], interval=Interval.from_json(value["interval"]))
        at = None if value["at"] is None else datetime.fromisoformat(value["at"])
        return cls(value["zone"], value["cron"], at)


def parse_when(text: str, zone: str, now: datetime) -> When:
    """What a text means in a zone of this IANA name, or in the one that it ends in, said at
    ``now``.

    Raises `UsageError` for a text that is no such time, and for a time that is past.
    """
    said, named = _apart(plain(text) if len(text) <= MAX_CHARS else "")
    if named and _OFFSET.fullmatch(said) and not cron.looks_like_cron(said):
        raise _wrong(text, "has both an offset and a zone", "leave one of them out")
    local = now.astimezone(zone_of(named or zone))
    try:
        when = _read(said, local)
    except (OverflowError, ValueError):
        raise _wrong(text, "is no date and time that there is") from None
    if when is None:
        close = near_miss(said, lambda other: _means(other, local))
        raise _wrong(text, *(close or ("is not understood as a time",)))
    return _to_come(text, when, local)


def _read(said: str, now: datetime) -> When | None:
    """What a text means, None for one that means nothing. ``now`` is in the zone that is meant.
    Raises ValueError or OverflowError for a time that there is not, `UsageError`."""
    zone, is_cron = str(now.tzinfo), cron.looks_like_cron(said)
    if not is_cron:
        few = wordings.in_few_words(said, now)
        said, is_cron = few.text, few.cron
    expression = said if is_cron else phrases.repeated(said)
    if expression is not None:
        return When(zone, cron.checked(expression))
    if (interval := counted(said, now)) is not None:
        return When(zone, interval=interval)
    at = phrases.once(said, now)
    return None if at is None else When(zone, at=at)


def _means(said: str, now: datetime) -> bool:
    try:
        return _read(said, now) is not None
    except (ValueError, OverflowError, UsageError):
        return False


def plain(text: str) -> str:
    """The text in small letters, with one space between its words."""
    words = " ".join(text.split()).casefold()
    words = re.sub(r"\b([ap])\.m\b\.?", r"\1m", words)
    return words.removesuffix(".").rstrip()


def counts_from_now(text: str) -> bool:
    """Whether a text means another time whenever it is said: *in 2 hours*."""
    said = _apart(plain(text))[0]
    return phrases.relative(said) and not wordings.has_clock(said)


def _apart(said: str) -> tuple[str, str]:
    """A text without the zone that it names, and the zone, empty where it names none."""
    found = _IN_ZONE.fullmatch(said)
    if found is None:
        return said, ""
    time = found["time"] or found["said"] or found["then"]
    return time, found["marked"] or found["zone"] or found["first"]


def _to_come(text: str, when: When, now: datetime) -> When:
    """The same, in whole seconds where it is once, never early. Raises `UsageError` where it is
    past, or too far ahead."""
    first = when.at if when.interval is None else when.interval.start
    if first is not None and first.year > LAST_YEAR:
        raise _wrong(text, "is too far ahead")
    if when.at is None:
        return when
    at = when.at
    if at.microsecond:
        at = at.replace(microsecond=0) + timedelta(seconds=1)
    if at <= now:
        raise UsageError(f"{text[:100]!r} is past: it is {now:%Y-%m-%d %H:%M} in {now.tzinfo}")
    return When(when.zone, at=at)


def _wrong(text: str, why: str, hint: str = EXAMPLES) -> UsageError:
    return UsageError(f"{text[:100]!r} {why}", hint=hint)
