"""The reader: the reading rules as a machine that takes the text in pieces of any size.

The text is read once, from left to right. What cannot be told yet, because the piece ends in the
middle of a mark or an escape, waits for the next piece; it is never more than a few dozen
characters. So the result does not depend on how the text was split, and the work is linear in its
length.
"""

from __future__ import annotations

import re
from typing import Final

from mlx_tools.messages import FinalAnswer, FinishReason
from mlx_tools.protocol import lexis
from mlx_tools.protocol.calls import HARMONY, CallSteps
from mlx_tools.protocol.cursor import PlainText
from mlx_tools.protocol.draft import Wrapping, writable
from mlx_tools.protocol.machine import ARRAY, ARRAY_BEGUN, NO_ARRAY
from mlx_tools.protocol.reading import AnswerDelta, Delta, Reading, ReadingRules

_DEFAULT: Final = ReadingRules()


class Reader(CallSteps):
    """Reads one completion as it comes.

    `feed` takes a piece and gives what can be shown of it; once `done` nothing more can count, and
    the stream may be closed. What is fed on all the same is recorded as dropped. `finish` gives the
    `Reading`; it may be called once. No text makes any of them raise.
    """

    def __init__(self, rules: ReadingRules = _DEFAULT, *, _whole: bool = False) -> None:
        super().__init__(rules, whole=_whole)
        self._closer = self._marks.any_end
        self._answer = PlainText(lexis.WHITE)
        if rules.in_thought:
            self._open_thought(self._marks.any_end)
        self._push(rules.prefix)

    @property
    def done(self) -> bool:
        """Whether nothing that follows can count."""
        return self._step is None

    def feed(self, piece: str) -> list[Delta]:
        """Reads on; returns what of the answer or of calls' arguments is known now."""
        self._attempted = -1
        self._push(piece)
        deltas, self._deltas = self._deltas, []
        return deltas

    def finish(self, finish_reason: FinishReason = "stop") -> Reading:
        """The text has ended, for this reason: how it was read."""
        self._cursor.final = True
        self._reason = finish_reason
        self._push("")
        while self._step is not None and self._end(finish_reason):
            self._run()
        return self._draft.reading(self._rules, finish_reason, self._marks)

    def _push(self, piece: str) -> None:
        if self._step is None:
            self._draft.rest.append(piece)
            return
        self._cursor.push(piece)
        self._run()

    # --- between objects ----------------------------------------------------------------------

    def _speech(self) -> bool:
        cursor = self._cursor
        if cursor.pos >= len(cursor.text):
            return False
        if self._ticking and cursor.text[cursor.pos] != "`":
            self._backticks()
        return self._wrapping() if self._lead or self._draft.messages else self._prose()

    def _wrapping(self) -> bool:
        """At a line's start, or between calls: what may stand around a message."""
        text, pos, draft = self._cursor.text, self._cursor.pos, self._draft
        if space := lexis.SPACE.match(text, pos):
            return self._keep(space.end())
        char = text[pos]
        if char == "{":
            return self._open_object(inline=False)
        if self._marks.by_line and (begun := self._line_form(char)) is not None:
            return begun
        if self._marks.lines and (ends := self._next_turn()) is not None:
            return ends
        if self._array == ARRAY_BEGUN or char not in self._marks.at_start:
            return self._stray()
        if not self._cursor.final and self._marks.begun.match(text, pos):
            return False
        if mark := self._marks.mark.match(text, pos):
            return self._mark(mark)
        if char in "`~":
            return self._fence_mark()
        if draft.messages or draft.aliases:
            if char == "," or (char == ";" and draft.aliases):
                draft.unclean = draft.unclean or self._array != ARRAY
                return self._keep(pos + 1)
            if char == "]" and self._array == ARRAY:
                self._array = NO_ARRAY
                return self._keep(pos + 1)
            return self._stray()
        return self._before_message(char)

    def _next_turn(self) -> bool | None:
        """Whether the next turn opens in this line; None where it does not."""
        text, pos = self._cursor.text, self._cursor.pos
        for line in self._marks.lines:
            if self._draft.size and text.startswith(line, pos):
                return self._end_turn()
            if not self._cursor.final and line.startswith(text[pos:]):
                return False
        return None

    def _end_turn(self) -> bool:
        self._draft.ended = True
        return self._stop(wrapping_may_follow=bool(self._draft.messages))

    def _before_message(self, char: str) -> bool:
        text, pos = self._cursor.text, self._cursor.pos
        if char == "[" and not self._array:
            self._array = ARRAY_BEGUN
            return self._keep(pos + 1)
        if not self._cursor.final and lexis.BULLET_BEGUN.match(text, pos):
            return False
        if bullet := lexis.BULLET.match(text, pos):
            self._draft.bullet = True
            self._draft.only_aliases = False
            return self._keep(bullet.end())
        return self._stray()

    def _prose(self) -> bool:
        """Within a line of prose: to its end, or to something that may be more than prose."""
        marks = self._marks
        found, end = self._cursor.seek(marks.special, marks.begun, marks.longest)
        self._keep(end)
        if found is None:
            return False
        if found[0] == "\n":
            self._keep(found.end())
            self._end_of_line()
            return self._begin_line(self._draft.size)
        if found[0][0] == "`":
            self._ticking += found.end() - found.start()
            return self._keep(found.end())
        return self._open_object(inline=True) if found[0] == "{" else self._mark(found)

    def _fence_mark(self) -> bool:
        text, pos = self._cursor.text, self._cursor.pos
        if not self._cursor.final and lexis.FENCE_BEGUN.match(text, pos):
            return False
        fence = lexis.FENCE.match(text, pos) or lexis.BARE_FENCE.match(text, pos)
        if fence is None:
            return self._stray()
        if self._ticks >= 3:  # it closes what began within a line
            self._ticks = 0
            return self._keep(fence.end())
        says = fence[2] if fence.lastindex == 2 else ""
        self._fence = bool(says) or not self._fence
        return self._keep(fence.end())

    def _mark(self, mark: re.Match[str]) -> bool:
        """A tag, or what opens or closes a thought."""
        what, draft = mark[0], self._draft
        if what in self._marks.closers:
            self._cursor.pos = mark.end()
            return self._open_thought(self._marks.closers[what][1])
        if what in self._marks.turn_ends or what == lexis.STRUCK:
            return self._end_turn() if self._turn_ends(what) else self._text_of_mark(what)
        if draft.messages and what not in (lexis.CALL_TAG, lexis.CALL_END, lexis.ANSWER_END):
            return self._stop()
        if what in lexis.HEADERS:
            shown = self._ticks or (self._fence and self._spoken)
            if shown or self._tried == draft.size or draft.messages:
                return self._text_of_mark(what)
            return self._begin_run(HARMONY, skip=len(what), weak=True)
        if what in self._marks.dialects:
            if self._quoted:
                return self._text_of_mark(what)
            if what != lexis.CALL_TAG or not (self._is_xml or draft.messages):
                return self._begin_run(self._marks.dialects[what])
            self._keep(mark.end())
            self._tag = True
            self._step = self._after_call_tag
            return True
        if what in self._marks.ends:
            self._cursor.pos = mark.end()
            self._told = what.startswith("<|channel|>")
            draft.forget()
            self._array = NO_ARRAY
            return self._begin_line(0)
        if what in (lexis.CALL_TAG, lexis.CALL_END):
            self._tag = what == lexis.CALL_TAG
        elif what == lexis.RESPONSE_TAG or (what == lexis.ANSWER_TAG and self._is_xml):
            if not draft.void_aliases():
                return self._stop()
            if what == lexis.RESPONSE_TAG:
                self._tail = []
                self._step = self._response
                return True
            self._place = self._here(inline=not self._lead)
            self._step = self._tagged_answer
        return self._keep(mark.end())

    def _after_call_tag(self) -> bool:
        """After the tag that a style and many dialects share: an object is the style's."""
        if space := lexis.SPACE.match(self._cursor.text, self._cursor.pos):
            self._keep(space.end())
        if self._cursor.pos >= len(self._cursor.text):
            if not self._cursor.final:
                return False
        elif self._cursor.text[self._cursor.pos] not in "{</" and not self._draft.messages:
            return self._begin_run(self._marks.dialects[lexis.CALL_TAG], skip=0)
        self._step = self._speech
        return True

    # --- thoughts, forged observations, answers in tags ---------------------------------------

    def _open_thought(self, closer: re.Pattern[str]) -> bool:
        self._closer = closer
        self._draft.reasoning.append([])
        self._step = self._thought
        return True

    def _thought(self) -> bool:
        marks = self._marks
        found, end = self._cursor.seek(self._closer, marks.end_begun, marks.longest)
        self._draft.reasoning[-1].append(self._cursor.take(end))
        if found is None:
            return False
        self._cursor.pos = found.end()
        self._step = self._speech
        return True

    def _call_in_thought(self) -> bool:
        """Begins to read a call that ends a thought which the text leaves open.

        Only by marks that are control tokens: to write one is to have stopped thinking.
        """
        marks, text = self._marks, "".join(self._draft.reasoning[-1])
        begun = [text.find(mark) for mark, one in marks.dialects.items() if one.is_token]
        begin = min((pos for pos in begun if pos >= 0), default=-1)
        if begin < 0 or self._in_thought:
            return False
        self._in_thought = True
        self._draft.reasoning[-1] = [text[:begin]]
        self._draft.unclean = True
        self._cursor.put_back(text[begin:], self._cursor.pos)
        self._step = self._speech
        return True

    def _response(self) -> bool:
        """An observation that the model made up: skipped whole, whatever stands in it."""
        found, end = self._cursor.seek(*lexis.RESPONSE_CLOSE)
        self._tail.append(self._cursor.take(end if found is None else found.end()))
        if found is None:
            return False
        self._draft.keep_forged("".join(self._tail))
        self._step = self._speech
        return True

    def _tagged_answer(self) -> bool:
        """The plain text of an answer, up to its closing tag."""
        found, end = self._cursor.seek(*lexis.ANSWER_CLOSE)
        text = self._cursor.take(end)
        self._draft.keep(text)
        if shown := self._answer.add(text):
            self._deltas.append(AnswerDelta(writable(shown)))
        if found is None:
            return False
        self._keep(found.end())
        return self._add_answer()

    def _add_answer(self, *repairs: str) -> bool:
        content = self._answer.text
        if content == writable(content):
            names = ("inline", *repairs) if self._place.inline else repairs
            answer = FinalAnswer(content, (), names)
            self._draft.add(answer, self._place.begin, Wrapping(fence=self._fence))
        else:
            self._draft.fail("invalid_json", "the text holds half of a surrogate pair")
        return self._stop(wrapping_may_follow=True)

    # --- the end ------------------------------------------------------------------------------

    def _end(self, reason: FinishReason) -> bool:
        """The text ends in the middle of something; True where some of it must be read anew."""
        draft, step = self._draft, self._step
        if step == self._thought:
            if reason == "stop" and self._call_in_thought():
                return True
            draft.cut()
        elif step == self._response:
            draft.keep_forged("".join(self._tail))
        elif step == self._tagged_answer:
            begun = lexis.ANSWER_CLOSE[1].search(self._answer.text)
            text = self._answer.text[: begun.start() if begun is not None else None].rstrip()
            if reason == "length" and text:
                self._add_cut_answer(writable(text))
            elif reason != "stop" or (begun is not None and begun.end() - begun.start() > 1):
                draft.cut()
            elif not self._answer.text:
                draft.fail("invalid_json", "the output is empty")
            else:
                draft.unclean = True
                self._add_answer("missing_closers")
        elif step in (self._object, self._after_unclosed) and self._end_object(
            reason, unclosed=step == self._after_unclosed
        ):
            return True
        if self._step is not None:
            self._end_array(reason)
        return False
