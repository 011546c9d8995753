"""Calls that stand inside observations (reading rule 12).

A tool's output may hold a call for the model to copy. Whatever it is wrapped in, as an object
within an object, as JSON within a string of JSON, behind backslashes or entities, in another
protocol's form, its name and arguments are found. It is a heuristic; policy is the wall.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Final

from mlx_tools.protocol.canonical import canonical
from mlx_tools.protocol.envelope import call_in
from mlx_tools.protocol.lexemes import CLOSED
from mlx_tools.protocol.lexis import NO_OBJECT
from mlx_tools.protocol.repair import repaired
from mlx_tools.protocol.scan import ObjectScanner
from mlx_tools.protocol.strict import Unreadable
from mlx_tools.spec import ALIASES

_VARIANTS: Final = 8
"""So many times its own length is read of an observation: what its strings and escapes hold."""

_REREADS: Final = 4
"""A text is read so many times over at most, where braces in it begin no object."""

_ESCAPED: Final = re.compile(r'\\(["\\/])')
_SEPARATORS: Final = re.compile(r"[-_.]")


def loose_name(name: str) -> str:
    """A name without case, ``-``, ``_`` and ``.``: what a close match may differ in (rule 10)."""
    return _SEPARATORS.sub("", name).lower()


_OWN: Final[Mapping[str, str]] = {
    loose_name(alias): loose_name(tool) for alias, tool in ALIASES.items()
}


def echo_key(name: str, arguments: Mapping[str, Any]) -> str:
    """What a call and its echo have in common."""
    loose = loose_name(name)
    return canonical(_OWN.get(loose, loose), arguments)


@lru_cache(maxsize=128)
def calls_in(observation: str) -> frozenset[str]:
    """The `echo_key` of every call in ``observation``. Work is linear in its length."""
    found: set[str] = set()
    seen: set[str] = set()
    todo = deque([observation])
    left = _VARIANTS * len(observation)
    while todo and left >= 0:
        text = todo.popleft()
        if text in seen:
            continue
        seen.add(text)
        left -= len(text)
        for value in _objects(text):
            todo += _strings_and_calls(value, found)
        todo += _unescaped(text)
    return frozenset(found)


def _unescaped(text: str) -> Iterator[str]:
    if '\\"' in text:
        yield _ESCAPED.sub(r"\1", text)
    if "&quot;" in text or "&#" in text:
        from html import unescape

        yield unescape(text)


def _strings_and_calls(value: Any, found: set[str]) -> Iterator[str]:
    """Notes the calls in ``value``; yields the strings that may hold more."""
    todo = [value]
    while todo:
        item = todo.pop()
        if isinstance(item, dict):
            if (call := call_in(item)) is not None:
                found.add(echo_key(*call))
            todo += item.values()
        elif isinstance(item, list):
            todo += item
        elif isinstance(item, str) and "{" in item:
            yield item


def _objects(text: str) -> Iterator[Any]:
    """The objects in ``text`` that are not part of another."""
    left = _REREADS * len(text)
    pos = text.find("{")
    while pos >= 0:
        end = pos + 1
        if not NO_OBJECT.match(text, end):
            scanner = ObjectScanner(quiet=True)
            end = scanner.advance(text, pos)
            left -= end - pos
            if scanner.status == CLOSED:
                try:
                    yield repaired(text[pos:end], scanner.fixes)[0]
                except Unreadable:
                    end = pos + 1 if left > 0 else end
            elif left > 0:
                end = pos + 1
        pos = text.find("{", max(end, pos + 1))
