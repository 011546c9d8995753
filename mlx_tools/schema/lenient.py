"""Converts the schemas of clients to JSON Schema 2020-12, also faulty ones.

A client sends tools that it did not write, so one faulty schema must not make its request fail.
Keywords of older drafts and of OpenAPI are converted. A keyword with an unusable value is dropped.
So the schema may accept more than its author meant, but never less.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from graphlib import CycleError
from typing import Any, Final

from msgspec import Struct

from mlx_tools.errors import ToolDefinitionError
from mlx_tools.schema.pattern import UnsupportedPattern, compile_pattern
from mlx_tools.schema.resolve import (
    MAX_DEPTH,
    ONE_SCHEMA,
    SCHEMA_LIST,
    SCHEMA_MAP,
    Path,
    check_endless,
    check_parameters,
    find_anchors,
    resolve,
    schema_text,
    to_pointer,
    walk,
)


class LenientSchema(Struct, frozen=True):
    """A schema of arguments that `check_parameters` accepts."""

    parameters: dict[str, Any]
    """The schema. It is shared, so do not change it."""
    dropped: tuple[str, ...] = ()
    """JSON pointers to the dropped keywords. ``""`` is the whole schema."""


def read_lenient_schema(schema: Any) -> LenientSchema:
    """Read any JSON value as the schema of a tool's arguments.

    Args:
        schema: the value that a client sent. It may also be None, or a schema as JSON text.

    Returns:
        The converted schema. If nothing of it is usable, it accepts every object.
    """
    if schema is None:
        return LenientSchema(_any_object())
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except (ValueError, RecursionError):
            return LenientSchema(_any_object(), ("",))
    try:
        text = schema_text(schema)
        return _read_cached(text) if len(text) <= _MAX_CACHED_CHARS else _read(text)
    except ToolDefinitionError:
        return LenientSchema(_any_object(), ("",))


def _any_object() -> dict[str, Any]:
    return {"type": "object", "properties": {}}


_MAX_CACHED_CHARS: Final = 20_000
"""Characters of the largest schema in the cache. Schemas of agents' tools have a tenth of that."""


@lru_cache(maxsize=512)
def _read_cached(text: str) -> LenientSchema:
    return _read(text)


def _read(text: str) -> LenientSchema:
    root = json.loads(text)
    kinds = _parse_types(root.get("type"))
    if kinds and "object" not in kinds:
        return LenientSchema(_any_object(), ("/type",))
    has_unknown_type = "type" in root and root["type"] is not None and not kinds
    root = {**_any_object(), **root, "type": "object"}
    root.pop("nullable", None)  # arguments are always an object
    reader = _Reader(root, text)
    if has_unknown_type:
        reader.note_dropped((), "type")
    try:
        parameters = reader.read()
        check_parameters(parameters)
    except ToolDefinitionError:
        return LenientSchema(_any_object(), ("",))
    return LenientSchema(parameters, tuple(reader.dropped))


# --- types --------------------------------------------------------------------------------------

_TYPES: Final = ("string", "integer", "number", "boolean", "array", "object", "null")
_TYPE_NAMES: Final[Mapping[str, str]] = {
    **{name: name for name in _TYPES},
    "str": "string",
    "text": "string",
    "bool": "boolean",
    "none": "null",
    "nil": "null",
    "int": "integer",
    "int32": "integer",
    "int64": "integer",
    "long": "integer",
    "float": "number",
    "double": "number",
    "decimal": "number",
    "list": "array",
    "tuple": "array",
    "dict": "object",
    "map": "object",
}
"""JSON Schema's types by their names in other languages and interfaces, in lower case."""


def _parse_types(value: Any) -> list[str]:
    """Return the types in the value of ``type``, empty if one of them is unknown."""
    names = value if isinstance(value, list) else [value]
    types = [_TYPE_NAMES.get(name.lower()) for name in names if isinstance(name, str)]
    known_types = [name for name in types if name is not None]
    return list(dict.fromkeys(known_types)) if len(known_types) == len(names) else []


# --- keywords -----------------------------------------------------------------------------------


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return _is_number(value) and value >= 0 and value == int(value)


def _is_list_of_names(value: Any) -> bool:
    """Return whether a value is a list of different texts."""
    return (
        isinstance(value, list)
        and all(isinstance(name, str) for name in value)
        and len(set(value)) == len(value)
    )


