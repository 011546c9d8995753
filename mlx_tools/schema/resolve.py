"""Schemas of arguments: their subschemas, references and checks.

A schema may come from a plugin or a server that nobody checked. So every walk here is bounded and
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
"""Levels of subschemas: as deep as arguments may nest."""
MAX_BYTES: Final = 262_144
"""Bytes of the largest schema. A choice: one that large fills the context of usual models."""

ONE_SCHEMA: Final = frozenset(
    {
        *("additionalProperties", "contains", "contentSchema", "else", "if", "items", "not"),
        *("propertyNames", "then", "unevaluatedItems", "unevaluatedProperties"),
    }
)
"""Keywords that hold one subschema."""
SCHEMA_LIST: Final = frozenset(("allOf", "anyOf", "oneOf", "prefixItems"))
SCHEMA_MAP: Final = frozenset(
    ("$defs", "definitions", "dependentSchemas", "patternProperties", "properties")
)

_IN_PLACE: Final = frozenset(
    ("allOf", "anyOf", "dependentSchemas", "else", "if", "not", "oneOf", "then")
)
"""Keywords whose subschemas apply to the same value: a cycle of these and ``$ref`` never ends."""


def iter_children(schema: Any) -> Iterator[tuple[Path, Any]]:
    """Yield the subschemas right below, each with its path from here."""
    if not isinstance(schema, Mapping):
        return
    for key, value in schema.items():
        if key in ONE_SCHEMA:
            yield (key,), value
        elif key in SCHEMA_LIST and isinstance(value, list):
            yield from (((key, number), item) for number, item in enumerate(value))
        elif key in SCHEMA_MAP and isinstance(value, Mapping):
            yield from (((key, name), item) for name, item in value.items())


def walk(schema: Any) -> Iterator[tuple[Path, Any]]:
    """Yield the schema and all its subschemas with their paths, parents first.

    ``const``, ``enum``, ``default`` and ``examples`` hold no schemas.

    Raises:
        ToolDefinitionError: the schema is deeper than `MAX_DEPTH`.
    """
    pending: list[tuple[Path, Any, int]] = [((), schema, 0)]
    while pending:
        path, node, depth = pending.pop()
        if depth > MAX_DEPTH:
            raise ToolDefinitionError(f"the schema is more than {MAX_DEPTH} levels deep")
        yield path, node
        below = [((*path, *steps), child, depth + 1) for steps, child in iter_children(node)]
        pending.extend(reversed(below))


def find_anchors(root: Any) -> dict[str, Path]:
    """Return the paths of a schema's named places (``$anchor``, ``$dynamicAnchor``)."""
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
    """Return the target of a local reference: its path, and the subschema there.

    Args:
        root: the schema with the reference.
        reference: the reference.
        anchors: the root's anchors (`find_anchors`).

    Raises:
        ToolDefinitionError: it refers to another document, or to nothing.
    """
    if not reference.startswith("#"):
        raise ToolDefinitionError(
            f"$ref {reference!r} points outside the schema", hint="write the definition into $defs"
        )
    target: Any = root
    path: list[str | int] = []
    name = reference[1:]
    for key in anchors[name] if name in anchors else _split_pointer(reference):
        try:
            step = int(key) if isinstance(target, list) else key
            target = target[step]
        except (KeyError, IndexError, ValueError, TypeError):
            raise ToolDefinitionError(f"$ref {reference!r} points to nothing") from None
        path.append(step)
    return tuple(path), target


def _split_pointer(reference: str) -> Path:
    """Return the steps of a reference's JSON pointer."""
    text = unquote(reference[1:])
    if text and not text.startswith("/"):
        raise ToolDefinitionError(f"$ref {reference!r} points to nothing")
    return tuple(part.replace("~1", "/").replace("~0", "~") for part in text.split("/")[1:])


def to_pointer(path: Path) -> str:
    """Return the JSON pointer to a path, ``""`` for the root."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)


def check_parameters(schema: Any) -> None:
    """Check that a tool can have this schema for its arguments.

    It must be a valid JSON Schema (2020-12) of type object, refer to nothing outside itself, end
    for every value, and have only patterns that can be matched in linear time. A schema that was
    found sound is not checked again.

    Raises:
        ToolDefinitionError: it cannot; the message says why.
    """
    _check(schema_text(schema))


def drop_unmatchable(schema: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return a copy of a schema without patterns that need more than linear time.

    The copy accepts all that the original accepts. A pattern is left if the copy might otherwise
    accept less. The second value has the pointers of the dropped patterns.

    Raises:
        ToolDefinitionError: it is no schema at all.
    """
    copy: dict[str, Any] = json.loads(schema_text(schema))
    dropped = []
    for path, node in walk(copy):
        has_pattern = isinstance(node, dict) and isinstance(node.get("pattern"), str)
        if has_pattern and _NARROWING.isdisjoint(path):
            try:
                compile_pattern(node["pattern"])
            except UnsupportedPattern:
                del node["pattern"]
                dropped.append(to_pointer(path))
    return copy, tuple(dropped)


_NARROWING: Final = frozenset(("if", "not", "oneOf"))
"""Keywords under which a more general subschema makes the whole accept less."""


@lru_cache(maxsize=2048)
def _check(text: str) -> None:
    schema = json.loads(text)
    if schema.get("type") != "object":
        raise ToolDefinitionError('the schema of the arguments must have "type": "object"')
    # Order: the bounded walk first, then what needs it; jsonschema last, since it recurses.
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
    places, anchors = dict(walk(schema)), find_anchors(schema)
    edges = {path: _find_same_value(schema, path, node, anchors) for path, node in places.items()}
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
"""The keywords of a plain schema, by type."""


