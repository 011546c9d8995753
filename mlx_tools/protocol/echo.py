"""Calls that are in observations (reading rule 12).

A tool's output may hold a call for the model to copy. Its name and arguments are found in any
wrapping: an object within an object, JSON within a string of JSON, behind backslashes or entities,
in another protocol's form. This is a heuristic; only policy protects.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Final

from mlx_tools.messages import ALIASES, loose_name
from mlx_tools.parsing import (
    TextSource,
    Unreadable,
    canonical_json,
    find_objects,
    finished,
    iter_values,
    literal,
    loads,
)
from mlx_tools.protocol.call_sequence import CallSequenceReader
from mlx_tools.protocol.catalog import ToolCatalog, without_prefixes
from mlx_tools.protocol.delimiters import HEADERS
from mlx_tools.protocol.dialects import BARE, BY_MARK, HARMONY, Dialect
from mlx_tools.protocol.objects import possible_calls

_ANY: Final = ToolCatalog(None)
_VARIANTS: Final = 8
"""Times the length of an observation that is read at most, with the contents of its strings and
escapes."""

_MAX_REREADS: Final = 4
"""Times the length of a text that is read at most if texts that begin like calls are none."""

# Half of a surrogate pair is left as an escape: it is no character alone.
_CODE: Final = re.compile(r"\\(?:[\"\\/nrt]|u(?![dD][89a-fA-F])[0-9a-fA-F]{4})")
_LETTERS: Final = {**{letter: letter for letter in '"\\/'}, "n": "\n", "r": "\r", "t": "\t"}
_ESCAPED: Final = re.compile(r'\\(["\\/])')


def canonical(name: str, arguments: Mapping[str, Any]) -> str:
    """Return a call's canonical form, which is the same however the call is spelled."""
    return canonical_json({"name": name, "arguments": arguments})


_TOOL_BY_ALIAS: Final[Mapping[str, str]] = {
    loose_name(alias): loose_name(tool) for alias, tool in ALIASES.items()
}


def echo_key(name: str, arguments: Mapping[str, Any]) -> str:
    """Return the key that a call and its echo share."""
    loose = loose_name(name)
    return canonical(_TOOL_BY_ALIAS.get(loose, loose), arguments)


def echo_keys(name: str, arguments: Mapping[str, Any]) -> frozenset[str]:
    """Return all keys that a call and its echo may share.

    The second key is for values as they are between tags, whose types only a schema tells.
    """
    return frozenset((echo_key(name, arguments), _untyped_key(name, arguments)))


def _untyped_key(name: str, arguments: Mapping[str, Any]) -> str:
    return "~" + echo_key(name, {key: _untyped(value) for key, value in arguments.items()})


def _untyped(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _untyped(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_untyped(item) for item in value]
    if not isinstance(value, str):
        return value
    text = value.strip()
    for read in (loads, literal):
        try:
            return read(text)
        except Unreadable:
            continue
    return text


@lru_cache(maxsize=128)
def find_call_keys(observation: str) -> frozenset[str]:
    """Return the `echo_key` of each call in ``observation``, in linear time."""
    found: set[str] = set()
    seen: set[str] = set()
    todo = deque([observation])
    left = _VARIANTS * len(observation)
    while todo and left >= 0:
        text = todo.popleft()
        if text in seen:
            continue
        seen.add(text)
        # Each variant may hold more of its kind. Without a limit their sizes would add up to the
        # square.
        left -= len(text)
        for _, value in find_objects(text):
            todo += _strings_and_calls(value, found)
        for run in call_sequences(text):
            keys = _untyped_key if run.is_tagged else echo_key
            # The reader takes `server.clock` for `clock`, so each such name counts as seen.
            found.update(
                keys(name, call.arguments)
                for call in run.calls
                for name in without_prefixes(call.name)
            )
        todo += _unescaped(text)
    return frozenset(found)


def _unescaped(text: str) -> Iterator[str]:
    if '\\"' in text:
        yield _ESCAPED.sub(r"\1", text)
    if "\\n" in text or "\\u" in text:
        yield _CODE.sub(lambda found: _LETTERS.get(found[0][1]) or _character(found[0]), text)
    if any(entity in text for entity in ("&quot;", "&#", "&lt;", "&amp;")):
        from html import unescape

        yield unescape(text)


def _character(escape: str) -> str:
    return chr(int(escape[2:], 16))


def _strings_and_calls(value: Any, keys: set[str]) -> Iterator[str]:
    """Note the calls in ``value``, and yield the strings that may hold more."""
    for item in iter_values(value):
        if isinstance(item, dict):
            keys.update(
                echo_key(name, arguments)
                for called, arguments in possible_calls(item)
                for name in (called, *without_prefixes(called))
            )
        elif isinstance(item, str) and ("{" in item or "(" in item or "<" in item):
            yield item


_MARKS: Final = re.compile(
    "|".join(
        re.escape(mark)
        # A bracket and a prompt of Python are common in outputs, so there a name and its arguments
        # count.
        for mark in sorted({*BY_MARK, *HEADERS, "to="} - {"[", ">>>"}, key=len, reverse=True)
    )
    + r"|(?<![\w.-])(?P<called>[\w.-]{1,64}+)(?:\((?=[\w\s]{0,64}[=){])|(?P<lines>\n\{))"
)
"""The beginnings of calls in any dialect, and a name followed by its arguments."""


_ELEMENT: Final = re.compile(
    r"<(?P<tag>[A-Za-z][\w.-]{0,63}+)"
    r"(?:>\s*(?:<[A-Za-z][\w.-]*>|</(?P=tag)>)"
    r"|(?:\s+[\w.-]+=(?:\"[^\"]*\"|'[^']*'))+\s*(?:/>|>\s*<))"
)
"""An element that may be named as a tool is, with an element or an attribute for each parameter."""


def call_sequences(text: str) -> Iterator[CallSequenceReader]:
    """Yield the calls in ``text``, of any dialect and at any place."""
    for pattern in (_MARKS, _ELEMENT):
        left = _MAX_REREADS * len(text)
        found = pattern.search(text)
        while found is not None and left > 0:
            source = TextSource(text, pos=found.start(), final=True)
            run = CallSequenceReader(source, *_read_form(found))
            finished(run.steps())
            left -= source.pos - run.begin
            if run.calls:
                yield run
            # The element may hold another one that is the call: the search goes on within it.
            begun = found.end() if pattern is _MARKS else found.start() + 1
            found = pattern.search(text, max(run.end, begun))


def _read_form(match: re.Match[str]) -> tuple[Dialect, ToolCatalog, None, int | None]:
    """Return the reader's arguments for a sequence of calls that begins with a match."""
    mark, groups = match[0], match.groupdict()
    if "tag" in groups:
        return BARE, _ANY, None, None
    if groups["called"] is not None:
        return BY_MARK[">>>" if groups["lines"] else "call:"], _ANY, None, 0
    if mark in HEADERS or mark == "to=":
        return HARMONY, _ANY, None, 0 if mark == "to=" else len(mark)
    return BY_MARK[mark], _ANY, None, BY_MARK[mark].skip(mark)
