"""One value changed in a TOML file that a person wrote: comments, order and blanks stay.

The text is edited by lines, and whether an edit is right is not guessed: what it parses to must be
what was parsed before, with the one value changed. Where no edit is, an editor has to be used.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any, Final

from mlx_tools.errors import ConfigError

_HEADER: Final = re.compile(r"\s*\[([^\[\]]+)\]\s*(#.*)?")
_ASSIGNED: Final = re.compile(r"\s*([\w.\-\"' ]+?)\s*=", re.ASCII)
_MOST_LINES: Final = 1000


def with_value(text: str, key: str, value: Any) -> str:
    """The text with a setting's ``key``, dotted, set to ``value``; with None it is not set.

    Raises ConfigError where the text is not TOML, and where it says the value in a form that is not
    changed by lines, such as within a table on one line.
    """
    try:
        wanted = _pruned(_changed(tomllib.loads(text), key, value))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"not TOML: {error}", hint="mlx-tools config edit") from None
    for edited in _edits(text, key, value):
        if _pruned(_parsed(edited)) == wanted:
            return edited
    raise ConfigError(
        f"the file says {key} in a form that only an editor can change",
        hint="mlx-tools config edit",
    )


def as_toml(value: Any) -> str:
    """A setting's value as TOML."""
    match value:
        case str():
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case bool():
            return str(value).lower()
        case Mapping():
            pairs = (f"{as_toml(name)} = {as_toml(one)}" for name, one in value.items())
            return f"{{ {', '.join(pairs)} }}" if value else "{}"
        case list() | tuple():
            return f"[{', '.join(map(as_toml, value))}]"
        case _:
            return repr(value)


def _edits(text: str, key: str, value: Any) -> Iterator[str]:
    """The text in the ways that the change could be made, the nicest first."""
    lines = text.split("\n")
    section, _, name = key.rpartition(".")
    where = list(_sections(lines))
    for at, line in enumerate(lines):
        said = _ASSIGNED.match(line)
        if said and _dotted(f"{where[at]}.{said[1]}") == key:
            yield "\n".join(_replaced(lines, at, said[1], value))
    if value is None:
        yield text
        return
    for at in _places(lines, where, section):
        yield _inserted(lines, at, f"{name} = {as_toml(value)}")
    head = f"{text.rstrip()}\n\n" if text.strip() else ""
    yield f"{head}[{section}]\n{name} = {as_toml(value)}\n"
    for at in _places(lines, where, ""):
        yield _inserted(lines, at, f"{key} = {as_toml(value)}")


def _sections(lines: list[str]) -> Iterator[str]:
    """The table that each line stands in, empty for the one at the top."""
    section = ""
    for line in lines:
        if header := _HEADER.fullmatch(line):
            section = _dotted(header[1])
        yield section


def _dotted(name: str) -> str:
    return ".".join(part.strip().strip("\"'") for part in name.split(".")).strip(".")


def _replaced(lines: list[str], at: int, name: str, value: Any) -> list[str]:
    """The lines with what is assigned in line ``at``, which may go over several, replaced."""
    end = at + 1
    while _parsed("\n".join(lines[at:end])) is None and end < min(len(lines), at + _MOST_LINES):
        end += 1
    if value is None:
        return [*lines[:at], *lines[end:]]
    said = "\n".join(lines[at:end])
    marks = (mark.start() for mark in re.finditer(r"\s*#", said))
    comment = next((mark for mark in marks if _parsed(said[:mark]) == _parsed(said)), len(said))
    indent = said[: len(said) - len(said.lstrip())]
    return [*lines[:at], f"{indent}{name} = {as_toml(value)}{said[comment:]}", *lines[end:]]


def _places(lines: list[str], where: list[str], section: str) -> list[int]:
    """The lines before which something can be put into a section: behind the last that it says
    first, then the others of it."""
    own = [at for at, one in enumerate(where) if one == section]
    said = [at for at in own if lines[at].strip() and not lines[at].lstrip().startswith("#")]
    if not section:
        own = [-1, *own]  # before all else
    return [at + 1 for at in (*reversed(said), *reversed(own))]


def _inserted(lines: list[str], at: int, line: str) -> str:
    return "\n".join([*lines[:at], line, *(lines[at:] or [""])])


def _changed(document: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    *tables, name = key.split(".")
    inner: Any = document
    for table in tables:
        inner = inner.setdefault(table, {}) if isinstance(inner, dict) else {}
    if isinstance(inner, dict):
        inner[name] = list(value) if isinstance(value, tuple) else value
        if value is None:
            inner.pop(name)
    return document


def _pruned(value: Any) -> Any:
    """A document without its empty tables: whether there is one says nothing."""
    if not isinstance(value, dict):
        return value
    inner = {name: _pruned(one) for name, one in value.items()}
    return {name: one for name, one in inner.items() if one != {}}


def _parsed(text: str) -> Any:
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError):
        return None
