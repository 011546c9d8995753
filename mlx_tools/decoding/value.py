"""One message of a turn, checked against its schema while it is written.

A part is checked when it is complete: a key, a string, a number, a bracket. It is matched in its
canonical form. So the model is free in white space, escapes, the order of keys and all that reading
repairs (rule 7). A part that does not match is a `Violation`: the text up to its boundary stays,
the text after it has to be written again.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final

from msgspec import Struct

from mlx_tools.parsing import CLOSED, FAULT, INCOMPLETE, ObjectScanner, Unreadable, decode, loads
from mlx_tools.schema import COMPACT, find_other_case, list_choices, list_coercions, make_compilable
from mlx_tools.transcript import MendKind

_dumped: Final = json.JSONEncoder().encode
_compact: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_dumped_text: Final = json.JSONEncoder(ensure_ascii=False).encode

ANY_OBJECT: Final[Mapping[str, Any]] = {"type": "object"}


@lru_cache(maxsize=1)
def _tokenizer() -> Any:
    from llguidance import LLTokenizer

    return LLTokenizer("byte")  # its tokens are the bytes, so it needs no model's vocabulary


@lru_cache(maxsize=64)
def _compile_schema(schema: str) -> Any:
    from llguidance import LLMatcher, LLParserLimits

    limits = LLParserLimits(max_items_in_row=100_000)  # by default 2,000: of keys, or of tools
    return LLMatcher(_tokenizer(), f"start: %json {schema}", limits=limits)


@dataclass(slots=True)
class KeyOrder:
    """The keys of an object or the number of items of an array, in their order."""

    keys: list[str] = field(default_factory=list)
    items: int = 0
    parts: dict[str | int, KeyOrder] = field(default_factory=dict)

    def ordered(self) -> Mapping[str, Any] | bool:
        """Return a schema that allows anything, with the properties in this order."""
        if self.keys:
            return {"properties": {key: self._part(key) for key in self.keys}}
        items = [self._part(place) for place in range(max(self.items, len(self.parts)))]
        if all(item is True for item in items):
            return True
        # Later items are mostly written as the last one. Fewer forms compile faster: a list of a
        # hundred equal items needs one form, not a hundred.
        if len({_dumped(item) for item in items}) == 1:
            return {"items": items[-1]}
        return {"prefixItems": items, "items": items[-1]}

    def _part(self, place: str | int) -> Mapping[str, Any] | bool:
        return self.parts[place].ordered() if place in self.parts else True


class JsonMatcher:
    """A matcher of one JSON value in its compact form, with the text matched so far."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        """Raises `ValueError` for a schema that llguidance does not compile."""
        self._schema = schema
        self._matched = bytearray()
        self._order = ""
        self._state = _compile_schema(_dumped({**schema, **COMPACT}))
        if self._state.is_error():
            raise ValueError(self._state.get_error())

    def copy_with(self, matched: bytes | bytearray = b"") -> JsonMatcher:
        """Return another matcher of the same schema, with ``matched`` matched.

        Raises `ValueError` if that does not fit.
        """
        # The compiled grammar is shared, and only the state is copied: compiling takes
        # milliseconds.
        other = copy(self)
        other._matched, other._state = bytearray(matched), self._state.deep_copy()
        if matched:
            tokens = list(matched)
            # Checked before it is consumed: a state that took a wrong byte cannot be used any more.
            if other._state.validate_tokens(tokens) < len(tokens):
                raise ValueError(other._state.get_error())
            other._state.try_consume_tokens(tokens)
        return other

    def fits(self, text: str) -> bool:
        """Return whether all of ``text`` may come next; half of a surrogate pair may not."""
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
        self._matched += data
        return True

    def undo(self, text: str) -> None:
        """Remove ``text``, which was matched last."""
        size = len(text.encode())
        self._state.rollback(size)
        del self._matched[-size:]

    def reorder(self, keys: KeyOrder) -> bool:
        """Match all again with the properties in the order of ``keys``; False
        where that is how they were matched, or cannot be."""
        ordered = keys.ordered()
        order = _dumped(ordered)
        # The same order again would fit no better, and the search would not end.
        if isinstance(ordered, bool) or order == self._order:
            return False
        # Definitions stay at the root, where the references in both parts point to.
        definitions = {key: value for key, value in self._schema.items() if key == "$defs"}
        rest = {key: value for key, value in self._schema.items() if key != "$defs"}
        try:
            whole = JsonMatcher({**ordered, "allOf": [rest], **definitions})
            other = whole.copy_with(self._matched)
        except ValueError:
            return False
        self._state, self._order = other._state, order
        return True

    def narrow_to(self, target: JsonMatcher, keys: KeyOrder) -> JsonMatcher:
        """Return a matcher like ``target``, which is new, with the same text matched.

        If the text does not fit, return this matcher.
        """
        try:
            return target.copy_with(self._matched)
        except ValueError:  # in the order of its own properties
            other = target.copy_with()
        other._matched = self._matched
        return other if other.reorder(keys) else self

    def forced(self, text_before: str = "") -> str:
        """Return the text that must come next, after ``text_before``."""
        state = self._state
        if text_before:
            if not self.fits(text_before):
                return ""
            state = state.deep_copy()
            state.try_consume_tokens(list(text_before.encode()))
        # Bytes may end in half of a character, which is not forced yet.
        forced: bytes = state.compute_ff_bytes()
        return text_before + forced.decode(errors="ignore") if forced or text_before else ""


def _object(required: Mapping[str, Any], optional: Mapping[str, Any]) -> Mapping[str, Any]:
    return {
        "type": "object",
        "properties": {**required, **optional},
        "required": list(required),
        "additionalProperties": False,
    }


MAX_BLANKS: Final = 64
"""Characters of white space in a row, at most."""

_MAX_NAME: Final = 256
"""Characters of a key or a tool's name, at most; a longer one is none."""

