"""Schemas of arguments: where subschemas stand in one, what a reference means, what is refused.

A schema may come from a plugin or a server that nobody vetted, so every walk here is bounded and
without recursion, and a schema is checked before anything else reads it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from graphlib import CycleError, TopologicalSorter
from typing import Any, Final, TypeVar
from urllib.parse import unquote

from mlx_tools.errors import ToolDefinitionError
from mlx_tools.schema.pattern import UnsupportedPattern, compile_pattern

Path = tuple[str | int, ...]

MAX_DEPTH: Final = 64
"""Levels of subschemas, which is as deep as arguments themselves may nest."""
MAX_BYTES: Final = 262_144

ONE: Final = frozenset(
    {
        *("additionalProperties", "contains", "contentSchema", "else", "if", "items", "not"),
        *("propertyNames", "then", "unevaluatedItems", "unevaluatedProperties"),
    }
)
"""Keywords that hold one subschema."""
LIST: Final = frozenset(("allOf", "anyOf", "oneOf", "prefixItems"))
MAP: Final = frozenset(
    ("$defs", "definitions", "dependentSchemas", "patternProperties", "properties")
)

_IN_PLACE: Final = frozenset(
    ("allOf", "anyOf", "dependentSchemas", "else", "if", "not", "oneOf", "then")
)
"""Keywords whose subschemas apply to the same value: a cycle of these and ``$ref`` never ends."""


def children(schema: Any) -> Iterator[tuple[Path, Any]]:
    """The subschemas right below, each with its path from here."""
    if not isinstance(schema, Mapping):
        return
    for key, value in schema.items():
        if key in ONE:
            yield (key,), value
        elif key in LIST and isinstance(value, list):
            yield from (((key, number), item) for number, item in enumerate(value))
        elif key in MAP and isinstance(value, Mapping):
            yield from (((key, name), item) for name, item in value.items())


def walk(schema: Any) -> Iterator[tuple[Path, Any]]:
    """The schema and all its subschemas with their paths, parents first.

    What stands in ``const``, ``enum``, ``default`` and ``examples`` is no schema. Raises
    ToolDefinitionError beyond `MAX_DEPTH`.
    """
    pending: list[tuple[Path, Any, int]] = [((), schema, 0)]
    while pending:
        path, node, depth = pending.pop()
        if depth > MAX_DEPTH:
            raise ToolDefinitionError(f"the schema is more than {MAX_DEPTH} levels deep")
        yield path, node
        below = [((*path, *more), child, depth + 1) for more, child in children(node)]
        pending.extend(reversed(below))


def anchors(root: Any) -> dict[str, Path]:
    """The named places of a schema (``$anchor``, ``$dynamicAnchor``) and their paths."""
    return {
        node[keyword]: path
        for path, node in walk(root)
        if isinstance(node, Mapping)
        for keyword in ("$anchor", "$dynamicAnchor")
        if isinstance(node.get(keyword), str)
    }


def resolve(
    root: Mapping[str, Any], reference: str, anchors: Mapping[str, Path]
) -> tuple[Path, Any]:
    """Return what a local reference names: its path from the root, and the subschema there.

    ``anchors`` are the root's `anchors`. Raises ToolDefinitionError for a reference to another
    document, or to nothing.
    """
    if not reference.startswith("#"):
        raise ToolDefinitionError(
            f"$ref {reference!r} points outside the schema", hint="write the definition into $defs"
        )
    target: Any = root
    found: list[str | int] = []
    name = reference[1:]
    for key in anchors[name] if name in anchors else _parts(reference):
        try:
            step = int(key) if isinstance(target, list) else key
            target = target[step]
        except (KeyError, IndexError, ValueError, TypeError):
            raise ToolDefinitionError(f"$ref {reference!r} points to nothing") from None
        found.append(step)
    return tuple(found), target


def _parts(reference: str) -> Path:
    """The steps of a reference's JSON pointer."""
    text = unquote(reference[1:])
    if text and not text.startswith("/"):
        raise ToolDefinitionError(f"$ref {reference!r} points to nothing")
    return tuple(part.replace("~1", "/").replace("~0", "~") for part in text.split("/")[1:])


