"""The reader: the reading rules as a machine that takes the text in pieces of any size.

The text is read once, from left to right. What cannot be told yet, because the piece ends in the
middle of a mark or an escape, waits for the next piece; it is never more than a few dozen
characters. So the result does not depend on how the text was split, and the work is linear in its
length.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from mlx_tools.messages import FinalAnswer, FinishReason, ToolCall
from mlx_tools.protocol import delimiters
from mlx_tools.protocol.bodies import Run
from mlx_tools.protocol.dialects import DIALECTS, Dialect
from mlx_tools.protocol.objects import ARRAY, ARRAY_BEGUN, NO_ARRAY, ObjectSteps, may_mutate
from mlx_tools.protocol.reading import (
    AnswerDelta,
    ArgumentsDelta,
    CallStarted,
    Delta,
    Reading,
    ReadingRules,
    writable,
)
from mlx_tools.protocol.source import PlainText, Steps
from mlx_tools.protocol.strict import Unreadable, compact, decode

_DEFAULT: Final = ReadingRules()
_BY_NAME: Final = {dialect.name: dialect for dialect in DIALECTS}
_HARMONY: Final = _BY_NAME["harmony"]
_TO: Final = "to="
_REREADS: Final = 4
_SPARE: Final = 2_000
"""So many times the text before, and so many characters more, are read again of forms that need no
mark, where they were no call."""

_MOST_WRAPPING: Final = 1000
_MESSAGE_END: Final = delimiters.any_of(["<|end|>", "<|channel|>final<|message|>"])


class Reader(ObjectSteps):
    """Reads one completion as it comes.

    `feed` takes a piece and gives what can be shown of it; once `done` nothing more can count, and
    the stream may be closed. What is fed on all the same is recorded as dropped. `finish` gives the
    `Reading`; it may be called once. No text makes any of them raise.
    """

    def __init__(self, rules: ReadingRules = _DEFAULT, *, _whole: bool = False) -> None:
        super().__init__(rules, whole=_whole)
        self._ticks = 0  # backticks that opened the code that stands here
        self._ticking = 0  # backticks that were read just now, more may follow
        self._for_user = False  # speech is for the user by its header: nothing in it is a call
        self._struck = False
        self._tried = -1  # where in the kept text a form without a mark was tried last
        self._failed = 0  # characters of such forms that were no call
        self._weak = False
        self._in_thought = False  # the text leaves a thought open, and a call ends it
        self._run_of_calls: Run
        self._steps: Steps[None]
        self._closer = self._marks.any_end
        self._answer: PlainText
        if rules.in_thought:
            self._open_thought(self._closer)
        self._push(rules.prefix)

    @property
    def done(self) -> bool:
        """True if nothing that follows can count."""
        return self._step is None

    @property
    def open_message(self) -> str | None:
        """The text so far of an object that is open and says that it is a message, at the start of
        a line; in a dialect, whose objects are read as a run, a brace for each."""
        if self._step == self._dialect and not (self._fence or self._weak):
            return "{"
        is_object = self._step == self._object
        if is_object and (
            self._scanner.type in ("tool_call", "final_answer") or self._place.tagged
        ):
            return self.open_object
        return None

    def feed(self, piece: str) -> list[Delta]:
        """Reads on; returns what of the answer or of calls' arguments is known now."""
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
        if self._ticking and cursor.text[cursor.pos] != "`":  # they open code, or close it
            run, self._ticking = self._ticking, 0
            if self._ticks == run or (self._ticks >= 3 and run > self._ticks):
                self._ticks = 0
            elif not self._ticks and not (self._fence and run >= 3):
                self._ticks = run
        return self._wrapping() if self._lead or self._draft.messages else self._prose()

    @property
    def _quoted(self) -> bool:
        """True if what stands here is shown, not said: within code, or in a fence beside text."""
        return bool(self._ticks) or self._for_user or (self._fence and self._spoken)

    def _wrapping(self) -> bool:
        """At a line's start, or between calls: what may stand around a message."""
        text, pos, draft = self._cursor.text, self._cursor.pos, self._draft
        if space := delimiters.SPACE.match(text, pos):
            return self._keep(space.end())
        char = text[pos]
        if char == "{":
            return self._open_object(inline=False)
        if self._marks.by_line and (begun := self._line_form(char)) is not None:
            return begun
        if self._marks.lines and (ends := self._next_turn()) is not None:
            return ends
        if self._array == ARRAY_BEGUN:
            return self._stray()
        if not self._cursor.final and self._marks.begun.match(text, pos):
            return False
        if mark := self._marks.mark.match(text, pos):
            return self._mark(mark)
        if char in "`~":
            return self._fence_mark()
        if not (draft.messages or draft.aliases):
            return self._before_message(char)
        if char == "," or (char == ";" and draft.aliases):
            draft.unclean = draft.unclean or self._array != ARRAY
            return self._keep(pos + 1)
        if char == "]" and self._array == ARRAY:
            self._array = NO_ARRAY
            return self._keep(pos + 1)
        return self._stray()

    def _next_turn(self) -> bool | None:
        """Return whether the next turn opens in this line; None where it does not."""
        text, pos = self._cursor.text, self._cursor.pos
        for line in self._marks.lines:
            if self._draft.size and text.startswith(line, pos):
                return self._end_turn()
            if not self._cursor.final and line.startswith(text[pos : pos + len(line)]):
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
        if not self._cursor.final and delimiters.BULLET_BEGUN.match(text, pos):
            return False
        if bullet := delimiters.BULLET.match(text, pos):
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
            if self._ticks < 3:  # a fence that began within a line goes on
                self._ticks = 0
            return self._begin_line(self._draft.size)
        if found[0][0] == "`":
            self._ticking += found.end() - found.start()
            return self._keep(found.end())
        return self._open_object(inline=True) if found[0] == "{" else self._mark(found)

    def _fence_mark(self) -> bool:
        text, pos = self._cursor.text, self._cursor.pos
        if not self._cursor.final and delimiters.FENCE_BEGUN.match(text, pos):
            return False
        fence = delimiters.FENCE.match(text, pos) or delimiters.BARE_FENCE.match(text, pos)
        if fence is None:
            return self._stray()
        if self._ticks >= 3:  # it closes what began within a line
            self._ticks = 0
        else:
            says = fence[2] if fence.lastindex == 2 else ""
            self._fence = bool(says) or not self._fence
        return self._keep(fence.end())

    # --- marks --------------------------------------------------------------------------------

    def _mark(self, mark: re.Match[str]) -> bool:
        """A tag, or what opens or closes a thought, a call or a turn."""
        what, draft, marks = mark[0], self._draft, self._marks
        if what in marks.closers:
            self._cursor.pos = mark.end()
            return self._open_thought(marks.closers[what][1])
        if what in marks.turn_ends or what == delimiters.STRUCK:
            return self._end_turn() if self._ends_turn(what) else self._text_of_mark(what)
        if draft.messages and what not in (
            delimiters.CALL_TAG,
            delimiters.CALL_END,
            delimiters.ANSWER_END,
        ):
            return self._stop()
        if what in delimiters.HEADERS:
            shown = self._ticks or (self._fence and self._spoken)
            if shown or self._tired or draft.messages:
                return self._text_of_mark(what)
            return self._begin_run(_HARMONY, skip=len(what), weak=True)
        if what in marks.dialects:
            return self._dialect_mark(what)
        if what in marks.ends:
            self._cursor.pos = mark.end()
            self._for_user = what.startswith("<|channel|>")
            draft.forget()
            self._array = NO_ARRAY
            return self._begin_line(0)
        if what in (delimiters.CALL_TAG, delimiters.CALL_END):
            self._tag = what == delimiters.CALL_TAG
        elif what == delimiters.RESPONSE_TAG or (what == delimiters.ANSWER_TAG and self._is_xml):
            if not draft.void_aliases():
                return self._stop()
            if what == delimiters.RESPONSE_TAG:
                self._tail = []
                self._step = self._response
                return True
            self._answer = PlainText(delimiters.WHITE)
            self._place = self._here(inline=not self._lead)
            self._step = self._tagged_answer
        return self._keep(mark.end())

    @property
    def _is_xml(self) -> bool:
        return self._rules.style == "xml"

    def _text_of_mark(self, what: str) -> bool:
        """A mark that is quoted: text like any other."""
        if not (self._draft.messages or self._stray()):
            return False
        self._lead = False
        self._spoken = True
        return self._keep(self._cursor.pos + len(what))

    def _ends_turn(self, what: str) -> bool:
        """Return whether the mark ends the turn; where it does not, it is text."""
        if what == delimiters.STRUCK or (what == "</s>" and self._struck):
            self._struck = what == delimiters.STRUCK
            return False
        return what in self._marks.own_ends or not (self._ticks or self._fence)

    @property
    def _tired(self) -> bool:
        """True where a form that may be none was tried here, or such were read often enough."""
        size = self._draft.size
        return self._tried == size or self._failed > _REREADS * size + _SPARE

    def _dialect_mark(self, what: str) -> bool:
        if self._quoted:
            return self._text_of_mark(what)
        if what != delimiters.CALL_TAG or not (self._is_xml or self._draft.messages):
            return self._begin_run(self._marks.dialects[what])
        self._tag = True
        self._step = self._after_call_tag
        return self._keep(self._cursor.pos + len(what))

    def _after_call_tag(self) -> bool:
        """After the tag that a style and many dialects share: an object is the style's."""
        if space := delimiters.SPACE.match(self._cursor.text, self._cursor.pos):
            self._keep(space.end())
        if self._cursor.pos >= len(self._cursor.text):
            if not self._cursor.final:
                return False
        elif self._cursor.text[self._cursor.pos] not in "{</" and not self._draft.messages:
            return self._begin_run(self._marks.dialects[delimiters.CALL_TAG], skip=0)
        self._step = self._speech
        return True

    # --- runs of calls ------------------------------------------------------------------------

    def _begin_run(self, dialect: Dialect, *, skip: int | None = None, weak: bool = False) -> bool:
        self._place = self._here(inline=not self._lead)
        rules = self._rules
        run = Run(self._cursor, dialect, rules.catalog, rules.max_calls, skip)
        self._run_of_calls, self._steps, self._weak = run, run.steps(), weak
        self._step = self._dialect
        return True

    def _line_form(self, char: str) -> bool | None:
        """Begins to read a form whose mark counts at a line's start alone, where one may stand.

        None where none does, False where more text is needed.
        """
        text, pos = self._cursor.text, self._cursor.pos
        if self._draft.messages or self._tired or self._quoted:
            return None
        for dialect in self._marks.by_line:
            mark = dialect.open
            if text.startswith(mark, pos):
                return self._begin_run(dialect, weak=True)
            if not self._cursor.final and mark.startswith(text[pos : pos + len(mark)]):
                return False
        if self._spoken:
            return None
        if _TO.startswith(ahead := text[pos : pos + 3]):
            if ahead == _TO:
                return self._begin_run(_HARMONY, skip=0, weak=True)
            if not self._cursor.final:
                return False
        if any(name[0] == char for name in self._rules.catalog if name):
            return self._begin_run(_BY_NAME["functionary"], skip=0, weak=True)
        return None

    def _dialect(self) -> bool:
        """Goes on with the run of calls; when it is over, does what came of it."""
        for _ in self._steps:
            return False
        run = self._run_of_calls
        self._step = self._speech
        if run.header is not None:  # a message's header is no text; a thought may follow, or speech
            self._run_of_calls.put_back(run.end)
            if run.header.channel == "analysis" and not run.header.recipient:
                return self._open_thought(_MESSAGE_END)
            self._for_user = run.header.channel == "final" or run.header.recipient == "user"
            return self._begin_line(self._draft.size)
        if run.calls and run.cut is None and self._fence and not run.quoted:
            self._step = self._after_fenced
            return True
        return self._take_run()

    def _after_fenced(self) -> bool:
        """After calls in a fence: they count where nothing else follows."""
        cursor, run = self._cursor, self._run_of_calls
        found = delimiters.AFTER_MESSAGES.match(cursor.text, cursor.pos)
        if found is None or found.end() < len(cursor.text):
            run.quoted = True
        elif not cursor.final:
            if len(cursor.text) - cursor.pos <= _MOST_WRAPPING:
                return False
            run.quoted = True
        self._step = self._speech
        return self._take_run()

    def _take_run(self) -> bool:
        run, draft = self._run_of_calls, self._draft
        if self._in_thought and (not run.calls or run.cut or not self._ends_text()):
            return self._cut()
        if not run.calls or run.quoted:
            return self._no_call()
        if run.cut is not None and not self._may_close():
            return self._cut()
        run.put_back(run.end)
        native = run.opening in self._rules.native or run.typed
        text = "".join(run.taken)
        done = 0
        for call, end in zip(run.calls, (*run.ends[:-1], run.end), strict=True):
            draft.keep(text[done:end])
            done = end
            repairs = call.repairs if native else (*call.repairs, "dialect")
            index = len(draft.messages)
            draft.add(replace(call, repairs=repairs), self._place.begin, delimiters.Wrapping())
            if not self._whole:
                arguments = writable(compact(call.arguments))
                self._deltas += (CallStarted(index, call.name), ArgumentsDelta(index, arguments))
        draft.dropped += [dropped for dropped in run.dropped if dropped]
        draft.unclean = draft.unclean or bool(run.dropped) or run.cut is not None
        if run.fault:
            draft.fail("invalid_json", run.fault)
        return self._stop(wrapping_may_follow=True)

    def _ends_text(self) -> bool:
        """Return whether nothing but wrapping and the turn's end follows the run."""
        self._run_of_calls.put_back(self._run_of_calls.end)
        rest = self._cursor.text[self._cursor.pos :]
        ending = self._marks.turn_end.match(rest)
        return not rest[ending.end() if ending else 0 :].strip(delimiters.WHITE)

    def _may_close(self) -> bool:
        """Return whether the calls, the last without its closing brackets, count (rule 7)."""
        calls = self._run_of_calls.calls
        if self._reason != "stop" or "missing_closers" not in calls[-1].repairs:
            return False
        return not any(may_mutate(self._rules.mutates, call) for call in calls)

    def _cut(self) -> bool:
        self._run_of_calls.put_back(0)
        self._draft.cut(self._cursor.take(len(self._cursor.text)))
        return self._stop()

    def _no_call(self) -> bool:
        """Return what began like a call is none: text where it may be, else an error (rule 8b)."""
        run, draft = self._run_of_calls, self._draft
        if run.cut is not None and not run.quoted and (not self._weak or run.begun):
            return self._cut()
        if self._weak:
            self._failed += run.size
            run.put_back(0)
            self._tried = draft.size
            return True
        if self._fence and run.quoted:
            run.put_back(run.end)
            draft.keep("".join(run.taken))
            self._spoken = True
            return True
        run.put_back(0)
        draft.fail("invalid_json", run.fault or "prose follows the call in its line")
        draft.call_like = True
        return self._stop()

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
        found, end = self._cursor.seek(*delimiters.RESPONSE_CLOSE)
        self._tail.append(self._cursor.take(end if found is None else found.end()))
        if found is None:
            return False
        self._draft.keep_forged("".join(self._tail))
        self._step = self._speech
        return True

    def _tagged_answer(self) -> bool:
        """The plain text of an answer, up to its closing tag."""
        found, end = self._cursor.seek(*delimiters.ANSWER_CLOSE)
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
            self._draft.add(answer, self._place.begin, delimiters.Wrapping(fence=self._fence))
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
            self._end_tagged_answer(reason)
        elif step in (self._object, self._after_unclosed) and self._end_object(
            reason, unclosed=step == self._after_unclosed
        ):
            return True
        if self._step is not None and self._array == ARRAY:
            self._end_array(reason)
        return False

    def _end_tagged_answer(self, reason: FinishReason) -> None:
        draft = self._draft
        begun = delimiters.ANSWER_CLOSE[1].search(self._answer.text)
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


