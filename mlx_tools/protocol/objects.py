"""An object in the model's text: a call, an answer or prose (rules 5, 7).

`envelope` tells what a value is, `object_call` what call it is by the keys of any family.
`OpenObject` is an object that may come in pieces.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from msgspec import Struct

from mlx_tools.errors import ErrorCode
from mlx_tools.messages import ErrorInfo, FinalAnswer, ToolCall
from mlx_tools.parsing import (
    CLOSED,
    CONTROL_ESCAPE,
    HEADS,
    INCOMPLETE,
    ObjectScanner,
    Unreadable,
    compact,
    loads,
    writable,
)
from mlx_tools.protocol.delimiters import Wrapping
from mlx_tools.protocol.reading import AnswerDelta, ArgumentsDelta, CallStarted, Delta

_CALL_KEYS: Final = frozenset(("type", "name", "arguments", "id"))
_ANSWER_KEYS: Final = frozenset(("type", "content", "sources"))
_FUNCTION_KEYS: Final = frozenset(("function", "type", "id"))
_EXPECTED: Final = "arguments: an object"
_MAX_VALUE_CHARS: Final = 200


_Outcome = (
    Literal["call", "answer", "observation", "faulty", "prose"]
    | Literal["again", "broken", "quoted", "stop", "unclosed"]
)


class Judgement(Struct, frozen=True):
    """The kind of an object, and the verdict on its text by its place.

    The outcomes:

    - ``call``, ``answer``, ``observation``: it is taken as that.
    - ``faulty``: it has a known type, and a fault.
    - ``prose``: it is text. If it has a ``message``, that is a call if nothing else is said, and
      the ``error`` counts if something is.
    - ``again``: only the brace is prose, the text after it is read again.
    - ``broken``: it is an error, and reading stops.
    - ``quoted``: it is prose, but an error if no message and no more of its line follow.
    - ``stop``: a run of calls ends before it.
    - ``unclosed``: a fence or a tag is in place of its closing brackets.

    ``dropped`` are its unknown keys, each as JSON.
    """

    outcome: _Outcome
    message: ToolCall | FinalAnswer | None = None
    error: ErrorInfo | None = None
    dropped: tuple[str, ...] = ()


def envelope(value: Any, repairs: tuple[str, ...] = (), *, tagged: bool = False) -> Judgement:
    """Return what ``value`` is by the protocol. ``tagged``: it is in a call's tag."""
    match value.get("type") if isinstance(value, Mapping) else "none":
        case None | "function" if not tagged and is_alias(value) and (found := object_calls(value)):
            return Judgement("prose", found[0][0])
        case "tool_call":
            return _call(value, repairs)
        case "final_answer":
            return _answer(value, repairs)
        case "tool_observation":
            return Judgement("observation")
        case None if tagged and "type" not in value and "name" in value:
            return _call(value, repairs)
    return Judgement("prose")


def _faulty(message: str, code: ErrorCode = "invalid_json") -> Judgement:
    return Judgement("faulty", error=ErrorInfo(code, message))


def _dropped(value: Mapping[str, Any], known_keys: frozenset[str]) -> tuple[str, ...]:
    return tuple(
        json.dumps({key: item}, ensure_ascii=False)[1:-1][:_MAX_VALUE_CHARS]
        for key, item in value.items()
        if key not in known_keys
    )


def _call(value: Mapping[str, Any], repairs: tuple[str, ...]) -> Judgement:
    name, arguments = value.get("name"), value.get("arguments")
    known = _CALL_KEYS
    if not isinstance(name, str) or not name:
        if found := object_calls(value):  # under the keys of another family
            return Judgement("prose", found[0][0])
        return _faulty("name: required" if name is None else "name: a string")
    if arguments is None and "parameters" not in value:
        arguments, repairs = {}, (*repairs, "missing_arguments")
    elif not isinstance(arguments, Mapping) and (found := object_calls(value)):
        # in another family's form: it counts if it is alone
        return Judgement("prose", found[0][0], ErrorInfo("invalid_arguments", _EXPECTED))
    if not isinstance(arguments, Mapping):
        return _faulty(_EXPECTED, "invalid_arguments")
    call_id = value.get("id")
    if isinstance(call_id, int) and not isinstance(call_id, bool):
        call_id, repairs = str(call_id), (*repairs, "id_string")  # as it is written
    elif call_id is not None and not isinstance(call_id, str):
        # Other values could not be written back in the observation as they came.
        call_id, known = None, known - {"id"}
    call = ToolCall(name, arguments, call_id, repairs)
    return Judgement("call", call, dropped=_dropped(value, known))


def _answer(value: Mapping[str, Any], repairs: tuple[str, ...]) -> Judgement:
    content, sources = value.get("content"), value.get("sources")
    if not isinstance(content, str):
        return _faulty("content: required" if content is None else "content: a string")
    known = _ANSWER_KEYS
    if sources is not None and not isinstance(sources, list):
        # An answer is not refused for its citations: it also answers without sources.
        sources, known = None, known - {"sources"}
    answer = FinalAnswer(content, tuple(sources or ()), repairs)
    return Judgement("answer", answer, dropped=_dropped(value, known))


