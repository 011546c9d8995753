"""Values written in Java or JavaScript, as BFCL's checker reads them.

In its Java and JavaScript categories every argument is a text that holds such a value. What cannot
be read as the parameter's type stays the text it is. The rules are those of the official converters
with all their quirks, or the scores would not be the same: the texts of a Java array keep their
quotes, a dictionary ends at its first brace. Pure, and bounded on any text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

MOST_CHARS: Final = 10_000
"""A longer text is no value that anybody wrote by hand: it stays a text."""

JAVA_TYPES: Final[Mapping[str, type]] = {
    **dict.fromkeys(("byte", "short", "integer", "long"), int),
    **dict.fromkeys(("float", "double"), float),
    **dict.fromkeys(("char", "String", "any"), str),
    **dict.fromkeys(("Array", "ArrayList"), list),
    "boolean": bool,
    "HashMap": dict,
}
JS_TYPES: Final[Mapping[str, type]] = {
    **dict.fromkeys(("integer", "Bigint"), int),
    **dict.fromkeys(("String", "any"), str),
    "float": float,
    "Boolean": bool,
    "array": list,
    "dict": dict,
}

_FRACTION: Final = r"-?\d+(?:\.\d+)?"
_SCIENTIFIC: Final = rf"{_FRACTION}(?:[eE][+-]?\d+)?"
_INTEGER: Final = re.compile(r"-?\d+\n?")
_DECIMAL: Final = re.compile(rf"{_FRACTION}\n?")
_JAVA_LONG: Final = re.compile(r"(-?\d+)[lL]\n?")
_JAVA_FLOAT: Final = re.compile(rf"({_SCIENTIFIC})[fF]\n?")
_JAVA_DOUBLE: Final = re.compile(rf"{_SCIENTIFIC}\n?")
_JS_BIGINT: Final = re.compile(r"(-?\d+)n")


def java_value(text: str, kind: str, element: str | None = None) -> Any:
    """The value of type ``kind`` that ``text`` holds; ``element`` is the type of a collection's."""
    if len(text) > MOST_CHARS:
        return text
    try:
        return _JAVA[kind](text, element) if kind in _JAVA else text
    except ValueError:  # more digits than Python reads
        return text


def javascript_value(text: str, kind: str, element: str | None = None) -> Any:
    """The value of type ``kind`` that ``text`` holds; ``element`` is the type of a collection's."""
    if len(text) > MOST_CHARS:
        return text
    try:
        return _JS[kind](text, element) if kind in _JS else text
    except ValueError:
        return text


def _whole(text: str) -> Any:
    return int(text) if _INTEGER.fullmatch(text) else text


def _truth(text: str) -> Any:
    return text == "true" if text in ("true", "false") else text


def _quoted(text: str, marks: str) -> bool:
    """Whether the text begins and ends with the same one of these marks."""
    return any(text.startswith(mark) and text.endswith(mark) for mark in marks)


def _guessed(text: str) -> Any:
    """A number if it is one, else the text."""
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            continue
    return text


# --- Java -------------------------------------------------------------------------------------

_AS_LIST: Final = re.compile(r"new\s+ArrayList<\w*>\(Arrays\.asList\((.+?)\)\)")
_ADDING: Final = re.compile(r"new\s+ArrayList<\w*>\(\)\s*\{\{\s*")
_ADD: Final = re.compile(r"add\((.+?)\)")
_NEW_LIST: Final = re.compile(r"new\s+ArrayList<\w*>\(\)")
_NEW_ARRAY: Final = re.compile(r"new\s+\w+\[\]\s*\{(.*?)\}")
_NEW_MAP: Final = re.compile(r"new\s+HashMap<")
_MAP_BODY: Final = re.compile(r">\s*\(\)\s*\{\s*\{?\s*")
_EMPTY_MAP: Final = re.compile(r"new\s+HashMap<.*?>\s*\(\)")
_PUT: Final = re.compile(r'put\("(.*?)",\s*(.*?)\)')


def _java_long(text: str, _: str | None) -> Any:
    found = _JAVA_LONG.fullmatch(text)
    return int(found[1]) if found else text


def _java_float(text: str, _: str | None) -> Any:
    found = _JAVA_FLOAT.fullmatch(text)
    return float(found[1]) if found else text


def _java_double(text: str, _: str | None) -> Any:
    return float(text) if _JAVA_DOUBLE.fullmatch(text) else text


def _java_list(text: str, element: str | None) -> Any:
    """An ArrayList: made of ``Arrays.asList``, by ``add`` in double braces, or empty."""
    if found := _AS_LIST.search(text):
        return [_java_element(part.strip(), element) for part in found[1].split(",")]
    if (added := _added(text)) is not None:
        return [_java_element(part.strip(), element) for part in _ADD.findall(added)]
    return [] if _NEW_LIST.search(text) else text


def _added(text: str) -> str | None:
    """What stands in the double braces after an ArrayList, something at least; None without."""
    head = _ADDING.search(text)
    if not head:
        return None
    end = text.find("}}", head.end() + 1)
    if end >= 0:
        return text[head.end() : end]
    blank = text[head.end() - 1].isspace() and text.startswith("}}", head.end())
    return "" if blank else None


def _java_element(text: str, element: str | None) -> Any:
    if element in ("char", "String"):
        return text[1:-1]
    return java_value(text, element) if element else _java_untyped(text)


def _java_array(text: str, element: str | None) -> Any:
    found = _NEW_ARRAY.search(text)
    if not found:
        return text
    parts = [part.strip() for part in found[1].split(",") if part.strip()]
    return [java_value(part, element) if element else _java_untyped(part) for part in parts]


