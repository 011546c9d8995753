"""The grammar of the values that fit a schema."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Final

from mlx_tools.errors import ToolDefinitionError
from mlx_tools.tools.grammar.alternatives import Schemas
from mlx_tools.tools.grammar.members import Members
from mlx_tools.tools.grammar.merge import ABOUT, Plain, both, bounds_of, listed, matching
from mlx_tools.tools.grammar.nodes import (
    EMPTY,
    NOTHING,
    Node,
    Ref,
    Rules,
    Text,
    alt,
    maybe,
    repeat,
    seq,
    tokens,
)
from mlx_tools.tools.grammar.ranges import Bounds, decimals, exact, integers
from mlx_tools.tools.grammar.terminals import (
    FORMATS,
    LONGEST,
    MAX_KEY,
    any_value,
    other_key,
    scalar,
    several,
    string,
)

Spell = Callable[[Any], str | None]
"""A JSON value as a style writes it; None for one that it cannot write."""

_ALL: Final[tuple[Any, ...]] = (True, {})


class Values:
    """Adds the rules of one tool's values. A schema that comes again, or in itself, is the same
    rule.

    ``name`` is what the rules are called by, ``spell`` writes constants and keys, ``max_chars``
    bounds a string whose schema does not.
    """

    def __init__(
        self, rules: Rules, schemas: Schemas, name: str, spell: Spell, max_chars: int
    ) -> None:
        self._rules = rules
        self._schemas = schemas
        self._name = name
        self._spell = spell
        self._max_chars = max_chars
        self._made: dict[str, Node] = {}
        self._met_again: set[str] = set()

    def of(self, schema: Any) -> Node:
        """The grammar of the values that fit a schema.

        Raises:
            ToolDefinitionError: as `Schemas.alternatives`.
        """
        plain = self._schemas.alternatives(schema)
        key = json.dumps(plain, default=dict)
        if key in self._made:
            self._met_again.add(key)
            return self._made[key]
        rule = self._rules.add(self._name, NOTHING)
        self._made[key] = rule
        body = alt([self._plain(one) for one in plain])
        if key not in self._met_again and isinstance(body, Text | Ref):
            del self._rules.bodies[rule.name]
            self._made[key] = body
            return body
        self._rules.bodies[rule.name] = body
        return rule

    def _plain(self, plain: Plain) -> Node:
        if "enum" in plain:
            return alt(map(self._constant, _whole(plain)))
        match plain.get("type"):
            case "object":
                return self._object(plain)
            case "array":
                return self._array(plain)
            case "string":
                return self._string(plain)
            case "integer" | "number" as kind:
                return self._number(plain, kind)
            case None:
                return any_value(self._rules, self._max_chars)
            case kind:
                return scalar(self._rules, kind)

    def _constant(self, value: Any) -> Node:
        text = self._spell(value)
        return NOTHING if text is None else tokens(text)

    # --- scalars ------------------------------------------------------------------------------

    def _string(self, plain: Plain) -> Node:
        kind = plain.get("format")
        if isinstance(kind, str) and kind in FORMATS:
            return self._rules.named(f"{kind}-format", FORMATS[kind], terminal=True)
        if kind is not None:
            self._schemas.note("format")
        least, most = _counts(plain, "Length")
        if most is None:
            most = max(least, self._max_chars)
        return string(self._rules, least, most) if least <= most else NOTHING

    def _number(self, plain: Plain, kind: str) -> Node:
        bounds = bounds_of(plain)
        if bounds == Bounds():
            return scalar(self._rules, kind)
        if kind == "integer" and bounds.reachable:
            return self._terminal("range", integers(*bounds.whole()))
        if kind == "number" and bounds == Bounds(exact(0)):
            return scalar(self._rules, "positive")
        if kind == "number" and bounds.fraction >= 1:
            return self._terminal("range", decimals(bounds))
        for keyword in ABOUT["number"] & plain.keys():
            self._schemas.note(keyword)
        return scalar(self._rules, kind)

    def _terminal(self, name: str, body: Node) -> Node:
        if body == NOTHING:
            return NOTHING
        return self._rules.add(f"{self._name}-{name}", body, terminal=True)

    # --- arrays -------------------------------------------------------------------------------

    def _array(self, plain: Plain) -> Node:
        least, most = _counts(plain, "Items")
        prefix = plain.get("prefixItems", [])
        if prefix:
            return self._tuple(plain, prefix, least, most)
        if most == 0:
            return tokens("[]") if least == 0 else NOTHING
        item = self.of(plain.get("items", True))
        if most is not None and most < least:
            return NOTHING
        return several(Text("["), item, Text("]"), least, most)

    def _tuple(self, plain: Plain, prefix: Sequence[Any], least: int, most: int | None) -> Node:
        """Items that each have a schema of their own, then those that ``items`` allows."""
        items = [self.of(schema) for schema in prefix[:most]]
        count = len(items)
        more: Node = NOTHING
        if "items" in plain or least > count:
            more = self.of(plain.get("items", True))
        if most is not None and most < least:
            return NOTHING
        rest = None if most is None else most - count
        body = repeat(seq(Text(","), more), max(least - count, 0), rest)
        for number in reversed(range(count)):
            body = seq(Text(",") if number else EMPTY, items[number], body)
            body = body if number < least else maybe(body)
        return seq(Text("["), body, Text("]"))

    # --- objects ------------------------------------------------------------------------------

    def _object(self, plain: Plain) -> Node:
        properties, others = self._properties(plain)
        least, most = _counts(plain, "Properties")
        if not properties and others is None:
            return self._map(plain, least, most)
        required = plain.get("required", ())
        pairs = [(self._pair(key, schema), key in required) for key, schema in properties.items()]
        extra: Node = NOTHING
        if others is not None and others is not False:
            extra = seq(other_key(self._rules, properties), Text(":"), self.of(others))
        members = Members(self._rules, self._name, pairs, extra, least, most)
        if not members.counted:
            self._schemas.note("minProperties" if least else "maxProperties")
        return seq(Text("{"), members.node(), Text("}"))

    def _properties(self, plain: Plain) -> tuple[dict[str, Any], Any]:
        """The named properties with their schemas, and the schema of any others.

        Others are None where the schema names none at all, which makes a map; where it does, be it
        an empty list, there are none unless it speaks of them.
        """
        named = plain.get("properties", {})
        others = plain.get("additionalProperties", plain.get("unevaluatedProperties"))
        if "patternProperties" in plain:
            self._schemas.note("patternProperties")
        keys = dict.fromkeys([*named, *plain.get("required", ())])
        listed_keys = self._listed_keys(plain.get("propertyNames", True))
        if listed_keys is not None:
            keys = dict.fromkeys([*keys, *listed_keys])
        found: dict[str, Any] = {}
        for key in keys:
            parts = [named[key]] if key in named else []
            parts += matching(plain, key)
            if not parts:
                parts = [True if others is None else others]
            if listed_keys is not None and key not in listed_keys:
                parts = [False]
            found[key] = both(*parts)
        if found and others not in (None, False) and plain.get("propertyNames", True) not in _ALL:
            self._schemas.note("propertyNames")
        if listed_keys is not None or (others is None and (found or "properties" in plain)):
            others = False
        if not found and (others is not False or "patternProperties" in plain):
            others = None
        return found, others

    def _listed_keys(self, names: Any) -> list[str] | None:
        """The keys that ``propertyNames`` lists; None where it lists none."""
        if names in _ALL:
            return None
        plain = self._schemas.alternatives({"allOf": [{"type": "string"}, names]})
        if not all("enum" in one for one in plain):
            return None
        return [value for one in plain for value in one["enum"]]

    def _map(self, plain: Plain, least: int, most: int | None) -> Node:
        """An object whose keys nobody named."""
        values = plain.get("additionalProperties", plain.get("unevaluatedProperties", True))
        if "patternProperties" in plain and values is False:
            values = {"anyOf": list(plain["patternProperties"].values())}
        if most is not None and most < least:
            return NOTHING
        names = plain.get("propertyNames", True)
        key: Node = string(self._rules, 0, MAX_KEY)
        if names not in _ALL:
            key = self.of({"allOf": [{"type": "string"}, names]})
        pair = seq(key, Text(":"), self.of(values))
        if most == 0:
            return tokens("{}")
        return several(Text("{"), pair, Text("}"), least, most)

    def _pair(self, key: str, schema: Any) -> Node:
        text = self._spell(key)
        return NOTHING if text is None else seq(Text(text), Text(":"), self.of(schema))


def _counts(plain: Plain, what: str) -> tuple[int, int | None]:
    """The smallest and the largest length, or number of items or properties, that a schema allows.

    Raises ToolDefinitionError where even the smallest is larger than anybody writes.
    """
    least, most = int(plain.get(f"min{what}", 0)), plain.get(f"max{what}")
    if least > LONGEST:
        raise ToolDefinitionError(f"min{what}: more than {LONGEST}")
    return least, None if most is None else min(int(most), LONGEST)


def _whole(plain: Plain) -> list[Any]:
    """The values of an ``enum``; a whole number is spelled as one where integers are due."""
    whole = listed(plain.get("type", ())) == ["integer"]
    return [int(value) if whole and isinstance(value, float) else value for value in plain["enum"]]