_MAX_PIECES: Final = 16
"""Pieces of a string after which it is no longer checked whether it may hold anything."""

MAX_REORDERS: Final = 24
"""Times that the grammar of one message is compiled again for another order of its keys."""

_FREE: Final = '§~ 0a"'
"""Text that goes on in a string without constraints, or ends it."""

_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")


_NUMBER_CHARS: Final = frozenset("0123456789.eE+-")


class Violation(Struct, frozen=True):
    """A part that does not fit, and the boundary up to which the text before it stays."""

    kind: MendKind
    boundary: int


class MessageSchema:
    """The schema of a message: a call of one of some tools, or the answer."""

    def __init__(
        self,
        parameters: Mapping[str, Mapping[str, Any]],
        canonical_key: Callable[[str], str | None],
        *,
        keys: tuple[str, str] | None = None,
        answers: bool = True,
        exact: str = "",
    ) -> None:
        """Make the form of calls of these tools and, with ``answers``, of the answer.

        Args:
            parameters: The tools' schemas by name.
            canonical_key: Gives the tool that a name means, however it is written.
            keys: The keys of a call's name and arguments in a dialect; those of other dialects
                are taken too. None for a line of the protocol.
            answers: Whether a message may be the answer.
            exact: The tool whose arguments must be as its schema says. Those of others may be
                what can be coerced to it.
        """
        self.canonical_key, self.exact = canonical_key, exact
        self.name_key = "name" if keys is None else keys[0]
        self._parameters, self._keys = parameters, keys
        answer = {"type": {"const": "final_answer"}, "content": {"type": "string"}}
        others = [_object(answer, {"sources": {"type": "array"}})] if answers and not keys else []
        schema = self.build_schema(*parameters, arguments=ANY_OBJECT, extra_schemas=others)
        self.any_message = JsonMatcher(schema)
        self._matchers: dict[str, JsonMatcher | None] = {}
        self._choices: dict[str, tuple[str, ...]] = {}

    def build_schema(
        self,
        *names: str,
        arguments: Mapping[str, Any] | None = None,
        extra_schemas: Sequence[Mapping[str, Any]] = (),
    ) -> Mapping[str, Any]:
        """Return the schema of a call of one of these tools.

        ``arguments`` is the schema of the arguments, by default that of the first tool.
        """
        given = arguments
        if given is None:
            given = make_compilable(self._parameters[names[0]]).schema or ANY_OBJECT
        call_id = {"type": ["string", "integer"]}
        name, args = {"enum": names}, {"$ref": "#/$defs/!"}
        branches: list[Mapping[str, Any]] = []
        if names and self._keys is None:
            line = {"type": {"const": "tool_call"}, "name": name, "arguments": args}
            branches = [_object(line, {"id": call_id})]
        elif names and self._keys is not None:
            beside = {"type": {"enum": ["function", "tool_call"]}, "id": call_id}
            branches = [
                _object({self._keys[0]: name, key: args}, beside)
                for key in dict.fromkeys((self._keys[1], "arguments", "parameters"))
            ]
        definitions = {**given.get("$defs", {}), "!": {**given, "$defs": {}}}
        return {"$defs": definitions, "anyOf": [*branches, *extra_schemas]}

    def fits_whole(self, text: str) -> tuple[str, int] | None:
        """Return the tool that a text calls, and the end of the object at its beginning.

        The name is empty for an answer. This works for strict JSON in the schema's own order that
        fits unchanged, as most objects are. None for any other text, which may be valid all the
        same.
        """
        try:
            value, end = decode(text)
        except Unreadable:
            return None
        name = value.get(self.name_key, "") if isinstance(value, dict) else None
        if _TOO_MANY_BLANKS.search(text, 0, end) or not isinstance(name, str):
            return None
        # The matcher compares keys by their bytes: an escaped one is left to the slower walk.
        if any(key and "\\" in string for string, key in _STRING.findall(text, 0, end)):
            return None  # the schema has its keys without escapes
        line = "".join(_WITHOUT_BLANKS.findall(text, 0, end))
        matcher = self.any_message if not name else self.matcher(name)
        return (name, end) if matcher is not None and matcher.fits(line) else None

    def choices(self, name: str) -> tuple[str, ...]:
        """Return the strings that the enumerations of a tool's parameters allow."""
        if name not in self._choices:
            self._choices[name] = list_choices(self._parameters.get(name))
        return self._choices[name]

    def matcher(self, name: str) -> JsonMatcher | None:
        """Return the matcher of a call of this tool, or None.

        There is none if no tool has exactly that name, or if llguidance does not compile its
        schema.
        """
        if name in self._parameters and name not in self._matchers:
            # Set before the attempt, so that a schema that does not compile is not tried with each
            # message.
            self._matchers[name] = None
            with suppress(ValueError):
                self._matchers[name] = JsonMatcher(self.build_schema(name))
        return self._matchers.get(name)