def pointer(path: Path) -> str:
    """The JSON pointer to a path, ``""`` for the root."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)


def check_parameters(schema: Any) -> None:
    """Return whether a tool can have this schema for its arguments; ToolDefinitionError says why
    not.

    It must be a valid JSON Schema (2020-12) of type object, refer to nothing outside itself, end
    for every value, and have only patterns that can be matched in linear time. A schema that was
    found sound is not looked at again.
    """
    _check(schema_text(schema))


def matchable(schema: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """A copy of a schema without the patterns that cannot be matched in linear time, and where
    those stood. It takes all that the original takes; a pattern without which it might not is left.
    Raises ToolDefinitionError as `check_parameters` does for what is no schema at all."""
    copy: dict[str, Any] = json.loads(schema_text(schema))
    dropped = []
    for path, node in walk(copy):
        found = isinstance(node, dict) and isinstance(node.get("pattern"), str)
        if found and _NARROWING.isdisjoint(path):
            try:
                compile_pattern(node["pattern"])
            except UnsupportedPattern:
                del node["pattern"]
                dropped.append(pointer(path))
    return copy, tuple(dropped)


_NARROWING: Final = frozenset(("if", "not", "oneOf"))
"""What a schema takes may become less where one of these below it takes more."""


@lru_cache(maxsize=2048)
def _check(text: str) -> None:
    schema = json.loads(text)
    if schema.get("type") != "object":
        raise ToolDefinitionError('the schema of the arguments must have "type": "object"')
    places = dict(walk(schema))
    for path, node in places.items():
        if not isinstance(node, Mapping | bool):
            raise ToolDefinitionError(f"{_pointer_text(path)}: not a schema")
        if isinstance(node, Mapping):
            _check_node(path, node)
    keys = {key for node in places.values() if isinstance(node, Mapping) for key in node}
    if {"patternProperties", "unevaluatedProperties"} <= keys:  # jsonschema's own matching is slow
        raise ToolDefinitionError("patternProperties and unevaluatedProperties cannot be combined")
    try:
        check_endless(schema)
    except CycleError as error:  # it would be applied to the same value for ever
        place = _pointer_text(error.args[1][0])
        raise ToolDefinitionError(f"{place}: the schema refers to itself without end") from None
    if is_plain(schema):
        return

    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError

    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        where = _pointer_text(tuple(error.absolute_path))
        raise ToolDefinitionError(f"{where}: {error.message[:200]}") from None


def check_endless(schema: Mapping[str, Any]) -> None:
    """Return if the schema ends for every value.

    Raises:
        CycleError: of graphlib; a chain of references leads back to where it began.
        ToolDefinitionError: a reference leads to what is no schema.
    """
    places, named = dict(walk(schema)), anchors(schema)
    edges = {path: _same_value(schema, path, node, named) for path, node in places.items()}
    for path, targets in edges.items():
        if missing := [target for target in targets if target not in places]:
            raise ToolDefinitionError(
                f"{_pointer_text(path)}: {_pointer_text(missing[0])} is not a schema"
            )
    TopologicalSorter(edges).prepare()


_NOTES: Final = ("title", "description", "default", "examples")
_PLAIN_KEYWORDS: Final = {
    "object": frozenset(("type", "properties", "required", "additionalProperties", *_NOTES)),
    "string": frozenset(("type", "enum", "minLength", "maxLength", *_NOTES)),
    **dict.fromkeys(("number", "integer", "boolean"), frozenset(("type", *_NOTES))),
}
"""By type, the keywords of a schema that is plain."""


def is_plain(schema: Any) -> bool:
    """Return whether it is a sound schema of nothing but types, members, lengths and words. Most
    are, and jsonschema, which takes long to import, is not needed for them."""
    kind = schema.get("type") if isinstance(schema, dict) else None
    if not isinstance(kind, str) or not _PLAIN_KEYWORDS.get(kind, frozenset()) >= schema.keys():
        return False
    texts = (schema.get("title", ""), schema.get("description", ""))
    lengths = (schema.get("minLength", 0), schema.get("maxLength", 0))
    needed, members = schema.get("required", []), schema.get("properties", {})
    return (
        all(isinstance(text, str) for text in texts)
        and all(type(length) is int and length >= 0 for length in lengths)
        and all(isinstance(schema.get(name, []), list) for name in ("examples", "enum", "required"))
        and all(isinstance(name, str) for name in needed)
        and len(set(needed)) == len(needed)
        and isinstance(schema.get("additionalProperties", True), bool)
        and isinstance(members, dict)
        and all(map(is_plain, members.values()))
    )


Made = TypeVar("Made")
_MOST_KEPT: Final = 512


def kept_by_identity(
    make: Callable[[Mapping[str, Any]], Made],
) -> Callable[[Mapping[str, Any]], Made]:
    """``make``, asked once for each schema: a tool's does not change, and to write it out, so as to
    know it again, takes longer than most checks."""
    kept: dict[int, tuple[Mapping[str, Any], Made]] = {}

    def made(schema: Mapping[str, Any]) -> Made:
        found = kept.get(id(schema))
        if found is None:
            if len(kept) >= _MOST_KEPT:
                kept.clear()
            found = kept[id(schema)] = schema, make(schema)  # which keeps its identity, too
        return found[1]

    return made


def schema_text(schema: Any) -> str:
    """The schema as JSON. Raises ToolDefinitionError where it is none, or too large."""
    if not isinstance(schema, Mapping):
        raise ToolDefinitionError("the schema of the arguments must be an object")
    try:
        text = json.dumps(schema, allow_nan=False, ensure_ascii=False, default=dict)
        size = len(text.encode())
    except UnicodeEncodeError:
        raise ToolDefinitionError("the schema holds half of a surrogate pair") from None
    except (TypeError, ValueError, RecursionError) as error:
        raise ToolDefinitionError(f"the schema is not plain JSON: {error}") from None
    if size > MAX_BYTES:
        raise ToolDefinitionError(f"the schema is larger than {MAX_BYTES} bytes")
    return text


def _check_node(path: Path, node: Mapping[str, Any]) -> None:
    if path and "$id" in node:
        raise ToolDefinitionError(f"{_pointer_text(path)}: $id below the root is not supported")
    patterns = [node["pattern"]] if isinstance(node.get("pattern"), str) else []
    if isinstance(node.get("patternProperties"), Mapping):
        patterns += node["patternProperties"]
    for pattern in patterns:
        try:
            compile_pattern(pattern)
        except UnsupportedPattern as error:
            raise ToolDefinitionError(
                f"{_pointer_text(path)}: pattern {pattern[:100]!r}: {error}"
            ) from None


def _same_value(
    root: Mapping[str, Any], path: Path, node: Any, anchors: Mapping[str, Path]
) -> list[Path]:
    """Return where else the value is held to that ``node`` is held to."""
    places = [(*path, *more) for more, _ in children(node) if more[0] in _IN_PLACE]
    if isinstance(node, Mapping):
        references = (node.get("$ref"), node.get("$dynamicRef"))
        places += (resolve(root, ref, anchors)[0] for ref in references if isinstance(ref, str))
    return places


def _pointer_text(path: Path) -> str:
    return "#" + pointer(path)


def is_of_objects(schema: Mapping[str, Any]) -> bool:
    """Return whether a schema is of objects alone, as far as its own type or properties say."""
    found = dereferenced(schema, schema)
    return isinstance(found, Mapping) and [*types(found)] == ["object"]


def object_schema(schema: Mapping[str, Any], key: str) -> dict[str, Any]:
    """The schema of an object whose one property fits ``schema``. Raises ToolDefinitionError for
    what is no schema's JSON, or too deep."""
    inner = json.loads(schema_text(schema))
    for name in ("$id", "$schema"):
        inner.pop(name, None)
    for _, node in walk(inner):
        for name in ("$ref", "$dynamicRef"):
            place = node.get(name) if isinstance(node, dict) else None
            if isinstance(place, str) and place[:2] in ("#", "#/"):
                node[name] = f"#/properties/{key}{place[1:]}"
    return {
        "type": "object",
        "properties": {key: inner},
        "required": [key],
        "additionalProperties": False,
    }


