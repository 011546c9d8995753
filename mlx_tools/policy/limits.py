"""The limits of one run, and the rates of calls: units, defaults, bounds.

Pure: what time it is, and when calls were made, comes from records. A call whose time is not known,
or that by its time is yet to come (a clock was set back), counts as made within every window.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import MAXYEAR, UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any, Final

from mlx_tools.errors import UsageError
from mlx_tools.policy.patterns import checked

_DAY: Final = 86_400.0

_BOUNDS: Final[Mapping[str, tuple[float, float]]] = {
    "max_iterations": (1, 1_000),
    "max_format_errors": (1, 100),
    "total_timeout": (0.001, _DAY),
    "completion_timeout": (0.001, _DAY),
    "idle_timeout": (0.001, _DAY),
    "tool_timeout": (0.001, _DAY),
    "max_tokens": (1, 1_000_000),
    "max_argument_bytes": (1, 100_000_000),
    "max_observation_chars": (100, 10_000_000),
    "max_calls_per_turn": (1, 100),
    "parallel": (1, 4),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The most that one run may use. Reaching a limit is never an exception.

    ``max_iterations``        completions; then the model is told to finish
    ``max_format_errors``     unreadable completions in a row before the run stops
    ``total_timeout``         seconds for the whole run, time waiting for a person not counted
    ``completion_timeout``    seconds for one completion
    ``idle_timeout``          seconds of a silent server before a completion is given up
    ``tool_timeout``          seconds for one call, where the tool declares no shorter time
    ``max_tokens``            tokens of one completion
    ``max_argument_bytes``    bytes of one call's arguments as JSON
    ``max_observation_chars`` characters of a tool's output that the model sees
    ``max_calls_per_turn``    calls that the model may make in one turn
    ``parallel``              calls that run at the same time, at most 4

    Raises UsageError, naming the limit, for a value of the wrong type or out of bounds.
    """

    max_iterations: int = 4
    max_format_errors: int = 2
    total_timeout: float = 300.0
    completion_timeout: float = 120.0
    idle_timeout: float = 60.0
    tool_timeout: float = 30.0
    max_tokens: int = 512
    max_argument_bytes: int = 65_536
    max_observation_chars: int = 4_000
    max_calls_per_turn: int = 8
    parallel: int = 4

    def __post_init__(self) -> None:
        for name, (least, most) in _BOUNDS.items():
            value = getattr(self, name)
            seconds = name.endswith("_timeout")
            sound = isinstance(value, int | float if seconds else int)
            if not sound or isinstance(value, bool) or not least <= value <= most:
                try:
                    shown = repr(value)[:60]
                except ValueError:  # Python refuses to write out a very long integer
                    shown = "so long a number"
                unit = "seconds" if seconds else "a whole number"
                raise UsageError(
                    f"limits.{name}: {shown} is not allowed",
                    hint=f"{unit}, from {least:g} to {most:.0f}",
                )

    def to_json(self) -> dict[str, Any]:
        """The limits as JSON values; `from_json` reads them back."""
        return {name: getattr(self, name) for name in _BOUNDS}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Limits:
        """The limits that `to_json` wrote; one that is missing has its default. UsageError for an
        unknown name or a value out of bounds."""
        if not isinstance(value, Mapping):
            raise UsageError("limits: expected an object")
        if unknown := set(value) - set(_BOUNDS):
            raise UsageError(
                f"limits: unknown name {min(map(str, unknown))!r}",
                hint=f"one of {', '.join(_BOUNDS)}",
            )
        return cls(**value)


# --- rates: so many calls in a window of time that slides along -----------------------------------

UNITS: Final[Mapping[str, int]] = MappingProxyType(
    {"second": 1, "minute": 60, "hour": 3_600, "day": 86_400}
)
"""The windows by name, in seconds."""

RATES: Final = f"calls/unit, such as 10/minute (units: {', '.join(UNITS)})"
_RATE: Final = re.compile(r"([1-9][0-9]{0,5})/([a-z]+)", re.ASCII)

RateCounts = dict[str, tuple[str, str]]
"""The calls that a session was let make, by their keys: the tool, and the time (ISO 8601) of the
completion that they stood in."""


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
            raise UsageError(f"{field}: {text!r:.60} is not a rate", hint=RATES)
        return cls(int(found[1]), UNITS[found[2]])

    def within(self, other: Rate) -> bool:
        """Return whether this rate leaves no room wherever the other one leaves none, whatever
        calls were made: no more calls, in a window that is no shorter."""
        return self.calls <= other.calls and self.seconds >= other.seconds

    def full(self, made: Iterable[str], at: str) -> FullRate | None:
        """Return how it is used up where calls at these times leave no room for one more at
        ``at``; None where there is room."""
        now, window = instant(at), timedelta(seconds=self.seconds)
        times = map(instant, made)
        counted = [t for t in times if now is None or t is None or now - t < window]
        if len(counted) < self.calls:
            return None
        # One more is free once all but ``calls - 1`` of these are out of the window. Those whose
        # time is not known never are.
        leaving = sorted(t for t in counted if t is not None)
        needed = len(counted) - self.calls
        known = now is not None and needed < len(leaving)
        return FullRate(len(counted), leaving[needed] + window if known else None)


@dataclass(frozen=True, slots=True)
class FullRate:
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
