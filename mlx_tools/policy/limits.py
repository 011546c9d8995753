"""The limits of one run, with their units, defaults and bounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from mlx_tools.errors import UsageError

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
    """What one run may use at most. Reaching a limit is never an exception.

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
            self._check(name, least, most)

    def _check(self, name: str, least: float, most: float) -> None:
        value = getattr(self, name)
        seconds = name.endswith("_timeout")
        kinds = (int, float) if seconds else (int,)
        sound = isinstance(value, kinds) and not isinstance(value, bool)
        if not sound or not least <= value <= most:
            unit = "seconds" if seconds else "a whole number"
            raise UsageError(
                f"limits.{name}: {_shown(value)} is not allowed",
                hint=f"{unit}, from {least:g} to {most:.0f}",
            )

    def to_json(self) -> dict[str, Any]:
        """The limits as JSON values; `from_json` reads them back."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Limits:
        """The limits that `to_json` wrote; one that is missing has its default. UsageError for an
        unknown name or a value out of bounds."""
        if not isinstance(value, Mapping):
            raise UsageError("limits: expected an object")
        unknown = set(value) - set(_BOUNDS)
        if unknown:
            raise UsageError(
                f"limits: unknown name {min(map(str, unknown))!r}",
                hint=f"one of {', '.join(_BOUNDS)}",
            )
        return cls(**value)


def _shown(value: object) -> str:
    """The value in a few characters; Python refuses to write out a very long integer."""
    try:
        return repr(value)[:60]
    except ValueError:
        return "so long a number"
