"""The questions that the benchmarks ask: BFCL's, and sixty fresh ones; and a strong model's wishes.

The fresh ones stand in ``call_quality/fresh_questions.toml`` and are items in BFCL's form, so that
the same rules score them. Their categories are ``fresh_multiple_en`` (one call is due),
``fresh_parallel_en`` (two are) and ``fresh_irrelevance_en`` (none is), and the same of ``de``,
``fr`` and ``es``; ``fresh`` names all of them.
"""

from __future__ import annotations

import hashlib
import json
import random
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from mlx_tools.messages import ToolCall
from mlx_tools.plugins.evaluate.bfcl_data import BfclItem, Half, load_items, sample
from mlx_tools.plugins.evaluate.bfcl_score import score
from mlx_tools.schema.sample import fits, sample_arguments

FRESH_FILE: Final = Path(__file__).resolve().parent / "call_quality" / "fresh_questions.toml"
LANGUAGES: Final = ("en", "de", "fr", "es")
FRESH: Final = tuple(
    f"fresh_{kind}_{language}"
    for language in LANGUAGES
    for kind in ("multiple", "parallel", "irrelevance")
)


def fresh_questions(path: Path = FRESH_FILE) -> list[BfclItem]:
    """The fresh questions, in the file's order."""
    value = tomllib.loads(path.read_text(encoding="utf-8"))
    functions = {name: _function(name, tool) for name, tool in value["tools"].items()}
    return [_fresh(one, functions) for one in value["questions"]]


def _function(name: str, tool: Mapping[str, Any]) -> dict[str, Any]:
    parameters = {"type": "dict", "properties": tool["properties"], "required": tool["required"]}
    return {"name": name, "description": tool["description"], "parameters": parameters}


def _fresh(one: Mapping[str, Any], functions: Mapping[str, Mapping[str, Any]]) -> BfclItem:
    calls = one.get("calls", [])
    kind = ("irrelevance", "multiple", "parallel")[min(len(calls), 2)]
    return BfclItem(
        category=f"fresh_{kind}_{one['id'].partition('-')[0]}",
        id=one["id"],
        question=one["question"],
        functions=tuple(functions[name] for name in one["tools"]),
        answers=tuple({call["name"]: call["arguments"]} for call in calls),
    )


def categories_of(text: str) -> list[str]:
    """The categories that a command line names, ``fresh`` for all of those."""
    names = [name.strip() for name in text.split(",")]
    found = [one for name in names for one in (FRESH if name == "fresh" else (name,))]
    return list(dict.fromkeys(found))


def questions(
    category: str, wheel: Path, *, limit: int | None = None, seed: int = 0, half: Half = "all"
) -> list[BfclItem]:
    """Questions of a category: BFCL's by `sample`; all fresh ones, up to the limit."""
    if category.startswith("fresh"):
        return [one for one in fresh_questions() if one.category == category][:limit]
    return sample(load_items(category, wheel), limit=limit, seed=seed, half=half)


# --- what a strong model wishes -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Wanted:
    """The wish of a model for a question, and whether that is right by BFCL's rules."""

    calls: tuple[ToolCall, ...]
    right: bool


def wanted(item: BfclItem, *, mistaken: int = 20) -> Wanted | None:
    """The wishes of a strong model: of ``mistaken`` questions one wrong thing (0: none), else the
    right calls. None where no right call fits the schema of its tool."""
    found = next((calls for turn in range(6) if _is_right(item, calls := _right(item, turn))), None)
    if found is None:
        return None
    draw = int.from_bytes(hashlib.sha256(f"mistaken:{item.id}".encode()).digest()[:4], "big")
    if mistaken and draw % mistaken == 0:
        chance = random.Random(item.id)
        for calls in _mistakes(item, found, chance):
            if _fit(item, calls) and not _scored(item, calls):
                return Wanted(calls, False)
    return Wanted(found, True)


def same_calls(made: Sequence[ToolCall], wished: Sequence[ToolCall]) -> bool:
    """Return True if calls are equal as values: numbers by what they are worth."""
    return len(made) == len(wished) and all(
        one.name == other.name and _same(one.arguments, other.arguments)
        for one, other in zip(made, wished, strict=True)
    )


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


def _right(item: BfclItem, turn: int) -> tuple[ToolCall, ...]:
    """The calls that the answers ask for; another turn takes other allowed values, and every odd
    one gives what may be left out."""
    calls = []
    for answer in item.answers:
        ((name, expected),) = answer.items()
        arguments = {}
        for key, allowed in expected.items():
            values = [value for value in allowed if value != ""]
            if not values or ("" in allowed and turn % 2 == 0):
                continue
            arguments[key] = _plain(values[turn // 2 % len(values)])
        calls.append(ToolCall(name, arguments))
    return tuple(calls)


def _plain(value: Any) -> Any:
    """An allowed value as it would be written: the options within dictionaries chosen from."""
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if not isinstance(value, dict):
        return value
    chosen = {
        key: next((one for one in options if one != ""), "")
        if isinstance(options, list)
        else options
        for key, options in value.items()
        if not (isinstance(options, list) and "" in options)
    }
    return {key: _plain(one) for key, one in chosen.items()}


def _is_right(item: BfclItem, calls: Sequence[ToolCall]) -> bool:
    return _fit(item, calls) and _scored(item, calls)


def _scored(item: BfclItem, calls: Sequence[ToolCall]) -> bool:
    return score(item.category, item.functions, calls, item.answers).correct


def _fit(item: BfclItem, calls: Sequence[ToolCall]) -> bool:
    tools = item.tools
    return all(
        call.name in tools and fits(dict(call.arguments), tools[call.name].parameters)
        for call in calls
    )


def _mistakes(
    item: BfclItem, calls: tuple[ToolCall, ...], chance: random.Random
) -> Iterator[tuple[ToolCall, ...]]:
    """The calls with one thing wrong, in any order; where none is due, one."""
    tools = item.tools
    if not calls:
        name = next(iter(tools))
        arguments = sample_arguments(tools[name].parameters, {"string": "something"})
        if arguments is not None:
            yield (ToolCall(name, arguments),)
        return
    places = [(number, key) for number, call in enumerate(calls) for key in call.arguments]
    for number, key in chance.sample(places, len(places)):
        call = calls[number]
        properties = tools[call.name].parameters.get("properties", {})
        for value in _others(call.arguments[key], properties.get(key, {}), chance):
            changed = ToolCall(call.name, {**call.arguments, key: value})
            yield (*calls[:number], changed, *calls[number + 1 :])
    yield calls[:-1] or (calls[0], calls[0])


def _others(value: Any, schema: Mapping[str, Any], chance: random.Random) -> Iterator[Any]:
    options = [one for one in schema.get("enum", []) if one != value]
    yield from chance.sample(options, len(options))
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int | float):
        yield value + 1
    elif isinstance(value, str):
        yield f"{value} and more"
    elif isinstance(value, list) and value:
        yield value[:-1]
    elif isinstance(value, dict):
        yield json.loads(json.dumps(value).replace("1", "2"))
