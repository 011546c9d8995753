"""Text between tags as the value that a tool's schema wants there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from mlx_tools.protocol.literals import literal
from mlx_tools.protocol.strict import Unreadable, loads

_KINDS: Final[Mapping[str, tuple[type[Any], ...]]] = {
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}
_ALL: Final = frozenset((*_KINDS, "string"))
_REF_STEPS: Final = 8


def property_types(parameters: Mapping[str, Any], key: str) -> frozenset[str]:
    """The JSON types that the property may have; ``string`` alone where nothing is known."""
    properties = parameters.get("properties")
    schema = properties.get(key) if isinstance(properties, Mapping) else None
    if schema is None:
        more = parameters.get("additionalProperties")
        schema = more if isinstance(more, Mapping) else None
    if schema is None:
        return frozenset(("string",))
    return frozenset(_types(schema, parameters, _REF_STEPS)) or _ALL


def _types(schema: Any, root: Mapping[str, Any], left: int) -> Iterator[str]:
    if not isinstance(schema, Mapping) or not left:
        return
    kind = schema.get("type")
    if isinstance(kind, str):
        yield kind
    elif isinstance(kind, list):
        yield from (one for one in kind if isinstance(one, str))
    elif isinstance(ref := schema.get("$ref"), str) and ref.startswith("#/"):
        found: Any = root
        for step in ref[2:].split("/"):
            found = found.get(step) if isinstance(found, Mapping) else None
        yield from _types(found, root, left - 1)
    elif isinstance(values := schema.get("enum", [schema.get("const")]), list) and (
        "enum" in schema or "const" in schema
    ):
        for value in values:
            yield from _type_of(value)
    for word in ("anyOf", "oneOf", "allOf"):
        branches = schema.get(word)
        for branch in branches if isinstance(branches, list) else ():
            yield from _types(branch, root, left - 1)


def _type_of(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield "string"
    for name, kinds in _KINDS.items():
        if type(value) in kinds:
            yield name


def typed(text: str, types: frozenset[str]) -> Any:
    """``text`` as a value of one of ``types``, as it stands where it is none but a string.

    Never raises: what fits no type stays text, and validation says what was expected.
    """
    if types == frozenset(("string",)):
        return text
    body = text.strip()
    for read in (loads, literal):
        try:
            value = read(body)
        except Unreadable:
            continue
        kinds = tuple(kind for name in types for kind in _KINDS.get(name, ()))
        if type(value) in kinds and (read is loads or type(value) not in (int, float)):
            return value
    return text


_MOST_LEVELS: Final = 64


def elements(pieces: Sequence[str], parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that tags hold of which each is a parameter's name, or an item's.

    ``pieces`` begin with a tag each, text after it. Raises `Unreadable` where they do not match.
    """
    root = _Element("", [])
    open_elements = [root]
    for piece in pieces:
        tag, _, text = piece.partition(">")
        if tag.startswith("</"):
            if open_elements.pop().tag != tag[2:] or not open_elements:
                raise Unreadable("tags do not match")
        elif tag.startswith("<") and len(open_elements) <= _MOST_LEVELS:
            open_elements[-1].children.append(_Element(tag[1:], [], text))
            open_elements.append(open_elements[-1].children[-1])
            continue
        else:
            raise Unreadable("a tag is due")
        if text.strip():
            raise Unreadable("text stands between tags")
    if len(open_elements) > 1:
        raise Unreadable("a tag is not closed")
    return _members(root, parameters)


@dataclass
class _Element:
    tag: str
    children: list[_Element]
    text: str = ""


def _members(element: _Element, schema: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for child in element.children:
        if child.tag in found:
            raise Unreadable(f"the parameter {child.tag[:40]!a} stands twice")
        found[child.tag] = _content(child, _branches(_property(schema, child.tag)))
    return found


def _content(element: _Element, branches: Sequence[Mapping[str, Any]]) -> Any:
    if not element.children:
        types = frozenset(t for schema in branches for t in _types(schema, schema, _REF_STEPS))
        return typed(element.text, types or frozenset(("string",)))
    if element.text.strip():
        raise Unreadable("text stands between tags")
    lists = [schema for schema in branches if schema.get("type") == "array"]
    objects = [schema for schema in branches if isinstance(schema.get("properties"), Mapping)]
    if all(child.tag == "item" for child in element.children) and (lists or not objects):
        items = lists[0].get("items", {}) if lists else {}
        return [_content(child, _branches(items)) for child in element.children]
    return _members(element, objects[0] if objects else {})


def _property(schema: Mapping[str, Any], key: str) -> Any:
    properties = schema.get("properties")
    return properties.get(key) if isinstance(properties, Mapping) else None


def _branches(schema: Any) -> list[Mapping[str, Any]]:
    if not isinstance(schema, Mapping):
        return []
    inner = [branch for word in ("anyOf", "oneOf") for branch in schema.get(word) or ()]
    return [branch for branch in (schema, *inner) if isinstance(branch, Mapping)]
