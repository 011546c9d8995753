"""Random tools with random calls that fit them."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from mlx_tools.messages import ToolSpec

Values = SearchStrategy[Any]
Typed = tuple[dict[str, Any], Values]

NAMES = st.sampled_from(["a", "b", "city", "days", "naïve", 'quo"te', "x_y", "größe", "a b"])
CHARACTERS = st.characters(exclude_categories=["Cs"], exclude_characters="\b\f")
"""Any characters but U+0008 and U+000C, which nobody means: a call that holds one is an error."""

TEXTS = st.text(CHARACTERS, max_size=12)


@st.composite
def texts(draw: DrawFn) -> Typed:
    least = draw(st.integers(0, 2))
    most = draw(st.none() | st.integers(least + 1, least + 12))
    schema: dict[str, Any] = {"type": "string"}
    if least:
        schema["minLength"] = least
    if most is not None:
        schema["maxLength"] = most
    values = st.text(CHARACTERS, min_size=least, max_size=most or 12)
    return schema, values


@st.composite
def numbers(draw: DrawFn) -> Typed:
    low = draw(st.integers(-1000, 1000))
    high = low + draw(st.integers(0, 1000))
    bounds = draw(st.sampled_from([{}, {"minimum": low}, {"minimum": low, "maximum": high}]))
    if draw(st.booleans()):
        most = high if "maximum" in bounds else 10**12
        values: Values = st.integers(low if bounds else -(10**12), most)
        return {"type": "integer", **bounds}, values
    top = float(high) if "maximum" in bounds else 1e12
    return {"type": "number", **bounds}, st.floats(float(low) if bounds else -1e12, top)


@st.composite
def choices(draw: DrawFn) -> Typed:
    kind = draw(st.sampled_from(["enum", "const", "boolean", "null"]))
    if kind == "enum":
        some = st.lists(
            TEXTS | st.integers(-20, 20) | st.none() | st.booleans(),
            min_size=1,
            max_size=5,
            unique_by=json.dumps,
        )
        values = draw(some)
        return {"enum": values}, st.sampled_from(values)
    if kind == "const":
        value = draw(TEXTS | st.integers(-20, 20))
        return {"const": value}, st.just(value)
    return {"type": kind}, st.booleans() if kind == "boolean" else st.none()


@st.composite
def arrays(draw: DrawFn, depth: int) -> Typed:
    schema, values = draw(typed(depth - 1))
    least = draw(st.integers(0, 2))
    most = draw(st.none() | st.integers(max(least, 1), least + 3))
    made: dict[str, Any] = {"type": "array", "items": schema}
    if least:
        made["minItems"] = least
    if most is not None:
        made["maxItems"] = most
    top = most if most is not None else least + 3
    return made, st.lists(values, min_size=max(least, 1), max_size=top)


@st.composite
def objects(draw: DrawFn, depth: int) -> Typed:
    names = draw(st.lists(NAMES, min_size=1, max_size=4, unique=True))
    members = {name: draw(typed(depth - 1)) for name in names}
    needed = [name for name in names if draw(st.booleans())]
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {name: member for name, (member, _) in members.items()},
    }
    if needed:
        schema["required"] = needed
    if draw(st.booleans()):
        schema["additionalProperties"] = False

    @st.composite
    def values(draw: DrawFn) -> dict[str, Any]:
        optional = [name for name in names if name not in needed and draw(st.booleans())]
        order = [name for name in names if name in needed] + optional
        return {name: draw(members[name][1]) for name in order}

    return schema, values()


def typed(depth: int = 3) -> SearchStrategy[Typed]:
    """A schema, and a strategy for values that fit it."""
    if depth <= 0:
        return texts() | numbers() | choices()
    return texts() | numbers() | choices() | arrays(depth) | objects(depth)


@st.composite
def tools(draw: DrawFn) -> tuple[ToolSpec, dict[str, Any]]:
    """A tool and arguments that fit it, their keys in the order in which they are written."""
    schema, values = draw(objects(3))
    if draw(st.booleans()):  # behind a reference, merged with what stands beside it
        schema = {
            "type": "object",
            "$defs": {"all": schema},
            "allOf": [{"$ref": "#/$defs/all"}, {"description": "beside"}],
        }
    name = draw(st.from_regex(r"[A-Za-z][A-Za-z0-9_.-]{0,20}", fullmatch=True))
    return ToolSpec(name, "", schema), draw(values)