NAME_KEYS: Final = ("name", "tool_name", "tool", "function", "action", "recipient_name")
_ARGUMENTS: Final = ("arguments", "parameters", "args", "input", "action_input", "tool_input")
_IDS: Final = ("id", "tool_call_id", "call_id")
_LISTS: Final = ("tool_calls", "function_calls", "tool_uses", "calls")
_HOLDERS: Final = (
    *("function", "function_call", "functionCall", "tool_call", "tool_use", "command"),
    *("tool", "action", "call"),
)
_ALIAS_KEYS: Final = frozenset(("name", "arguments", "parameters", "type", *_IDS))
_KINDS: Final = frozenset(("function", "tool_use", "tool_call", "function_call"))

FoundCall = tuple[ToolCall, tuple[str, ...]]


def object_calls(value: Mapping[str, Any], repairs: tuple[str, ...] = ()) -> list[FoundCall]:
    """Return the calls that an object is by the keys of any family.

    With each come its unknown keys. None if the object names no tool, or if two keys have
    arguments.
    """
    for key in _LISTS:
        if isinstance(items := value.get(key), list) and items:
            inner = [object_calls(one, repairs) if isinstance(one, dict) else [] for one in items]
            return [found for each in inner for found in each] if all(inner) else []
    is_named = isinstance(value.get("name"), str)
    holder = next((key for key in _HOLDERS if isinstance(value.get(key), Mapping)), "")
    if holder and not is_named:
        value = {**value[holder], **{key: value[key] for key in _IDS if key in value}}
    name = next((key for key in NAME_KEYS if isinstance(value.get(key), str)), "")
    held = [key for key in _ARGUMENTS if value.get(key) is not None]
    # Neither of two keys with arguments is more likely to be meant.
    if not (name and value[name]) or len(held) > 1:
        return []
    if held == ["parameters"] and "description" in value:
        return []  # it describes a tool
    given: Any = value[held[0]] if held else {}
    arguments, named = read_arguments(given) if held else (given, ("missing_arguments",))
    if arguments is None:
        return []
    if value.get("type") == "tool_call" and "arguments" not in value:
        named = ("envelope_alias", *named)
    ids = [str(value[key]) for key in _IDS if isinstance(value.get(key), str | int)]
    known = frozenset((*_IDS, "type", "index", name, *_ARGUMENTS))
    call = ToolCall(value[name], arguments, ids[0] if ids else None, (*repairs, *named))
    return [(call, _dropped(value, known))]


def is_envelope(value: Mapping[str, Any]) -> bool:
    """Return whether an object's own keys show that it holds calls.

    The keys of OpenAI and Anthropic do, so their calls need no other mark.
    """
    if any(isinstance(value.get(key), list) for key in _LISTS[:3]):
        return True
    kind = value.get("type")
    if kind == "function":
        return isinstance(value.get("function"), Mapping) and "arguments" in value["function"]
    return kind == "tool_use" and "input" in value


def is_alias(value: Mapping[str, Any], *, is_known: bool = True) -> bool:
    """Return whether an object is a call by its keys alone, whatever the tools are.

    It has a name and arguments, and nothing else. ``parameters`` are common in data too, so they
    are arguments only if the name ``is_known``.
    """
    if isinstance(inner := value.get("function"), Mapping) and not (value.keys() - _FUNCTION_KEYS):
        value = inner
    if value.get("type") == "tool_call":
        return True
    has_arguments = "arguments" in value or (is_known and "parameters" in value)
    return value.get("type") in (None, *_KINDS) and has_arguments and value.keys() <= _ALIAS_KEYS