def read(
    text: str, finish_reason: FinishReason = "stop", rules: ReadingRules = _DEFAULT
) -> Reading:
    """Return how ``rules.prefix`` and ``text`` are read together. Never raises, whatever the text.

    The same as feeding a `Reader` and finishing it, only quicker.
    """
    if text[:1] == "{" and finish_reason != "tool_calls" and not (rules.prefix or rules.in_thought):
        reading = _one_line(text, rules)
        if reading is not None:
            return reading
    reader = Reader(rules, _whole=True)
    reader.feed(text)
    return reader.finish(finish_reason)


def _one_line(text: str, rules: ReadingRules) -> Reading | None:
    """The reading of a text that is one well-formed message and nothing else, which most are."""
    try:
        value, end = decode(text)
    except Unreadable:
        return None
    message: ToolCall | FinalAnswer
    match value:
        case _ if text[end:].strip(delimiters.WHITE):
            return None
        case {"type": "tool_call", "name": str(name), "arguments": dict(arguments), **more} if name:
            message = ToolCall(name, arguments)
        case {"type": "final_answer", "content": str(content), **more} if rules.tool_choice in (
            "auto",
            "none",
        ):
            message = FinalAnswer(content)
        case _:
            return None
    return None if more else Reading(messages=(message,), counted=text[:end], clean=True)