# --- reading one that is sound, for the catalog, the examples and values between tags ---

_MOST_REFERENCES: Final = 20


def dereferenced(schema: Any, root: Mapping[str, Any]) -> Any:
    """``schema``, or what its ``$ref`` (or sole ``allOf``) leads to within ``root``.

    A reference that leads nowhere, out of ``root`` or round in a circle is taken for a schema that
    allows anything.
    """
    for _ in range(_MOST_REFERENCES):
        if not isinstance(schema, Mapping):
            return schema
        reference, parts = schema.get("$ref"), schema.get("allOf")
        if isinstance(reference, str):
            schema = follow(reference, root)
        elif isinstance(parts, list) and len(parts) == 1 and "properties" not in schema:
            schema = parts[0]
        else:
            return schema
    return {}


def follow(reference: str, root: Mapping[str, Any]) -> Any:
    """Return what a reference such as ``#/$defs/point`` points to; a schema that allows anything if
    that is nothing here."""
    try:
        return resolve(root, reference, {})[1]
    except ToolDefinitionError:
        return {}


def properties(schema: Any) -> Mapping[str, Any]:
    """The named properties of an object's schema."""
    found = schema.get("properties") if isinstance(schema, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def required(schema: Any) -> Sequence[str]:
    """The names that an object must have, in the order in which they are listed."""
    found = schema.get("required") if isinstance(schema, Mapping) else None
    names = found if isinstance(found, list) else []
    return list(dict.fromkeys(name for name in names if isinstance(name, str)))


def branches(schema: Mapping[str, Any]) -> Sequence[Any]:
    """The schemas of an ``anyOf`` or ``oneOf``; empty where there is none."""
    for key in ("anyOf", "oneOf"):
        found = schema.get(key)
        if isinstance(found, list) and found:
            return found
    return ()


def types(schema: Mapping[str, Any]) -> Sequence[str]:
    """The types a schema names, or that its keywords imply."""
    named = schema.get("type")
    if isinstance(named, str):
        return (named,)
    if isinstance(named, list):
        return [name for name in named if isinstance(name, str)]
    if "properties" in schema or "additionalProperties" in schema:
        return ("object",)
    if "items" in schema or "prefixItems" in schema:
        return ("array",)
    return ()
