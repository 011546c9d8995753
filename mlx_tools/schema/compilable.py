"""A tool's parameters as llguidance compiles them: loosened where it cannot hold to a keyword.

What is taken out is left to validation. What asks nothing of a value is left out too; all that
references name stands under ``$defs``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final

from msgspec import Struct

from mlx_tools.errors import ToolDefinitionError
from mlx_tools.schema.resolve import (
    LIST,
    MAP,
    ONE,
    Path,
    anchors,
    kept_by_identity,
    resolve,
)

COMPACT: Final[Mapping[str, Any]] = {"x-guidance": {"whitespace_flexible": False}}
"""What a schema's top says to llguidance, so that no white space stands between its tokens."""

LARGE: Final = 10_000
"""A schema of more characters is large: some take 10 µs a character, again for each order of keys
that a model writes."""

_TYPES: Final = {"string", "integer", "number", "boolean", "array", "object", "null"}
_ASKING: Final = frozenset((*ONE, *LIST, *MAP, "dependentRequired", "pattern", "uniqueItems")) - {
    *("$defs", "contentSchema", "definitions", "else", "then")
}
"""Keywords that ask something of a value. What is not taken of them is not held."""
_BOUNDS: Final = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")
_COUNTS: Final = ("minLength", "maxLength", "minItems", "maxItems")
_MEMBERS: Final = ("minProperties", "maxProperties")

_MOST_OPTIONAL: Final = 200
"""So many optional properties are held. At about 500 llguidance gives up where they may stand."""
_MOST_UNDESCRIBED: Final = 200
"""So many required properties without a schema of their own are held: llguidance takes time in the
square of their number, 8,000 of them 1.2 s."""
_MOST_COUNTED: Final = 10_000
_LARGEST: Final = 2.0**53
"""Beyond it llguidance, which counts in doubles, takes a whole number for its neighbour."""
_SMALLEST: Final = 1e-6

_DOUBTFUL: Final = (
    *(*_MEMBERS, "patternProperties", "pattern", "format", "multipleOf", *_BOUNDS, *_COUNTS),
    *("enum", "const", "required", "oneOf", "anyOf", "allOf", "$ref", "$dynamicRef"),
)
"""What is taken out of a schema that does not compile: one of these, or all."""


class Compilable(Struct, frozen=True):
    """``schema`` compiles, and takes all that the original takes; None where nothing compiles, so
    that any object may be held. ``is_exact``: it takes nothing else, so that validation will find
    no fault in it."""

    schema: dict[str, Any] | None
    is_exact: bool = False


@kept_by_identity
def compilable(schema: Mapping[str, Any]) -> Compilable:
    """The parameters of a tool as llguidance compiles them. What is returned is shared: its schema
    must not be changed."""
    try:
        return _compilable(json.dumps(schema, default=dict))
    except (ToolDefinitionError, TypeError, ValueError, RecursionError):
        return Compilable(None)


@kept_by_identity
def is_large(schema: Mapping[str, Any]) -> bool:
    """Return whether compiling the schema keeps an event loop waiting too long."""
    try:
        return len(json.dumps(schema, default=dict)) > LARGE
    except (TypeError, ValueError, RecursionError):
        return False


@lru_cache(maxsize=2048)
def _compilable(text: str) -> Compilable:
    root = json.loads(text)
    some = [(keyword,) for keyword in _DOUBTFUL if f'"{keyword}"' in text]
    for without in ((), *some, _DOUBTFUL):
        loosening = _Loosening(root, without)
        loosened = loosening.whole()
        if _compiles(loosened):
            return Compilable(loosened, loosening.is_exact)
    return Compilable(None)


def _compiles(schema: Mapping[str, Any]) -> bool:
    from llguidance import LLMatcher

    return not LLMatcher.validate_grammar(f"start: %json {json.dumps({**schema, **COMPACT})}")


