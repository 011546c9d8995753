"""An object in the model's text: from its opening brace to a call, an answer or prose (rules 5, 7).

`envelope` tells what a value is, `object_call` what it is between a dialect's marks; `ObjectSteps`
is what a reader does with one that may come in pieces.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from mlx_tools.errors import ErrorCode
from mlx_tools.messages import ErrorInfo, FinalAnswer, FinishReason, ToolCall
from mlx_tools.protocol import delimiters
from mlx_tools.protocol.reading import (
    Alias,
    AnswerDelta,
    ArgumentsDelta,
    CallStarted,
    Delta,
    Draft,
    ReadingRules,
    writable,
)
from mlx_tools.protocol.scan import CLOSED, HEADS, MORE, ObjectScanner, repaired
from mlx_tools.protocol.source import Cursor
from mlx_tools.protocol.strict import Unreadable, decode, loads

_CALL_KEYS: Final = frozenset(("type", "name", "arguments", "id"))
_ANSWER_KEYS: Final = frozenset(("type", "content", "sources"))
_ALIAS_KEYS: Final = frozenset(("name", "arguments", "parameters"))
_SHOWN_CHARS: Final = 200


_What = (
    Literal["call", "answer", "alias", "observation", "faulty", "prose"]
    | Literal["again", "broken", "quoted", "stop", "unclosed"]
)


@dataclass(frozen=True, slots=True)
class Judgement:
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
    elif arguments is None or isinstance(arguments, str):  # written as other protocols do
        kind = "alias"
        if arguments is None:
            known, repairs = known | {"parameters"}, (*repairs, "envelope_alias")
        arguments, named = _arguments(value)
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
    inner, keys = value, value.keys() - {"type", "id"}
    if keys == {"function"} and isinstance(value["function"], Mapping):
        inner = value["function"]
        keys = set(inner)
    arguments, named = _arguments(inner)
    name = inner.get("name")
    if not keys <= _ALIAS_KEYS or not isinstance(name, str) or not name or arguments is None:
        return Judgement("prose")
    found = _call(
        {"name": name, "arguments": arguments, "id": value.get("id")},
        (*repairs, "envelope_alias", *named),
    )
    return Judgement("alias", found.message)


def _arguments(value: Mapping[str, Any]) -> tuple[Mapping[str, Any] | None, tuple[str, ...]]:
    """The arguments under either key, as an object or as a string of one; and the repair made."""
    if value.get("arguments") is not None and "parameters" in value:
        return None, ()
    arguments = value.get("arguments")
    if arguments is None:
        arguments = value.get("parameters")
    named: tuple[str, ...] = ()
    if isinstance(arguments, str):
        named = ("arguments_string",)
        try:
            arguments = loads(arguments)
        except Unreadable:
            arguments = None
    return (arguments if isinstance(arguments, Mapping) else None), named


_NAMES: Final = ("name", "tool_name", "tool", "function", "action")
_ARGUMENTS: Final = ("arguments", "parameters", "args", "input", "action_input", "tool_input")
_IDS: Final = ("id", "tool_call_id", "call_id")


def object_call(
    value: Mapping[str, Any], repairs: tuple[str, ...] = ()
) -> tuple[ToolCall | None, tuple[str, ...]]:
    """The call that an object between a dialect's marks is, under any family's keys.

    None where it names no tool, or where two keys hold arguments. Also its keys that say nothing.
    """
    if isinstance(inner := value.get("function"), Mapping):
        value = {**inner, **{key: value[key] for key in _IDS if key in value}}
    names = [key for key in _NAMES if isinstance(value.get(key), str)]
    held = [key for key in _ARGUMENTS if value.get(key) is not None]
    if not names or len(held) > 1 or value.get("type") in ("final_answer", "tool_observation"):
        return None, ()
    arguments, named = _arguments({"arguments": value[held[0]]}) if held else ({}, _MISSING)
    if arguments is None:
        return None, ()
    ids = [str(value[key]) for key in _IDS if isinstance(value.get(key), str | int)]
    known = frozenset((*_IDS, "type", "index", names[0], *_ARGUMENTS))
    call = ToolCall(value[names[0]], arguments, ids[0] if ids else None, (*repairs, *named))
    return call, _dropped(value, known)


_MISSING: Final = ("missing_arguments",)


def call_in(value: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]] | None:
    """Name and arguments of the call that ``value`` would be in any form, or None (rule 12)."""
    found = envelope(value, tagged=True).message
    if isinstance(found, ToolCall):
        return found.name, found.arguments
    name, (arguments, _) = value.get("name"), _arguments(value)
    return (name, arguments) if isinstance(name, str) and arguments is not None else None


# --- an object in its place -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ObjectPlace:
    """The place of an object.

    ``inline``: within a line of prose. ``begin``: where its wrapping begins in the kept text.
    ``in_run``: calls stand right before it. ``tagged``: in a call's tag, in a style whose calls
    need no type. ``only_aliases``: nothing but aliases stands before it.
    """

    inline: bool
    begin: int
    in_run: bool
    tagged: bool
    only_aliases: bool

    def judged(self, value: Any, repairs: tuple[str, ...]) -> Judgement:
        """Return what an object that could be read is here."""
        if self.in_run and isinstance(kind := value.get("type"), str) and kind != "tool_call":
            return Judgement("stop")
        repairs = (*repairs, "inline") if self.inline else repairs
        found = envelope(value, repairs, tagged=self.tagged)
        may_count = found.what == "answer" or (found.what == "alias" and self.only_aliases)
        if found.what == "call" or (may_count and not self.in_run):
            return found
        if found.error is not None:
            return self.broken(found.error)
        if found.what == "alias" and found.typed:
            return self.broken(ErrorInfo("invalid_arguments", "arguments: an object"))
        if self.in_run:
            return Judgement("stop")
        return found if found.what == "observation" else Judgement("prose")

    def broken(self, error: ErrorInfo) -> Judgement:
        """Return what an object is here that begins like a message and is none."""
        return Judgement("quoted" if self.inline and not self.in_run else "broken", error=error)


def may_mutate(mutates: Callable[[str, Mapping[str, Any]], bool], call: ToolCall) -> bool:
    """Return whether the call can change things, by the caller's word."""
    try:
        return bool(mutates(call.name, call.arguments))
    except Exception:  # the caller's function, and the model's arguments: fail closed
        return True


