"""The steps that read objects, and what ends in the middle of one."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from mlx_tools.messages import FinalAnswer, FinishReason, ToolCall
from mlx_tools.protocol import lexis
from mlx_tools.protocol.candidate import Candidate, Judgement, ObjectPlace, judged, may_mutate
from mlx_tools.protocol.draft import Alias
from mlx_tools.protocol.lexemes import ESCAPE, PLAIN
from mlx_tools.protocol.machine import ARRAY, NO_ARRAY, Machine
from mlx_tools.protocol.reading import AnswerDelta, ArgumentsDelta, CallStarted, ReadingRules
from mlx_tools.protocol.strict import Unreadable, decode

_SHOWN: Final = frozenset(("call", "answer"))
_W: Final = r"[ \t\r\n]*+"
_HEAD: Final = re.compile(
    rf'\{{{_W}(?:"type"{_W}:{_W}"final_answer"'
    rf'|(?P<type>"type"{_W}:{_W}"tool_call"{_W},{_W})?+'
    rf'"name"{_W}:{_W}"{PLAIN}(?:{ESCAPE}{PLAIN})*+"{_W},{_W}"arguments"{_W}:{_W}(?=\{{))'
)
"""How a message begins whose keys come in the usual order; a call's, up to its arguments."""


class ObjectSteps(Machine):
    """What a reader does from an opening brace on.

    ``whole``: the text comes in one piece, and nobody wants deltas.
    """

    def __init__(self, rules: ReadingRules, *, whole: bool) -> None:
        super().__init__(rules)
        self._whole = whole
        self._attempted = -1
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
        if (whole := self._at_once()) is not None:
            return self._act(*whole)
        self._candidate = Candidate(self._place, quiet=self._whole)
        self._step = self._object
        return True

    def _at_once(self) -> tuple[Judgement, int] | None:
        """The verdict on an object that is strict JSON on one line, without looking closer.

        Where deltas are wanted, only on one that is written as most messages are.
        """
        text, pos = self._cursor.text, self._cursor.pos
        if pos < self._attempted:  # this line was tried before
            return None
        head = None if self._whole else _HEAD.match(text, pos)
        if head is None and not self._whole:
            return None
        end = text.find("\n", pos)
        self._attempted = end if end >= 0 else len(text)
        try:
            value, size = decode(text[pos : self._attempted])
        except Unreadable:
            return None
        verdict = judged(value, (), self._place)
        if head is not None and verdict.what in _SHOWN:
            if verdict.what == "call" and len(value) > (3 if head["type"] else 2):
                return None  # more stands after the arguments than a brace
            self._show(verdict, text[head.end() : pos + size - 1])
        return verdict, pos + size

    def _show(self, verdict: Judgement, arguments: str) -> None:
        """What is told of a message that came whole; ``arguments`` as the model wrote them."""
        found = verdict.found
        if found is not None and found.call is not None:
            index = len(self._draft.messages)
            shown = arguments.rstrip(lexis.WHITE)
            self._deltas += (CallStarted(index, found.call.name), ArgumentsDelta(index, shown))
        elif found is not None and found.answer is not None and found.answer.content:
            self._deltas.append(AnswerDelta(found.answer.content))

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
            end += len(earlier) - begin - len(candidate.back)
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
