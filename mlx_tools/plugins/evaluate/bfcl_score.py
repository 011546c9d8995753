"""Scores calls by the rules of BFCL's official checker.

The rules are those of version 4 (``eval_checker/ast_eval/ast_checker.py`` of its package), with all
its quirks, because scores by other rules are not comparable. The code is new.
``benchmarks/bfcl_official/agree.py`` compares it with the official checker. Pure.

- Texts are compared in lower case, without spaces and ``,./-_*^``, and with one kind of quote.
- An empty text among a parameter's allowed values means that it may be missing.
- The type of a value must be exactly that of the parameter; only a float may be a whole number. An
  allowed value of another type is the name of a variable, and is compared without changes.
- The types of an array's items are checked too, but no deeper ones.
- Parallel calls may have any order. Each expected call gets the first matching call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from msgspec import Struct

from mlx_tools.errors import UsageError
from mlx_tools.messages import ToolCall

Fault = Literal[
    "",
    "called",
    "not_called",
    "wrong_count",
    "wrong_name",
    "missing",
    "unexpected",
    "wrong_type",
    "wrong_value",
    "unmatched",
]
"""The reasons why calls are wrong.

- ``called``: there is a call, but none is right.
- ``not_called``: there is no call, but one is required.
- ``wrong_count``: there are too few or too many calls.
- ``wrong_name``: another function is called.
- ``missing``, ``unexpected``, ``wrong_type``, ``wrong_value``: of a parameter.
- ``unmatched``: none of the parallel calls matches an expected one.
"""

_TYPES: Final[Mapping[str, type]] = {
    "string": str,
    "integer": int,
    "float": float,
    "boolean": bool,
    "array": list,
    "tuple": list,
    "dict": dict,
    "any": str,
}
_IGNORED: Final = str.maketrans("", "", " ,./-_*^")


class CallScore(Struct, frozen=True):
    """The score of some calls."""

    correct: bool
    fault: Fault = ""
    """The reason why they are wrong, empty if they are right."""
    fault_name: str = ""
    """The parameter or function with the fault."""


_RIGHT: Final = CallScore(True)


def score(
    category: str,
    functions: Sequence[Mapping[str, Any]],
    calls: Sequence[ToolCall],
    answers: Sequence[Mapping[str, Mapping[str, Sequence[Any]]]],
) -> CallScore:
    """Score a model's calls for one question.

    In a category of irrelevance every call is wrong. In one of relevance every call is right.

    Args:
        category: the name of the category.
        functions: the functions in BFCL's format.
        calls: the calls of the model.
        answers: the answers in BFCL's format, each ``{name: {parameter: [allowed value, …]}}``.
    """
    if "irrelevance" in category:
        return CallScore(False, "called", calls[0].name) if calls else _RIGHT
    if "relevance" in category:
        return _RIGHT if calls else CallScore(False, "not_called")
    if not calls:
        return CallScore(False, "not_called")
    if len(calls) != len(answers):
        return CallScore(False, "wrong_count", f"{len(calls)} of {len(answers)}")
    if "parallel" not in category:
        name = next(iter(answers[0])) if "multiple" in category else functions[0]["name"]
        return _score_call(_find_function(functions, name), calls[0], answers[0])
    remaining = list(calls)
    for answer in answers:
        name = next(iter(answer))
        function = _find_function(functions, name)
        match = next(
            (call for call in remaining if _score_call(function, call, answer).correct), None
        )
        if match is None:
            return CallScore(False, "unmatched", name)
        remaining.remove(match)
    return _RIGHT


def _find_function(functions: Sequence[Mapping[str, Any]], name: str) -> Mapping[str, Any]:
    matching = [function for function in functions if function["name"] == name]
    if not matching:
        raise UsageError(
            f"an answer of BFCL calls {name}, but the question has no such function",
            hint="use the pinned version of BFCL",
        )
    return matching[0]


def _score_call(
    function: Mapping[str, Any], call: ToolCall, answer: Mapping[str, Mapping[str, Sequence[Any]]]
) -> CallScore:
    """Score one call against one expected call."""
    expected = next(iter(answer.values()))
    parameters = function["parameters"]["properties"]
    if call.name != function["name"]:
        return CallScore(False, "wrong_name", call.name)
    for name in function["parameters"].get("required", ()):
        if name not in call.arguments:
            return CallScore(False, "missing", name)
    for name, value in call.arguments.items():
        if name not in parameters or name not in expected:
            return CallScore(False, "unexpected", name)
        fault = _find_fault(parameters[name], value, expected[name])
        if fault:
            return CallScore(False, fault, name)
    for name, allowed in expected.items():
        if name not in call.arguments and "" not in allowed:
            return CallScore(False, "missing", name)
    return _RIGHT


# --- one value --------------------------------------------------------------------------------


def _find_fault(parameter: Mapping[str, Any], value: Any, allowed: Sequence[Any]) -> Fault:
    """Return the fault of a parameter's value, empty if there is none."""
    kind, element = parameter["type"], None
    if kind in ("array", "tuple"):
        element = parameter.get("items", {}).get("type")
    outer, inner = _TYPES.get(kind), _TYPES.get(element) if element is not None else None
    if outer is None or (element is not None and inner is None):
        return "wrong_type"
    if kind == "float" and type(value) is int:
        try:
            value = float(value)
        except OverflowError:
            return "wrong_value"
    fits, variable = _check_type(value, allowed, outer, inner)
    if not fits:
        return "wrong_type"
    return "" if _is_allowed(value, allowed, None if variable else outer, inner) else "wrong_value"


