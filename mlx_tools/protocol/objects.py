"""The steps that read objects, and what ends in the middle of one."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from mlx_tools.errors import ErrorCode
from mlx_tools.messages import ErrorInfo, FinalAnswer, FinishReason, ToolCall
from mlx_tools.protocol import lexis
from mlx_tools.protocol.envelope import Envelope, envelope
from mlx_tools.protocol.reading import (
    Alias,
    AnswerDelta,
    ArgumentsDelta,
    CallStarted,
    Delta,
    Draft,
    ReadingRules,
    Wrapping,
    writable,
)
from mlx_tools.protocol.scan import FAULT, HEADS, MORE, ObjectScanner, repaired
from mlx_tools.protocol.source import Cursor
from mlx_tools.protocol.strict import Unreadable

_What = (
    Literal["call", "answer", "alias", "observation", "prose", "again"]
    | Literal["broken", "quoted", "stop", "unclosed"]
)


@dataclass(frozen=True, slots=True)
class Judgement:
    """What to do with the text of an object.

    ``call``, ``answer``, ``alias`` and ``observation`` are taken; ``prose`` is text like any other,
    and is gone on with; ``again``: only the brace is prose, what follows it is read anew;
    ``broken``: an error, and reading stops; ``quoted``: prose, but an error if no message follows;
    ``stop``: a run of calls ends before it; ``unclosed``: a fence or a tag stands where closing
    brackets are due.
    """

    what: _What
    found: Envelope | None = None
    error: ErrorInfo | None = None


@dataclass(frozen=True, slots=True)
class ObjectPlace:
    """Where an object stands.

    ``inline``: within a line of prose. ``begin``: where its wrapping begins in the kept text.
    ``in_run``: calls stand right before it. ``tagged``: in a call's tag, in a style whose calls
    need no type. ``only_aliases``: nothing but aliases stands before it.
    """

    inline: bool
    begin: int
    in_run: bool
    tagged: bool
    only_aliases: bool


class Candidate:
    """An object that may be a message, as it comes."""

    def __init__(self, place: ObjectPlace, *, quiet: bool) -> None:
        self.place = place
        self.parts: list[str] = []  # its text in earlier pieces
        self._scanner = ObjectScanner(quiet=quiet)
        self._started = False

    def advance(self, text: str, pos: int) -> tuple[int, Judgement | None]:
        """Reads on; returns where it stopped, and the verdict once there is one."""
        scanner, place = self._scanner, self.place
        end = scanner.advance(text, pos)
        if place.in_run and scanner.type not in (None, "tool_call"):
            return end, Judgement("stop")  # as in judged(), but as early as it can be known
        if scanner.status == MORE:
            self.parts.append(text[pos:end])
            return end, None
        if scanner.status == FAULT:
            return end, self._fault(text[end : end + 1])
        return end, self._closed("".join((*self.parts, text[pos:end])))

    @property
    def is_typed(self) -> bool:
        """Whether it says that it is a message, by its type or the tag that it stands in."""
        return self._scanner.type in ("tool_call", "final_answer") or self.place.tagged

    def deltas(self, index: int) -> Iterator[Delta]:
        """What can be shown since the last time; ``index`` is its number among the calls."""
        scanner = self._scanner
        if scanner.type == "final_answer" and scanner.answer:
            yield AnswerDelta(writable("".join(scanner.answer)))
            scanner.answer.clear()
        is_call = scanner.type == "tool_call" or (self.place.tagged and scanner.type is None)
        if not is_call or scanner.name is None:
            return
        if not self._started:
            self._started = True
            yield CallStarted(index, writable(scanner.name))
        if scanner.raw_arguments:
            yield ArgumentsDelta(index, writable("".join(scanner.raw_arguments)))
            scanner.raw_arguments.clear()

    # --- verdicts ---

    def _fault(self, char: str) -> Judgement:
        scanner = self._scanner
        if scanner.message_like and scanner.closable and char and char in "`~<":
            return Judgement("unclosed")
        return self._unreadable(scanner.reason, again=scanner.restartable)

    def _unreadable(
        self, reason: str, code: ErrorCode = "invalid_json", *, again: bool = False
    ) -> Judgement:
        error = ErrorInfo(code, reason)
        if self._scanner.message_like:
            quoted = self.place.inline and not self.place.in_run
            return Judgement("quoted" if quoted else "broken", error=error)
        if self.place.in_run:
            return Judgement("stop")
        return Judgement("again" if again else "prose")

    def _closed(self, body: str) -> Judgement:
        scanner = self._scanner
        if scanner.bad:
            return self._unreadable(scanner.bad)
        try:
            value, repairs = repaired(body, scanner.fixes)
        except Unreadable as error:
            return self._unreadable(str(error))
        return judged(value, repairs, self.place)

    @property
    def unclosed_error(self) -> ErrorInfo:
        """The error of an object after which more text came than a fence or a tag."""
        return ErrorInfo("invalid_json", self._scanner.reason)

    # --- when the text ends in it ---

    def is_message(self) -> bool | None:
        """Whether what there is of it begins a message; None where it is no object at all."""
        scanner, place = self._scanner, self.place
        if place.in_run or scanner.message_like:
            return True
        if scanner.begun:
            return False
        partial = scanner.partial_key()
        begins = partial is not None and any(head.startswith(partial) for head in HEADS)
        if begins and (partial or not place.inline):
            return True
        return None if scanner.restartable else False

    def cut_answer(self) -> str:
        """What there is of an answer's text; empty where it is none, or has none yet."""
        scanner = ObjectScanner()
        if self.place.in_run:
            return ""
        scanner.advance("".join(self.parts), 0)
        return writable("".join(scanner.answer)) if scanner.type == "final_answer" else ""

    def close(self, mutates: Callable[[str, Mapping[str, Any]], bool]) -> Judgement | None:
        """The message with its missing closers, where rule 7 allows them."""
        scanner, place = self._scanner, self.place
        if not scanner.closable:
            return None
        try:
            value, repairs = repaired("".join(self.parts), scanner.fixes, scanner.closers())
        except Unreadable:
            return None
        verdict = judged(value, repairs, place)
        found = verdict.found
        if found is None or (verdict.what == "answer" and place.in_run):
            return None
        if found.call is not None:
            if "missing_arguments" in found.call.repairs:  # they were still to come
                return None
            if may_mutate(mutates, found.call):
                return None
        return verdict


