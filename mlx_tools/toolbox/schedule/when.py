"""When a job runs, read from a text: a small grammar, and nothing is guessed.

Once: an ISO date and time, ``in 2 hours``, ``tomorrow 9:00``, ``monday at 18:00``, ``at 17:30``.
Again and again: five fields of cron, ``@daily`` and its kin, ``every weekday at 8:30``, ``every 15
minutes``, ``every 2 weeks on monday at 9:00``. Any of them may end in the zone that is meant.
docs/scheduler.md has all of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from mlx_tools.errors import UsageError
from mlx_tools.toolbox.schedule import cron, nearby, phrases, wordings
from mlx_tools.toolbox.schedule.interval import Interval, counted
from mlx_tools.toolbox.schedule.tables import LAST_YEAR
from mlx_tools.toolbox.schedule.zones import zone_of

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
        close = nearby.near_miss(said, lambda other: _means(other, local))
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
