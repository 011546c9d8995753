"""Objects held to a form: what the model may write its own way, and where it does not fit."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_tools.decoding.value import MAX_BLANKS, ConstrainedObject, MessageSchema
from mlx_tools.messages import ToolSpec
from mlx_tools.parsing import loads
from mlx_tools.protocol import resolve, validate_arguments
from mlx_tools.schema.compilable import make_compilable
from tests.tables import table

from .schemas import tools

WEATHER = ToolSpec(
    "weather",
    "",
    {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "unit": {"enum": ["celsius", "fahrenheit"]},
            "days": {"type": "integer", "maximum": 7},
            "spots": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {"x": {"type": "integer"}, "y": {"$ref": "#/$defs/y"}},
                    "required": ["x", "y"],
                },
            },
        },
        "required": ["city"],
        "additionalProperties": False,
        "$defs": {"y": {"type": "number"}},
    },
)
CALL = '{"type":"tool_call","name":"weather","arguments":'


def form_of(*specs: ToolSpec) -> MessageSchema:
    catalog = {spec.name: spec for spec in specs}
    parameters = {name: make_compilable(s.parameters).schema or {} for name, s in catalog.items()}

    def known(name: str) -> str | None:
        spec = resolve(name, catalog)[0]
        return None if spec is None else spec.name

    return MessageSchema(parameters, known)


FORM = form_of(WEATHER, ToolSpec("halt", "", {"type": "object", "properties": {}}))


def held(text: str, size: int = 0, form: MessageSchema = FORM) -> ConstrainedObject:
    """An object that comes in pieces of ``size`` characters; in one piece with 0."""
    found = ConstrainedObject(form)
    for start in range(0, len(text), size or len(text) or 1):
        found.feed(text[start : start + (size or len(text))])
    return found


def misfit(text: str) -> tuple[str, str]:
    """The text that does not fit, and the text before it."""
    found = held(text).violation or held(text).tentative_violation
    assert found is not None, text
    return found.kind, text[: found.boundary]


@table(
    "arguments",
    [
        '{"city":"Oslo"}',
        '{ "days" : 3,\n "city" :\t"Oslo" }',  # white space, and the order of keys
        '{"spots":[{"x":1,"y":2},{"y":2,"x":1}],"unit":"celsius","city":"Oslo"}',
        r'{"city":"\u004fslo \/ \ud83d\ude00 \" \\ \n","unit":"cel\u0073ius"}',  # escapes
        '{"city":"Oslo","days":"3"}',  # what it must mean
        *('{"city":"Oslo","days":3.0}', '{"city":"Oslo","days":30e-1}'),
        *('{"city":"Oslo","days":null}', '{"city":"Oslo","spots":{"x":1,"y":2.5}}'),
        "{'city':'Oslo',}",  # what reading repairs
        '{city:"Oslo" "days":3}',
        '{"city":"Os\nlo", // a comment\n"days":3}',
        r'{"city":"C:\dir"}',
    ],
)
def test_what_reading_takes_is_the_models_own(arguments: str) -> None:
    for size in (0, 1, 3):
        found = held(CALL + arguments + "} and more", size)
        assert found.complete and found.violation is None
        assert found.end == len(CALL + arguments) + 1


@table(
    ("text", "kind", "stands", "forced"),
    [
        ('{"type":"function"', "envelope", '{"type":', '"'),
        ('{"type":"tool_call","tool":', "envelope", '{"type":"tool_call"', ',"name":"'),
        ('{"type":"tool_call","name":"sun",', "name", '{"type":"tool_call","name":', '"'),
        (CALL + '{"town":', "key", CALL + "{", '"city":"'),
        (CALL + '{"city":"x","city":', "key", CALL + '{"city":"x"', ""),
        (CALL + '{"city":"x","unit":"kelvin"', "value", CALL + '{"city":"x","unit":', '"'),
        (CALL + '{"city":"x","days":12,', "value", CALL + '{"city":"x","days":', ""),
        (CALL + '{"city":true,', "value", CALL + '{"city":', '"'),
        (CALL + '{"city":"a "b" c"', "value", CALL + '{"city":', '"'),
        (CALL + '{"city":null}', "bracket", CALL + "{", '"city":"'),
        (CALL + '{"days":3}', "bracket", CALL + '{"days":3', ',"city":"'),
        (CALL + '{"city":"x"]', "bracket", CALL + '{"city":"x"', ""),
        (CALL + '{"city":"x"},"why":', "envelope", CALL + '{"city":"x"}', ""),
        (
            *(CALL + '{"city":"x","spots":[{"x":1}', "bracket"),
            *(CALL + '{"city":"x","spots":[{"x":1', ',"y":'),
        ),
        (CALL + '{"city":"\\ud800"', "value", CALL + '{"city":', '"'),
    ],
)
def test_what_does_not_fit_is_told_with_what_stands(
    text: str, kind: str, stands: str, forced: str
) -> None:
    assert misfit(text) == (kind, stands)
    assert held(stands).forced() == forced


def test_white_space_has_a_bound() -> None:
    blanks = " " * MAX_BLANKS
    assert held(f'{CALL}{blanks}{{{blanks}"city"{blanks}:{blanks}"x"{blanks}}}{blanks}}}').complete
    for size in (0, 1):
        found = held(f'{CALL}{{"city":"x",{blanks} "days":1}}}}', size).violation
        assert found is not None and found.kind == "envelope"


def test_a_dialects_object_has_its_keys() -> None:
    schemas = {"weather": WEATHER.parameters}
    form = MessageSchema(schemas, lambda name: name, keys=("name", "parameters"))
    for text in (
        '{"name":"weather","parameters":{"city":"x"}}',
        '{"arguments":{"city":"x"},"name":"weather"}',
        '{"type":"function","name":"weather","arguments":{"city":"x"}}',
    ):
        assert held(text, form=form).complete
    assert held('{"name":"weather","input":', form=form).tentative_violation is not None


# --- for any tool -----------------------------------------------------------------------------


def shuffled(value: Any, chance: random.Random) -> Any:
    if isinstance(value, dict):
        keys = chance.sample([*value], len(value))
        return {key: shuffled(value[key], chance) for key in keys}
    return [shuffled(item, chance) for item in value] if isinstance(value, list) else value


@given(tools(), st.integers(0, 10**6), st.sampled_from([None, 1]), st.booleans(), st.integers(1, 9))
def test_a_right_model_is_left_alone(
    made: tuple[ToolSpec, dict[str, Any]], seed: int, indent: int | None, ascii_: bool, size: int
) -> None:
    spec, arguments = made
    given_ = shuffled(arguments, random.Random(seed))
    call = {"type": "tool_call", "name": spec.name, "arguments": given_}
    text = json.dumps(call, indent=indent, ensure_ascii=ascii_)
    found = held(text, size, form_of(spec))
    assert found.violation is None and found.complete


OTHERS: tuple[Any, ...] = ("", "x" * 40, 10**13, -(10**13), 0.5, True, None, [], [[]], {}, {"a": 1})


def otherwise(value: Any, chance: random.Random) -> Any:
    """The value with one part of it another, missing, or there besides."""
    if isinstance(value, dict) and value and chance.random() < 0.8:
        key = chance.choice([*value])
        match chance.randrange(4):
            case 0:
                return {name: one for name, one in value.items() if name != key}
            case 1:
                return {**value, "besides": chance.choice(OTHERS)}
            case _:
                return {**value, key: otherwise(value[key], chance)}
    if isinstance(value, list) and value and chance.random() < 0.8:
        at = chance.randrange(len(value))
        return [*value[:at], otherwise(value[at], chance), *value[at + chance.randrange(2) :]]
    return chance.choice(OTHERS)


@pytest.mark.parametrize("size", [0, 1, 3])
def test_a_key_with_an_escape_is_the_one_that_it_means(size: int) -> None:
    spec = ToolSpec("A", parameters={"properties": {"a": {"type": "string"}}})
    line = '{"type": "tool_call", "name": "A", "arguments": {"%s": %s}}'
    for key in ("a", r"\u0061"):
        assert held(line % (key, '"x"'), size, form_of(spec)).complete
        assert held(line % (key, "{}"), size, form_of(spec)).violation is not None


@given(tools(), st.integers(0, 10**6), st.integers(1, 9))
def test_pieces_are_held_as_the_whole_and_what_is_whole_fits(
    made: tuple[ToolSpec, dict[str, Any]], seed: int, size: int
) -> None:
    spec, arguments = made
    chance = random.Random(seed)
    form, is_exact = form_of(spec), make_compilable(spec.parameters).is_exact
    for number in range(20):
        given_ = arguments if number < 5 else otherwise(arguments, chance)
        text = json.dumps({"type": "tool_call", "name": spec.name, "arguments": given_})
        for _ in range(number % 5 if number < 5 else 0):
            at = chance.randrange(len(text))
            text = text[:at] + chance.choice('"{}[],:1a\\ ') + text[at + chance.randint(0, 1) :]
        whole, pieces = held(text, 0, form), held(text, size, form)
        assert (whole.complete, whole.violation) == (pieces.complete, pieces.violation)
        if whole.complete and is_exact:
            try:
                value = loads(text[: whole.end])
            except ValueError:
                continue  # reading repairs it, or not
            if isinstance(value.get("arguments"), dict) and value.get("type") == "tool_call":
                assert validate_arguments(spec, value["arguments"])[2] is None