def is_plain(schema: Any) -> bool:
    """Return whether a sound schema has only types, members, lengths and words.

    Most have, and for them jsonschema is not needed, which takes long to import.
    """
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


Result = TypeVar("Result")
_MAX_CACHED: Final = 512
"""Schemas that are remembered, more than tools of any run; then all are forgotten at once."""


def cache_by_identity(
    make: Callable[[Mapping[str, Any]], Result],
) -> Callable[[Mapping[str, Any]], Result]:
    """Return ``make`` with its results cached by the identity of the schema.

    The schema of a tool does not change, and writing it as JSON, to compare it, takes longer than
    most checks.
    """
    cache: dict[int, tuple[Mapping[str, Any], Result]] = {}

    def cached_make(schema: Mapping[str, Any]) -> Result:
        entry = cache.get(id(schema))
        if entry is None:
            if len(cache) >= _MAX_CACHED:
                cache.clear()
            entry = cache[id(schema)] = schema, make(schema)  # which keeps its identity, too
        return entry[1]

    return cached_make


def schema_text(schema: Any) -> str:
    """Return the schema as JSON.

    Raises:
        ToolDefinitionError: it has no JSON, or is too large.
    """
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


def _find_same_value(
    root: Mapping[str, Any], path: Path, node: Any, anchors: Mapping[str, Path]
) -> list[Path]:
    """Return the paths of the subschemas that apply to the same value as ``node``."""
    places = [(*path, *steps) for steps, _ in iter_children(node) if steps[0] in _IN_PLACE]
    if isinstance(node, Mapping):
        references = (node.get("$ref"), node.get("$dynamicRef"))
        places += (resolve(root, ref, anchors)[0] for ref in references if isinstance(ref, str))
    return places


def _pointer_text(path: Path) -> str:
    return "#" + to_pointer(path)


def is_of_objects(schema: Mapping[str, Any]) -> bool:
    """Return whether a schema allows only objects, as its type or properties say."""
    target = dereference(schema, schema)
    return isinstance(target, Mapping) and [*list_types(target)] == ["object"]


def object_schema(schema: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return the schema of an object whose one property fits ``schema``.

    Raises:
        ToolDefinitionError: ``schema`` has no JSON, or is too deep.
    """
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

_MAX_REFERENCES: Final = 20
"""References that are followed in a row; a longer chain is taken for a circle."""


def dereference(schema: Any, root: Mapping[str, Any]) -> Any:
    """Return ``schema``, or the target of its ``$ref`` or only ``allOf``.

    A reference that leads nowhere, out of ``root`` or in a circle becomes a schema that allows
    anything.
    """
    for _ in range(_MAX_REFERENCES):
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
    """Return the target of a reference such as ``#/$defs/point``.

    It is a schema that allows anything if there is no target here.
    """
    try:
        return resolve(root, reference, {})[1]
    except ToolDefinitionError:
        return {}


def read_properties(schema: Any) -> Mapping[str, Any]:
    """Return the named properties of an object's schema."""
    members = schema.get("properties") if isinstance(schema, Mapping) else None
    return members if isinstance(members, Mapping) else {}


def read_required(schema: Any) -> Sequence[str]:
    """Return the names that an object must have, in order."""
    listed = schema.get("required") if isinstance(schema, Mapping) else None
    names = listed if isinstance(listed, list) else []
    return list(dict.fromkeys(name for name in names if isinstance(name, str)))


def list_branches(schema: Mapping[str, Any]) -> Sequence[Any]:
    """Return the schemas of an ``anyOf`` or ``oneOf``; empty if there is none."""
    for key in ("anyOf", "oneOf"):
        listed = schema.get(key)
        if isinstance(listed, list) and listed:
            return listed
    return ()


def list_types(schema: Mapping[str, Any]) -> Sequence[str]:
    """Return the types that a schema names or that its keywords imply."""
    kind = schema.get("type")
    if isinstance(kind, str):
        return (kind,)
    if isinstance(kind, list):
        return [name for name in kind if isinstance(name, str)]
    if "properties" in schema or "additionalProperties" in schema:
        return ("object",)
    if "items" in schema or "prefixItems" in schema:
        return ("array",)
    return ()


JSON_TYPES: Final[Mapping[str, tuple[type[Any], ...]]] = {
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
    "string": (str,),
}
"""The types of JSON, with the types of Python that their values have."""


def possible_types(schema: Any, root: Mapping[str, Any], max_steps: int = 8) -> Iterator[str]:
    """Yield the types that a schema allows, through its references and branches.

    It yields nothing if the schema does not say. ``max_steps`` bounds how deep it follows them.
    """
    if not isinstance(schema, Mapping) or not max_steps:
        return
    values = schema.get("enum", [schema["const"]] if "const" in schema else [])
    if named := list_types(schema):
        yield from named
    elif isinstance(reference := schema.get("$ref"), str):
        yield from possible_types(follow(reference, root), root, max_steps - 1)
    elif isinstance(values, list):
        for value in values:
            yield from (name for name, kinds in JSON_TYPES.items() if type(value) in kinds)
    for word in ("anyOf", "oneOf", "allOf"):
        parts = schema.get(word)
        for part in parts if isinstance(parts, list) else ():
            yield from possible_types(part, root, max_steps - 1)
