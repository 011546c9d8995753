"""Text between tags as the value that a tool's schema wants there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from mlx_tools.parsing import Unreadable, literal, loads
from mlx_tools.schema import JSON_TYPES, list_branches, possible_types, read_properties

_MOST_LEVELS: Final = 64


def without_first_line_break(text: str) -> str:
    """``text`` without a line break at its beginning."""
    return text.removeprefix("\r\n" if text.startswith("\r\n") else "\n")


def without_line_breaks(text: str) -> str:
    """Return ``text`` without one line break at each end.

    A value may stand on lines of its own.

    Text of several lines, or indented, that begins right behind its mark keeps the last one: who
    writes so puts none around values, and a file ends in one.
    """
    first = without_first_line_break(text)
    both = first.removesuffix("\r\n" if first.endswith("\r\n") else "\n")
    is_inline = len(first) == len(text) and ("\n" in both or both[:1] in (" ", "\t"))
    return text if is_inline else both


def typed_value(text: str, parameters: Mapping[str, Any], key: str) -> Any:
    """Return ``text`` as the value of a property; as it stands if that is a string.

    Never raises: what fits no type stays text, and validation says what was expected.
    """
    schema = read_properties(parameters).get(key)
    if schema is None and isinstance(more := parameters.get("additionalProperties"), Mapping):
        schema = more
    if schema is None:
        return text
    return _as_one_of(text, frozenset(possible_types(schema, parameters)) or frozenset(JSON_TYPES))


def _as_one_of(text: str, kinds: frozenset[str]) -> Any:
    wanted = tuple(kind for name in kinds - {"string"} for kind in JSON_TYPES.get(name, ()))
    for read in (loads, literal) if wanted else ():
        try:
            value = read(text.strip())
        except Unreadable:
            continue
        if type(value) in wanted and (read is loads or type(value) not in (int, float)):
            return value
    return text


@dataclass
class _TaggedValue:
    tag: str
    children: list[_TaggedValue]
    text: str = ""


def elements(pieces: Sequence[str], parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that tags hold of which each is a parameter's name, or an item's.

    ``pieces`` begin with a tag each, text after it. Raises `Unreadable` where they do not match.
    """
    root = _TaggedValue("", [])
    open_elements = [root]
    for piece in pieces:
        tag, _, text = piece.partition(">")
        if tag.startswith("</"):
            if open_elements.pop().tag != tag[2:] or not open_elements:
                raise Unreadable("tags do not match")
            if text.strip():
                raise Unreadable("text stands between tags")
        elif tag.startswith("<") and len(open_elements) <= _MOST_LEVELS:
            element = _TaggedValue(tag[1:], [], text)
            open_elements[-1].children.append(element)
            open_elements.append(element)
        else:
            raise Unreadable("a tag is due")
    if len(open_elements) > 1:
        raise Unreadable("a tag is not closed")
    return _members(root, parameters)


def _members(element: _TaggedValue, schema: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for child in element.children:
        if child.tag in found:
            raise Unreadable(f"the parameter {child.tag[:40]!a} stands twice")
        found[child.tag] = _content(child, read_properties(schema).get(child.tag))
    return found


def _content(element: _TaggedValue, schema: Any) -> Any:
    ways = [schema, *list_branches(schema)] if isinstance(schema, Mapping) else []
    ways = [way for way in ways if isinstance(way, Mapping)]
    if not element.children:
        kinds = frozenset(kind for way in ways for kind in possible_types(way, way))
        return _as_one_of(without_line_breaks(element.text), kinds)
    if element.text.strip():
        raise Unreadable("text stands between tags")
    lists = [way for way in ways if way.get("type") == "array"]
    objects = [way for way in ways if read_properties(way)]
    if all(child.tag == "item" for child in element.children) and (lists or not objects):
        items = lists[0].get("items", {}) if lists else {}
        return [_content(child, items) for child in element.children]
    return _members(element, objects[0] if objects else {})
