"""Matchers: what a value must be like, written as JSON.

``{"exact": value}``; ``{"subset": {key: matcher}}`` for the keys that matter of an object;
``{"schema": {…}}``, a JSON Schema; ``{"contains": text}``; ``{"regex": text}``;
``{"number": 391, "tolerance": 0.5}``, which a text matches that holds such a number;
``{"any_of": […]}``, ``{"all_of": […]}``, ``{"not": matcher}`` and ``{"anything": true}``. Any other
value means itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from mlx_tools.errors import ToolDefinitionError, UsageError
from mlx_tools.protocol import canonical
from mlx_tools.schema.validator import TooMuch, bounded, faults, validator_for

_NUMBER: Final = re.compile(r"[-−+]?\d[\d,_\u202f\u00a0']*(?:\.\d+)?(?:[eE][-+]?\d+)?")

_Test = Callable[[Any], bool]


class Matcher:
    """Says whether a value is as it should be. Raises `UsageError` for what is no matcher."""

    def __init__(self, wanted: Any) -> None:
        self.wanted = wanted
        self._test = _test(wanted)

    def fits(self, value: Any) -> bool:
        """Whether the value is as it should be."""
        return self._test(value)

    def __str__(self) -> str:
        return json.dumps(self.wanted, ensure_ascii=False, sort_keys=True)


def _test(wanted: Any) -> _Test:
    if isinstance(wanted, Mapping) and len(kinds := [k for k in wanted if k in _KINDS]) == 1:
        kind = kinds[0]
        further = set(wanted) - {kind, *_FURTHER.get(kind, ())}
        if further:
            raise UsageError(f"a {kind} matcher has no {min(further)!r}", hint=_HINT)
        return _KINDS[kind](wanted)
    if isinstance(wanted, Mapping) and any(key in _KINDS for key in wanted):
        raise UsageError(f"this is no matcher: {json.dumps(wanted)[:200]}", hint=_HINT)
    return _exact({"exact": wanted})


def _exact(wanted: Mapping[str, Any]) -> _Test:
    key = canonical("", {"": wanted["exact"]})
    return lambda value: canonical("", {"": value}) == key


def _subset(wanted: Mapping[str, Any]) -> _Test:
    if not isinstance(wanted["subset"], Mapping):
        raise UsageError("a subset matcher needs an object of matchers", hint=_HINT)
    tests = {key: _test(inner) for key, inner in wanted["subset"].items()}
    return lambda value: (
        isinstance(value, Mapping)
        and all(key in value and test(value[key]) for key, test in tests.items())
    )


def _schema(wanted: Mapping[str, Any]) -> _Test:
    schema = wanted["schema"]
    try:  # a tool's schema is that of an object: the value stands in one
        whole = {"type": "object", "properties": {"value": schema}, "required": ["value"]}
        if isinstance(schema, Mapping) and "$defs" in schema:
            whole["$defs"] = schema["$defs"]
        validator = validator_for(whole)
    except ToolDefinitionError as error:
        raise UsageError(f"a schema matcher: {error.message}", hint=_HINT) from None

    def test(value: Any) -> bool:
        try:
            with bounded():
                return not faults(validator, {"value": value}, 1)
        except (TooMuch, RecursionError):
            return False

    return test


def _contains(wanted: Mapping[str, Any]) -> _Test:
    part = wanted["contains"]
    if not isinstance(part, str):
        raise UsageError("a contains matcher needs a text", hint=_HINT)
    if wanted.get("ignore_case", False):
        folded = part.casefold()
        return lambda value: isinstance(value, str) and folded in value.casefold()
    return lambda value: isinstance(value, str) and part in value


def _regex(wanted: Mapping[str, Any]) -> _Test:
    try:
        pattern = re.compile(wanted["regex"])
    except (re.error, TypeError) as error:
        raise UsageError(f"a regex matcher: {error}", hint=_HINT) from None
    return lambda value: isinstance(value, str) and pattern.search(value) is not None


def _number(wanted: Mapping[str, Any]) -> _Test:
    number, tolerance = wanted["number"], wanted.get("tolerance", 0)
    for one in (number, tolerance):
        if isinstance(one, bool) or not isinstance(one, int | float):
            raise UsageError("a number matcher needs numbers", hint=_HINT)

    def near(value: float) -> bool:
        return bool(abs(value - number) <= tolerance)

    def test(value: Any) -> bool:
        if isinstance(value, str):
            return any(near(found) for found in _numbers_in(value))
        return isinstance(value, int | float) and not isinstance(value, bool) and near(value)

    return test


def _numbers_in(text: str) -> list[float]:
    found = []
    for match in _NUMBER.findall(text):
        plain = re.sub(r"[,_\u202f\u00a0']", "", match).replace("−", "-")
        found.append(float(plain))
        if match[0] in "-−+":  # a dash before a number need not be its sign: 3-5
            found.append(float(plain[1:]))
    return found


def _of_several(kind: str, fold: Callable[[Any], bool]) -> Callable[[Mapping[str, Any]], _Test]:
    def make(wanted: Mapping[str, Any]) -> _Test:
        inner = wanted[kind]
        if not isinstance(inner, Sequence) or isinstance(inner, str) or not inner:
            raise UsageError(f"a {kind} matcher needs a list of matchers", hint=_HINT)
        tests = [_test(one) for one in inner]
        return lambda value: fold(test(value) for test in tests)

    return make


def _not(wanted: Mapping[str, Any]) -> _Test:
    test = _test(wanted["not"])
    return lambda value: not test(value)


_KINDS: Final[Mapping[str, Callable[[Mapping[str, Any]], _Test]]] = {
    "exact": _exact,
    "subset": _subset,
    "schema": _schema,
    "contains": _contains,
    "regex": _regex,
    "number": _number,
    "any_of": _of_several("any_of", any),
    "all_of": _of_several("all_of", all),
    "not": _not,
    "anything": lambda wanted: lambda value: True,
}
_FURTHER: Final[Mapping[str, tuple[str, ...]]] = {
    "number": ("tolerance",),
    "contains": ("ignore_case",),
}
_HINT: Final = f'write {{"KIND": …}} with one of {", ".join(_KINDS)}, or a plain value'