class _Loosening:
    """One schema on its way, ``without`` these keywords."""

    def __init__(self, root: Mapping[str, Any], left_out_keywords: tuple[str, ...]) -> None:
        self.is_exact = True
        self._root = root
        self._left_out_keywords = left_out_keywords
        self._anchors = anchors(root)
        self._names: dict[Path, str] = {}
        self._targets: dict[str, Any] = {}
        self._one_of: list[list[Any]] = []

    def whole(self) -> dict[str, Any]:
        """The loosened root. Raises ToolDefinitionError where the parameters are no object."""
        if self._root.get("type", "object") != "object":
            raise ToolDefinitionError("the parameters are no object")
        whole = self._node({"type": "object", **self._root})
        definitions: dict[str, Any] = {}
        while self._targets:  # more of them turn up on the way
            name = next(iter(self._targets))
            definitions[name] = self._node(self._targets.pop(name))
        for options in self._one_of:
            if not _compiles({"oneOf": options, "$defs": definitions}):  # two of them may fit
                self.is_exact = False
        return {**whole, "$defs": definitions} if definitions else whole

    def _node(self, schema: Any) -> Any:
        if not isinstance(schema, Mapping):
            return schema is not False
        found: dict[str, Any] = {}
        for keyword, value in schema.items():
            if keyword in self._left_out_keywords or not self._take(found, keyword, value):
                self.is_exact = False
        self._settle_members(schema, found)
        return found

    def _take(self, output: dict[str, Any], keyword: str, value: Any) -> bool:
        """Puts a keyword into ``output`` as far as it can be held; False where that is not wholly.
        What asks nothing is held."""
        match keyword, value:
            case (("additionalProperties" | "items"), (bool() | dict())):
                output[keyword] = self._node(value)
            case "patternProperties", dict() if not all(map(_is_exact, value)):
                return False
            case (("properties" | "patternProperties"), dict()):
                output[keyword] = {key: self._node(one) for key, one in value.items()}
            case (("allOf" | "anyOf" | "oneOf" | "prefixItems"), [_, *_]):
                self._take_list(output, keyword, value)
            case (("$ref" | "$dynamicRef"), _):
                return self._take_reference(output, str(value))
            case "pattern", str():
                if _PATTERN.fullmatch(value):
                    output[keyword] = value
                return _is_exact(value)
            case "uniqueItems", False:
                pass
            case _ if keyword in _ASKS:
                if not _ASKS[keyword](value):
                    return False
                output[keyword] = int(value) if _ASKS[keyword] is _is_count else value
            case _:
                return keyword not in _ASKING
        return True

    def _take_list(self, output: dict[str, Any], keyword: str, value: Any) -> None:
        parts = [self._node(one) for one in value]
        if keyword == "oneOf":  # loosened, two may fit where one did
            self._one_of.append(parts)
            keyword = "anyOf"
        if keyword == "allOf":
            parts = [part for part in parts if part not in ({}, True)] or [{}]
        if keyword in output:
            keyword, parts = "allOf", [{keyword: parts}]
        output[keyword] = [*output.get(keyword, ()), *parts]

    def _take_reference(self, output: dict[str, Any], reference: str) -> bool:
        try:
            path, target = resolve(self._root, reference, self._anchors)
        except ToolDefinitionError:
            return False
        if "$ref" in output:
            return False
        if path not in self._names:
            name = re.sub("[^A-Za-z0-9_.-]", "_", str(path[-1]) if path else "root")
            while name in self._names.values():
                name += "_"
            self._names[path] = name
            self._targets[name] = target
        output["$ref"] = f"#/$defs/{self._names[path]}"
        return True

    def _settle_members(self, schema: Mapping[str, Any], output: dict[str, Any]) -> None:
        """Takes out what the keywords of one object do not allow together."""
        named, required = output.get("properties", {}), output.get("required", [])
        optional = named.keys() - set(required)
        drop = set(_MEMBERS) if optional else set()
        if len(optional) > _MOST_OPTIONAL:
            output["properties"] = {key: one for key, one in named.items() if key not in optional}
            drop |= {"patternProperties", "additionalProperties"}
            self.is_exact = False
        if "patternProperties" in schema and "patternProperties" not in output:
            drop |= {"additionalProperties"}  # it was for the keys of no pattern
        for keyword in drop & output.keys():
            del output[keyword]
            self.is_exact = False
        if "additionalProperties" in drop:
            output["additionalProperties"] = True
        if output.get("additionalProperties") is False and not output.get("patternProperties"):
            possible = [key for key in required if key in named]
            if len(possible) < len(required):
                output["required"] = possible
                self.is_exact = False
        undescribed = [key for key in output.get("required", []) if key not in named]
        if len(undescribed) > _MOST_UNDESCRIBED:
            more = {*undescribed[_MOST_UNDESCRIBED:]}
            output["required"] = [key for key in required if key not in more]
            self.is_exact = False


# --- what can be held -------------------------------------------------------------------------


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and (value == 0 or _SMALLEST <= abs(value) < _LARGEST)


def _is_count(value: Any) -> bool:
    return _is_number(value) and value == int(value) and 0 <= value <= _MOST_COUNTED


def _is_constant(value: Any) -> bool:
    if isinstance(value, dict | list):
        return all(map(_is_constant, value.values() if isinstance(value, dict) else value))
    return value is None or isinstance(value, str | bool) or _is_number(value)


_ASKS: Final[Mapping[str, Callable[[Any], bool]]] = {
    "type": lambda value: (
        bool(value) and {*(value if isinstance(value, list) else [value])} <= _TYPES
    ),
    "const": _is_constant,
    "enum": lambda value: isinstance(value, list) and bool(value) and _is_constant(value),
    "required": lambda value: isinstance(value, list) and all(isinstance(k, str) for k in value),
    "multipleOf": lambda value: _is_count(value) and value > 0,
    **dict.fromkeys((*_COUNTS, *_MEMBERS), _is_count),
    **dict.fromkeys(_BOUNDS, _is_number),
}
"""Keywords without subschemas, each with what it must say so that llguidance can hold to it."""

_ESCAPE: Final = r"\\(?:[dDwWsSnrtfv]|u[0-9A-Fa-f]{4}|x[0-9A-Fa-f]{2}|[^A-Za-z0-9\s<>])"
_MEMBER: Final = rf"(?:{_ESCAPE}|[^\[\]\\&~-]|&(?!&)|~(?!~))"
_PATTERN: Final = re.compile(
    rf"(?:{_ESCAPE}|\[\^?-?(?:{_MEMBER}(?:-{_MEMBER})?)+-?\]|[^\[\]\\{{}}()*+?]"
    r"|\((?!\?)|\(\?(?::|P?<[A-Za-z_]\w*>)|\)|(?:[*+?]|\{\d+(?:,\d*)?\})\??(?![*+?{]))*"
)
"""Patterns that mean the same to llguidance, whose regular expressions are Rust's."""
_EXACT: Final = re.compile(r"(?:\\[^sS]|\[(?:\\[^sS]|[^\]\\])*\]|[^.\\\[])*")
"""All but those with ``.`` or ``\\s``, which take a few other rare characters there."""


def _is_exact(pattern: str) -> bool:
    return all(form.fullmatch(pattern) for form in (_PATTERN, _EXACT))
