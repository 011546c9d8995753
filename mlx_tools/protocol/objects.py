"""An object in the model's text: a call, an answer or prose (rules 5, 7).

`envelope` tells what a value is, `object_call` what call it is by the keys of any family;
`OpenObject` is one that may come in pieces.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from msgspec import Struct

from mlx_tools.errors import ErrorCode
from mlx_tools.messages import ErrorInfo, FinalAnswer, ToolCall
from mlx_tools.protocol.delimiters import Wrapping
from mlx_tools.protocol.reading import AnswerDelta, ArgumentsDelta, CallStarted, Delta, writable
from mlx_tools.protocol.scan import CLOSED, CONTROL_ESCAPE, HEADS, MORE, ObjectScanner
from mlx_tools.protocol.strict import Unreadable, compact, loads

_CALL_KEYS: Final = frozenset(("type", "name", "arguments", "id"))
_ANSWER_KEYS: Final = frozenset(("type", "content", "sources"))
_ALIAS_KEYS: Final = frozenset(("name", "arguments", "parameters"))
_SHOWN_CHARS: Final = 200


_What = (
    Literal["call", "answer", "alias", "observation", "faulty", "prose"]
    | Literal["again", "broken", "quoted", "stop", "unclosed"]
)


class Judgement(Struct, frozen=True):
    """An object, told apart, and in its place the verdict on its text.

    ``call``, ``answer``, ``alias`` and ``observation`` are taken. ``alias``: a call in a form that
    counts only where such objects are the whole output; one that is ``typed`` is an error
    elsewhere, any other is prose. ``faulty``: of a known type, but not as it must be. ``prose`` is
    text like any other, and is gone on with; ``again``: only the brace is prose, what follows it is
    read anew; ``broken``: an error, and reading stops; ``quoted``: prose, but an error if no
    message follows; ``stop``: a run of calls ends before it; ``unclosed``: a fence or a tag stands
    where closing brackets are due. ``dropped`` are its unknown keys, each as JSON.
    """

    what: _What
    message: ToolCall | FinalAnswer | None = None
    error: ErrorInfo | None = None
    dropped: tuple[str, ...] = ()
    typed: bool = False


def envelope(value: Any, repairs: tuple[str, ...] = (), *, tagged: bool = False) -> Judgement:
    """Return what ``value`` is. ``tagged``: it stands in a tag that says that it is a call."""
    match value.get("type") if isinstance(value, Mapping) else "none":
        case "tool_call":
            return _call(value, repairs)
        case "final_answer":
            return _answer(value, repairs)
        case "tool_observation":
            return Judgement("observation")
        case None if tagged and "type" not in value and "name" in value:
            return _call(value, repairs)
        case None | "function":
            return _alias(value, repairs)
    return Judgement("prose")


def _faulty(message: str, code: ErrorCode = "invalid_json") -> Judgement:
    return Judgement("faulty", error=ErrorInfo(code, message))


def _dropped(value: Mapping[str, Any], known: frozenset[str]) -> tuple[str, ...]:
    return tuple(
        json.dumps({key: item}, ensure_ascii=False)[1:-1][:_SHOWN_CHARS]
        for key, item in value.items()
        if key not in known
    )


def _call(value: Mapping[str, Any], repairs: tuple[str, ...]) -> Judgement:
    name, arguments = value.get("name"), value.get("arguments")
    kind: Literal["call", "alias"] = "call"
    known = _CALL_KEYS
    if not isinstance(name, str) or not name:
        return _faulty("name: required" if name is None else "name: a string")
    if arguments is None and "parameters" not in value:
        arguments, repairs = {}, (*repairs, "missing_arguments")
    elif arguments is None or arguments == [] or isinstance(arguments, str):
        # written as other protocols do
        kind = "alias"
        if arguments is None:
            known, repairs = known | {"parameters"}, (*repairs, "envelope_alias")
        arguments, named = _arguments(value["parameters"] if arguments is None else arguments)
        repairs += named
    if not isinstance(arguments, Mapping):
        return _faulty("arguments: an object", "invalid_arguments")
    call_id = value.get("id")
    if isinstance(call_id, int) and not isinstance(call_id, bool):
        call_id, repairs = str(call_id), (*repairs, "id_string")  # as it is written
    elif call_id is not None and not isinstance(call_id, str):
        call_id, known = None, known - {"id"}
    call = ToolCall(name, arguments, call_id, repairs)
    return Judgement(kind, call, dropped=_dropped(value, known), typed=True)


def _answer(value: Mapping[str, Any], repairs: tuple[str, ...]) -> Judgement:
    content, sources = value.get("content"), value.get("sources")
    if not isinstance(content, str):
        return _faulty("content: required" if content is None else "content: a string")
    known = _ANSWER_KEYS
    if sources is not None and not isinstance(sources, list):
        sources, known = None, known - {"sources"}
    answer = FinalAnswer(content, tuple(sources or ()), repairs)
    return Judgement("answer", answer, dropped=_dropped(value, known), typed=True)


def _alias(value: Mapping[str, Any], repairs: tuple[str, ...]) -> Judgement:
    """The forms in which other protocols write a call; with any other key it is none."""
    keys = value.keys() - {"type", "id"}
    if keys == {"function"} and isinstance(value["function"], Mapping):
        keys = set(value["function"])
    if keys <= _ALIAS_KEYS:
        call, _ = object_call(value, (*repairs, "envelope_alias"))
        if call is not None and "missing_arguments" not in call.repairs:
            return Judgement("alias", call)
    return Judgement("prose")


_NAMES: Final = ("name", "tool_name", "tool", "function", "action")
_ARGUMENTS: Final = ("arguments", "parameters", "args", "input", "action_input", "tool_input")
_IDS: Final = ("id", "tool_call_id", "call_id")


def object_call(
    value: Mapping[str, Any], repairs: tuple[str, ...] = ()
) -> tuple[ToolCall | None, tuple[str, ...]]:
    """The call that an object is by the keys of any family, and those that say nothing.

    None where it names no tool, or where two keys hold arguments.
    """
    if isinstance(inner := value.get("function"), Mapping):
        value = {**inner, **{key: value[key] for key in _IDS if key in value}}
    name = next((key for key in _NAMES if isinstance(value.get(key), str)), "")
    held = [key for key in _ARGUMENTS if value.get(key) is not None]
    if not (name and value[name]) or len(held) > 1:
        return None, ()
    given: Any = value[held[0]] if held else {}
    arguments, named = _arguments(given) if held else (given, ("missing_arguments",))
    if arguments is None:
        return None, ()
    ids = [str(value[key]) for key in _IDS if isinstance(value.get(key), str | int)]
    known = frozenset((*_IDS, "type", "index", name, *_ARGUMENTS))
    call = ToolCall(value[name], arguments, ids[0] if ids else None, (*repairs, *named))
    return call, _dropped(value, known)


def possible_calls(value: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Name and arguments of each call that an object may be taken for, whichever of several keys
    counts (rule 12)."""
    read = envelope(value, tagged=True).message
    if isinstance(read, ToolCall):
        yield read.name, read.arguments
    held = [value[key] for key in _ARGUMENTS if value.get(key) is not None]
    if not held and value.get("type", "tool_call") == "tool_call":
        held = [{}]
    names = [value[key] for key in _NAMES if isinstance(value.get(key), str)]
    for arguments in [_arguments(given)[0] for given in held] if names else ():
        if arguments is not None:
            yield from ((name, arguments) for name in names)


