"""The grammar of one protocol line, and of the schemas in it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from mlx_tools.errors import ToolDefinitionError
from mlx_tools.spec import ToolSpec
from mlx_tools.tools.gbnf.alternatives import Plain, alternatives
from mlx_tools.tools.gbnf.ranges import integers
from mlx_tools.tools.gbnf.text import MAX_REPEAT, TERMINALS, compact, literal, repeat, written
from mlx_tools.tools.schema import anchors

_FORMATS: Final[Mapping[str, str]] = {
    "date": r'"\"" date "\""',
    "date-time": r'"\"" date "T" time "\""',
    "time": r'"\"" time "\""',
    "uuid": r'"\"" hex{8} "-" hex{4} "-" hex{4} "-" hex{4} "-" hex{12} "\""',
}


def line_grammar(specs: Iterable[ToolSpec]) -> str:
    """The grammar of one line that a model may write: a call of one of these tools with arguments
    that fit, or the final answer, both without optional keys.

    Raises ToolDefinitionError for a tool that no arguments fit.
    """
    rules = {"root": "answer", "answer": literal('{"type":"final_answer","content":')}
    rules["answer"] += ' string "}"'
    for spec in specs:
        rules["root"] += f" | {_ToolRules(spec, rules).name}"
    return written(rules)


class _ToolRules:
    """Adds the rules of one tool. A schema that comes again, or in itself, is the same rule.

    Methods that return a body or a rule return None where no value fits.
    """

    def __init__(self, spec: ToolSpec, rules: dict[str, str]) -> None:
        self._rules = rules
        self._root = spec.parameters
        self._named = anchors(spec.parameters)
        self._made: dict[str, str | None] = {}
        self._open: dict[str, bool] = {}
        self.name = self._new("", "call-" + re.sub("[^a-z0-9]+", "-", spec.name.lower()))
        try:
            arguments = self._rule(spec.parameters)
        except ToolDefinitionError as error:
            raise ToolDefinitionError(f"{spec.name}: {error.message}") from None
        except RecursionError:
            raise ToolDefinitionError(
                f"{spec.name}: its schema refers to itself without end"
            ) from None
        if arguments is None:
            raise ToolDefinitionError(f"{spec.name}: no arguments fit its schema")
        start = f'{{"type":"tool_call","name":{json.dumps(spec.name)},"arguments":'
        rules[self.name] = f'{literal(start)} {arguments} "}}"'

    def _new(self, body: str, wanted: str = "") -> str:
        """Adds a rule under a name that is free."""
        stem = (wanted or self.name).strip("-")
        name, number = stem, 1
        while name in self._rules or name in TERMINALS:
            number += 1
            name = f"{stem}-{number}"
        self._rules[name] = body
        return name

    def _rule(self, node: Any) -> str | None:
        """The rule of any schema."""
        plain = alternatives(node, self._root, self._named)
        key = json.dumps(plain)
        if key in self._open:
            self._open[key] = True
        if key in self._made:
            return self._made[key]
        name = self._made[key] = self._new("")
        self._open[key] = False
        bodies = [self._body(one) for one in plain]
        used_in_itself = self._open.pop(key)
        found = dict.fromkeys(body for body in bodies if body is not None)
        if found:
            self._rules[name] = " | ".join(found)
            return name
        if used_in_itself:
            raise ToolDefinitionError("a part of the schema that refers to itself fits no value")
        del self._rules[name]
        self._made[key] = None
        return None

    def _body(self, plain: Plain) -> str | None:
        if "enum" in plain:
            return " | ".join(dict.fromkeys(literal(compact(value)) for value in plain["enum"]))
        match plain.get("type", "value"):
            case "object":
                return self._object(plain)
            case "array":
                return self._array(plain)
            case "string":
                return _string(plain)
            case "integer":
                bounds = _whole_bounds(plain)
                return "integer" if bounds == (None, None) else integers(*bounds)
            case "number":
                return _number(plain)
            case kind:
                return str(kind)

    def _object(self, plain: Plain) -> str | None:
        properties = plain.get("properties", {})
        required = plain.get("required", [])
        if not properties and not required:
            return self._map(plain)
        first = dict.fromkeys([*(key for key in properties if key in required), *required])
        others = plain.get("additionalProperties", True)
        pairs = [self._pair(key, properties.get(key, others)) for key in first]
        if None in pairs:
            return None
        rest = [self._pair(key, properties[key]) for key in properties if key not in first]
        optional = [pair for pair in rest if pair is not None]
        if pairs:
            more = [f'("," {pair})?' for pair in optional]
            return " ".join(['"{"', ' "," '.join(map(str, pairs)), *more, '"}"'])
        starts, after = [], ""
        for pair in reversed(optional):  # each may be the first; those after it may follow
            starts.append(f"{pair} {after}".rstrip())
            after = self._new(f'("," {pair})? {after}'.rstrip())
        return f'"{{" ({" | ".join(reversed(starts))})? "}}"' if starts else '"{}"'

    def _pair(self, key: str, schema: Any) -> str | None:
        value = self._rule(schema)
        return None if value is None else f"{literal(compact(key) + ':')} {value}"

    def _map(self, plain: Plain) -> str | None:
        """An object whose keys nobody named."""
        values = plain.get("additionalProperties", True)
        if "patternProperties" in plain and values is False:
            values = {"anyOf": list(plain["patternProperties"].values())}
        names = plain.get("propertyNames", True)
        key = "string" if names is True else self._rule({"allOf": [{"type": "string"}, names]})
        value = self._rule(values)
        pair = None if value is None or key is None else self._new(f'{key} ":" {value}')
        least, most = plain.get("minProperties", 0), plain.get("maxProperties")
        return self._several('"{"', pair, '"}"', least, most)

    def _array(self, plain: Plain) -> str | None:
        if "prefixItems" in plain:
            return self._tuple(plain)
        item = self._rule(plain.get("items", True))
        return self._several('"["', item, '"]"', plain.get("minItems", 0), plain.get("maxItems"))

    def _several(
        self, start: str, item: str | None, end: str, least: int, most: int | None
    ) -> str | None:
        """So many items with commas between them."""
        if item is None or most == 0:
            return f"{start} {end}" if least == 0 else None
        if most is not None and most < least:
            return None
        rest = repeat(
            self._new(f'"," {item}'), max(least - 1, 0), None if most is None else most - 1
        )
        items = f"{item} {rest}".rstrip()
        return f"{start} {items} {end}" if least else f"{start} ({items})? {end}"

    def _tuple(self, plain: Plain) -> str | None:
        """Items that each have a schema of their own, then those that ``items`` allows."""
        least, most = plain.get("minItems", 0), plain.get("maxItems", MAX_REPEAT)
        schemas: Sequence[Any] = plain["prefixItems"][:most]
        rules: list[str] = []
        for schema in schemas:
            rule = self._rule(schema)
            if rule is None:
                break
            rules.append(rule)
        whole = len(rules) == len(schemas)
        more = self._rule(plain["items"]) if whole and "items" in plain else None
        if more is None and whole and "items" not in plain and least > len(rules):
            more = "value"
        if most < least or (least > len(rules) and more is None):
            return None
        body = ""
        if more is not None:
            count = len(rules)
            body = repeat(self._new(f'"," {more}'), max(least - count, 0), max(most - count, 0))
        for number in reversed(range(len(rules))):
            comma = '"," ' if number else ""
            body = f"{comma}{rules[number]} {body}".rstrip()
            body = body if number < least else f"({body})?"
        return f'"[" {body} "]"'


def _string(plain: Plain) -> str | None:
    least, most = plain.get("minLength", 0), plain.get("maxLength")
    if plain.get("format") in _FORMATS:
        return _FORMATS[plain["format"]]
    if most is not None and most < least:
        return None
    if least == 0 and (most is None or most > MAX_REPEAT):
        return "string"
    return " ".join(part for part in (r'"\""', repeat("char", least, most), r'"\""') if part)


def _whole_bounds(plain: Plain) -> tuple[int | None, int | None]:
    """The smallest and the largest integer that the bounds allow, None where there is no bound."""
    least = [math.ceil(plain["minimum"])] if "minimum" in plain else []
    most = [math.floor(plain["maximum"])] if "maximum" in plain else []
    if "exclusiveMinimum" in plain:
        least.append(math.floor(plain["exclusiveMinimum"]) + 1)
    if "exclusiveMaximum" in plain:
        most.append(math.ceil(plain["exclusiveMaximum"]) - 1)
    return max(least, default=None), min(most, default=None)


def _number(plain: Plain) -> str | None:
    """Of a number that need not be whole a grammar holds the sign."""
    least = max((plain[k] for k in ("minimum", "exclusiveMinimum") if k in plain), default=None)
    most = min((plain[k] for k in ("maximum", "exclusiveMaximum") if k in plain), default=None)
    if least is not None and most is not None and most < least:
        return None
    if least is not None and least >= 0:
        return "positive"
    return '"-" positive' if most is not None and most < 0 else "number"
