"""What a tool declares of its calls: their effects, their time, whether one may be tried again.

Each is held to what it may be; ToolDefinitionError says what that is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from mlx_tools.errors import ToolDefinitionError
from mlx_tools.messages import ALL_EFFECTS, Effects, ToolSpec

EffectsLike = Iterable[str] | Callable[[Mapping[str, Any]], Iterable[str]]

_MAX_SECONDS: Final = 86_400.0


@dataclass(frozen=True, slots=True)
class EffectsBy:
    """Effects that depend on the value of one argument.

    ``table`` has the effects for each value; for a value that is not in it, and for a call without
    the argument, all effects are taken. Raises ToolDefinitionError for what is no effect.
    """

    argument: str
    table: Mapping[str, Effects]

    def __post_init__(self) -> None:
        table = {value: effects_of(some, self.argument) for value, some in self.table.items()}
        object.__setattr__(self, "table", table)

    def __call__(self, arguments: Mapping[str, Any]) -> Effects:
        value = arguments.get(self.argument)
        return self.table.get(value, ALL_EFFECTS) if isinstance(value, str) else ALL_EFFECTS

    @property
    def possible(self) -> Effects:
        """What a call that fits the schema may do at most."""
        return frozenset().union(*self.table.values())


def check_declared(spec: ToolSpec) -> None:
    """Whether the spec declares what can be declared, whoever made it. Raises
    ToolDefinitionError."""
    try:
        spec.description.encode()
    except UnicodeEncodeError:
        raise ToolDefinitionError("the description holds half of a surrogate pair") from None
    effects_of(spec.effects, spec.name)
    timeout_of(spec.timeout)
    retry_of(spec.retry)


def effects_of(
    effects: EffectsLike | None, name: str
) -> Effects | Callable[[Mapping[str, Any]], Effects]:
    """The effects that were declared for a tool, or an argument, of this name; all where there are
    none."""
    if effects is None:
        return ALL_EFFECTS
    if callable(effects):
        return cast("Callable[[Mapping[str, Any]], Effects]", effects)
    if not isinstance(effects, Iterable):
        raise ToolDefinitionError(
            f"{name}: effects: {effects!r} is no set of effects",
            hint=f"some of {', '.join(sorted(ALL_EFFECTS))}, or a function of the arguments",
        )
    listed = (effects,) if isinstance(effects, str) else tuple(effects)
    unknown = [item for item in listed if item not in tuple(ALL_EFFECTS)]
    if unknown:
        raise ToolDefinitionError(
            f"{name}: {unknown[0]!r} is not an effect",
            hint=f"some of {', '.join(sorted(ALL_EFFECTS))}",
        )
    return cast("Effects", frozenset(listed))


def timeout_of(timeout: float | None) -> float | None:
    """The seconds that were declared."""
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, int | float):
        raise ToolDefinitionError(f"timeout: {timeout!r} is not a number of seconds")
    if not 0 < timeout <= _MAX_SECONDS:
        raise ToolDefinitionError(f"timeout: {timeout!r} s is not between 0 and {_MAX_SECONDS:.0f}")
    return float(timeout)


def retry_of(retry: str) -> str:
    """Whether a call may be tried again, as it was declared."""
    if retry not in ("never", "read_only"):
        raise ToolDefinitionError(f"retry: {retry!r} is not allowed", hint="never or read_only")
    return retry