def _arguments(given: Any) -> tuple[Mapping[str, Any] | None, tuple[str, ...]]:
    """Arguments as an object, be it in a string of JSON; and the repair made."""
    named: tuple[str, ...] = ()
    if given == [] or (isinstance(given, str) and not given.strip()):
        return {}, ("empty_arguments",)
    if isinstance(given, str):
        named = ("arguments_string",)
        text = given
        try:
            given = loads(text)
        except Unreadable:
            given = None
        if CONTROL_ESCAPE.search(text):
            plain = compact(given).replace("\\\\", "")
            given = None if "\\b" in plain or "\\f" in plain else given
    return (given if isinstance(given, Mapping) else None), named


# --- an object in its place -------------------------------------------------------------------


def may_mutate(mutates: Callable[[str, Mapping[str, Any]], bool], call: ToolCall) -> bool:
    """Return whether the call can change things, by the caller's word."""
    try:
        return bool(mutates(call.name, call.arguments))
    except Exception:  # the caller's function, and the model's arguments: fail closed
        return True


@dataclass(slots=True, eq=False, kw_only=True)
class OpenObject:
    """An object of a text that grows, in its place: what it is there.

    ``inline``: within a line of prose. ``begin``: where its ``wrapping`` begins.
    ``in_run``: calls stand right before it. ``tagged``: in a call's tag, in a style whose calls
    need no type. ``only_aliases``: nothing but aliases stands before it.
    """

    scanner: ObjectScanner
    inline: bool
    begin: int
    in_run: bool
    tagged: bool
    only_aliases: bool
    wrapping: Wrapping
    _told: int = -1  # up to where its call was told of; -1: nothing of it

    def deltas(self, index: int, text: str) -> Iterator[Delta]:
        """What of the message of this number came since the last time."""
        scanner = self.scanner
        if scanner.type == "final_answer" and scanner.answer:
            yield AnswerDelta(writable("".join(scanner.answer)))
            scanner.answer.clear()
        is_call = scanner.type == "tool_call" or (self.tagged and scanner.type is None)
        if not is_call or scanner.name is None:
            return
        if self._told < 0:
            self._told = 0
            yield CallStarted(index, writable(scanner.name))
        begin, end = scanner.arguments
        end = scanner.pos if end < begin else end
        if begin >= 0 and (raw := text[max(begin, self._told) : end]):
            yield ArgumentsDelta(index, writable(raw))
            self._told = end

    def verdict(self, text: str) -> Judgement | None:
        """What it is, as far as the scanner has come in ``text``; None where it goes on."""
        scanner, again = self.scanner, False
        if self.in_run and scanner.type not in (None, "tool_call"):
            return Judgement("stop")  # as judged, but as early as it can be known
        if scanner.status == MORE:
            return None
        reason = scanner.bad_reason
        if scanner.status != CLOSED:
            next_char = text[scanner.pos : scanner.pos + 1]
            if scanner.message_like and scanner.closable and next_char in ("`", "~", "<"):
                return Judgement("unclosed")
            reason, again = scanner.reason, scanner.restartable
        elif not reason:
            try:
                return self._judged(*scanner.read(text))
            except Unreadable as error:
                reason = str(error)
        if scanner.message_like:
            return self._broken(ErrorInfo("invalid_json", reason))
        return Judgement("stop" if self.in_run else "again" if again else "prose")

    def _judged(self, value: Any, repairs: tuple[str, ...]) -> Judgement:
        """What an object that could be read is here."""
        repairs = (*repairs, "inline") if self.inline else repairs
        found = envelope(value, repairs, tagged=self.tagged)
        may_count = found.what == "answer" or (found.what == "alias" and self.only_aliases)
        if found.what == "call" or (may_count and not self.in_run):
            return found
        if found.error is not None:
            return self._broken(found.error)
        if found.what == "alias" and found.typed:
            return self._broken(ErrorInfo("invalid_arguments", "arguments: an object"))
        if self.in_run:
            return Judgement("stop")
        return found if found.what == "observation" else Judgement("prose")

    def _broken(self, error: ErrorInfo) -> Judgement:
        return Judgement("quoted" if self.inline and not self.in_run else "broken", error=error)

    # --- the text ends in it ---

    def is_message(self) -> bool | None:
        """Return whether it begins a message; None where it is no object at all."""
        scanner = self.scanner
        if self.in_run or scanner.message_like:
            return True
        if scanner.begun:
            return False
        partial = scanner.partial_key()
        begins = partial is not None and any(head.startswith(partial) for head in HEADS)
        if begins and (partial or not self.inline):
            return True
        return None if scanner.restartable else False

    def cut_answer(self, text: str) -> str:
        """Return what there is of an answer's text; empty where it is none, or has none yet."""
        scanner = ObjectScanner(self.scanner.start)
        if not self.in_run:
            scanner.advance(text[: self.scanner.pos])
        return writable("".join(scanner.answer)) if scanner.type == "final_answer" else ""

    def closed(
        self, text: str, mutates: Callable[[str, Mapping[str, Any]], bool]
    ) -> Judgement | None:
        """The message with its missing closers, where rule 7 allows them."""
        if not self.scanner.closable:
            return None
        try:
            verdict = self._judged(*self.scanner.read(text, close=True))
        except Unreadable:
            return None
        message = verdict.message
        if isinstance(message, ToolCall):
            # Its arguments were still to come, or it may change things:
            is_open = "missing_arguments" in message.repairs or may_mutate(mutates, message)
            return None if is_open else verdict
        return None if message is None or self.in_run else verdict
