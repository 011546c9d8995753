"""A tool's parameters as llguidance compiles them.

Keywords that it cannot enforce are left out; validation checks them. Keywords that constrain
nothing are also left out. Targets of references are under ``$defs``.
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
    ONE_SCHEMA,
    SCHEMA_LIST,
    SCHEMA_MAP,
    Path,
    cache_by_identity,
    find_anchors,
    resolve,
)

COMPACT: Final[Mapping[str, Any]] = {"x-guidance": {"whitespace_flexible": False}}
"""The hint to llguidance for no white space between tokens of JSON."""

LARGE: Final = 10_000
"""Characters of a large schema. Some take 10 µs a character to compile, again for each order of
keys that a model writes, so a larger one would block the event loop for 0.1 s."""

_TYPES: Final = {"string", "integer", "number", "boolean", "array", "object", "null"}
_ASKING: Final = frozenset(
    (*ONE_SCHEMA, *SCHEMA_LIST, *SCHEMA_MAP, "dependentRequired", "pattern", "uniqueItems")
) - {*("$defs", "contentSchema", "definitions", "else", "then")}
"""Keywords that constrain a value. If one cannot be compiled, the schema is not exact."""
_BOUNDS: Final = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")
_COUNTS: Final = ("minLength", "maxLength", "minItems", "maxItems")
_MEMBERS: Final = ("minProperties", "maxProperties")

_MAX_OPTIONAL: Final = 200
"""Optional properties that are enforced. At about 500 llguidance fails on where they may stand."""
_MAX_UNDESCRIBED: Final = 200
"""Required properties without a schema of their own that are enforced. llguidance takes quadratic
time for them, 1.2 s for 8,000."""
_MAX_COUNT: Final = 10_000
"""The largest length or count that is enforced. A choice: larger ones are left to validation."""
_MAX_NUMBER: Final = 2.0**53
"""The largest number that is enforced. Beyond it llguidance, which counts in doubles, takes a whole
number for its neighbour."""
_MIN_NUMBER: Final = 1e-6
"""The smallest number that is enforced. A choice: smaller ones are left to validation."""

_REMOVABLE_KEYWORDS: Final = (
    *(*_MEMBERS, "patternProperties", "pattern", "format", "multipleOf", *_BOUNDS, *_COUNTS),
    *("enum", "const", "required", "oneOf", "anyOf", "allOf", "$ref", "$dynamicRef"),
)
"""Keywords that are removed from a schema that does not compile: one of them, or all."""


class Compilable(Struct, frozen=True):
    """A schema as llguidance compiles it."""

    schema: dict[str, Any] | None
    """Compiles, and accepts all that the original accepts. None if nothing compiles: any object is
    allowed."""
    is_exact: bool = False
    """True if it accepts nothing else, so validation will find no fault."""


@cache_by_identity
def make_compilable(schema: Mapping[str, Any]) -> Compilable:
    """Return the parameters of a tool as llguidance compiles them.

    The result is shared: do not change its schema.
    """
    try:
        return _make_compilable(json.dumps(schema, default=dict))
    except (ToolDefinitionError, TypeError, ValueError, RecursionError):
        return Compilable(None)


@cache_by_identity
def is_large(schema: Mapping[str, Any]) -> bool:
    """Return whether compiling the schema would block an event loop too long."""
    try:
        return len(json.dumps(schema, default=dict)) > LARGE
    except (TypeError, ValueError, RecursionError):
        return False


@lru_cache(maxsize=2048)
def _make_compilable(text: str) -> Compilable:
    root = json.loads(text)
    some = [(keyword,) for keyword in _REMOVABLE_KEYWORDS if f'"{keyword}"' in text]
    for without in ((), *some, _REMOVABLE_KEYWORDS):
        loosening = _Loosening(root, without)
        loosened = loosening.loosen()
        if _compiles(loosened):
            return Compilable(loosened, loosening.is_exact)
    return Compilable(None)


def _compiles(schema: Mapping[str, Any]) -> bool:
    from llguidance import LLMatcher

    return not LLMatcher.validate_grammar(f"start: %json {json.dumps({**schema, **COMPACT})}")


class _Loosening:
    """The loosening of one schema, without the given keywords."""

    def __init__(self, root: Mapping[str, Any], left_out_keywords: tuple[str, ...]) -> None:
        self.is_exact = True
        self._root = root
        self._left_out_keywords = left_out_keywords
        self._anchors = find_anchors(root)
        self._names: dict[Path, str] = {}
        self._targets: dict[str, Any] = {}
        self._alternatives: list[list[Any]] = []

    def loosen(self) -> dict[str, Any]:
        """Return the loosened root.

        Raises:
            ToolDefinitionError: the parameters are no object.
        """
        if self._root.get("type", "object") != "object":
            raise ToolDefinitionError("the parameters are no object")
        whole = self._loosen_node({"type": "object", **self._root})
        definitions: dict[str, Any] = {}
        while self._targets:  # more of them turn up on the way
            name = next(iter(self._targets))
            definitions[name] = self._loosen_node(self._targets.pop(name))
        for options in self._alternatives:
            if not _compiles({"oneOf": options, "$defs": definitions}):  # two of them may fit
                self.is_exact = False
        return {**whole, "$defs": definitions} if definitions else whole

    def _loosen_node(self, schema: Any) -> Any:
        if not isinstance(schema, Mapping):
            return schema is not False
        loosened: dict[str, Any] = {}
        for keyword, value in schema.items():
            if keyword in self._left_out_keywords or not self._take(loosened, keyword, value):
                self.is_exact = False
        self._settle_members(schema, loosened)
        return loosened

    def _take(self, output: dict[str, Any], keyword: str, value: Any) -> bool:
        """Add a keyword to ``output`` as far as it can be enforced.

        Return whether all of it is.
        """
        match keyword, value:
            case (("additionalProperties" | "items"), (bool() | dict())):
                output[keyword] = self._loosen_node(value)
            case "patternProperties", dict() if not all(map(_is_exact, value)):
                return False
            case (("properties" | "patternProperties"), dict()):
                output[keyword] = {
                    key: self._loosen_node(subschema) for key, subschema in value.items()
                }
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
            case _ if keyword in _CONDITIONS:
                if not _CONDITIONS[keyword](value):
                    return False
                output[keyword] = int(value) if _CONDITIONS[keyword] is _is_count else value
            case _:
                return keyword not in _ASKING
        return True

    def _take_list(self, output: dict[str, Any], keyword: str, value: Any) -> None:
        parts = [self._loosen_node(subschema) for subschema in value]
        if keyword == "oneOf":  # loosened, two may fit where one did
            self._alternatives.append(parts)
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
        """Remove keywords that llguidance does not allow together in one object."""
        properties, required = output.get("properties", {}), output.get("required", [])
        optional = properties.keys() - set(required)
        drop = set(_MEMBERS) if optional else set()
        if len(optional) > _MAX_OPTIONAL:
            output["properties"] = {
                key: subschema for key, subschema in properties.items() if key not in optional
            }
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
            possible = [key for key in required if key in properties]
            if len(possible) < len(required):
                output["required"] = possible
                self.is_exact = False
        undescribed = [key for key in output.get("required", []) if key not in properties]
        if len(undescribed) > _MAX_UNDESCRIBED:
            extra = {*undescribed[_MAX_UNDESCRIBED:]}
            output["required"] = [key for key in required if key not in extra]
            self.is_exact = False


# --- what can be held -------------------------------------------------------------------------


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and (value == 0 or _MIN_NUMBER <= abs(value) < _MAX_NUMBER)


def _is_count(value: Any) -> bool:
    return _is_number(value) and value == int(value) and 0 <= value <= _MAX_COUNT


def _is_constant(value: Any) -> bool:
    if isinstance(value, dict | list):
        return all(map(_is_constant, value.values() if isinstance(value, dict) else value))
    return value is None or isinstance(value, str | bool) or _is_number(value)


_CONDITIONS: Final[Mapping[str, Callable[[Any], bool]]] = {
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
"""For each keyword without subschemas, a check whether llguidance can enforce its value."""

_ESCAPE: Final = r"\\(?:[dDwWsSnrtfv]|u[0-9A-Fa-f]{4}|x[0-9A-Fa-f]{2}|[^A-Za-z0-9\s<>])"
_MEMBER: Final = rf"(?:{_ESCAPE}|[^\[\]\\&~-]|&(?!&)|~(?!~))"
_PATTERN: Final = re.compile(
    rf"(?:{_ESCAPE}|\[\^?-?(?:{_MEMBER}(?:-{_MEMBER})?)+-?\]|[^\[\]\\{{}}()*+?]"
    r"|\((?!\?)|\(\?(?::|P?<[A-Za-z_]\w*>)|\)|(?:[*+?]|\{\d+(?:,\d*)?\})\??(?![*+?{]))*"
)
"""Patterns that mean the same to llguidance, whose regular expressions are Rust's."""
_EXACT: Final = re.compile(r"(?:\\[^sS]|\[(?:\\[^sS]|[^\]\\])*\]|[^.\\\[])*")
r"""Patterns without ``.`` and ``\s``, which match a few other rare characters there."""


def _is_exact(pattern: str) -> bool:
    return all(form.fullmatch(pattern) for form in (_PATTERN, _EXACT))