def judged(value: Any, repairs: tuple[str, ...], place: ObjectPlace) -> Judgement:
    """What an object that could be read is, in its place."""
    if place.in_run and isinstance(kind := value.get("type"), str) and kind != "tool_call":
        return Judgement("stop")
    found = envelope(value, (*repairs, "inline") if place.inline else repairs, tagged=place.tagged)
    if found.kind == "call" or (found.kind == "answer" and not place.in_run):
        return Judgement(found.kind, found)
    if found.kind == "alias" and place.only_aliases and not place.in_run:
        return Judgement("alias", found)
    error = found.error
    if found.kind == "alias" and found.typed:
        error = ErrorInfo("invalid_arguments", "arguments: an object")
    if error is not None:
        quoted = place.inline and not place.in_run
        return Judgement("quoted" if quoted else "broken", error=error)
    if place.in_run:
        return Judgement("stop")
    return Judgement("observation", found) if found.kind == "observation" else Judgement("prose")


def may_mutate(mutates: Callable[[str, Mapping[str, Any]], bool], call: ToolCall) -> bool:
    """Whether the call can change things, by the caller's word."""
    try:
        return bool(mutates(call.name, call.arguments))
    except Exception:  # the caller's function, and the model's arguments: fail closed
        return True


# --- the state of a reader: the text, what was found in it, and where in a line it stands -------

