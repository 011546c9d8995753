"""Expectations: the outcome of a question that a live check requires."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from mlx_tools.errors import ToolDefinitionError, UsageError
from mlx_tools.golden.difference import Difference
from mlx_tools.protocol import canonical
from mlx_tools.schema import CheckTooLong, find_faults, limit_steps, make_validator

_KEYS: Final = frozenset(("status", "calls", "answer", "reason"))
_STATUSES: Final = ("answered", "paused", "stopped")


class ExpectedCall:
    """A call that should be made. Raises `UsageError` if it is not valid."""

    def __init__(self, expected: Any) -> None:
        if not isinstance(expected, Mapping) or not set(expected) <= {"name", "arguments"}:
            raise UsageError(
                f"this is no expected call: {json.dumps(expected)[:200]}",
                hint='write {"name": matcher, "arguments": matcher}',
            )
        self.expected = expected
        self._fits = matcher({"subset": expected})

    def fits(self, name: str, arguments: Mapping[str, Any]) -> bool:
        """Return True if a call is the one that should be made."""
        return self._fits({"name": name, "arguments": arguments})


class Expectation:
    """An expectation of one question. Raises `UsageError` if it is not valid.

    ``outcome`` is the outcome that was recorded (`mlx_tools.golden.expect`).
    """

    def __init__(self, expected: Mapping[str, Any], outcome: Mapping[str, Any]) -> None:
        hint = f"write an object that may have {', '.join(sorted(_KEYS))}"
        if not isinstance(expected, Mapping):
            raise UsageError(f"this is no expectation: {json.dumps(expected)[:200]}", hint=hint)
        if unknown := sorted(set(expected) - _KEYS):
            raise UsageError(f"an expectation has no {unknown[0]!r}", hint=hint)
        self.status = expected.get("status", outcome.get("status", "answered"))
        if self.status not in _STATUSES:
            raise UsageError(
                f"an expectation's status is no {self.status!r}", hint=", ".join(_STATUSES)
            )
        calls = expected.get("calls")
        if calls is None:
            calls = [
                {"name": {"exact": call["name"]}, "arguments": {"exact": call["arguments"]}}
                for call in outcome.get("calls", ())
            ]
        if not isinstance(calls, Sequence) or isinstance(calls, str):
            raise UsageError("an expectation's calls are no list", hint='write "calls": [{…}]')
        self.calls = [ExpectedCall(call) for call in calls]
        self._texts = {key: expected[key] for key in ("answer", "reason") if key in expected}
        self._fits = {key: matcher(text) for key, text in self._texts.items()}

    def differences(self, outcome: Mapping[str, Any], location: str = "") -> list[Difference]:
        """Return the parts of an outcome that are not as expected."""
        found = []
        calls = outcome.get("calls", ())
        made = [{"name": call["name"], "arguments": call["arguments"]} for call in calls]
        fits = [call.fits(**one) for call, one in zip(self.calls, made, strict=False)]
        if len(made) != len(self.calls) or not all(fits):
            wanted = "\n".join(_json(call.expected) for call in self.calls)
            said = "\n".join(map(_json, made))
            found.append(Difference("outcome", "the calls", location, wanted, said))
        status = outcome.get("status", "")
        if status != self.status:
            said = f"{status}: {reason}" if (reason := outcome.get("reason")) else str(status)
            found.append(Difference("outcome", "the status", location, self.status, said))
        for key, text in self._texts.items():
            value = outcome.get(key)
            if not self._fits[key](value):
                said = "" if value is None else str(value)
                found.append(Difference("outcome", f"the {key}", location, _json(text), said))
        return found


def expectations(
    expect: Sequence[Mapping[str, Any]], outcomes: Sequence[Mapping[str, Any]]
) -> list[Expectation]:
    """Return an expectation for each recorded question. Raise `UsageError`."""
    if len(expect) > len(outcomes):
        raise UsageError(
            f"there are {len(expect)} expectations for {len(outcomes)} questions",
            hint="give one for each question, in their order",
        )
    wanted = [*expect, *({} for _ in outcomes[len(expect) :])]
    return [Expectation(one, recorded) for one, recorded in zip(wanted, outcomes, strict=True)]


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True)


# --- matchers ------------------------------------------------------------------------------------

_NUMBER: Final = re.compile(r"[-−+]?\d[\d,_\u202f\u00a0']*(?:\.\d+)?(?:[eE][-+]?\d+)?")

_Test = Callable[[Any], bool]


def matcher(expected: Any) -> _Test:
    """Return a function that tests a value. Raise `UsageError` for an invalid matcher."""
    kinds = [key for key in expected if key in _KINDS] if isinstance(expected, Mapping) else []
    if not kinds:
        return _exact({"exact": expected})
    if len(kinds) > 1:
        raise UsageError(f"this is no matcher: {json.dumps(expected)[:200]}", hint=_HINT)
    if further := set(expected) - {*kinds, *(("tolerance",) if kinds == ["number"] else ())}:
        raise UsageError(f"a {kinds[0]} matcher has no {min(further)!r}", hint=_HINT)
    return _KINDS[kinds[0]](expected)


def _exact(expected: Mapping[str, Any]) -> _Test:
    key = canonical("", {"": expected["exact"]})
    return lambda value: canonical("", {"": value}) == key


def _subset(expected: Mapping[str, Any]) -> _Test:
    if not isinstance(expected["subset"], Mapping):
        raise UsageError("a subset matcher needs an object of matchers", hint=_HINT)
    tests = {key: matcher(inner) for key, inner in expected["subset"].items()}
    return lambda value: (
        isinstance(value, Mapping)
        and all(key in value and test(value[key]) for key, test in tests.items())
    )


def _schema(expected: Mapping[str, Any]) -> _Test:
    schema = expected["schema"]
    try:  # a tool's schema is that of an object, so the value is in one
        whole = {"type": "object", "properties": {"value": schema}, "required": ["value"]}
        if isinstance(schema, Mapping) and "$defs" in schema:
            whole["$defs"] = schema["$defs"]
        validator = make_validator(whole)
    except ToolDefinitionError as error:
        raise UsageError(f"a schema matcher: {error.message}", hint=_HINT) from None

    def test(value: Any) -> bool:
        try:
            with limit_steps():
                return not find_faults(validator, {"value": value}, 1)
        except (CheckTooLong, RecursionError):
            return False

    return test


def _contains(expected: Mapping[str, Any]) -> _Test:
    part = expected["contains"]
    if not isinstance(part, str):
        raise UsageError("a contains matcher needs a text", hint=_HINT)
    return lambda value: isinstance(value, str) and part in value


def _regex(expected: Mapping[str, Any]) -> _Test:
    try:
        pattern = re.compile(expected["regex"])
    except (re.error, TypeError) as error:
        raise UsageError(f"a regex matcher: {error}", hint=_HINT) from None
    return lambda value: isinstance(value, str) and pattern.search(value) is not None


def _number(expected: Mapping[str, Any]) -> _Test:
    number, tolerance = expected["number"], expected.get("tolerance", 0)
    for one in (number, tolerance):
        if isinstance(one, bool) or not isinstance(one, int | float):
            raise UsageError("a number matcher needs numbers", hint=_HINT)

    def test(value: Any) -> bool:
        if isinstance(value, str):
            return any(map(test, _find_numbers(value)))
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        try:
            return bool(abs(value - number) <= tolerance)
        except OverflowError:  # an integer beyond all floats
            return False

    return test


def _find_numbers(text: str) -> list[float]:
    found = []
    for match in _NUMBER.findall(text):
        plain = re.sub(r"[,_\u202f\u00a0']", "", match).replace("−", "-")
        found.append(float(plain))
        if match[0] in "-−+":  # a dash before a number need not be its sign: 3-5
            found.append(float(plain[1:]))
    return found


_KINDS: Final[Mapping[str, Callable[[Mapping[str, Any]], _Test]]] = {
    "exact": _exact,
    "subset": _subset,
    "schema": _schema,
    "contains": _contains,
    "regex": _regex,
    "number": _number,
    "anything": lambda wanted: lambda value: True,
}
_HINT: Final = f'write {{"KIND": …}} with one of {", ".join(_KINDS)}, or a plain value'