def _is_pattern(value: Any) -> bool:
    try:
        return isinstance(value, str) and bool(compile_pattern(value))
    except UnsupportedPattern:
        return False


_ANCHOR: Final = re.compile(r"[A-Za-z_][-A-Za-z0-9._]*")


def _is_anchor(value: Any) -> bool:
    return isinstance(value, str) and _ANCHOR.fullmatch(value) is not None


_USABLE: Final[Mapping[str, Callable[[Any], bool]]] = {
    **dict.fromkeys(("$comment", "$ref", "$dynamicRef", "title", "description"), _is_text),
    **dict.fromkeys(("format", "contentEncoding", "contentMediaType"), _is_text),
    **dict.fromkeys(("$anchor", "$dynamicAnchor"), _is_anchor),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), _is_number),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems"), _is_count),
    **dict.fromkeys(("minProperties", "maxProperties", "minContains", "maxContains"), _is_count),
    **dict.fromkeys(("uniqueItems", "deprecated", "readOnly", "writeOnly"), _is_flag),
    **dict.fromkeys(SCHEMA_MAP, lambda value: isinstance(value, dict)),
    **dict.fromkeys(SCHEMA_LIST, lambda value: isinstance(value, list) and bool(value)),
    **dict.fromkeys(ONE_SCHEMA, lambda value: isinstance(value, dict | bool)),
    "multipleOf": lambda value: _is_number(value) and value > 0,
    "enum": lambda value: isinstance(value, list) and bool(value),
    "examples": lambda value: isinstance(value, list),
    "required": _is_list_of_names,
    "dependentRequired": lambda value: (
        isinstance(value, dict) and all(map(_is_list_of_names, value.values()))
    ),
    "pattern": _is_pattern,
    "type": lambda value: bool(_parse_types(value)),
}
"""Keywords of JSON Schema 2020-12, each with a function that tells if a value is usable."""

_FOR_VALIDATORS: Final = ("$schema", "$vocabulary", "$recursiveAnchor", "additionalItems")
"""Keywords that are removed. ``additionalItems`` only has a meaning beside a list of ``items``, and
that is converted before."""

_COMPANIONS: Final = {
    "properties": "additionalProperties",
    "patternProperties": "additionalProperties",
    "prefixItems": "items",
}
"""Keywords, each with the keyword that applies to all other properties or items.

If the first is dropped, the second would apply to too many, so it is dropped too.
"""

_MAX_REFERENCES: Final = 500
"""Definitions that are copied from other places than ``$defs``. Documents of OpenAPI have some
hundreds."""


_MAX_CYCLES: Final = 20
"""Cycles of references that are broken. Each one costs a walk over the whole schema."""