NO_ARRAY: Final = 0
ARRAY_BEGUN: Final = 1  # a bracket, and no object yet
ARRAY: Final = 2


class Machine(ABC):
    """One step after the other, each taking up where the last one stopped.

    A step reads on and says whether to go on at once: it returns False where the text that is
    there does not suffice, and where reading is done. `_step` is the one to take next, None when
    reading is done.
    """

    def __init__(self, rules: ReadingRules) -> None:
        self._rules = rules
        self._marks = lexis.marks(rules.reasoning_markers, rules.ends, dialects=bool(rules.catalog))
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

    @abstractmethod
    def _speech(self) -> bool:
        """The step between objects."""

    @abstractmethod
    def _open_thought(self, closer: re.Pattern[str]) -> bool:
        """Begins a thought that ``closer`` ends."""

    def _run(self) -> None:
        while self._step is not None and self._step():
            pass
        if self._step is None:
            self._draft.rest.append(self._cursor.take_all())

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

    @property
    def _is_xml(self) -> bool:
        return self._rules.style == "xml"

    def _here(self, *, inline: bool) -> ObjectPlace:
        draft = self._draft
        return ObjectPlace(
            inline=inline,
            begin=draft.size if inline else self._begin,
            in_run=bool(draft.messages),
            tagged=self._tag and self._is_xml,
            only_aliases=draft.only_aliases,
        )

    def _wrapping_here(self) -> Wrapping:
        return Wrapping(self._array == ARRAY, self._tag, self._fence)


_SHOWN: Final = frozenset(("call", "answer"))


