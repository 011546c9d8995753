"""The steps by which a turn is read: a generator that takes text in pieces.

The text is read once, from left to right. If a piece ends in the middle of a mark or an escape, the
reader waits for the next piece. So the result does not depend on how the text was split, and the
work is linear in its length.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Final

from mlx_tools.messages import FinalAnswer, FinishReason, ToolCall, replace
from mlx_tools.parsing import (
    CLOSED,
    INCOMPLETE,
    NO_OBJECT,
    SPACE,
    WHITE,
    CutOff,
    ObjectScanner,
    Steps,
    TextSource,
    compact,
    match_any,
    writable,
)
from mlx_tools.protocol import delimiters
from mlx_tools.protocol.call_sequence import CallSequenceReader
from mlx_tools.protocol.catalog import ToolCatalog
from mlx_tools.protocol.dialects import HARMONY, Dialect
from mlx_tools.protocol.objects import Judgement, OpenObject, may_mutate
from mlx_tools.protocol.partial import PartialReading
from mlx_tools.protocol.reading import (
    AnswerDelta,
    ArgumentsDelta,
    CallStarted,
    Delta,
    ReadingRules,
    ThoughtDelta,
)
from mlx_tools.protocol.sequence_verdict import sequence_verdict

_RECIPIENT_MARK: Final = "to="
_MAX_REREADS: Final = 4
_REREAD_CHARS: Final = 2_000
"""Limits on the text that is read again because a form without a mark turned out to be no call: so
many times the text before it, and so many characters more."""

_MAX_WRAPPING_CHARS: Final = 1000
_INVENTED_RESULT: Final = re.compile(r"(?:Observation|Result):[^`]*+`{0,16}\s*")
"""A result that the model made up after its call, up to the end of the fence that holds both."""

_MAX_BULLET_CHARS: Final = 6  # characters of a numbered bullet, and the brace after it
_ANALYSIS: Final = "<|channel|>analysis<|message|>"
_MESSAGE_END: Final = match_any(["<|end|>", "<|channel|>final<|message|>"])

_NO_ARRAY: Final = 0
_ARRAY_BEGUN: Final = 1  # a bracket, and no object yet
_ARRAY: Final = 2


class TurnReader:
    """Reads the text of one turn into a `PartialReading`.

    `mlx_tools.protocol.Reader` makes the `Reading` of it.
    """

    def __init__(self, rules: ReadingRules) -> None:
        self.done = False  # no later text can count
        self._rules = rules
        self._marks = delimiters.marks(
            rules.reasoning_markers, rules.ends, dialects=bool(rules.catalog)
        )
        self._source = TextSource()
        self._catalog = ToolCatalog(rules.catalog)
        self._draft = PartialReading(self._source, self._catalog)
        self._deltas: list[Delta] = []
        self._reason: FinishReason = "stop"
        self._lead = True  # nothing but white space and wrapping so far in this line
        self._begin = 0  # where that white space and wrapping began
        self._settled_end = 0  # the kind of the text is known up to here
        self._array = _NO_ARRAY
        self._tag = self._fence = False  # the wrapping that is open around messages
        self._spoken = False  # there is more than wrapping before this place
        self._objects = False  # there are only calls in other protocols' forms before this place
        self._has_thought = False  # the text opened a thought and closed it
        self._bulleted = False  # a bullet comes before this place
        self._shown_line = False  # the line is a quotation, a table's or a diff's
        self._in_diff = False
        self._ticks = 0  # backticks that opened the code here
        self._ticking = 0  # backticks right before this place; more may follow
        self._for_user = False  # prose is for the user by its header: no call is in it
        self._struck = False
        self._tried_size = -1  # where a form without a mark was tried last, not counting thoughts
        self._failed_chars = 0  # characters of such forms that were no call
        self._in_thought = False  # the text leaves a thought open, and a call ends it
        self._line_tried = -1  # the end of the line that was last tried as strict JSON
        self._run_begun: CallSequenceReader | None = None  # the last run that a mark opened
        self._run_read: CallSequenceReader | None = None  # the run that is being read after a mark
        self._open: OpenObject | None = None
        self.thought_closer = ""  # the mark that closes the open thought, empty if none is open
        self._steps = self._turn()
        self._push(rules.prefix)

    @property
    def source(self) -> TextSource:
        """The text so far, and how far it was read."""
        return self._source

    def _push(self, piece: str) -> None:
        self._source.add(piece)
        if not self.done:
            self._line_tried = -1
            next(self._steps, None)

    def _turn(self) -> Steps[None]:
        """Read all of the text.

        A step yields if the text so far is not enough, and is repeated when there is more. At the
        end of the text no step yields.
        """
        source, draft = self._source, self._draft
        if self._rules.in_thought:
            closer = self._rules.reasoning_markers[0][1] if self._rules.reasoning_markers else ""
            yield from self._thought(0, self._marks.any_end, closer)
        while not self.done:
            self._settled_end = source.pos
            if not source.remaining:
                if source.final:
                    break
                yield
                continue
            if self._ticking and source.text[source.pos] != "`":  # they open code, or close it
                run, self._ticking = self._ticking, 0
                if self._ticks == run or (self._ticks >= 3 and run > self._ticks):
                    self._ticks = 0
                elif not self._ticks and not (self._fence and run >= 3):
                    self._ticks = run
            yield from self._wrapping() if self._lead or draft.messages else self._prose()
        if not self.done and self._array == _ARRAY:
            self._end_array()

    # --- what every step does -----------------------------------------------------------------

    def _stop(self, *, wrapping_may_follow: bool = False) -> None:
        self.done = True
        if self._draft.stop < 0:
            self._draft.stop = self._source.pos
        self._draft.wrapping_may_follow = wrapping_may_follow

    def _take_stray(self) -> None:
        """Take a character outside all wrapping: prose, or the end of a run of calls."""
        if self._draft.messages:
            self._stop()
            return
        self._speak()
        self._array = _NO_ARRAY

    def _begin_line(self, begin: int) -> None:
        self._lead = True
        self._begin = begin
        self._shown_line = False
        self._draft.bullet = False

    def _speak(self) -> None:
        """Read the rest of the line as prose."""
        self._lead = self._objects = False
        self._spoken = True

    @property
    def _is_quoted(self) -> bool:
        """True if the text here is shown, not said.

        It is shown in code, in a quotation or a table, in a fence beside text, and in a message for
        the user.
        """
        return self._for_user or self._is_in_quotation

    @property
    def _is_in_quotation(self) -> bool:
        is_in_fence = self._fence and (self._spoken or self._objects)
        return bool(self._ticks) or self._shown_line or is_in_fence

    def _is_requested_form(self, mark: str) -> bool:
        """Return whether a mark opens calls in the form that the model was asked for.

        Those count in a message for the user too: a model may answer every prompt in such a
        message.
        """
        return mark in self._rules.native or (self._is_xml and mark == delimiters.CALL_TAG)

    @property
    def _hides_messages(self) -> bool:
        """True if the protocol's own messages are quoted here.

        A fence is part of one style.
        """
        is_fenced = self._fence and self._spoken and self._rules.style != "markdown-json"
        return bool(self._ticks) or self._shown_line or is_fenced

    @property
    def _tired(self) -> bool:
        """True if a form without a mark was tried here, or enough such text was read."""
        return self._tried_size == self._draft.size or self._is_worn

    @property
    def _is_worn(self) -> bool:
        """True if enough text was read that turned out to be no call."""
        return self._failed_chars > _MAX_REREADS * self._draft.size + _REREAD_CHARS

    # --- between objects ----------------------------------------------------------------------

    def _wrapping(self) -> Steps[None]:
        """Read what may surround a message, at a line's start or between calls."""
        source, draft, marks = self._source, self._draft, self._marks
        if source.skip(SPACE):
            return
        char = source.text[source.pos]
        if char == "{":
            yield from (
                self._shown_object() if self._hides_messages else self._object(inline=False)
            )
        elif marks.by_line and (form := (yield from self._line_form(char))) is not None:
            yield from self._run(*form, weak=True)
        elif char in ">|@+-" and not draft.messages and (yield from self._is_shown(char)):
            self._take_stray()
            self._shown_line = True
        elif marks.lines and draft.size and (yield from source.peek_mark(*marks.lines)):
            self._end_turn()
        elif self._array == _ARRAY_BEGUN:
            self._take_stray()
        # A mark may go on in the next piece: the result must not depend on the split.
        elif not source.final and marks.beginnings.match(source.text, source.pos):
            yield
        elif mark := marks.mark.match(source.text, source.pos):
            what = mark[0]
            del mark  # a match keeps the whole text alive
            yield from self._mark(what)
        elif char in "`~":
            yield from self._fence_mark()
        elif not (draft.messages or self._objects):
            yield from self._before_message(char)
        elif draft.messages and char.isdigit() and (yield from self._is_numbered()):
            pass
        elif char == "," or (char == ";" and self._objects):
            # Outside an array a comma between calls is a slip, and a person is asked about such a
            # run.
            draft.unclean = draft.unclean or self._array != _ARRAY
            source.pos += 1
        elif char == "]" and self._array == _ARRAY:
            self._array = _NO_ARRAY
            source.pos += 1
        else:
            self._take_stray()

    def _end_turn(self) -> None:
        self._draft.is_turn_ended = True
        self._stop(wrapping_may_follow=bool(self._draft.messages))

    def _before_message(self, char: str) -> Steps[None]:
        source = self._source
        if char == "[" and not self._array:
            self._array = _ARRAY_BEGUN
            source.pos += 1
        elif not source.final and delimiters.BULLET_BEGUN.match(source.text, source.pos):
            yield
        elif source.skip(delimiters.BULLET):
            self._draft.bullet = True
            self._bulleted = True
        else:
            self._take_stray()

    def _is_shown(self, char: str) -> Steps[bool]:
        """Return whether a line of a quotation, of a table or of a diff begins here."""
        ahead = yield from self._source.lookahead(4)
        if ahead in ("@@ -", "+++ ", "--- "):
            self._in_diff = True
        is_changed = self._in_diff and char in "+-"
        return is_changed or char == ">" or (char == "|" and ahead[1:2] in (" ", "\t", "-", ":"))

    def _is_numbered(self) -> Steps[bool]:
        """Skip a numbered bullet between calls; return False if there is none."""
        ahead = yield from self._source.lookahead(_MAX_BULLET_CHARS)
        found = delimiters.BULLET.match(ahead)
        if found is None or ahead[found.end() : found.end() + 1] != "{":
            return False
        self._source.pos += found.end()
        self._draft.unclean = True
        return True

    def _prose(self) -> Steps[None]:
        """Skip prose to the end of its line, or to a mark that may be more than prose."""
        source, marks = self._source, self._marks
        mark, source.pos = source.seek(marks.special, marks.beginnings, marks.longest)
        self._settled_end = source.pos
        if not mark:
            if not source.final:
                yield
        elif mark == "\n":
            source.pos += 1
            if self._ticks < 3:  # a fence that began within a line goes on
                self._ticks = 0
            self._begin_line(source.pos)
        elif mark[0] == "`":
            self._ticking += len(mark)
            source.pos += len(mark)
        else:
            is_object = mark == "{"
            if is_object and self._hides_messages:
                source.pos += 1
                return
            yield from self._object(inline=True) if is_object else self._mark(mark)

    def _fence_mark(self) -> Steps[None]:
        if not self._source.final and delimiters.FENCE_BEGUN.match(
            self._source.text, self._source.pos
        ):
            yield
            return
        text, pos = self._source.text, self._source.pos
        fence = delimiters.FENCE.match(text, pos) or delimiters.BARE_FENCE.match(text, pos)
        if fence is None:
            self._take_stray()
            return
        if self._ticks >= 3:  # it closes a part that began within a line
            self._ticks = 0
        else:
            says = fence[2] if fence.lastindex == 2 else ""
            self._fence = bool(says) or not self._fence
        self._source.pos = fence.end()

    # --- marks --------------------------------------------------------------------------------

    def _mark(self, literal: str) -> Steps[None]:
        """Read a tag, or a mark of a thought, a call or a turn."""
        source, draft, marks = self._source, self._draft, self._marks
        begin, end = source.pos, source.pos + len(literal)
        if literal in marks.closers and self._hides_messages:
            self._text_of_mark(literal)  # within shown text, such as a message in a last fence
        elif literal in marks.closers:
            source.pos = end
            closer = dict(self._rules.reasoning_markers).get(literal, "")
            yield from self._thought(begin, marks.closers[literal][1], closer)
        elif literal in marks.turn_ends or literal == delimiters.STRIKETHROUGH:
            if self._ends_turn(literal):
                self._end_turn()
            else:
                self._text_of_mark(literal)
        elif draft.messages and literal not in (
            delimiters.CALL_TAG,
            delimiters.CALL_END,
            delimiters.ANSWER_END,
        ):
            self._stop()
        elif literal in delimiters.HEADERS:
            if (self._is_quoted and not self._for_user) or self._tired or draft.messages:
                self._text_of_mark(literal)
            else:
                yield from self._run(HARMONY, skip=len(literal), weak=True)
        elif literal in marks.dialects:
            yield from self._dialect_mark(literal)
        elif literal in marks.ends and self._has_thought:
            source.pos = end
            draft.leave_out(begin)  # one mark too many
        elif literal in marks.ends:
            source.pos = end
            self._for_user = literal.startswith("<|channel|>")
            self._tag = self._fence = self._spoken = False
            self._ticks = 0
            draft.forget(begin)
            self._array = _NO_ARRAY
            self._begin_line(0)
        elif literal in (delimiters.CALL_TAG, delimiters.CALL_END):
            self._tag = literal == delimiters.CALL_TAG
            source.pos = end
        elif literal == delimiters.RESPONSE_TAG:
            yield from self._response()
        elif literal == delimiters.ANSWER_TAG and self._is_xml:
            source.pos = end
            yield from self._tagged_answer(self._begin if self._lead else begin)
        else:
            source.pos = end

    @property
    def _is_xml(self) -> bool:
        return self._rules.style == "xml"

    def _text_of_mark(self, mark_text: str) -> None:
        """Take a quoted mark as text."""
        if not self._draft.messages:
            self._take_stray()
        if not self.done:
            self._speak()
            self._source.pos += len(mark_text)

    def _ends_turn(self, mark_text: str) -> bool:
        """Return whether the mark ends the turn; if not, it is text."""
        if mark_text == delimiters.STRIKETHROUGH or (mark_text == "</s>" and self._struck):
            self._struck = mark_text == delimiters.STRIKETHROUGH
            return False
        return mark_text in self._marks.own_ends or not (self._ticks or self._fence)

    def _dialect_mark(self, mark_text: str) -> Steps[None]:
        source, dialects = self._source, self._marks.dialects
        is_hidden = self._is_in_quotation or (
            self._for_user and not self._is_requested_form(mark_text)
        )
        if is_hidden or self._is_worn:
            self._text_of_mark(mark_text)
            return
        if mark_text != delimiters.CALL_TAG or not (self._is_xml or self._draft.messages):
            yield from self._run(dialects[mark_text], dialects[mark_text].skip(mark_text))
            return
        # A tag of a style and of many dialects: an object after it belongs to the style.
        self._tag = True
        source.pos += len(mark_text)
        yield from source.space()
        char = yield from source.peek()
        if char and char not in "{</" and not self._draft.messages:
            yield from self._run(dialects[delimiters.CALL_TAG], skip=0)

    # --- runs of calls ------------------------------------------------------------------------

    def _line_form(self, char: str) -> Steps[tuple[Dialect, int | None] | None]:
        """Return the form that begins here and counts at a line's start only.

        With it comes the length of the mark if it is not the form's own.
        """
        if self._draft.messages or self._tired or self._is_quoted:
            return None
        by_line = self._marks.by_line
        if mark := (yield from self._source.peek_mark(*by_line)):
            return by_line[mark], None
        if not self._spoken and (yield from self._source.peek_mark(_RECIPIENT_MARK)):
            return HARMONY, 0
        return None

    def _run(self, dialect: Dialect, skip: int | None = None, *, weak: bool = False) -> Steps[None]:
        """Read a run of calls, and add its messages or its fault."""
        source, rules = self._source, self._rules
        begin = self._begin if self._lead else source.pos
        run = CallSequenceReader(source, dialect, self._catalog, rules.max_calls, skip)
        if skip != 0 or not dialect.line:
            self._run_begun = run
        self._run_read = None if weak else run
        yield from run.steps()
        self._run_read = None
        # a message's header is no text; a thought or the message's text may follow
        if run.header is not None:
            source.pos = run.end
            if run.header.channel == "analysis" and run.header.recipient in ("", "assistant"):
                closer = dict(rules.reasoning_markers).get(_ANALYSIS, "<|end|>")
                yield from self._thought(run.begin, _MESSAGE_END, closer)
                return
            self._draft.leave_out(run.begin)
            self._for_user = run.header.channel == "final" or run.header.recipient == "user"
            self._begin_line(source.pos)
            return
        # Text in a fence, or in a list in brackets, is a call only if nothing follows.
        must_be_last = self._fence or dialect.last
        while must_be_last and run.calls and run.cut is None:
            found = delimiters.AFTER_MESSAGES.match(source.text, source.pos)
            end = found.end() if found is not None else source.pos
            is_all = end == len(source.text) or bool(_INVENTED_RESULT.fullmatch(source.text, end))
            if source.final or not is_all or source.remaining > _MAX_WRAPPING_CHARS:
                is_shown = not (source.final and is_all)
                if is_shown:
                    self._as_text(run)
                    return
                break
            yield
        self._take_run(run, begin, weak=weak)
        if self._draft.call_like:  # all of it may be shown
            while not source.final:
                source.pos = len(source.text)
                yield
            source.pos = len(source.text)
            self._stop()

    def _take_run(self, run: CallSequenceReader, begin: int, *, weak: bool) -> None:
        source, draft, rules = self._source, self._draft, self._rules
        if self._in_thought and (not run.calls or run.cut or not self._ends_text(run)):
            self._cut(run)
            return
        is_first = not (self._spoken or self._objects) and not weak
        verdict = sequence_verdict(run, self._catalog, rules, self._reason, is_first=is_first)
        if verdict == "cut":
            self._cut(run)
            return
        if verdict == "text":
            self._as_text(run)
            return
        if verdict == "call_like":
            source.pos = run.begin
            draft.fail("invalid_json", run.fault or "the call cannot be read")
            draft.call_like = True
            return
        native = run.dialect.open in rules.native or run.is_typed
        for call, end in zip(run.calls, (*run.ends[:-1], run.end), strict=True):
            source.pos = end
            repairs = call.repairs if native else (*call.repairs, "dialect")
            index = len(draft.messages)
            draft.add(replace(call, repairs=repairs), begin, delimiters.Wrapping())
            # In one piece: the model's text is no JSON, so it cannot be passed on as it comes.
            arguments = writable(compact(call.arguments))
            self._deltas += (CallStarted(index, call.name), ArgumentsDelta(index, arguments))
        draft.dropped += [dropped for dropped in run.dropped if dropped]
        draft.unclean = draft.unclean or bool(run.dropped) or run.cut is not None
        if run.fault:
            draft.fail("invalid_json", run.fault)
        self._stop(wrapping_may_follow=True)

    def _ends_text(self, run: CallSequenceReader) -> bool:
        """Return whether only wrapping and the turn's end follow the run."""
        rest = self._source.text[run.end :]
        ending = self._marks.turn_end.match(rest)
        return not rest[ending.end() if ending else 0 :].strip(WHITE)

    def _cut(self, run: CallSequenceReader) -> None:
        self._draft.cut(run.begin)
        self._stop()

    def _as_text(self, run: CallSequenceReader) -> None:
        """Take text that began like a call as text: read it again as that."""
        self._failed_chars += self._source.pos - run.begin
        self._source.pos = run.begin
        self._tried_size = self._draft.size
        if not run.dialect.line:  # else the line is read as one without the mark
            self._speak()
            self._source.pos += max(1, len(run.dialect.open) * (not run.dialect.opens_tag))

    # --- thoughts, forged observations, answers in tags ---------------------------------------

    def _thought(self, opening: int, closer: re.Pattern[str], literal: str) -> Steps[None]:
        """Read a thought.

        ``opening`` is the place of the mark that opens it, ``literal`` the mark that closes it, as
        its model writes it.
        """
        marks, source, draft = self._marks, self._source, self._draft
        begin, self.thought_closer = source.pos, literal
        while True:
            mark, end = source.seek(closer, marks.end_begun, marks.longest)
            if piece := source.take(end):
                self._deltas.append(ThoughtDelta(writable(piece)))
            if mark or source.final:
                break
            yield
        if not mark:
            # A call ends a thought that the text leaves open, but only if its mark is a control
            # token: a model that writes one has stopped thinking.
            tokens = (token for token, one in marks.dialects.items() if one.is_token)
            begun = [pos for token in tokens if (pos := source.text.find(token, begin)) >= 0]
            if begun and not self._in_thought and self._reason == "stop":
                self._in_thought = draft.unclean = True
                source.pos = end = min(begun)
            else:
                draft.cut(source.pos)
        self.thought_closer = ""
        self._has_thought = bool(mark) and opening < begin
        draft.reasoning.append(source.text[begin:end])
        source.pos = end + len(mark)
        draft.leave_out(opening)

    def _response(self) -> Steps[None]:
        """Skip an observation that the model made up, with all that is in it."""
        begin = self._source.pos
        with suppress(CutOff):
            yield from self._source.read_until(delimiters.RESPONSE_END)
        self._draft.drop_forged(begin)

    def _tagged_answer(self, begin_offset: int) -> Steps[None]:
        """Read the plain text of an answer, up to its closing tag.

        ``begin_offset`` is where its wrapping begins.
        """
        source, draft = self._source, self._draft
        parts: list[str] = []
        held: list[str] = []  # white space after which more text may follow
        while True:
            mark, end = source.seek(*delimiters.ANSWER_CLOSE)
            text = source.take(end)
            if body := text.rstrip(WHITE):
                shown = "".join((*held, body)) if parts else body.lstrip(WHITE)
                held.clear()
                parts.append(shown)
                self._deltas.append(AnswerDelta(writable(shown)))
            held.append(text[len(body) :])
            if mark:
                source.pos += len(mark)
                self._add_answer("".join(parts), begin_offset)
                return
            if source.final:
                break
            yield
        answer = "".join(parts)
        begun = delimiters.ANSWER_CLOSE[1].search(answer)
        text = answer[: begun.start() if begun is not None else None].rstrip()
        if self._reason == "length" and text:
            self._add_answer(writable(text), begin_offset, is_cut=True)
        # One `<` at the end may be text. More of the closing tag shows that the tag was cut off.
        elif self._reason != "stop" or (begun is not None and begun.end() - begun.start() > 1):
            draft.cut(source.pos)
        elif not answer:
            draft.fail("invalid_json", "the output is empty")
        else:
            draft.unclean = True
            self._add_answer(answer, begin_offset, "missing_closers")

    def _add_answer(self, content: str, begin: int, *repairs: str, is_cut: bool = False) -> None:
        draft = self._draft
        if content == writable(content):
            names = repairs if self._lead else ("inline", *repairs)
            draft.add(
                FinalAnswer(content, (), names), begin, delimiters.Wrapping(fence=self._fence)
            )
            draft.cut_answer = is_cut
        else:
            draft.fail("invalid_json", "the text holds half of a surrogate pair")
        self._stop(wrapping_may_follow=True)

    # --- objects --------------------------------------------------------------------------------

    def _object(self, *, inline: bool) -> Steps[None]:
        """Read an object from its opening brace, and add its message or its fault."""
        source, draft = self._source, self._draft
        if NO_OBJECT.match(source.text, source.pos + 1):
            self._take_stray()
            return
        if self._array:
            self._array = _ARRAY
        scanner = ObjectScanner(source.pos)
        self._open = one = OpenObject(
            scanner=scanner,
            inline=inline,
            begin=source.pos if inline else self._begin,
            in_run=bool(draft.messages),
            tagged=self._tag and self._is_xml,
            is_alone=not self._spoken,
            wrapping=delimiters.Wrapping(self._array > _NO_ARRAY, self._tag, self._fence),
        )
        if not inline:
            self._line_tried = scanner.take_line(source.text, self._line_tried)
        while True:
            if scanner.status == INCOMPLETE:
                scanner.advance(source.text)
            verdict = one.verdict(source.text)
            # An object in prose may turn out to be quoted, so it is shown when it is complete.
            if not inline if verdict is None else verdict.outcome in ("call", "answer"):
                self._deltas += one.deltas(len(draft.messages), source.text)
            if verdict is not None or source.final:
                break
            yield
        self._open = None
        if verdict is None:
            self._end_object(one, may_close=scanner.pos == len(source.text))
        elif verdict.outcome == "unclosed":
            yield from self._after_unclosed(one)
        else:
            self._act(verdict, scanner.pos, one)

    def _shown_object(self) -> Steps[None]:
        """Skip an object where messages are quoted: marks in its strings are text."""
        source = self._source
        self._take_stray()
        scanner = ObjectScanner(source.pos)
        self._line_tried = scanner.take_line(source.text, self._line_tried)
        while scanner.status == INCOMPLETE and not self._is_worn:
            scanner.advance(source.text)
            if scanner.status != INCOMPLETE or source.final:
                break
            yield
        if scanner.status == CLOSED:
            source.pos = scanner.pos
        else:
            self._failed_chars += scanner.pos - scanner.start
            source.pos += 1

    def _act(self, verdict: Judgement, end: int, open_object: OpenObject) -> None:
        """Do what the verdict says with the text up to ``end``."""
        draft, what, message = self._draft, verdict.outcome, verdict.message
        if what in ("stop", "broken"):
            if verdict.error is not None:
                draft.fail(verdict.error.code, verdict.error.message)
            self._stop()
        elif (
            what == "prose" and message is not None and open_object.is_alone and not self._bulleted
        ):
            self._source.pos = end  # a call in another protocol's form, if nothing else comes
            self._objects = True
            draft.alias_error = draft.alias_error or verdict.error
        elif what == "observation":
            begin, self._source.pos = self._source.pos, end
            draft.drop_forged(begin)
        elif message is None or what == "prose":
            self._go_on_in_prose(verdict, end)
        else:
            self._source.pos = end
            draft.add(message, open_object.begin, open_object.wrapping, verdict.dropped)
            most = self._rules.max_calls
            if what == "answer" or (most is not None and len(draft.messages) >= most):
                self._stop(wrapping_may_follow=True)

    def _go_on_in_prose(self, verdict: Judgement, end: int) -> None:
        source, draft = self._source, self._draft
        if verdict.outcome == "quoted":
            draft.quoted = draft.quoted or verdict.error
            draft.quoted_at = end
        self._array = _NO_ARRAY
        self._speak()
        if verdict.outcome == "again":
            source.pos += 1
            return
        line = source.text.rfind("\n", source.pos, end) + 1
        source.pos = end
        if line and not source.text[line:end].strip(WHITE):
            self._begin_line(line)

    def _after_unclosed(self, open_object: OpenObject) -> Steps[None]:
        """Read on after an object that a fence or tag broke off: only wrapping may follow."""
        source, marks = self._source, self._marks
        begin, source.pos = source.pos, open_object.scanner.pos
        while True:
            if not source.remaining and source.final:
                source.pos = begin
                self._end_object(open_object, may_close=True, unclosed=True)
                return
            begins = (marks.beginnings, delimiters.FENCE_BEGUN)
            is_begun = any(open_object.match(source.text, source.pos) for open_object in begins)
            if not source.remaining or (is_begun and not source.final):
                yield
            elif not source.skip(delimiters.AFTER_OBJECT):
                source.pos = begin
                self._draft.fail("invalid_json", open_object.scanner.reason)
                self._stop()
                return

    def _end_object(
        self, open_object: OpenObject, *, may_close: bool, unclosed: bool = False
    ) -> None:
        """End within an object, or after one that is ``unclosed`` and was wrapped."""
        text, draft = self._source.text, self._draft
        is_message = unclosed or open_object.is_message()
        if not is_message:
            self._act(Judgement("again" if is_message is None else "prose"), len(text), open_object)
            return
        may_close = may_close and self._reason == "stop"
        closed = open_object.close(text, self._rules.mutates) if may_close else None
        if closed is not None:
            draft.unclean = True
            self._act(closed, len(text), open_object)
        elif self._reason == "length" and (answer := open_object.cut_answer(text)):
            self._source.pos = len(text)
            repairs = ("inline",) if open_object.inline else ()
            draft.add(FinalAnswer(answer, (), repairs), open_object.begin, open_object.wrapping)
            draft.cut_answer = True
        else:
            draft.cut(self._source.pos)
            self._source.pos = len(text)

    def _end_array(self) -> None:
        """End an array of calls whose bracket is missing: as any closer, see rule 7."""
        draft = self._draft
        calls = [message for message in draft.messages if isinstance(message, ToolCall)]
        if not calls:
            return
        if self._reason != "stop" or any(may_mutate(self._rules.mutates, call) for call in calls):
            draft.cut(self._source.pos)
            return
        draft.unclean = True
        if isinstance(last := draft.messages[-1], ToolCall):
            draft.messages[-1] = _with_closers(last)


def _with_closers(call: ToolCall) -> ToolCall:
    return replace(call, repairs=tuple(dict.fromkeys((*call.repairs, "missing_closers"))))
