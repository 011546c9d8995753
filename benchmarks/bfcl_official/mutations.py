"""Calls to hold two checkers against each other: right ones, and these made wrong bit by bit."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from mlx_tools.plugins.evaluate.bfcl_data import BfclItem

Call = dict[str, Any]
"""``{"name", "arguments"}``."""

PUNCTUATION = " ,./-_*^"
ODD: tuple[Any, ...] = (None, True, 0, 1, 1.5, -1, "", "x", [], [""], [[]], {}, {"": ""}, [{}], [1])
"""Values of every type, some of them empty."""


def right_calls(item: BfclItem, turn: int) -> list[Call]:
    """The calls that an item's answers ask for; another ``turn`` takes other allowed values."""
    calls = []
    for number, answer in enumerate(item.answers):
        ((name, expected),) = answer.items()
        function = next((f for f in item.functions if f["name"] == name), item.functions[0])
        arguments = {}
        for place, (parameter, allowed) in enumerate(expected.items()):
            value = allowed[(turn + place * number) % len(allowed)] if allowed else ""
            if value == "" and turn % 2 == 0 and "" in allowed:
                continue  # it may be left out
            arguments[parameter] = _chosen(value, turn)
        calls.append({"name": function["name"], "arguments": arguments})
    return calls


def _chosen(value: Any, turn: int) -> Any:
    """An allowed value as a model would write it: the options in dictionaries chosen from."""
    if isinstance(value, list):
        return [_chosen(one, turn) for one in value]
    if not isinstance(value, dict):
        return value
    out = {}
    for key, options in value.items():
        if not isinstance(options, list) or not options:
            out[key] = options
        elif (option := options[turn % len(options)]) != "" or turn % 2:
            out[key] = option
    return out


# --- changes ----------------------------------------------------------------------------------


def mutations(item: BfclItem, calls: Sequence[Call], chance: random.Random) -> Iterator[list[Call]]:
    """The calls with one thing changed, all such changes; and some with two."""
    singles = [*_single(item, calls, chance)]
    yield from singles
    for _ in range(min(8, len(singles))):
        first = chance.choice(singles)
        if seconds := [*_single(item, first, chance)]:
            yield chance.choice(seconds)


def _single(item: BfclItem, calls: Sequence[Call], chance: random.Random) -> Iterator[list[Call]]:
    calls = list(calls)
    yield []
    yield calls[::-1]
    yield [*calls, *calls[:1]]
    yield calls[1:]
    names = [function["name"] for function in item.functions]
    for place, call in enumerate(calls):
        for changed in _changed_call(call, names, item, chance):
            yield [*calls[:place], changed, *calls[place + 1 :]]


def _changed_call(
    call: Call, names: Sequence[str], item: BfclItem, chance: random.Random
) -> Iterator[Call]:
    name, arguments = call["name"], call["arguments"]
    others = [other for other in names if other != name][:2]
    for other in (name.upper(), name.replace(".", "_"), f"{name}_", "", *others):
        yield {"name": other, "arguments": arguments}
    function = next((f for f in item.functions if f["name"] == name), item.functions[0])
    properties = function["parameters"]["properties"]
    yield {"name": name, "arguments": {**arguments, "unheard_of": 1}}
    yield {"name": name, "arguments": dict(reversed(arguments.items()))}
    for parameter in properties:
        if parameter not in arguments:
            yield {"name": name, "arguments": {**arguments, parameter: chance.choice(ODD)}}
            yield {"name": name, "arguments": {**arguments, parameter: ""}}
    for parameter, value in arguments.items():
        rest = {key: one for key, one in arguments.items() if key != parameter}
        yield {"name": name, "arguments": rest}
        yield {"name": name, "arguments": {**rest, parameter.upper(): value}}
        enum = properties.get(parameter, {}).get("enum", [])
        for other in (*enum[:3], *_changed(value, chance), *chance.sample(ODD, 3)):
            yield {"name": name, "arguments": {**arguments, parameter: other}}


def _changed(value: Any, chance: random.Random, depth: int = 3) -> Iterator[Any]:
    """Values near ``value``: others of its type, and the same one of another."""
    yield [value]
    yield {"value": value}
    yield json.dumps(value)
    yield f"{value}"
    change: dict[type, Callable[..., Iterator[Any]]] = {
        str: _changed_text,
        bool: _changed_truth,
        int: _changed_number,
        float: _changed_number,
        list: _changed_list,
        dict: _changed_dict,
    }
    if type(value) in change and depth:
        yield from change[type(value)](value, chance, depth)


def _changed_text(value: str, chance: random.Random, depth: int) -> Iterator[Any]:
    yield from (value.upper(), value.lower(), value.title(), value + "x", value[:-1], value[1:])
    yield from (f" {value} ", f"{value}\n", f"'{value}'", f'"{value}"', value.replace(" ", ""))
    yield "".join(c + chance.choice(PUNCTUATION) for c in value[:40]) + value[40:]
    yield value.replace("'", '"').replace(", ", ",")
    yield value.replace(",", ";").replace("(", "[")
    for old, new in (("{", "{{"), ("}", ""), ("]", ""), ("[", "[["), ('"', "'"), ("new ", "new  ")):
        if old in value:
            yield value.replace(old, new)
            yield value.replace(old, new, 1)
    for read in (int, float):
        try:
            yield read(value)
        except ValueError:
            continue
    for suffix in ("L", "l", "f", "F", "n", ".0", "e3", "_000"):
        if value[-1:].isdigit():
            yield value + suffix
    if value[-1:] in "LlfFn":
        yield value[:-1]


def _changed_truth(value: bool, chance: random.Random, depth: int) -> Iterator[Any]:
    yield from (not value, int(value), float(value), str(value).lower())


def _changed_number(value: float, chance: random.Random, depth: int) -> Iterator[Any]:
    yield from (value + 1, -value, value + 0.5, float(value), f"{value:,}", bool(value))
    if float(value).is_integer():
        yield int(value)


def _changed_list(value: list[Any], chance: random.Random, depth: int) -> Iterator[Any]:
    yield from (value[::-1], value[:-1], [*value, *value], [], [*value, None])
    yield from ([str(item) for item in value], "".join(map(str, value)))
    for place, item in enumerate(value[:3]):
        for other in _changed(item, chance, depth - 1):
            yield [*value[:place], other, *value[place + 1 :]]


def _changed_dict(value: dict[str, Any], chance: random.Random, depth: int) -> Iterator[Any]:
    yield from ({}, {**value, "unheard_of": 1}, [value], [value, value], [*value])
    for key, item in [*value.items()][:4]:
        rest = {other: one for other, one in value.items() if other != key}
        yield rest
        yield {**rest, key.upper(): item}
        for other in _changed(item, chance, depth - 1):
            yield {**value, key: copy.deepcopy(other)}