class ObjectSteps(Machine):
    """What a reader does from an opening brace on.

    ``whole``: the text comes in one piece, and nobody wants deltas.
    """

    def __init__(self, rules: ReadingRules, *, whole: bool) -> None:
        super().__init__(rules)
        self._whole = whole
        self._place: ObjectPlace  # of what is open
        self._candidate: Candidate
        self._tail: list[str] = []  # text that is not decided on yet

    @property
    def open_message(self) -> str | None:
        """The text so far of an object that is open and says that it is a message, at the start of
        a line."""
        return self.open_object if self._step == self._object and self._candidate.is_typed else None

    @property
    def open_object(self) -> str | None:
        """The text so far of an object that is open at the start of a line."""
        if self._step != self._object or self._candidate.place.inline:
            return None
        return "".join(self._candidate.parts) + self._cursor.text[self._cursor.pos :]

    def _open_object(self, *, inline: bool) -> bool:
        self._place = self._here(inline=inline)
        if lexis.NO_OBJECT.match(self._cursor.text, self._cursor.pos + 1):
            return self._stray()
        if self._array:
            self._array = ARRAY
        self._candidate = Candidate(self._place, quiet=self._whole)
        self._step = self._object
        return True

    def _object(self) -> bool:
        candidate, cursor = self._candidate, self._cursor
        begin = cursor.pos
        end, verdict = candidate.advance(cursor.text, begin)
        # What stands in prose may turn out to be quoted: it is shown when it is whole.
        shown = not candidate.place.inline if verdict is None else verdict.what in _SHOWN
        if shown:
            self._deltas += candidate.deltas(len(self._draft.messages))
        if verdict is None:
            cursor.pos = end
            return False
        if candidate.parts:
            earlier = "".join(candidate.parts)
            cursor.put_back(earlier, begin)
            end += len(earlier) - begin
        self._step = self._speech
        return self._act(verdict, end)

    def _act(self, verdict: Judgement, end: int) -> bool:
        """Does what the verdict says with the text up to ``end``."""
        draft, found = self._draft, verdict.found
        if verdict.what == "stop":
            return self._stop()
        if verdict.what == "broken":
            if verdict.error is not None:
                draft.fail(verdict.error.code, verdict.error.message)
            return self._stop()
        if verdict.what == "unclosed":
            self._tail = [self._cursor.take(end)]
            self._candidate.parts = self._tail[:]
            self._step = self._after_unclosed
            return True
        if verdict.what == "alias" and found is not None and found.call is not None:
            begin = self._place.begin
            self._keep(end)
            wrapping, size = self._wrapping_here(), draft.size
            draft.aliases.append(
                Alias(found.call, found.typed, found.dropped, begin, size, wrapping)
            )
            return True
        if not draft.void_aliases():
            return self._stop()
        if verdict.what == "observation":
            draft.keep_forged(self._cursor.take(end))
            return True
        message = None if found is None else found.call or found.answer
        if found is None or message is None:
            return self._go_on_in_prose(verdict, end)
        self._keep(end)
        draft.add(message, self._place.begin, self._wrapping_here(), found.dropped)
        most = self._rules.max_calls
        if verdict.what == "answer" or (most is not None and len(draft.messages) >= most):
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
        if len(line) < len(text) and not line.strip(lexis.WHITE):
            self._begin_line(draft.size - len(line))
        return True

    def _after_unclosed(self) -> bool:
        """After an object that a fence or tag broke off: nothing but wrapping may follow."""
        cursor, marks = self._cursor, self._marks
        text, pos = cursor.text, cursor.pos
        if pos >= len(text):
            return False
        may_go_on = marks.begun.match(text, pos) or lexis.FENCE_BEGUN.match(text, pos)
        if may_go_on and not cursor.final:
            return False
        wrapping = lexis.AFTER_OBJECT.match(text, pos)
        if wrapping is not None:
            self._tail.append(cursor.take(wrapping.end()))
            return True
        cursor.put_back("".join(self._tail), pos)
        error = self._candidate.unclosed_error
        self._draft.fail(error.code, error.message)
        return self._stop()

    def _end_object(self, reason: FinishReason, *, unclosed: bool) -> bool:
        candidate, cursor = self._candidate, self._cursor
        held = cursor.text[cursor.pos :]
        cursor.put_back("".join(self._tail if unclosed else candidate.parts), cursor.pos)
        size = len(cursor.text)
        is_message = unclosed or candidate.is_message()
        self._step = self._speech
        if not is_message:
            self._act(Judgement("again" if is_message is None else "prose"), size)
            return is_message is None
        closed = candidate.close(self._rules.mutates) if reason == "stop" and not held else None
        if closed is None and reason == "length" and (text := candidate.cut_answer()):
            self._keep(size)
            self._add_cut_answer(text)
        elif closed is None:
            self._draft.cut(self._cursor.take(size))
        else:
            self._draft.unclean = True
            self._act(closed, size)
        return False

    def _add_cut_answer(self, text: str) -> None:
        """The answer as far as it came (rule 8c)."""
        repairs = ("inline",) if self._place.inline else ()
        self._draft.add(FinalAnswer(text, (), repairs), self._place.begin, self._wrapping_here())
        self._draft.cut_answer = self._draft.unclean = True

    def _end_array(self, reason: FinishReason) -> None:
        """The bracket of an array of calls is missing: as with any closer, see rule 7."""
        draft = self._draft
        calls = [message for message in draft.messages if isinstance(message, ToolCall)]
        calls += [alias.call for alias in draft.aliases]
        if self._array != ARRAY or not calls:
            return
        mutates = self._rules.mutates
        if reason != "stop" or any(may_mutate(mutates, call) for call in calls):
            draft.cut()
            return
        draft.unclean = True
        if draft.messages and isinstance(last := draft.messages[-1], ToolCall):
            draft.messages[-1] = replace(last, repairs=_closed(last.repairs))
        elif draft.aliases:
            alias = draft.aliases[-1]
            call = replace(alias.call, repairs=_closed(alias.call.repairs))
            draft.aliases[-1] = alias._replace(call=call)


def _closed(repairs: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*repairs, "missing_closers")))