_WITHOUT_BLANKS: Final = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*"|[^ \t\r\n"]++')
_STRING: Final = re.compile(r'("[^"\\]*+(?:\\.[^"\\]*+)*")([ \t\r\n]*+:)?')
"""True for a string that is a key, with a colon after it."""
_TOO_MANY_BLANKS: Final = re.compile(rf"[ \t\r\n]{{{MAX_BLANKS + 1}}}")


@dataclass(slots=True)
class _Level:
    """A brace or bracket that is open."""

    is_object: bool
    order: KeyOrder
    is_wrapped: bool = False
    """True if it is written in place of a list of this one item."""
    boundary: int = 0
    """The last complete part before the next or open key."""
    key: str | None = None
    begin: int = 0
    start: int = 0


class ConstrainedObject:
    """An object, checked against its schema as it comes, from its opening brace.

    `feed` takes the next text. Afterwards ``violation`` is set if a part does not fit.
    ``tentative_violation`` is the same for the text around the arguments, which reading may accept:
    this is known once the object ends, and `judge` decides it. ``end`` is the end of a complete
    object. ``settled_end`` is the place before which no later violation can be, within an open
    string that may hold anything. ``answer_end`` is the quote that seems to end an answer's text,
    -1 before that. If no text after it fits, the quote may be one within the text.
    """

    def __init__(self, form: MessageSchema, text: str = "") -> None:
        self._walk = ObjectScanner(parts=self)
        self.text = ""
        self.violation: Violation | None = None
        self.tentative_violation: Violation | None = None
        self.end = 0
        self._reorders = 0
        self._is_held = True
        self.name = ""
        self.form = form
        self._matcher = form.any_message.copy_with()
        self._levels: list[_Level] = []
        self.answer_end = -1
        self._is_free = False  # a string is open that may hold anything
        self._string_begin = -1  # the begin of the last value, if it is a string
        if text:
            self.feed(text)

    def retry(self, text: str = "") -> ConstrainedObject:
        """Return another object of the same form, with this text."""
        return ConstrainedObject(self.form, text)

    def feed(self, text: str) -> None:
        """Take the next text of the object; text after its end is skipped."""
        if self._walk.status != INCOMPLETE or self.violation is not None:
            return
        self.text += text
        # Most objects come complete and fit: one check of all bytes saves the walk through them.
        if not self._walk.pos and (whole := self.form.fits_whole(self.text)) is not None:
            self._walk.status = CLOSED
            self.name, self.end = whole
            return
        self._walk.advance(self.text)
        if self._walk.status == CLOSED:
            self.end = self._walk.pos
        elif self._walk.status == FAULT and self.violation is None:
            if self.tentative_violation is not None:
                # The object ends in a fault, so reading cannot accept it.
                self.violation = self.tentative_violation
            else:
                self._unreadable(self._walk.pos)
        elif self._walk.status == INCOMPLETE:
            self._check_open()

    @property
    def is_whole(self) -> bool:
        """True if the object is complete; it may have a ``tentative_violation``."""
        return self._walk.status == CLOSED and self.violation is None

    @property
    def complete(self) -> bool:
        """True if the object is complete and fits."""
        return self.is_whole and self.tentative_violation is None

    def judge(self, is_read: bool) -> None:
        """Decide on a ``tentative_violation``: reading accepts the object, or not."""
        self.violation, self.tentative_violation = (
            (None if is_read else self.tentative_violation),
            None,
        )

    @property
    def settled_end(self) -> int:
        """The place up to which the text stays, whatever comes."""
        if self.complete:
            return self.end
        if self.tentative_violation is not None:
            return self.tentative_violation.boundary
        # From the quote on it may still be text: nothing after it is final.
        if self.answer_end >= 0:
            return self.answer_end
        if self._is_free and self.violation is None:
            return len(self.text)
        if self._walk.value_ended and self._string_begin >= 0:
            return self._string_begin
        return self._levels[-1].boundary if self._key_is_due() else self._walk.settled_end

    @property
    def is_open(self) -> bool:
        """True if a key, string or number is open."""
        return self._walk.open_token() is not None

    @property
    def last_boundary(self) -> int:
        """The place before an open key, string or number, else the end."""
        if self.tentative_violation is not None:
            return self.tentative_violation.boundary
        token = self._walk.open_token()
        if token is not None:
            return self._levels[-1].boundary if token.is_key else token.begin
        if self._walk.comma_open:
            return self._levels[-1].boundary
        return (
            len(self.text)
            if self._levels and self._levels[-1].key is not None
            else self._walk.settled_end
        )

    @property
    def closable(self) -> bool:
        """True if nothing but closing brackets is missing."""
        levels = reversed(self._levels)
        closers = (("}" if level.is_object else "]") + "]" * level.is_wrapped for level in levels)
        return self._walk.closable and self._matcher.fits("".join(closers))

    def forced(self) -> str:
        """Return the text that must come next.

        It never has a tool's name, or text of arguments that have not begun.
        """
        found = self._forced()
        if len(self._levels) > 1 or not found:
            return found
        if not self.name and self.retry(self.text + found).name:  # the model chooses the tool
            key = f'"{self.form.name_key}":"'
            at = found.find(key)
            return found[: at + len(key)] if at >= 0 else ""
        at = found.find('":{')
        return found[: at + 3] if at >= 0 else found

    def _forced(self) -> str:
        if (token := self._walk.open_token()) is not None:
            if not (token.is_key or token.is_string):  # a number or a literal: it ends here
                ended = self.retry(self.text + " ")
                return "" if ended._walk.open_token() is not None else ended._forced()
            begun = self._separator() + _canonical(token.text)[:-1]
            return self._matcher.forced(begun).removeprefix(begun)
        if not self._levels:
            return ""
        level = self._levels[-1]
        if self._walk.comma_open or not self._separator() or level.key is not None:
            comma = self._separator() if self._walk.comma_open else ""
            return self._matcher.forced(comma).removeprefix(comma)
        ways = [way for way in (",", "}" if level.is_object else "]") if self._matcher.fits(way)]
        return self._matcher.forced(ways[0]) if len(ways) == 1 else ""

    def fitting(self, text: str) -> int:
        """Return how many characters of ``text`` may come next.

        They are all, or as many as decide nothing.

        Only the front of the text counts if the model can still choose what follows it: within free
        text, or after all digits of a number.
        """
        for size in range(len(text), 0, -1):
            trial = self.retry(self.text)
            trial.feed(text[:size])
            fits = trial.violation is None and trial._open_fits() and trial._key_fits()
            if fits and (size == len(text) or trial._decides_nothing(text[size])):
                return size
        return 0

    def _key_fits(self) -> bool:
        """Return whether a key that has just ended, before its colon, is allowed there."""
        if not self.text.endswith('"') or not self._key_is_due():
            return True
        violation = self.retry(f"{self.text}:").violation
        return violation is None or violation.kind == "value"  # the quote ended a value

    def _decides_nothing(self, rejected_text: str) -> bool:
        """Return whether the open value is still undecided, as ``rejected_text`` is not."""
        token = self._walk.open_token()
        if token is None or token.is_key or self._is_name():
            return False
        if token.is_string:
            begun = self._separator() + _canonical(token.text)[:-1]
            return self._matcher.fits(begun + _FREE)
        return _NUMBER.fullmatch(token.text) is not None and rejected_text not in _NUMBER_CHARS

    # --- parts --------------------------------------------------------------------------------

    def on_open(self, begin: int, is_object: bool) -> bool:
        """Take a brace or bracket; one item may be in place of a list (rule 10)."""
        if self.tentative_violation is not None or not self._is_held:
            return True
        text = self._separator() + ("{" if is_object else "[")
        wrapped = False
        if not self._has_few_blanks(begin):
            return False
        if not self._take(text):
            may_wrap = bool(self._levels) and not self._is_exact
            wrapped = may_wrap and self._take(f"{text[:-1]}[{text[-1]}")
            if not wrapped:
                return self._misfit_or_doubt(self._value_kind(), self._value_begin(begin))
        order = KeyOrder()
        if self._levels:
            self._levels[-1].order.parts[self._next_place()] = order
        self._levels.append(_Level(is_object, order, wrapped, boundary=begin + 1, start=begin))
        return True

    def on_key(self, begin: int, key: str) -> bool:
        """Take a key; one that the schema has elsewhere may be allowed here."""
        if self.tentative_violation is not None or not self._is_held:
            return True
        level = self._levels[-1]
        if not self._has_few_blanks(begin):
            return False
        text = self._separator() + _canonical(key) + ":"
        new = key not in level.order.keys
        level.order.keys.append(key)
        if new and self._take(text):
            level.key = key
            level.begin = begin
            return True
        level.order.keys.pop()
        return self._misfit_or_doubt(self._kind("key"), level.boundary)

    def on_value(self, begin: int, end: int, value: str, is_string: bool) -> bool:
        """Take a string, number or literal, unchanged or after coercion."""
        if self.tentative_violation is not None or not self._is_held:
            return True
        if not self._has_few_blanks(begin):
            return False
        self._is_free = False
        if self._walk.bad or not self._take_value(value, is_string):
            if is_string or value != "null" or not self._drop_member():
                return self._misfit_or_doubt(self._value_kind(), self._value_begin(begin))
            return True
        if self._is_name() and (known := self.form.canonical_key(value)) is not None:
            self.name = known
            if (narrower := self.form.matcher(known)) is not None:
                self._matcher = self._matcher.narrow_to(narrower, self._levels[0].order)
        if len(self._levels) == 1 and self._walk.field == "content" and is_string:
            self.answer_end = end - 1
        self._next_place()
        self._levels[-1].boundary = end
        self._string_begin = begin if is_string else -1
        return True

    def on_close(self, begin: int) -> bool:
        """Take a closing brace or bracket, if it is allowed."""
        if self.tentative_violation is not None or not self._is_held:
            return True
        level = self._levels[-1]
        closing = ("}" if level.is_object else "]") + ("]" if level.is_wrapped else "")
        if not self._has_few_blanks(begin):
            return False
        if not self._take(closing):
            return self._misfit_or_doubt(self._kind("bracket"), level.boundary)
        self._levels.pop()
        self._string_begin = -1
        if self._levels:
            self._levels[-1].boundary = begin + 1
        return True

    # --- values -------------------------------------------------------------------------------

    def _take_value(self, value: str, is_string: bool) -> bool:
        """Match a value unchanged, else after coercion (rule 10)."""
        if is_string and self._is_name() and (known := self.form.canonical_key(value)) is not None:
            value = known
        ways = [_canonical(value) if is_string else value]
        if self._is_exact:
            return self._take_first(ways if is_string else [*ways, *_plain_number(value)])
        ways += () if is_string else _plain_number(value)
        meant, containers = self._closest_value(value, is_string), list[Any]()
        choices: tuple[str, ...] = ()
        if is_string and len(self._levels) > 1:
            choices = self.form.choices(self.name)
        wraps = not is_string
        for new, name in (*list_coercions(meant), *find_other_case(meant, choices)):
            if name == "coerced_json":
                containers += [new, [new]] if isinstance(new, dict) else [new]
            elif name == "wrapped_list":
                wraps = True
            else:
                ways += [_dumped_text(new), *_plain_number(_dumped(new))]
        ways += [f"[{way}]" for way in ways if wraps and way != "null"]
        return self._take_first(ways) or any(map(self._take_container, containers))

    def _closest_value(self, value: str, is_string: bool) -> Any:
        """Return the value of a part's text, or the text itself if it is no JSON."""
        with suppress(Unreadable):
            return value if is_string else loads(value)
        return value

    def _take_container(self, value: Any) -> bool:
        """Match a list or an object that is written as a string, in its own order of keys."""
        level = self._levels[-1]
        place = level.order.items if level.key is None else level.key
        level.order.parts[place] = _get_key_order(value)
        if self._take(self._separator() + _compact(value)):
            return True
        del level.order.parts[place]
        return False

    @property
    def _is_exact(self) -> bool:
        return bool(self.name) and self.name == self.form.exact and len(self._levels) > 1

    def _take_first(self, ways: Sequence[str]) -> bool:
        """Match the first of these values that is allowed here."""
        comma = self._separator()
        while not any(self._take_whole(comma + way) for way in ways):
            if not self._reorder():
                return False
        return True

    def _take_whole(self, text: str) -> bool:
        """Match a value that may also end there: a number may begin a longer one."""
        closing = "}" if self._levels[-1].is_object else "]"
        ends = text[-1] in '"]}el' or any(
            self._matcher.fits(text + after) for after in (",", closing)
        )
        return ends and self._matcher.take(text)

    def _take(self, text: str) -> bool:
        """Match ``text``, if need be after a change of the order of keys to the model's."""
        return self._matcher.take(text) or (self._reorder() and self._matcher.take(text))

    def _reorder(self) -> bool:
        if not self._levels or not self._matcher.reorder(self._levels[0].order):
            return False
        self._reorders += 1
        self._is_held = self._reorders < MAX_REORDERS  # then validation decides
        return True

    def _drop_member(self) -> bool:
        """Remove the key of a member that is ``null`` and may be left out (rule 10)."""
        level = self._levels[-1]
        if level.key is None or len(self._levels) < 2 or self._is_exact:
            return False
        level.order.keys.remove(level.key)
        key, level.key = level.key, None
        self._matcher.undo(self._separator() + _canonical(key) + ":")
        return True

    # --- where it stands ----------------------------------------------------------------------

    def _separator(self) -> str:
        """Return the comma before the next part, which is matched together with it."""
        if not self._levels:
            return ""
        level = self._levels[-1]
        if level.is_object:
            return "," if level.order.keys and level.key is None else ""
        return "," if level.order.items else ""

    def _next_place(self) -> str | int:
        """Return the key or index of the value just written, and go on to the next."""
        level = self._levels[-1]
        if level.is_object:
            key, level.key = level.key, None
            return key or ""
        level.order.items += 1
        return level.order.items - 1

    def _value_begin(self, begin: int) -> int:
        """Return where the value begins that does not fit, or its list if that is full."""
        level = self._levels[-1] if self._levels else None
        if level is None or level.is_object or not level.order.items or self._matcher.fits(","):
            return begin
        return level.start

    def _is_name(self) -> bool:
        return len(self._levels) == 1 and self._walk.field == self.form.name_key

    def _value_kind(self) -> MendKind:
        if self._is_name():
            return "name"
        return self._kind("value")

    def _kind(self, kind: MendKind) -> MendKind:
        """Return ``kind`` within the arguments, and ``envelope`` outside of them."""
        return kind if len(self._levels) > 1 else "envelope"

    def _key_is_due(self) -> bool:
        return bool(self._levels) and self._levels[-1].is_object and self._levels[-1].key is None

    def _has_few_blanks(self, begin: int) -> bool:
        """Return whether there is no more white space before ``begin`` than allowed."""
        if begin - self._walk.settled_end <= MAX_BLANKS:
            return True
        end = len(self.text[:begin].rstrip())
        return begin - end <= MAX_BLANKS or self._note_violation("envelope", end)

    def _misfit_or_doubt(self, kind: MendKind, boundary: int) -> bool:
        """Note a violation; around arguments it is tentative: reading accepts more."""
        if kind == "envelope" and self._walk.field != "type" and not self._walk.bad:
            self.tentative_violation = Violation(kind, boundary)
            return True
        return self._note_violation(kind, boundary)

    def _note_violation(self, kind: MendKind, boundary: int) -> bool:
        if self.violation is None:
            self.violation = Violation(kind, boundary)
        return False

    # --- what is open, and what cannot be read --------------------------------------------------

    def _check_open(self) -> None:
        """Note a violation if the open key or name is too long, or has too many blanks."""
        token = None if self._is_free else self._walk.open_token()
        if self._is_free or self.tentative_violation is not None:
            return
        if token is None:
            self._has_few_blanks(len(self.text))
        elif len(self.text) - token.begin > _MAX_NAME and (token.is_key or self._is_name()):
            kind = self._kind("key") if token.is_key else "name"
            self._note_violation(kind, self._levels[-1].boundary if token.is_key else token.begin)
        elif token.is_string and not token.is_key and len(token.pieces) < _MAX_PIECES:
            begun = self._separator() + _canonical(token.text)[:-1]
            self._is_free = not self._is_name() and self._matcher.fits(begun + _FREE)

    def _open_fits(self) -> bool:
        """Return whether the open token may still become one that fits."""
        token = self._walk.open_token()
        if token is None:
            return True
        quoted = token.is_key or token.is_string
        begun = _canonical(token.text)[:-1] if quoted else token.text
        return self._matcher.fits(self._separator() + begun)

    def _unreadable(self, offset: int) -> None:
        """Note the violation of a text that cannot be read on.

        A string may have ended at a quote that was meant to be within it. Then the string is what
        does not fit, because a value is never cut.
        """
        level = self._levels[-1]
        bracket = self.text[offset : offset + 1] in ("}", "]")
        if self._walk.value_ended and self._string_begin >= 0 and not bracket:
            self._note_violation("value", self._string_begin)
        elif level.key is not None:
            begun = self._walk.begin > level.begin
            self._note_violation(self._value_kind(), self._walk.begin if begun else offset)
        else:
            self._note_violation(self._kind("bracket"), level.boundary)


def _get_key_order(value: Any) -> KeyOrder:
    """Return the order of keys in a value, at every depth."""
    if isinstance(value, dict):
        parts: dict[str | int, KeyOrder] = {
            key: _get_key_order(item) for key, item in value.items()
        }
        return KeyOrder(list(value), 0, parts)
    items = value if isinstance(value, list) else []
    return KeyOrder([], len(items), {at: _get_key_order(item) for at, item in enumerate(items)})


def _plain_number(value: str) -> list[str]:
    """Return a number with an exponent written without it, still as a fraction."""
    if "e" not in value.lower() or not _NUMBER.fullmatch(value) or math.isinf(float(value)):
        return []
    plain = format(Decimal(value), "f")
    return [plain if "." in plain else f"{plain}.0"]


def _canonical(value: str) -> str:
    """Return a string as JSON, with as few escapes as possible."""
    return _dumped_text(value).replace("\x7f", "\\u007f")
