"""What is wrong with arguments, in words: ``path: what was expected``."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

MOST_CHARS: Final = 500
"""An error's message holds no more."""

_PLAIN_KEY: Final = re.compile(r"[A-Za-z_$][A-Za-z0-9_$-]{0,63}")
_SHOWN_CHARS: Final = 120


def Fault(message: str, path: Sequence[str | int] = ()) -> Any:  # noqa: N802  (makes one)
    """A validation error of our own: its message is what was expected."""
    from jsonschema import ValidationError

    return ValidationError(message, path=path)


def described(faults: Iterable[Any]) -> str:
    """All faults, joined, as far as `MOST_CHARS` goes."""
    lines: dict[str, None] = {}
    for fault in faults:
        for path, expected in _lines(fault):
            lines[f"{path}: {expected}"] = None
    text = "; ".join(lines)
    return text if len(text) <= MOST_CHARS else text[: MOST_CHARS - 1] + "…"


def path_text(path: Iterable[str | int]) -> str:
    """A place in the arguments, as ``a.b[0]``; what is no plain name is written as JSON."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        elif _PLAIN_KEY.fullmatch(step):
            text += f".{step}" if text else step
        else:
            text += f"[{_shown(step)}]"
    return text or "arguments"


def _lines(fault: Any) -> Iterable[tuple[str, str]]:
    if fault.validator in ("anyOf", "oneOf") and fault.context:
        yield from _branches(fault)
    else:
        yield path_text(fault.absolute_path), _expected(fault)


def _branches(fault: Any) -> Iterable[tuple[str, str]]:
    """Of a union: the faults of the one branch whose type fits, or all that would have fitted."""
    branches: dict[int, list[Any]] = {}
    for inner in fault.context:
        branches.setdefault(inner.relative_schema_path[0], []).append(inner)
    fitting = [
        inner
        for inner in branches.values()
        if not any(f.validator in ("type", "const", "enum") and not f.relative_path for f in inner)
    ]
    if len(fitting) == 1:
        for inner in fitting[0]:
            yield from _lines(inner)
        return
    ways = dict.fromkeys(_expected(f) for inner in branches.values() for f in inner[:1])
    yield path_text(fault.absolute_path), " or ".join(ways)[:_SHOWN_CHARS]


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=True, default=str)
    return text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "…"


def _types(value: Any) -> str:
    return " or ".join(value) if isinstance(value, list) else str(value)


_EXPECTED: Final[dict[str, Callable[[Any], str]]] = {
    "type": _types,
    "enum": lambda values: "one of " + ", ".join(_shown(value) for value in values),
    "const": _shown,
    "minimum": lambda bound: f"at least {bound}",
    "maximum": lambda bound: f"at most {bound}",
    "exclusiveMinimum": lambda bound: f"more than {bound}",
    "exclusiveMaximum": lambda bound: f"less than {bound}",
    "multipleOf": lambda step: f"a multiple of {step}",
    "minLength": lambda size: f"at least {size} characters",
    "maxLength": lambda size: f"at most {size} characters",
    "minItems": lambda size: f"at least {size} items",
    "maxItems": lambda size: f"at most {size} items",
    "minProperties": lambda size: f"at least {size} keys",
    "maxProperties": lambda size: f"at most {size} keys",
    "contains": lambda _: "an item of another form",
    "oneOf": lambda _: "exactly one of the forms allowed",
    "not": lambda _: "another form",
    "unevaluatedProperties": lambda _: "no other keys",
    "unevaluatedItems": lambda _: "no other items",
    "dependentRequired": lambda needs: "keys that go together: " + _shown(needs),
}


def _expected(fault: Any) -> str:
    """What was expected where the fault is."""
    if isinstance(fault.message, str) and fault.validator in _OWN:
        return str(fault.message[:_SHOWN_CHARS])
    if fault.validator in _EXPECTED:
        return _EXPECTED[fault.validator](fault.validator_value)[:_SHOWN_CHARS]
    if fault.validator is None:  # the schema false
        return "nothing"
    return str(fault.message[:_SHOWN_CHARS])


_OWN: Final = frozenset(
    (
        *("properties", "required", "pattern", "patternProperties"),
        *("additionalProperties", "uniqueItems"),
    )
)
"""Keywords of ours, whose faults say themselves what was expected."""