def _check_type(
    value: Any, allowed: Sequence[Any], outer: type[Any], inner: type[Any] | None
) -> tuple[bool, bool]:
    """Return whether a value's type is right, and whether a variable is expected.

    A variable is expected if the first allowed value has another type than the parameter.
    """
    first = next((type(option) for option in allowed if option != ""), None)
    if type(value) is not outer:
        return first is not None and type(value) is first, True
    fits = inner is None or any(
        type(option) is not list or all(_check_type(item, option, inner, None)[0] for item in value)
        for option in allowed
    )
    return fits, first is not None and first is not outer


def _is_allowed(value: Any, allowed: Sequence[Any], outer: type | None, inner: type | None) -> bool:
    """Return whether a value is one of the allowed values, by the rules for its type."""
    lists: list[Any]
    if outer is dict:
        return any(_equal_entries(value, option) for option in allowed)
    if outer is list and inner is dict:
        lists = [
            option
            for option in allowed
            if isinstance(option, list | str) and len(option) == len(value)
        ]
        return any(all(map(_equal_entries, value, option)) for option in lists)
    if outer is str:
        return _normalize(value) in [
            _normalize(option) for option in allowed if type(option) is str
        ]
    if outer is list:
        lists = [option for option in allowed if isinstance(option, list | str)]
        return [_normalize(item) for item in value] in [
            [_normalize(i) for i in option] for option in lists
        ]
    return value in allowed


def _normalize(value: Any) -> Any:
    """Return a text in the form in which texts are compared; other values unchanged."""
    if type(value) is not str:
        return value
    return value.translate(_IGNORED).lower().replace("'", '"')


def _equal_entries(value: Any, expected: Any) -> bool:
    """Return whether a dictionary matches ``{key: [allowed value, …]}``."""
    if not isinstance(value, dict) or not isinstance(expected, dict):
        return False
    for key, entry in value.items():
        allowed = expected.get(key)
        if not isinstance(allowed, list | str):
            return False
        if _normalize(entry) not in [_normalize(option) for option in allowed]:
            return False
    return all(
        key in value or (isinstance(allowed, list | str | dict) and "" in allowed)
        for key, allowed in expected.items()
    )