class _Reader:
    """Converts one schema.

    Args:
        root: the schema, which is changed in place.
        text: the schema as JSON.
    """

    def __init__(self, root: dict[str, Any], text: str) -> None:
        self.dropped: dict[str, None] = {}
        """JSON pointers to the dropped keywords, in order."""
        self._root = root
        self._has_name_patterns = '"patternProperties"' in text
        self._has_unevaluated = '"unevaluated' in text
        self._ids: dict[str, Path] = {}
        """Paths of subschemas by their ids."""
        self._narrowing_paths: dict[Path, None] = {}
        """Paths of ``not``, ``if`` and ``oneOf`` that contain a dropped keyword."""

    def read(self) -> dict[str, Any]:
        """Return the converted schema.

        Raises:
            ToolDefinitionError: it has too many endless references.
        """
        self._read_node(self._root, ())
        self._resolve_references()
        for path in self._narrowing_paths:
            self._loosen(path)
        self._drop_cycles()
        if self.dropped and self._has_unevaluated:
            self._drop_unevaluated()
        return self._root

    def note_dropped(self, path: Path, keyword: str | int) -> None:
        """Note that a keyword of the subschema at ``path`` was dropped."""
        self.dropped[to_pointer((*path, keyword))] = None
        if (narrowing := _find_narrowing_path((*path, keyword))) is not None:
            self._narrowing_paths[narrowing] = None

    # --- one node ---

    def _read_node(self, node: dict[str, Any], path: Path) -> None:
        self._read_older_drafts(node, path)
        for keyword in [*node]:
            if keyword not in node:
                continue  # it was dropped together with another keyword
            value = node[keyword]
            if keyword == "required" and value is None:
                del node[keyword]
            elif keyword in _USABLE and not _USABLE[keyword](value):
                self._read_unusable(node, path, keyword)
        if "type" in node:
            kinds = _parse_types(node["type"])
            if not isinstance(node["type"], list) or kinds != node["type"]:
                node["type"] = kinds[0] if len(kinds) == 1 else kinds
        self._read_members(node, path)
        self._drop_contradictions(node, path)
        self._read_nullable(node)

    def _read_unusable(self, node: dict[str, Any], path: Path, keyword: str) -> None:
        """Drop the unusable part of a keyword's value, or the keyword."""
        value = node.pop(keyword)
        if keyword == "required" and isinstance(value, list):
            names = [name for name in dict.fromkeys(map(_to_name, value)) if name is not None]
            node[keyword] = names
            if len(names) == len(value) or all(isinstance(name, str) for name in value):
                return  # only repeated names were removed
        elif keyword == "required" and isinstance(value, bool):
            return  # draft 3; `_read_required` of the parent has read it
        elif keyword == "type" and isinstance(value, str) and value.lower() == "any":
            return
        elif keyword in _NUMBERS and isinstance(value, str):
            number = _parse_number(value)
            if number is not None and _USABLE[keyword](number):
                node[keyword] = number
                return
        self.note_dropped(path, keyword)
        if (companion := _COMPANIONS.get(keyword)) in node:
            del node[str(companion)]
            self.note_dropped(path, str(companion))

    def _read_older_drafts(self, node: dict[str, Any], path: Path) -> None:
        """Convert keywords of older drafts, up to 2019-09."""
        for keyword in ("$id", "id"):
            if isinstance(node.get(keyword), str) and not (
                keyword == "id" and not _looks_like_id(node[keyword])
            ):
                self._ids.setdefault(node[keyword].rstrip("#") or "#", path)
        node.pop("$id", None)
        for keyword, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
            flag = node.get(keyword)
            if isinstance(flag, bool):
                del node[keyword]
            if flag is True and _is_number(node.get(bound)):
                node[keyword] = node.pop(bound)
        if isinstance(node.get("items"), list):
            items, other_items = node.pop("items"), node.pop("additionalItems", None)
            if items:
                node["prefixItems"] = items
            if isinstance(other_items, dict | bool):
                node["items"] = other_items
        if "dependencies" in node:
            self._read_dependencies(node, path)
        if "$recursiveRef" in node:
            node.setdefault("$ref", node.pop("$recursiveRef"))
        for keyword in _FOR_VALIDATORS:
            node.pop(keyword, None)

    def _read_dependencies(self, node: dict[str, Any], path: Path) -> None:
        """Convert draft 7's ``dependencies``."""
        dependencies = node.pop("dependencies")
        if not isinstance(dependencies, dict):
            self.note_dropped(path, "dependencies")
            return
        for name, value in dependencies.items():
            if isinstance(value, list | str):
                keyword, value = "dependentRequired", [value] if isinstance(value, str) else value
            else:
                keyword = "dependentSchemas"
            if isinstance(values := node.setdefault(keyword, {}), dict):
                values[name] = value

    def _read_members(self, node: dict[str, Any], path: Path) -> None:
        """Convert the subschemas of a node."""
        if "patternProperties" in node:
            self._check_name_patterns(node, path)
        members = node.get("properties")
        if isinstance(members, dict):
            self._read_required(node, members, path)
        for keyword in [*node]:
            value = node[keyword]
            if keyword in ONE_SCHEMA:
                node[keyword] = self._read_child(value, (*path, keyword))
            elif keyword in SCHEMA_LIST:
                node[keyword] = [
                    self._read_child(item, (*path, keyword, number))
                    for number, item in enumerate(value)
                ]
            elif keyword in SCHEMA_MAP:
                for name in node[keyword]:
                    value[name] = self._read_child(value[name], (*path, keyword, name))

    def _read_child(self, value: Any, path: Path) -> Any:
        """Return a converted subschema; one that accepts everything if it is unusable."""
        depth = sum(step in _HOLDERS for step in path)
        if not isinstance(value, dict | bool) or depth >= MAX_DEPTH - 2:
            self.note_dropped(path[:-1], path[-1])
            return {}
        if isinstance(value, dict):
            self._read_node(value, path)
        return value

    def _read_required(self, node: dict[str, Any], members: dict[str, Any], path: Path) -> None:
        """Convert ``required`` of draft 3, and one that was written inside ``properties``."""
        names = members.get("required")
        required = [*names] if isinstance(names, list) and _is_list_of_names(names) else []
        if required:  # the author wrote it one level too deep
            del members["required"]
            self.note_dropped((*path, "properties"), "required")
        required += [
            name
            for name, member in members.items()
            if isinstance(member, dict) and member.get("required") is True
        ]
        if required:
            listed = node.get("required")
            listed = listed if isinstance(listed, list) else []
            node["required"] = [*dict.fromkeys([*listed, *required])]

    def _check_name_patterns(self, node: dict[str, Any], path: Path) -> None:
        """Drop unusable patterns of ``patternProperties``."""
        patterns = node["patternProperties"]
        for pattern in [name for name in patterns if not _is_pattern(name)]:
            del patterns[pattern]
            self.note_dropped((*path, "patternProperties"), pattern)
            if "additionalProperties" in node:
                del node["additionalProperties"]
                self.note_dropped(path, "additionalProperties")

    def _drop_contradictions(self, node: dict[str, Any], path: Path) -> None:
        """Drop keywords that together with another keyword accept no value."""
        members, required = node.get("properties", {}), node.get("required", [])
        is_closed = node.get("additionalProperties") is False and not node.get("patternProperties")
        if is_closed and not {"allOf", "$ref"} & node.keys():
            possible = [name for name in required if name in members]
            if len(possible) < len(required):
                node["required"] = possible
                self.note_dropped(path, "required")
        if "unevaluatedProperties" in node and self._has_name_patterns:
            del node["unevaluatedProperties"]  # jsonschema checks both together very slowly
            self.note_dropped(path, "unevaluatedProperties")
        kinds, values = _parse_types(node.get("type")), node.get("enum")
        is_branch = not path or (len(path) > 1 and path[-2] in SCHEMA_LIST)
        if is_branch or not kinds or not values:
            return
        if not any(_has_type(value, kinds) for value in values):
            del node["type"]
            self.note_dropped(path, "type")

    def _read_nullable(self, node: dict[str, Any]) -> None:
        """Convert OpenAPI's ``nullable``, which allows null too."""
        if node.pop("nullable", False) is not True:
            return
        if "const" in node:
            node["enum"] = [node.pop("const"), None]
        elif "enum" in node and None not in node["enum"]:
            node["enum"] = [*node["enum"], None]
        if kinds := _parse_types(node.get("type")):
            node["type"] = [*dict.fromkeys([*kinds, "null"])]
        for keyword in ("anyOf", "oneOf"):
            if keyword in node:
                node[keyword] = [*node[keyword], {"type": "null"}]
        if "$ref" in node or "allOf" in node:
            parts = {name: node.pop(name) for name in ("$ref", "allOf") if name in node}
            alternatives: list[Any] = [parts, {"type": "null"}]
            if "anyOf" in node:
                node["allOf"] = [{"anyOf": alternatives}]
            else:
                node["anyOf"] = alternatives

    # --- references ---

    def _resolve_references(self) -> None:
        """Let each reference point to a subschema, or drop it."""
        anchors, places = find_anchors(self._root), dict(walk(self._root))
        pending = list(places.items())
        copied: dict[Path, str] = {}
        while pending:
            path, node = pending.pop()
            for keyword in ("$ref", "$dynamicRef"):
                if not isinstance(node, dict) or keyword not in node:
                    continue
                try:
                    target, schema = resolve(
                        self._root, self._to_local_reference(node[keyword]), anchors
                    )
                except ToolDefinitionError:
                    schema = None
                if not isinstance(schema, dict | bool) or len(copied) > _MAX_REFERENCES:
                    del node[keyword]
                    self.note_dropped(path, keyword)
                elif target in places:
                    local = self._to_local_reference(node[keyword])
                    if node[keyword] != local:
                        node[keyword] = local
                else:  # the target is not in a subschema, such as in OpenAPI's components
                    if target not in copied:
                        copied[target] = name = self._find_free_name(str(target[-1]))
                        place: Path = ("$defs", name)
                        self._root.setdefault("$defs", {})[name] = self._read_child(schema, place)
                        copy = self._root["$defs"][name]
                        below = [((*place, *inner), child) for inner, child in walk(copy)]
                        places |= dict(below)
                        pending += below
                    node[keyword] = f"#/$defs/{to_pointer((copied[target],))[1:]}"

    def _to_local_reference(self, reference: str) -> str:
        """Return a reference to an ``$id`` as a JSON pointer from the root."""
        base, mark, rest = reference.partition("#")
        if base in self._ids or reference in self._ids:
            path = self._ids[reference if reference in self._ids else base]
            return "#" + to_pointer(path) + (rest if mark and base in self._ids else "")
        return reference

    def _drop_unevaluated(self) -> None:
        """Drop ``unevaluated…``, which would apply to the members of dropped keywords."""
        for path, node in [*walk(self._root)]:
            for keyword in ("unevaluatedProperties", "unevaluatedItems"):
                if isinstance(node, dict) and keyword in node:
                    del node[keyword]
                    self.dropped[to_pointer((*path, keyword))] = None

    def _find_free_name(self, name: str) -> str:
        """Return a name that ``$defs`` does not have."""
        definitions = self._root.get("$defs", {})
        while name in definitions:
            name += "_"
        return name

    def _drop_cycles(self) -> None:
        """Drop references that apply a schema to the same value without end.

        Raises:
            ToolDefinitionError: there are too many.
        """
        for _ in range(_MAX_CYCLES):
            try:
                check_endless(self._root)
            except CycleError as error:
                nodes = dict(walk(self._root))
                cycle = [*map(tuple, error.args[1])]
                place = next(p for p in cycle if {"$ref", "$dynamicRef"} & nodes[p].keys())
                for keyword in ("$ref", "$dynamicRef"):
                    if keyword in nodes[place]:
                        del nodes[place][keyword]
                        self.note_dropped(place, keyword)
                        if (narrowing := _find_narrowing_path((*place, keyword))) is not None:
                            self._loosen(narrowing)
            else:
                return
        raise ToolDefinitionError("the schema refers to itself without end in many places")

    # --- keywords that a dropped keyword makes stricter ---

    def _loosen(self, path: Path) -> None:
        """Drop a ``not`` or ``if``, or change a ``oneOf`` to an ``anyOf``.

        A dropped keyword makes their subschemas accept more, so they would accept less.
        """
        *above, keyword = path
        node: Any = self._root
        try:
            for step in above:
                node = node[step]
            value = node.pop(keyword)
        except (KeyError, IndexError, TypeError, AttributeError):
            return  # a subschema around it was dropped too
        if keyword == "oneOf":
            if "anyOf" in node:
                node["allOf"] = [*node.get("allOf", ()), {"anyOf": value}]
            else:
                node["anyOf"] = value
        elif keyword == "if":
            node.pop("then", None)
            node.pop("else", None)
        self.dropped[to_pointer(path)] = None