def _java_map(text: str, _: str | None) -> Any:
    """A HashMap: by ``put`` in braces up to the first that closes, or empty."""
    head = _NEW_MAP.search(text)
    body = _MAP_BODY.search(text, head.end()) if head else None
    if body and (end := text.find("}", body.end())) >= 0:
        puts = _PUT.findall(text[body.end() : end])
        return {key: _java_untyped(value.strip()) for key, value in puts}
    return {} if _EMPTY_MAP.search(text) else text


def _java_untyped(text: str) -> Any:
    """A value whose type nothing tells but its spelling."""
    if text in ("true", "false"):
        return text == "true"
    if _quoted(text, '"'):
        return text[1:-1]
    if found := _JAVA_LONG.fullmatch(text):
        return int(found[1])
    if found := _JAVA_FLOAT.fullmatch(text):
        return float(found[1])
    return _guessed(text)


_Reads = Callable[[str, str | None], Any]

_JAVA: Final[Mapping[str, _Reads]] = {
    **dict.fromkeys(("byte", "short", "integer"), lambda text, _: _whole(text)),
    "long": _java_long,
    "float": _java_float,
    "double": _java_double,
    "boolean": lambda text, _: _truth(text),
    "Array": _java_array,
    "ArrayList": _java_list,
    "HashMap": _java_map,
}


# --- JavaScript -------------------------------------------------------------------------------

_ROWS: Final = re.compile(r"\[(\s*)\[|new\s+Array\((\s*)\[")
_INNER: Final = re.compile(r"\[(.*?)\]")
_NEXT_ROW: Final = re.compile(r",\s*\[")
_BLANK: Final = re.compile(r"\s*")
_FLAT: Final = re.compile(r"\[(.*?)\]|new\s+Array\((.*?)\)")
_ENTRIES: Final = re.compile(r"\{(.*?)\}")
_PAIR: Final = re.compile(r"([^:]+):\s*(.*?)(?:,\s*(?=[^,]+:)|$)")


def _js_string(text: str, _: str | None = None) -> Any:
    return text[1:-1] if _quoted(text, "\"'") else text


def _js_bigint(text: str, _: str | None) -> Any:
    found = _JS_BIGINT.fullmatch(text)
    return int(found[1]) if found else text


def _js_array(text: str, element: str | None) -> Any:
    """An array of values, or of arrays; the elements of the latter are guessed."""
    text = text.strip()
    if (rows := _rows(text)) is not None:
        return [[_js_untyped(part) for part in row.split(",")] for row in rows]
    found = _FLAT.match(text)
    if not found:
        return text
    inside = (found[1] if found[1] is not None else found[2]).strip()
    parts = [part.strip() for part in inside.split(",")] if inside else []
    if element is None:
        return [_js_untyped(part) for part in parts]
    if element not in _JS:
        return text
    return [_JS[element](part, "String" if part[:1] in "'\"" else None) for part in parts]


def _rows(text: str) -> list[str] | None:
    """What stands in the brackets of the inner arrays; None where it is no array of arrays.

    An inner array ends at the first bracket after which either the outer one ends, or another inner
    one begins of which this holds too; it does not go over a line's end. Worked out from the end,
    so that a text that a model repeats for ever costs no more than its length.
    """
    head = _ROWS.match(text)
    if not head:
        return None
    closing = "]" if head[1] is not None else ")"
    ends: dict[int, int | None] = {}
    nearest: int | None = None  # the first bracket from here on, in this line, that can end a row
    after: dict[int, int | None] = {}
    for place in range(len(text) - 1, head.end() - 1, -1):
        if text[place] == "\n":
            nearest = None
        if text[place] == "]":
            ends[place] = _end_of_rows(text, place + 1, closing, after, ends)
            if ends[place] is not None:
                nearest = place
        after[place] = nearest
    first = after.get(head.end())
    end = ends[first] if first is not None else None
    if end is None:
        return None
    rows = [row.strip() for row in _INNER.findall(text[:end])]
    return [rows[0].removeprefix("["), *rows[1:]]


def _end_of_rows(
    text: str,
    place: int,
    closing: str,
    after: Mapping[int, int | None],
    ends: Mapping[int, int | None],
) -> int | None:
    """Where the outer array ends if a row ends right before ``place``; None where it does not."""
    place = _BLANK.match(text, place).end()  # type: ignore[union-attr] # it matches anywhere
    if more := _NEXT_ROW.match(text, place):
        row = after.get(more.end())
        return ends[row] if row is not None else None
    return place + 1 if text[place : place + 1] == closing else None


def _js_dict(text: str, _: str | None) -> Any:
    text = text.strip()
    if text == "{}":
        return {}
    found = _ENTRIES.match(text)
    if not found:
        return text
    pairs = _PAIR.findall(found[1]) if ":" in found[1] else []
    return {key.strip().strip("'\""): _js_entry(value.strip()) for key, value in pairs}


def _js_entry(text: str) -> Any:
    if text.startswith("[") and text.endswith("]"):
        return _js_array(text, None)
    if text.startswith("{") and text.endswith("}"):
        return _js_dict(text, None)
    return _js_untyped(text.strip("'\""))


def _js_untyped(text: str) -> Any:
    """A value whose type nothing tells but its spelling."""
    text = text.strip()
    if text in ("true", "false"):
        return text == "true"
    return text[1:-1] if _quoted(text, "\"'") else _guessed(text)


_JS: Final[Mapping[str, _Reads]] = {
    "String": _js_string,
    "integer": lambda text, _: _whole(text),
    "float": lambda text, _: float(text) if _DECIMAL.fullmatch(text) else text,
    "Bigint": _js_bigint,
    "Boolean": lambda text, _: _truth(text),
    "array": _js_array,
    "dict": _js_dict,
    "any": lambda text, _: text,
}
