"""Text between tags, read as the value that a tool's schema expects there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mlx_tools.parsing import Unreadable, literal, loads
from mlx_tools.schema import JSON_TYPES, possible_types, read_properties


def without_first_line_break(text: str) -> str:
    """Return ``text`` without a line break at its beginning."""
    return text.removeprefix("\r\n" if text.startswith("\r\n") else "\n")


def without_line_breaks(text: str) -> str:
    """Return ``text`` without one line break at each end.

    A value may be on lines of its own.

    Text of several lines, or indented, that begins right after its mark keeps the last line break:
    this writer puts none around values, and a file ends in one.
    """
    first = without_first_line_break(text)
    both = first.removesuffix("\r\n" if first.endswith("\r\n") else "\n")
    is_inline = len(first) == len(text) and ("\n" in both or both[:1] in (" ", "\t"))
    return text if is_inline else both


def typed_value(text: str, parameters: Mapping[str, Any], key: str) -> Any:
    """Return ``text`` as the value of a property, unchanged if that is a string.

    Never raises: text that fits no type stays text, and validation says what was expected.
    """
    schema = read_properties(parameters).get(key)
    if schema is None and isinstance(more := parameters.get("additionalProperties"), Mapping):
        schema = more
    if schema is None:
        return text
    return read_as(text, frozenset(possible_types(schema, parameters)) or frozenset(JSON_TYPES))


def read_as(text: str, kinds: frozenset[str]) -> Any:
    """Return ``text`` as a value of one of these types of JSON, or unchanged."""
    wanted = tuple(kind for name in kinds - {"string"} for kind in JSON_TYPES.get(name, ()))
    for read in (loads, literal) if wanted else ():
        try:
            value = read(text.strip())
        except Unreadable:
            continue
        # Python's literals bring True and None. Its numbers, such as 1_000 or 0x10, are not JSON's.
        if type(value) in wanted and (read is loads or type(value) not in (int, float)):
            return value
    return text