_HOLDERS: Final = frozenset((*ONE_SCHEMA, *SCHEMA_LIST, *SCHEMA_MAP))
_NUMBERS: Final = frozenset(
    name for name, usable in _USABLE.items() if usable in (_is_number, _is_count)
) | {"multipleOf"}


def _find_narrowing_path(path: Path) -> Path | None:
    """Return the path of the first ``not``, ``if`` or ``oneOf`` above a path's end."""
    for index, keyword in _iter_keywords(path):
        if keyword in ("not", "if", "oneOf") and index < len(path) - 1:
            return path[: index + 1]
    return None


def _iter_keywords(path: Path) -> Iterator[tuple[int, str | int]]:
    """Yield the keywords of a path with their indexes.

    Names and numbers of members are left out.
    """
    index = 0
    while index < len(path):
        yield index, path[index]
        index += 1 if path[index] in ONE_SCHEMA else 2


def _to_name(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _looks_like_id(value: str) -> bool:
    """Return whether an ``id`` is a keyword of draft 4.

    A single word may have another meaning.
    """
    return "#" in value or ":" in value


def _parse_number(text: str) -> int | float | None:
    try:
        return int(text)
    except ValueError:
        pass
    try:
        number = float(text)
    except ValueError:
        return None
    return number if number - number == 0 else None


_TYPE_CHECKS: Final[Mapping[str, Callable[[Any], bool]]] = {
    "string": _is_text,
    "integer": lambda value: _is_number(value) and value == int(value),
    "number": _is_number,
    "boolean": _is_flag,
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
    "null": lambda value: value is None,
}


def _has_type(value: Any, kinds: list[str]) -> bool:
    return any(_TYPE_CHECKS[kind](value) for kind in kinds)
