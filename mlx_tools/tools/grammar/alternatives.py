"""A schema as the plain schemas of which a value fits at least one.

A plain one has no ``$ref``, ``allOf``, ``anyOf``, ``oneOf`` and ``const`` at its top, and one type
or none. What stands in its properties and items is left as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from mlx_tools.errors import ToolDefinitionError
from mlx_tools.tools.grammar.merge import (
    ABOUT,
    PLAIN,
    TYPES,
    Plain,
    is_of,
    listed,
    mark,
    merged,
    within,
)
from mlx_tools.tools.schema import anchors, pointer, resolve

MAX_ALTERNATIVES: Final = 100
"""How many plain schemas one schema may come to."""

_LEFT: Final = frozenset(
    {
        *("contains", "dependentRequired", "dependentSchemas", "if", "maxContains", "minContains"),
        *("multipleOf", "not", "pattern", "unevaluatedItems"),
    }
)


class Schemas:
    """The schemas within one root, each as its alternatives.

    ``left`` collects the keywords that were met and that a grammar leaves to validation.
    """

    def __init__(self, root: Mapping[str, Any]) -> None:
        self.left: dict[str, None] = {}
        self._root = root
        self._named = anchors(root)

    def alternatives(self, node: Any, above: frozenset[str] = frozenset()) -> list[Plain]:
        """The plain schemas that a schema amounts to; [] where nothing fits.

        ``above`` are the references that led here from the same value.

        Raises:
            ToolDefinitionError: there are too many, or it is no schema that ends. The message
                begins with the keyword.
        """
        if isinstance(node, bool):
            return [{}] if node else []
        if not isinstance(node, Mapping):
            raise ToolDefinitionError(f"a schema is neither an object nor a boolean: {node!r:.40}")
        self._note(node)
        plain = {key: value for key, value in node.items() if key in PLAIN}
        if "const" in node:
            plain = merged(plain, {"enum": [node["const"]]})
        result = [plain]
        for keyword, group in self._groups(node, above):
            found = (merged(one, other) for one in result for other in group)
            result = [one for one in found if one.get("enum") != []]
            if len(result) > MAX_ALTERNATIVES:
                raise ToolDefinitionError(
                    f"{keyword}: more than {MAX_ALTERNATIVES} ways to fit the schema"
                )
        return [typed for plain in result for typed in self._typed(plain)]

    def note(self, keyword: str) -> None:
        """A keyword is left to validation."""
        self.left[keyword] = None

    def _groups(
        self, node: Mapping[str, Any], above: frozenset[str]
    ) -> Iterable[tuple[str, list[Plain]]]:
        """What must hold beside the schema's own keywords, each as alternatives."""
        for part in node.get("allOf", ()):
            yield "allOf", self.alternatives(part, above)
        for keyword in ("anyOf", "oneOf"):
            if keyword in node:
                branches = [self.alternatives(part, above) for part in node[keyword]]
                if keyword == "oneOf" and not _apart(branches):
                    self.note("oneOf")
                yield keyword, _gathered(plain for branch in branches for plain in branch)
        for keyword in ("$ref", "$dynamicRef"):
            if isinstance(node.get(keyword), str):
                yield keyword, self._referred(keyword, node[keyword], above)

    def _referred(self, keyword: str, reference: str, above: frozenset[str]) -> list[Plain]:
        try:
            path, target = resolve(self._root, reference, self._named)
        except ToolDefinitionError as error:
            raise ToolDefinitionError(f"{keyword}: {error.message}") from None
        place = pointer(path)
        if place in above:
            raise ToolDefinitionError(f"{keyword}: {reference!r:.80} refers to itself without end")
        return self.alternatives(target, above | {place})

    def _note(self, node: Mapping[str, Any]) -> None:
        for keyword in node.keys() & _LEFT:
            self.note(keyword)
        if node.get("uniqueItems"):
            self.note("uniqueItems")

    def _typed(self, plain: Plain) -> list[Plain]:
        """The plain schema once for each of its types; as it is where it says none."""
        kinds = listed(plain.get("type", TYPES))
        for kind in kinds:
            if kind not in TYPES:
                raise ToolDefinitionError(f"type: {kind!r:.40} is no type of JSON Schema")
        if "enum" in plain:
            values = [
                value for value in plain["enum"] if is_of(value, kinds) and within(value, plain)
            ]
            if any(isinstance(value, dict | list) for value in values) and plain.keys() & _NESTED:
                self.note("enum")
            return [{**plain, "enum": values}] if values else []
        if "type" not in plain:
            about = [kind for kind, keys in ABOUT.items() if not keys.isdisjoint(plain)]
            return [{**plain, "type": kind} for kind in about] or [plain]
        return [{**plain, "type": kind} for kind in TYPES if kind in kinds]


def _gathered(plains: Iterable[Plain]) -> list[Plain]:
    """The same alternatives, with those that only list values made one."""
    found: list[Plain] = []
    values: list[Any] = []
    for plain in plains:
        if plain.keys() <= {"enum", "type"} and "enum" in plain:
            values += plain["enum"]
        else:
            found.append(plain)
    return [*found, {"enum": values}] if values else found


_NESTED: Final = ABOUT["object"] | ABOUT["array"]


def _apart(branches: list[list[Plain]]) -> bool:
    """Whether it is plain to see that no value fits two of the branches."""
    return all(
        _differ(one, other)
        for number, branch in enumerate(branches)
        for later in branches[number + 1 :]
        for one in branch
        for other in later
    )


def _differ(one: Plain, other: Plain) -> bool:
    """Whether two plain schemas have another type, other values, or a key that tells them apart."""
    first, second = one.get("enum"), other.get("enum")
    if first is not None and second is not None:
        return {mark(value) for value in first}.isdisjoint(mark(value) for value in second)
    for values, schema in ((first, other), (second, one)):
        if values is not None:
            allowed = listed(schema.get("type", TYPES))
            return not any(is_of(value, allowed) and within(value, schema) for value in values)
    kinds = {one.get("type"), other.get("type")}
    if None in kinds:
        return False
    if len(kinds) == 2:
        return kinds != {"integer", "number"}
    return kinds == {"object"} and _told_apart(one, other)


def _told_apart(one: Plain, other: Plain) -> bool:
    """Whether two objects must both have a key whose values have nothing in common."""
    for key in one.get("required", ()):
        if key not in other.get("required", ()):
            continue
        mine = _constants(one.get("properties", {}).get(key))
        yours = _constants(other.get("properties", {}).get(key))
        if mine and yours and mine.isdisjoint(yours):
            return True
    return False


def _constants(schema: Any) -> set[str]:
    """The values that a schema lists, as marks; empty where it lists none."""
    if not isinstance(schema, Mapping):
        return set()
    values = [schema["const"]] if "const" in schema else schema.get("enum", [])
    return {mark(value) for value in values}