# --- reading ----------------------------------------------------------------------------------

NO_ARRAY: Final = 0
ARRAY_BEGUN: Final = 1  # a bracket, and no object yet
ARRAY: Final = 2


class ObjectSteps(ABC):
    """The state of a reader, and what it does from an opening brace on.

    A step reads on and says whether to go on at once: it returns False where the text that is
    there does not suffice, and where reading is done. `_step` is the one to take next, None when
    reading is done. ``whole``: the text comes in one piece, and nobody wants deltas.
    """

    def __init__(self, rules: ReadingRules, *, whole: bool) -> None:
        self._rules = rules
        self._whole = whole
        self._marks = delimiters.marks(
            rules.reasoning_markers, rules.ends, dialects=bool(rules.catalog)
        )
        self._draft = Draft()
        self._cursor = Cursor()
        self._deltas: list[Delta] = []
        self._step: Callable[[], bool] | None = self._speech
        self._lead = True  # nothing but white space and wrapping so far in this line
        self._begin = 0  # where that began in the kept text
        self._array = NO_ARRAY
        self._tag = False
        self._fence = False
        self._spoken = False  # more than wrapping stands before this
        self._reason: FinishReason = "stop"
        self._place: ObjectPlace  # of what is open
        self._scanner: ObjectScanner
        self._parts: list[str] = []  # text of the open object in earlier pieces
        self._started = False  # its call was told of
        self._tail: list[str] = []  # text that is not decided on yet
        self._line_tried = -1  # the end of the line that was last looked at as strict JSON

    @abstractmethod
    def _speech(self) -> bool:
        """The step between objects."""

    def _run(self) -> None:
        while self._step is not None and self._step():
            pass
        if self._step is None:
            self._draft.rest.append(self._cursor.take(len(self._cursor.text)))

    def _keep(self, end: int) -> bool:
        self._draft.keep(self._cursor.take(end))
        return True

    def _stop(self, *, wrapping_may_follow: bool = False) -> bool:
        self._step = None
        self._draft.wrapping_may_follow = wrapping_may_follow
        return False

    def _stray(self) -> bool:
        """A character that belongs to no wrapping: prose, or the end of a run of calls."""
        if self._draft.messages or not self._draft.void_aliases():
            return self._stop()
        self._lead = False
        self._spoken = True
        self._array = NO_ARRAY
        return True

    def _begin_line(self, begin: int) -> bool:
        self._lead = True
        self._begin = begin
        self._draft.bullet = False
        return True

    def _here(self, *, inline: bool) -> ObjectPlace:
        draft = self._draft
        return ObjectPlace(
            inline=inline,
            begin=draft.size if inline else self._begin,
            in_run=bool(draft.messages),
            tagged=self._tag and self._rules.style == "xml",
            only_aliases=draft.only_aliases,
        )

    @property
    def _wrapping_here(self) -> delimiters.Wrapping:
        return delimiters.Wrapping(self._array == ARRAY, self._tag, self._fence)

    # --- objects ---

    @property
    def open_object(self) -> str | None:
        """The text so far of an object that is open at the start of a line."""
        if self._step != self._object or self._place.inline:
            return None
        return "".join(self._parts) + self._cursor.text[self._cursor.pos :]

    def _open_object(self, *, inline: bool) -> bool:
        self._place = self._here(inline=inline)
        if delimiters.NO_OBJECT.match(self._cursor.text, self._cursor.pos + 1):
            return self._stray()
        if self._array:
            self._array = ARRAY
        if self._whole and not inline and (found := self._strict()) is not None:
            value, end = found
            return self._act(self._place.judged(value, ()), end)
        self._scanner = ObjectScanner(quiet=self._whole)
        self._parts, self._started = [], False
        self._step = self._object
        return True

    def _strict(self) -> tuple[Any, int] | None:
        """The object that begins a line, and its end, where it is JSON without any repair: most
        are, and to decode one is many times as fast as to scan it. A line is tried once."""
        text, begin = self._cursor.text, self._cursor.pos
        end = text.find("\n", begin) % (len(text) + 1)
        if end <= self._line_tried:
            return None
        self._line_tried = end
        try:
            value, size = decode(text[begin:end])
        except Unreadable:
            return None
        return value, begin + size

    def _object(self) -> bool:
        scanner, cursor, place = self._scanner, self._cursor, self._place
        begin = cursor.pos
        end = scanner.advance(cursor.text, begin)
        verdict: Judgement | None = None
        if place.in_run and scanner.type not in (None, "tool_call"):
            verdict = Judgement("stop")  # as judged, but as early as it can be known
        elif scanner.status == CLOSED:
            verdict = self._closed("".join((*self._parts, cursor.text[begin:end])))
        elif scanner.status != MORE:
            verdict = self._fault(cursor.text[end : end + 1])
        # What stands in prose may turn out to be quoted: it is shown when it is whole.
        if not place.inline if verdict is None else verdict.what in ("call", "answer"):
            self._show()
        if verdict is None:
            self._parts.append(cursor.take(end))
            return False
        if self._parts:
            earlier = "".join(self._parts)
            cursor.put_back(earlier, begin)
            end += len(earlier) - begin
        self._step = self._speech
        return self._act(verdict, end)

    def _show(self) -> None:
        """Tells what of a message came since the last time."""
        scanner, index = self._scanner, len(self._draft.messages)
        if scanner.type == "final_answer" and scanner.answer:
            self._deltas.append(AnswerDelta(writable("".join(scanner.answer))))
            scanner.answer.clear()
        is_call = scanner.type == "tool_call" or (self._place.tagged and scanner.type is None)
        if not is_call or scanner.name is None:
            return
        if not self._started:
            self._started = True
            self._deltas.append(CallStarted(index, writable(scanner.name)))
        if raw := "".join(scanner.raw_arguments):
            self._deltas.append(ArgumentsDelta(index, writable(raw)))
            scanner.raw_arguments.clear()

    def _closed(self, body: str) -> Judgement:
        if self._scanner.bad:
            return self._unreadable(self._scanner.bad)
        if self._scanner.value is not None:
            return self._place.judged(self._scanner.value, ())
        try:
            value, repairs = repaired(body, self._scanner.fixes)
        except Unreadable as error:
            return self._unreadable(str(error))
        return self._place.judged(value, repairs)

    def _fault(self, char: str) -> Judgement:
        scanner = self._scanner
        if scanner.message_like and scanner.closable and char and char in "`~<":
            return Judgement("unclosed")
        return self._unreadable(scanner.reason, again=scanner.restartable)

    def _unreadable(self, reason: str, *, again: bool = False) -> Judgement:
        if self._scanner.message_like:
            return self._place.broken(ErrorInfo("invalid_json", reason))
        return Judgement("stop" if self._place.in_run else "again" if again else "prose")

    def _act(self, verdict: Judgement, end: int) -> bool:
        """Does what the verdict says with the text up to ``end``."""
        draft, what, message = self._draft, verdict.what, verdict.message
        if what in ("stop", "broken"):
            if verdict.error is not None:
                draft.fail(verdict.error.code, verdict.error.message)
            return self._stop()
        if what == "unclosed":
            self._tail = [self._cursor.take(end)]
            self._parts = self._tail[:]
            self._step = self._after_unclosed
            return True
        if what == "alias" and isinstance(message, ToolCall):
            self._keep(end)
            place = self._place.begin, draft.size, self._wrapping_here
            draft.aliases.append(Alias(message, verdict.typed, verdict.dropped, *place))
            return True
        if not draft.void_aliases():
            return self._stop()
        if what == "observation":
            draft.keep_forged(self._cursor.take(end))
            return True
        if message is None:
            return self._go_on_in_prose(verdict, end)
        self._keep(end)
        draft.add(message, self._place.begin, self._wrapping_here, verdict.dropped)
        most = self._rules.max_calls
        if what == "answer" or (most is not None and len(draft.messages) >= most):
            return self._stop(wrapping_may_follow=True)
        return True

    def _go_on_in_prose(self, verdict: Judgement, end: int) -> bool:
        draft = self._draft
        if verdict.what == "quoted":
            draft.quoted = draft.quoted or verdict.error
        self._array = NO_ARRAY
        self._lead = False
        self._spoken = True
        if verdict.what == "again":
            return self._keep(self._cursor.pos + 1)
        text = self._cursor.take(end)
        draft.keep(text)
        line = text[text.rfind("\n") + 1 :]
        if len(line) < len(text) and not line.strip(delimiters.WHITE):
            self._begin_line(draft.size - len(line))
        return True

    def _after_unclosed(self) -> bool:
        """After an object that a fence or tag broke off: nothing but wrapping may follow."""
        cursor, marks = self._cursor, self._marks
        text, pos = cursor.text, cursor.pos
        if pos >= len(text):
            return False
        may_go_on = marks.begun.match(text, pos) or delimiters.FENCE_BEGUN.match(text, pos)
        if may_go_on and not cursor.final:
            return False
        wrapping = delimiters.AFTER_OBJECT.match(text, pos)
        if wrapping is not None:
            self._tail.append(cursor.take(wrapping.end()))
            return True
        cursor.put_back("".join(self._tail), pos)
        self._draft.fail("invalid_json", self._scanner.reason)
        return self._stop()

    # --- the text ends in one ---

    def _end_object(self, reason: FinishReason, *, unclosed: bool) -> bool:
        """The text ends within an object; True where some of it must be read anew."""
        cursor = self._cursor
        held = cursor.text[cursor.pos :]
        cursor.put_back("".join(self._tail if unclosed else self._parts), cursor.pos)
        size = len(cursor.text)
        is_message = unclosed or self._is_message()
        self._step = self._speech
        if not is_message:
            self._act(Judgement("again" if is_message is None else "prose"), size)
            return is_message is None
        closed = self._close() if reason == "stop" and not held else None
        if closed is not None:
            self._draft.unclean = True
            self._act(closed, size)
        elif reason == "length" and (text := self._cut_answer()):
            self._keep(size)
            self._add_cut_answer(text)
        else:
            self._draft.cut(cursor.take(size))
        return False

    def _is_message(self) -> bool | None:
        """Return whether it begins a message; None where it is no object at all."""
        scanner, place = self._scanner, self._place
        if place.in_run or scanner.message_like:
            return True
        if scanner.begun:
            return False
        partial = scanner.partial_key()
        begins = partial is not None and any(head.startswith(partial) for head in HEADS)
        if begins and (partial or not place.inline):
            return True
        return None if scanner.restartable else False

    def _cut_answer(self) -> str:
        """Return what there is of an answer's text; empty where it is none, or has none yet."""
        scanner = ObjectScanner()
        if not self._place.in_run:
            scanner.advance("".join(self._parts), 0)
        return writable("".join(scanner.answer)) if scanner.type == "final_answer" else ""

    def _close(self) -> Judgement | None:
        """The message with its missing closers, where rule 7 allows them."""
        scanner, place = self._scanner, self._place
        if not scanner.closable:
            return None
        try:
            value, repairs = repaired("".join(self._parts), scanner.fixes, scanner.closers())
        except Unreadable:
            return None
        verdict = place.judged(value, repairs)
        message = verdict.message
        if message is None or (verdict.what == "answer" and place.in_run):
            return None
        if isinstance(message, ToolCall) and (
            "missing_arguments" in message.repairs  # they were still to come
            or may_mutate(self._rules.mutates, message)
        ):
            return None
        return verdict

    def _add_cut_answer(self, text: str) -> None:
        """The answer as far as it came (rule 8c)."""
        repairs = ("inline",) if self._place.inline else ()
        self._draft.add(FinalAnswer(text, (), repairs), self._place.begin, self._wrapping_here)
        self._draft.cut_answer = self._draft.unclean = True

    def _end_array(self, reason: FinishReason) -> None:
        """The bracket of an array of calls is missing: as with any closer, see rule 7."""
        draft = self._draft
        calls = [message for message in draft.messages if isinstance(message, ToolCall)]
        calls += [alias.call for alias in draft.aliases]
        if not calls:
            return
        if reason != "stop" or any(may_mutate(self._rules.mutates, call) for call in calls):
            draft.cut()
            return
        draft.unclean = True
        if draft.messages and isinstance(last := draft.messages[-1], ToolCall):
            draft.messages[-1] = _with_closers(last)
        elif draft.aliases:
            alias = draft.aliases[-1]
            draft.aliases[-1] = alias._replace(call=_with_closers(alias.call))


def _with_closers(call: ToolCall) -> ToolCall:
    return replace(call, repairs=tuple(dict.fromkeys((*call.repairs, "missing_closers"))))
