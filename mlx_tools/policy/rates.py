"""How often tools may be called: so many calls in a window of time that slides along.

Pure: what time it is, and when calls were made, comes from records. A call whose time is not known,
or that by its time is yet to come (a clock was set back), counts as made within every window.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import MAXYEAR, UTC, datetime, timedelta
from types import MappingProxyType
from typing import Final

from mlx_tools.errors import UsageError
from mlx_tools.policy.patterns import checked

UNITS: Final[Mapping[str, int]] = MappingProxyType(
    {"second": 1, "minute": 60, "hour": 3_600, "day": 86_400}
)
"""The windows by name, in seconds."""

ALLOWED: Final = f"calls/unit, such as 10/minute (units: {', '.join(UNITS)})"
_RATE: Final = re.compile(r"([1-9][0-9]{0,5})/([a-z]+)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Rate:
    """At most ``calls`` in any ``seconds``."""

    calls: int
    seconds: int

    @classmethod
    def parse(cls, text: object, field: str = "a rate") -> Rate:
        """The rate that ``10/minute`` writes; UsageError, naming ``field``, for anything else."""
        found = _RATE.fullmatch(text) if isinstance(text, str) else None
        if found is None or found[2] not in UNITS:
            raise UsageError(f"{field}: {text!r:.60} is not a rate", hint=ALLOWED)
        return cls(int(found[1]), UNITS[found[2]])

    def within(self, other: Rate) -> bool:
        """Whether this rate leaves no room wherever the other one leaves none, whatever calls were
        made: no more calls, in a window that is no shorter."""
        return self.calls <= other.calls and self.seconds >= other.seconds


def checked_rates(rates: object, field: str) -> Mapping[str, str]:
    """The table of rates by pattern, sorted; UsageError, naming ``field``, for what is none."""
    if not isinstance(rates, Mapping):
        raise UsageError(f"{field}: expected a table of rates by tool, not {rates!r:.60}")
    checked(tuple(rates), field)
    for pattern, rate in rates.items():
        Rate.parse(rate, f"{field}.{pattern}")
    return MappingProxyType({pattern: rates[pattern] for pattern in sorted(rates)})


def instant(at: str) -> datetime | None:
    """The time that a record names (ISO 8601, with its offset); None where it names none."""
    try:
        found = datetime.fromisoformat(at)
        if found.tzinfo is None:
            return None
        found = found.astimezone(UTC)
    except (ValueError, OverflowError):
        return None
    return found if found.year < MAXYEAR else None  # a window can be added to it


class RateCounts:
    """Which calls a session was let make, and when: the time of the completion they stood in."""

    def __init__(self) -> None:
        self._calls: dict[str, tuple[str, datetime | None]] = {}

    def copy(self) -> RateCounts:
        """A tally that can be gone on with while this one stays."""
        other = RateCounts()
        other._calls = dict(self._calls)
        return other

    def without(self, call: str) -> RateCounts:
        """The same tally but for one call."""
        other = self.copy()
        other._calls.pop(call, None)
        return other

    def add(self, call: str, name: str, at: str) -> None:
        """Takes in a call by its key; the same key again is the same call."""
        self._calls[call] = name, instant(at)

    def times(self, name: str | None = None) -> list[datetime | None]:
        """When calls of this tool, or of any, were made."""
        return [at for named, at in self._calls.values() if name is None or named == name]


@dataclass(frozen=True, slots=True)
class Full:
    """A rate that is used up. ``again`` is when one more call may be made, None where no time is
    known at which it may."""

    used: int
    again: datetime | None

    @property
    def when(self) -> str:
        """``again`` in words; a second is rounded up."""
        if self.again is None:
            return "it is not known when it may be called again"
        whole = self.again.replace(microsecond=0)
        whole += timedelta(seconds=1) if whole < self.again else timedelta()
        return f"it may be called again at {whole.isoformat().replace('+00:00', 'Z')}"


def full(rate: Rate, times: list[datetime | None], at: str) -> Full | None:
    """Whether so many calls leave no room for one more at ``at``; None where there is room."""
    now, window = instant(at), timedelta(seconds=rate.seconds)
    counted = [t for t in times if now is None or t is None or now - t < window]
    if len(counted) < rate.calls:
        return None
    # One more is free once all but ``calls - 1`` of these are out of the window. Those whose time
    # is not known never are.
    leaving = sorted(t for t in counted if t is not None)
    needed = len(counted) - rate.calls
    known = now is not None and needed < len(leaving)
    return Full(len(counted), leaving[needed] + window if known else None)
