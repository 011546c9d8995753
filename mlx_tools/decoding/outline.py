"""The arguments of a tool as the evidence sees them: each a kind of hole. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mlx_tools.decoding.arguments import About, about
from mlx_tools.decoding.features import Beside
from mlx_tools.decoding.offers import Kind, Wanted
from mlx_tools.decoding.shape import (
    Choices,
    Impossible,
    Items,
    Number,
    Record,
    Schema,
    Shapes,
    Text,
    members_in_order,
)
from mlx_tools.lexical import stems, tool_stems
from mlx_tools.protocol import fits_within
from mlx_tools.spec import ToolSpec

Fits = Callable[[Any, Schema], bool]
"""Whether a value fits a part of a tool's schema."""


def beside(spec: ToolSpec) -> Beside:
    """What all arguments of a tool stand beside: its own words."""
    return Beside((), spec.name, frozenset(stems(spec.name)), frozenset(tool_stems(spec)))


def fitting(spec: ToolSpec) -> Fits:
    """What tells whether a value fits a part of the tool's schema."""
    return lambda value, schema: fits_within(spec.parameters, schema, value)


def outline(spec: ToolSpec) -> list[Wanted]:
    """The arguments of a tool, the required ones first; none where its schema is no object."""
    shapes = Shapes(spec.parameters)
    try:
        shape = shapes.of(spec.parameters)
    except Impossible:
        return []
    return members(shape, shapes, fitting(spec)) if isinstance(shape, Record) else []


def members(shape: Record, shapes: Shapes, fits: Fits) -> list[Wanted]:
    """The members of an object in the order in which they are written."""
    needed, optional = members_in_order(shape)
    made = [
        (name, shape.members.get(name, shape.other), name in needed)
        for name in (*needed, *optional)
    ]
    return [wanted(name, schema, shapes, fits, needed=must) for name, schema, must in made]


def wanted(name: str, schema: Schema, shapes: Shapes, fits: Fits, *, needed: bool) -> Wanted:
    """What one member is to have."""
    try:
        known = about(name, shapes.merged(schema), required=needed)
    except Impossible:
        known = About(name, required=needed)
    kind, values = hole(schema, shapes, fits)
    whole = kind in ("number", "number list") and _is_whole(schema, shapes)

    def fit(value: Any) -> bool:
        # 2.0 is an integer to JSON Schema; what is written for one has no fraction.
        items = value if isinstance(value, list) else [value]
        return fits(value, schema) and not (whole and not all(isinstance(i, int) for i in items))

    return Wanted(known, kind, values, fit)


def hole(schema: Schema, shapes: Shapes, fits: Fits) -> tuple[Kind, tuple[Any, ...]]:
    """What kind of hole a schema is, and which values it allows."""
    try:
        match shapes.of(schema):
            case Choices(values):
                return "allowed", tuple(v for v in values if fits(v, schema))
            case Text():
                return "text", ()
            case Number():
                return "number", ()
            case Items(first=(), rest=rest):
                item = shapes.of(rest)
                if isinstance(item, Number):
                    return "number list", ()
                if isinstance(item, Choices):
                    return "allowed list", item.values
                return ("text list" if isinstance(item, Text) else "other"), ()
    except Impossible:
        pass
    return "other", ()


def _is_whole(schema: Schema, shapes: Shapes) -> bool:
    shape = shapes.of(schema)
    if isinstance(shape, Items):
        shape = shapes.of(shape.rest)
    return isinstance(shape, Number) and shape.whole
