"""JSON held to a schema, byte by byte: a matcher of llguidance's over the bytes themselves.

llguidance takes for granted what a model does not: that the properties of an object come in the
order of the schema. So where a key comes earlier, the schema is taken anew with the properties in
the order in which they were written, and all that was matched is matched again.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

_OPTIONS: Final = {"x-guidance": {"whitespace_flexible": False}}

ANY_OBJECT: Final[Mapping[str, Any]] = {"type": "object"}


@lru_cache(maxsize=1)
def _tokenizer() -> Any:
    from llguidance import LLTokenizer

    return LLTokenizer("byte")  # its tokens are the bytes, so it needs no model's vocabulary


@lru_cache(maxsize=64)
def _compiled(schema: str) -> Any:
    from llguidance import LLMatcher, LLParserLimits

    limits = LLParserLimits(max_items_in_row=100_000)  # by default 2,000: of keys, or of tools
    return LLMatcher(_tokenizer(), f"start: %json {schema}", limits=limits)


@dataclass(slots=True)
class WrittenKeys:
    """The keys of an object, or the number of items of an array, as they were written, and those of
    the parts in it."""

    keys: list[str] = field(default_factory=list)
    items: int = 0
    parts: dict[str | int, WrittenKeys] = field(default_factory=dict)

    def ordered(self) -> Mapping[str, Any] | bool:
        """A schema that allows anything, with the properties in this order."""
        if self.keys:
            return {"properties": {key: self._part(key) for key in self.keys}}
        items = [self._part(place) for place in range(max(self.items, len(self.parts)))]
        if all(item is True for item in items):
            return True
        # Those that follow are mostly written as the last one.
        if len({json.dumps(item) for item in items}) == 1:
            return {"items": items[-1]}
        return {"prefixItems": items, "items": items[-1]}

    def _part(self, place: str | int) -> Mapping[str, Any] | bool:
        return self.parts[place].ordered() if place in self.parts else True


class JsonMatcher:
    """What has been matched of one JSON value, in its compact form, and what may come next."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        """Raises `ValueError` for a schema that llguidance does not compile."""
        self._schema = schema
        self._taken = bytearray()
        self._order = ""
        self._state = self._begin(schema)

    @staticmethod
    def _begin(schema: Mapping[str, Any]) -> Any:
        matcher = _compiled(json.dumps({**schema, **_OPTIONS})).deep_copy()
        if matcher.is_error():
            raise ValueError(matcher.get_error())
        return matcher

    def fits(self, text: str) -> bool:
        """Whether all of ``text`` may come next; half of a surrogate pair may not."""
        try:
            data = text.encode()
        except UnicodeEncodeError:
            return False
        return bool(self._state.validate_tokens(list(data)) == len(data))

    def take(self, text: str) -> bool:
        """Match ``text``, where all of it may come next."""
        if not self.fits(text):
            return False
        data = text.encode()
        self._state.try_consume_tokens(list(data))
        self._taken += data
        return True

    def undo(self, text: str) -> None:
        """Take back ``text``, which was matched last."""
        size = len(text.encode())
        self._state.rollback(size)
        del self._taken[-size:]

    def reorder(self, written: WrittenKeys) -> bool:
        """Match all again with the properties in the order in which they were ``written``; False
        where that is how they were matched, or cannot be."""
        ordered = written.ordered()
        order = json.dumps(ordered)
        if isinstance(ordered, bool) or order == self._order:
            return False
        definitions = {key: value for key, value in self._schema.items() if key == "$defs"}
        rest = {key: value for key, value in self._schema.items() if key != "$defs"}
        try:
            state = self._begin({**ordered, "allOf": [rest], **definitions})
        except ValueError:
            return False
        if state.validate_tokens(list(self._taken)) != len(self._taken):
            return False
        state.try_consume_tokens(list(self._taken))
        self._state, self._order = state, order
        return True

    def narrowed(self, schema: Mapping[str, Any], written: WrittenKeys) -> JsonMatcher:
        """The same text matched by a narrower schema; this matcher where it does not fit that."""
        try:
            other = JsonMatcher(schema)
        except ValueError:
            return self
        other._taken = self._taken
        if other._state.validate_tokens(list(self._taken)) == len(self._taken):
            other._state.try_consume_tokens(list(self._taken))
            return other
        return other if other.reorder(written) else self

    def forced(self, before: str = "") -> str:
        """The text that must come next, after ``before``."""
        state = self._state
        if before:
            if not self.fits(before):
                return ""
            state = state.deep_copy()
            state.try_consume_tokens(list(before.encode()))
        forced: bytes = state.compute_ff_bytes()
        return before + forced.decode(errors="ignore") if forced or before else ""

    @property
    def complete(self) -> bool:
        """Whether the value is whole."""
        return bool(self._state.is_accepting() or self._state.is_stopped())


def message_schema(
    names: Collection[str],
    arguments: Mapping[str, Any] = ANY_OBJECT,
    *,
    keys: tuple[str, str] | None = None,
    answers: bool = True,
) -> Mapping[str, Any]:
    """The schema of one message: a call of one of these tools or, with ``answers``, the answer.

    ``arguments`` is the schema of the tools' arguments, such as llguidance compiles. ``keys`` are
    those of a call's name and arguments where it is written as a dialect does, which may have those
    of other dialects; without them it is a line of the protocol.
    """
    call_id = {"type": ["string", "integer"]}
    name, args = {"enum": list(names)}, {"$ref": "#/$defs/arguments"}
    branches: list[Mapping[str, Any]] = []
    if names and keys is None:
        line = {"type": {"const": "tool_call"}, "name": name, "arguments": args}
        branches.append(_object(line, {"id": call_id}))
    elif names and keys is not None:
        beside = {"type": {"enum": ["function", "tool_call"]}, "id": call_id}
        branches += [
            _object({keys[0]: name, key: args}, beside)
            for key in dict.fromkeys((keys[1], "arguments", "parameters"))
        ]
    if answers and keys is None:
        answer = {"type": {"const": "final_answer"}, "content": {"type": "string"}}
        branches.append(_object(answer, {"sources": {"type": "array"}}))
    return {"$defs": {"arguments": _rebased(arguments, "#/$defs/arguments")}, "anyOf": branches}


def _object(required: Mapping[str, Any], optional: Mapping[str, Any]) -> Mapping[str, Any]:
    return {
        "type": "object",
        "properties": {**required, **optional},
        "required": list(required),
        "additionalProperties": False,
    }


def _rebased(value: Any, root: str) -> Any:
    """``value`` as it stands at ``root`` of another schema: its references point there."""
    if isinstance(value, Mapping):
        return {
            key: root + inner[1:]
            if key == "$ref" and isinstance(inner, str) and inner.startswith("#")
            else _rebased(inner, root)
            for key, inner in value.items()
        }
    return [_rebased(inner, root) for inner in value] if isinstance(value, list | tuple) else value