def possible_calls(value: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield name and arguments of each call that an object may be read as.

    Any of several keys may count (rule 12).
    """
    # This is wider than reading: a call too many is asked about, a call too few runs.
    read = envelope(value, tagged=True).message
    if isinstance(read, ToolCall):
        yield read.name, read.arguments
    held = [value[key] for key in _ARGUMENTS if value.get(key) is not None]
    if not held and value.get("type", "tool_call") == "tool_call":
        held = [{}]
    names = [value[key] for key in NAME_KEYS if isinstance(value.get(key), str)]
    for arguments in [read_arguments(given)[0] for given in held] if names else ():
        if arguments is not None:
            yield from ((name, arguments) for name in names)


def read_arguments(raw: Any) -> tuple[Mapping[str, Any] | None, tuple[str, ...]]:
    """Return arguments as an object, also from a string of JSON, and the repair."""
    named: tuple[str, ...] = ()
    if raw == [] or (isinstance(raw, str) and not raw.strip()):
        return {}, ("empty_arguments",)
    if isinstance(raw, str):
        named = ("arguments_string",)
        text = raw
        try:
            raw = loads(text)
        except Unreadable:
            raw = None
        # In a string of JSON within JSON each escape is read twice, so `C:\\bin` turns into a
        # backspace.
        if CONTROL_ESCAPE.search(text):
            plain = compact(raw).replace("\\\\", "")
            raw = None if "\\b" in plain or "\\f" in plain else raw
    return (raw if isinstance(raw, Mapping) else None), named


# --- an object in its place -------------------------------------------------------------------


def may_mutate(mutates: Callable[[str, Mapping[str, Any]], bool], call: ToolCall) -> bool:
    """Return whether the call can change things, by the caller's function."""
    try:
        return bool(mutates(call.name, call.arguments))
    except Exception:  # the caller's function may fail on the model's arguments: assume that it can
        return True


@dataclass(slots=True, eq=False, kw_only=True)
class OpenObject:
    """An object of a text that grows.

    ``inline``: within a line of prose. ``begin``: where its ``wrapping`` begins. ``in_run``: calls
    come right before it. ``tagged``: in a call's tag, in a style whose calls need no type.
    ``is_alone``: nothing but wrapping comes before it.
    """

    scanner: ObjectScanner
    inline: bool
    begin: int
    in_run: bool
    tagged: bool
    is_alone: bool
    wrapping: Wrapping
    _emitted_end: int = -1  # the part of its call whose deltas were returned; -1: none

    def deltas(self, index: int, text: str) -> Iterator[Delta]:
        """Yield the deltas of this message since the last time."""
        scanner = self.scanner
        if scanner.type == "final_answer" and scanner.answer:
            yield AnswerDelta(writable("".join(scanner.answer)))
            scanner.answer.clear()
        is_call = scanner.type == "tool_call" or (self.tagged and scanner.type is None)
        if not is_call or scanner.name is None:
            return
        if self._emitted_end < 0:
            self._emitted_end = 0
            yield CallStarted(index, writable(scanner.name))
        begin, end = scanner.arguments
        end = scanner.pos if end < begin else end
        if begin >= 0 and (raw := text[max(begin, self._emitted_end) : end]):
            yield ArgumentsDelta(index, writable(raw))
            self._emitted_end = end

    def verdict(self, text: str) -> Judgement | None:
        """Return the judgement so far; None if more text may change it."""
        scanner, again = self.scanner, False
        if self.in_run and scanner.type not in (None, "tool_call"):
            return Judgement("stop")  # judged as early as it can be known
        if scanner.status == INCOMPLETE:
            return None
        reason = scanner.bad_reason
        if scanner.status != CLOSED:
            next_char = text[scanner.pos : scanner.pos + 1]
            # A fence or a tag here closes the message: only its braces are missing, not its text.
            if scanner.message_like and scanner.closable and next_char in ("`", "~", "<"):
                return Judgement("unclosed")
            reason, again = scanner.reason, scanner.restartable
        elif not reason:
            try:
                return self._judge(*scanner.read(text))
            except Unreadable as error:
                reason = str(error)
        if scanner.message_like:
            return self._break_off(ErrorInfo("invalid_json", reason))
        return Judgement("stop" if self.in_run else "again" if again else "prose")

    def _judge(self, value: Any, repairs: tuple[str, ...]) -> Judgement:
        """Judge an object that could be read, by its place."""
        repairs = (*repairs, "inline") if self.inline else repairs
        found = envelope(value, repairs, tagged=self.tagged)
        if found.outcome == "call" or (found.outcome == "answer" and not self.in_run):
            return found
        if found.error is not None and not (found.outcome == "prose" and self.is_alone):
            return self._break_off(found.error)
        if self.in_run:
            return Judgement("stop")
        return found if found.outcome in ("observation", "prose") else Judgement("prose")

    def _break_off(self, error: ErrorInfo) -> Judgement:
        return Judgement("quoted" if self.inline and not self.in_run else "broken", error=error)

    # --- the text ends in it ---

    def is_message(self) -> bool | None:
        """Return whether the object begins a message; None if it is no object."""
        scanner = self.scanner
        if self.in_run or scanner.message_like:
            return True
        if scanner.has_key:
            return False
        partial = scanner.partial_key()
        begins = partial is not None and any(head.startswith(partial) for head in HEADS)
        if begins and (partial or not self.inline):
            return True
        return None if scanner.restartable else False

    def cut_answer(self, text: str) -> str:
        """Return the part of an answer's text that is there, empty if there is none."""
        # Read again: the scanner gave its text away as deltas.
        scanner = ObjectScanner(self.scanner.start)
        if not self.in_run:
            scanner.advance(text[: self.scanner.pos])
        return writable("".join(scanner.answer)) if scanner.type == "final_answer" else ""

    def close(
        self, text: str, mutates: Callable[[str, Mapping[str, Any]], bool]
    ) -> Judgement | None:
        """Return the message with its missing closers added, if rule 7 allows them."""
        if not self.scanner.closable:
            return None
        try:
            verdict = self._judge(*self.scanner.read(text, close=True))
        except Unreadable:
            return None
        message = verdict.message
        if isinstance(message, ToolCall):
            # Its arguments were not complete, or it may change things.
            is_open = "missing_arguments" in message.repairs or may_mutate(mutates, message)
            return None if is_open else verdict
        return None if message is None or self.in_run else verdict
