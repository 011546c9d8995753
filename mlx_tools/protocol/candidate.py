"""One object in the text, from its opening brace to what it turns out to be."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from mlx_tools.errors import ErrorCode
from mlx_tools.messages import ErrorInfo, ToolCall
from mlx_tools.protocol.draft import writable
from mlx_tools.protocol.envelope import Envelope, envelope
from mlx_tools.protocol.lexemes import FAULT, MORE
from mlx_tools.protocol.reading import AnswerDelta, ArgumentsDelta, CallStarted, Delta
from mlx_tools.protocol.repair import repaired
from mlx_tools.protocol.scan import HEADS, ObjectScanner
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
        self.back = ""  # what of them is to be read again
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
            self.back = scanner.back
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
