"""Edits of JSON files with comments: one value changes, everything else stays.

Comments and commas after the last member are read as by the programs that own the files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any, Final

from msgspec import Struct

from mlx_tools.errors import ConfigError

Path = tuple[str | int, ...]

_BLANK: Final = re.compile(r"(?:[ \t\r\n]+|//[^\n]*|/\*.*?\*/)*", re.DOTALL)
_LITERAL: Final = re.compile(
    r"true|false|null|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"
)
_TEXT: Final = re.compile(r'"(?:[^"\\\x00-\x1f]|\\.)*"')
_REST_OF_LINE: Final = re.compile(r"[ \t]*(?:,[ \t]*)?(?://[^\n]*|/\*[^\n]*?\*/)?[ \t]*(?=\r?\n)")
_MAX_DEPTH: Final = 100


class _Node(Struct):
    """A value in the text, from ``start`` to ``end``.

    ``members`` are its keys or numbers, the places where they begin, and their values.
    """

    start: int
    end: int
    value: Any
    members: list[tuple[str | int, int, _Node]]
    has_last_comma: bool = False


def read_json(text: str) -> Any:
    """Return the value of a text.

    Raises ConfigError if it is no JSON, with or without comments.
    """
    return _parse(text).value


def set_json(text: str, path: Path, value: Any) -> str:
    """Set the value at a path of a text.

    An index behind the last item of a list appends.

    Raises:
        ConfigError: the text is no JSON, or something else stands on the way.
    """
    expected = put_value(deepcopy(read_json(text) if text.strip() else {}), path, value)
    if not text.strip():
        return json.dumps(expected, indent=2, ensure_ascii=False) + "\n"
    edited = _replace(text, path, value)
    if read_json(edited) != expected:
        raise ConfigError("this file's form is one that cannot be changed safely")
    return edited


def put_value(holder: Any, path: Path, value: Any) -> Any:
    """Set a value within objects and lists, which are added if they are missing."""
    if not path:
        return value
    step, *further = path
    holder = _empty(path) if holder is None else holder
    if isinstance(step, int):
        if not isinstance(holder, list):
            raise ConfigError(f"a list was expected before {step}")
        inner = holder[step] if step < len(holder) else None
        holder[step:] = [put_value(inner, tuple(further), value), *holder[step + 1 :]]
        return holder
    if not isinstance(holder, dict):
        raise ConfigError(f"an object was expected that holds {step!r}")
    holder[step] = put_value(holder.get(step), tuple(further), value)
    return holder


def _empty(path: Sequence[str | int]) -> Any:
    return [] if path and isinstance(path[0], int) else {}


def _replace(text: str, path: Path, value: Any) -> str:
    node, used = _parse(text), 0
    for step in path:
        found = next((inner for key, _, inner in node.members if key == step), None)
        if found is None:
            break
        node, used = found, used + 1
    rest = path[used:]
    line_end = "\r\n" if "\r\n" in text else "\n"
    if not rest:
        indent = _find_indent(text, node.start)
        return text[: node.start] + _format_value(value, indent, line_end) + text[node.end :]
    if not isinstance(node.value, list if isinstance(rest[0], int) else dict):
        raise ConfigError(f"{'.'.join(map(str, path[:used])) or 'the file'} holds something else")
    member = put_value(_empty(rest), (0, *rest[1:]) if isinstance(rest[0], int) else rest, value)
    inner = member[0] if isinstance(member, list) else member[rest[0]]
    key = "" if isinstance(rest[0], int) else json.dumps(rest[0], ensure_ascii=False) + ": "
    return _insert(
        text, node, lambda indent: key + _format_value(inner, indent, line_end), line_end
    )


def _insert(text: str, node: _Node, write: Callable[[str], str], line_end: str) -> str:
    """Return the text with one more member at the end of an object or list."""
    outer = _find_indent(text, node.start)
    if not node.members:
        indent = outer + _unit(text)
        inside = text[node.start + 1 : node.end - 1].rstrip(" \t\r\n")
        return (
            f"{text[: node.start + 1]}{inside}{line_end}{indent}{write(indent)}{line_end}{outer}"
            f"{text[node.end - 1 :]}"
        )
    _, begins, last = node.members[-1]
    comma = "" if node.has_last_comma else ","
    if "\n" not in text[node.start : begins]:  # all on one line
        end = text.index(",", last.end) + 1 if node.has_last_comma else last.end
        return f"{text[:end]}{comma} {write(outer)}{text[end:]}"
    indent = _find_indent(text, begins)
    match = _REST_OF_LINE.match(text, last.end)
    if match:
        end = match.end()
    else:
        end = text.index(",", last.end) + 1 if node.has_last_comma else last.end
    member = f"{line_end}{indent}{write(indent)}{',' if node.has_last_comma else ''}"
    return f"{text[: last.end]}{comma}{text[last.end : end]}{member}{text[end:]}"


def _format_value(value: Any, indent: str, line_end: str) -> str:
    lines = json.dumps(value, indent=2, ensure_ascii=False).split("\n")
    return (line_end + indent).join(lines)


def _find_indent(text: str, place: int) -> str:
    """Return the blanks at the beginning of the line of a place."""
    line = text[text.rfind("\n", 0, place) + 1 : place]
    return line[: len(line) - len(line.lstrip(" \t"))]


def _unit(text: str) -> str:
    match = re.search(r"\n([ \t]+)\S", text)
    return match[1][:8] if match else "  "


# --- reading ------------------------------------------------------------------------------------


def _parse(text: str) -> _Node:
    start = 1 if text.startswith("\ufeff") else 0
    node = _value(text, _skip(text, start), 0)
    if (end := _skip(text, node.end)) != len(text):
        raise _wrong(text, end)
    return node


def _skip(text: str, place: int) -> int:
    match = _BLANK.match(text, place)
    return match.end() if match else place


def _wrong(text: str, place: int) -> ConfigError:
    line = text.count("\n", 0, place) + 1
    return ConfigError(f"not JSON: line {line} cannot be read")


def _value(text: str, place: int, depth: int) -> _Node:
    if depth > _MAX_DEPTH:
        raise ConfigError(f"not JSON that can be read: over {_MAX_DEPTH} levels")
    if text[place : place + 1] in ("{", "["):
        return _holder(text, place, depth)
    for form in (_TEXT, _LITERAL):
        if match := form.match(text, place):
            try:
                return _Node(place, match.end(), json.loads(match[0]), [])
            except ValueError:
                break
    raise _wrong(text, place)


def _holder(text: str, start: int, depth: int) -> _Node:
    """Parse an object or a list."""
    is_object = text[start] == "{"
    members: list[tuple[str | int, int, _Node]] = []
    has_last_comma = False
    place = _skip(text, start + 1)
    while text[place : place + 1] != ("}" if is_object else "]"):
        if members and not has_last_comma:
            raise _wrong(text, place)
        begins, key = place, _key(text, place) if is_object else None
        if key is not None:
            if any(known == key.value for known, _, _ in members):
                raise ConfigError(f"not JSON that can be changed: {key.value!r} stands there twice")
            place = _skip(text, key.end)
            if text[place : place + 1] != ":":
                raise _wrong(text, place)
            place = _skip(text, place + 1)
        inner = _value(text, place, depth + 1)
        members.append((len(members) if key is None else key.value, begins, inner))
        place = _skip(text, inner.end)
        has_last_comma = text[place : place + 1] == ","
        place = _skip(text, place + 1) if has_last_comma else place
    values: Any = (
        {k: n.value for k, _, n in members} if is_object else [n.value for _, _, n in members]
    )
    return _Node(start, place + 1, values, members, has_last_comma)


def _key(text: str, place: int) -> _Node:
    match = _TEXT.match(text, place)
    if match is None:
        raise _wrong(text, place)
    return _Node(place, match.end(), json.loads(match[0]), [])
