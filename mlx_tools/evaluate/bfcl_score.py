"""BFCL's own rules: whether calls are right, as its checker of abstract syntax trees says.

The rules are those of version 4 (``eval_checker/ast_eval/ast_checker.py`` of its package), quirks
included, since a score by other rules compares with nothing; written anew, and held to the official
checker by ``benchmarks/bfcl_official/agree.py``. Pure.

- Texts are compared in lower case, without spaces and ``,./-_*^``, and with one kind of quote.
- An empty text among a parameter's allowed values means that it may be left out.
- The type of a value must be the parameter's, exactly; only a whole number will do for a float.
  Where an allowed value is of another type it names a variable, and is compared as it stands.
- Of an array the types of the items are checked too, no deeper.
- Parallel calls may come in any order; each expected call takes the first that fits.
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
"""Why calls are not right: a call where none was due, none where one was; too few or too many; the
name; a parameter that is missing, not expected, of a wrong type or value; of parallel calls, one
expected that none fits."""

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
    """Whether calls are right; if not, why, and of which parameter or function."""

    correct: bool
    fault: Fault = ""
    where: str = ""


_RIGHT: Final = CallScore(True)


def score(
    category: str,
    functions: Sequence[Mapping[str, Any]],
    calls: Sequence[ToolCall],
    answers: Sequence[Mapping[str, Mapping[str, Sequence[Any]]]],
) -> CallScore:
    """Whether ``calls`` answer an item of ``category``.

    ``functions`` and ``answers`` are as BFCL writes them: each answer is
    ``{name: {parameter: [allowed value, …]}}``. Irrelevance has no answers: there no call is right,
    and relevance is right with any.
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
    left = list(calls)
    for answer in answers:
        name = next(iter(answer))
        function = _find_function(functions, name)
        fits = next((call for call in left if _score_call(function, call, answer).correct), None)
        if fits is None:
            return CallScore(False, "unmatched", name)
        left.remove(fits)
    return _RIGHT


def _find_function(functions: Sequence[Mapping[str, Any]], name: str) -> Mapping[str, Any]:
    found = [function for function in functions if function["name"] == name]
    if not found:
        raise UsageError(f"an answer names {name}, which is none of the item's functions")
    return found[0]


def _score_call(
    function: Mapping[str, Any], call: ToolCall, answer: Mapping[str, Mapping[str, Sequence[Any]]]
) -> CallScore:
    """One call against one expected call."""
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
        fault = _fault(parameters[name], value, expected[name])
        if fault:
            return CallScore(False, fault, name)
    for name, allowed in expected.items():
        if name not in call.arguments and "" not in allowed:
            return CallScore(False, "missing", name)
    return _RIGHT


# --- one value --------------------------------------------------------------------------------


def _fault(parameter: Mapping[str, Any], value: Any, allowed: Sequence[Any]) -> Fault:
    """What is wrong with a parameter's value; empty where nothing is."""
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
    return "" if _allowed(value, allowed, None if variable else outer, inner) else "wrong_value"


def _check_type(
    value: Any, allowed: Sequence[Any], outer: type[Any], inner: type[Any] | None
) -> tuple[bool, bool]:
    """Whether a value's type will do, and whether what is expected is a variable's name.

    It is where the first allowed value is of another type than the parameter.
    """
    first = next((type(one) for one in allowed if one != ""), None)
    if type(value) is not outer:
        return first is not None and type(value) is first, True
    fits = inner is None or any(
        type(one) is not list or all(_check_type(item, one, inner, None)[0] for item in value)
        for one in allowed
    )
    return fits, first is not None and first is not outer


def _allowed(value: Any, allowed: Sequence[Any], outer: type | None, inner: type | None) -> bool:
    """Whether a value is among the allowed ones, compared as its type is."""
    lists: list[Any]
    if outer is dict:
        return any(_same_entries(value, one) for one in allowed)
    if outer is list and inner is dict:
        lists = [one for one in allowed if isinstance(one, list | str) and len(one) == len(value)]
        return any(all(map(_same_entries, value, one)) for one in lists)
    if outer is str:
        return _plain(value) in [_plain(one) for one in allowed if type(one) is str]
    if outer is list:
        lists = [one for one in allowed if isinstance(one, list | str)]
        return [_plain(item) for item in value] in [[_plain(i) for i in one] for one in lists]
    return value in allowed


def _plain(value: Any) -> Any:
    """A text without what does not count; any other value as it is."""
    if type(value) is not str:
        return value
    return value.translate(_IGNORED).lower().replace("'", '"')


def _same_entries(value: Any, expected: Any) -> bool:
    """A dictionary against ``{key: [allowed value, …]}``; what is nested deeper is compared raw."""
    if not isinstance(value, dict) or not isinstance(expected, dict):
        return False
    for key, one in value.items():
        options = expected.get(key)
        if not isinstance(options, list | str):
            return False
        if _plain(one) not in [_plain(option) for option in options]:
            return False
    may_lack = (isinstance(one, list | str | dict) and "" in one for one in expected.values())
    return all(key in value or lacks for key, lacks in zip(expected, may_lack, strict=True))
