"""A turn that is held to its grammar, and mended where it does not fit.

Pure: `ConstrainedTurn` names the next request to the backend (`SampleTokens`, `ScoreTokens`) and
takes its result. The model writes its turn in one stream. Each part of a message is checked against
the schema as it comes. At the first part that does not fit, the stream is closed, and the turn goes
on from before that part: with the text that must come there, else with the model's likeliest token
that fits, else with another sample. The result depends on the model, its schema and this text only.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from functools import cached_property
from typing import Final

from mlx_tools.decoding.message_schemas import (
    JSON_DIALECTS,
    bare_dialect,
    fits_as_it_is,
    is_valid_turn,
    message_schema,
)
from mlx_tools.decoding.openings import (
    NativeTurn,
    RestReader,
    continues_opening,
    is_scrap,
    read_without_opening,
    restarts,
    starts_answer,
)
from mlx_tools.decoding.repetition import RepetitionWatch
from mlx_tools.decoding.requests import Alternatives, SampleTokens, ScoreTokens
from mlx_tools.decoding.value import ConstrainedObject
from mlx_tools.messages import (
    FinalAnswer,
    FinishReason,
    Strategy,
    ToolCall,
    ToolSpec,
    replace,
)
from mlx_tools.protocol import (
    Delta,
    Dialect,
    Reader,
    Reading,
    ReadingRules,
    as_repetition,
    forcing_prefix,
    judge,
    line_deltas,
    opening,
    read,
    read_line,
    unknown_tool,
    with_mended,
)
from mlx_tools.transcript import MendKind, MendRecord

MAX_MENDS: Final = 8
"""Mends of one turn, at most."""

MAX_QUOTES: Final = 200
"""Quotes within an answer that are escaped for the model, at most."""

MAX_HEAD_CHARS: Final = 200
"""Characters within which a call in the model's own form has named its tool: with a type and an id
of 40 characters before it, it does so within 120."""

MAX_PROSE_CHARS: Final = 1_000
"""Characters of the first text, thoughts aside, within which a turn that is to be a call names its
tool: models say in a few sentences what they will do. A model that never calls would wait longer.
"""

MAX_TOKEN_CHARS: Final = 32
"""Characters of a token at most: a longer piece holds more than one token."""

MAX_SENT: Final = 2
"""Requests with the same text, at most."""

_TO_OBJECT: Final = re.compile(r"[^{]*+{?+")
_TO_TOKEN: Final = re.compile(r'[^":{]*+[":{]?+')
"""Text up to where a message may begin: the first outside of an object, the second within one."""
_NAME: Final = re.compile(r'"([^"\\]*+(?:\\.[^"\\]*+)*)"')
_TYPE_KEY: Final = re.compile(r'"type"[ \t\r\n]*+:[ \t\r\n]*+')
_OTHER_KEY: Final = re.compile(
    r'[ \t\r\n,]*+"(name|function|tool|tool_name|action|args|input|action_input|tool_input|'
    r'tool_call_id|call_id|index)"[ \t\r\n]*+:'
)
"""A key that reading takes between a dialect's marks, though that dialect has another."""


class ConstrainedTurn:
    """One turn of the model, from the host's prefix on.

    ``pending_request`` is the next request, None once the turn has ended. The text of a
    `SampleTokens` goes to `feed`, piece by piece. The stream ends by itself (`end`), or is closed
    as soon as ``closing`` is true. The result of a `ScoreTokens` goes to `take_scores`.

    At the end ``text`` is the turn, ``reading`` its messages and ``mends`` its mends. ``unfilled``:
    nothing fitted at some place, and the turn was written freely. ``repeated``: the turn was ended
    because its text repeated itself. Without ``emits_text`` a turn of one line has no deltas.
    """

    def __init__(
        self,
        rules: ReadingRules,
        tools: Mapping[str, ToolSpec],
        strategy: Strategy = "auto",
        number: int = 1,
        *,
        emits_text: bool = True,
    ) -> None:
        self._tools, self._turn_number, self._emits_text = tools, number, emits_text
        self._is_constrained = bool(tools) and strategy in ("auto", "guided")
        # A server with nothing but a chat interface cannot continue a text.
        self._can_continue = not (rules.server_split_calls and strategy == "free")
        self._repetition_watch = RepetitionWatch()
        self._closed_thought = self.repeated = False
        self._uses_guided_strategy = strategy == "guided"
        self.tool = ""  # the tool of the last call
        self.violation = ""  # the kind of the last violation
        self._sent_counts: defaultdict[str, int] = defaultdict(int)  # requests by their text
        self._finished_texts: set[str] = set()  # texts that ended by themselves
        self._mend_request_count = 0  # mends that led to a request
        self.restarts = 0  # times that text was replaced after the reader had got it
        self.mends: list[MendRecord] = []
        self._reset(rules)
        self.pending_request: SampleTokens | ScoreTokens | None = None
        self._set_request(SampleTokens(self._turn_text))

    def _reset(self, rules: ReadingRules) -> None:
        """Begin the turn with the host's prefix, and nothing else."""
        self._dropped_mend_count = len(self.mends)  # mends of a text that was dropped
        self.reading = Reading()
        self.finish_reason: FinishReason | None = None
        self.unfilled = False
        self.should_close = False
        self._rules = rules
        self._prefix_end = self._sample_begin = self._read_end = len(rules.prefix)
        self._message_end = self._prefix_end  # end of the last whole message, or of the prefix
        self._turn_text = rules.prefix
        self._token_edges = [self._prefix_end]
        self.__dict__.pop("_reader", None)
        self._rest_reader = RestReader(rules)
        self._line_reading: Reading | None = None  # the reading, while the turn is one line of JSON
        self._first_text: str | None = None  # the turn at its first violation
        self._first_finish_reason: FinishReason | None = None
        self._sample_finish_reason: FinishReason | None = None  # how the last sample ended
        self._pending_mend: tuple[MendKind, int] | None = (
            None  # the kind of the next mend, and its place
        )
        # text that may be a message in the form that the model was trained on
        self._native_turn: NativeTurn | None = None
        self._has_guided_prefix = self._uses_guided_strategy and bool(rules.prefix)
        self._has_mended_name = self._ended_in_object = self._has_inserted_opening = False
        self._is_free = not self._is_constrained  # the rest of the turn has no schema
        if self._is_free and rules.prefix and rules.tool_choice not in ("auto", "none"):
            self._native_turn = NativeTurn("envelope", self._prefix_end, rules)
        self._sent_text = rules.prefix
        # text held back until it shows whether the model began its line again
        self._held_back: str | None = "" if rules.prefix else None
        self._scored_text = ""
        self._scored_boundary = -1  # a place within one of the model's tokens, scored by itself
        self._dialect: Dialect | None = None
        self._bare_dialect = bare_dialect(rules) if "" in rules.native else None
        self._message_count = 0
        self._object: ConstrainedObject | None = None
        self._object_begin = 0  # where the constrained object begins
        brace = rules.prefix.find("{")
        if brace >= 0 and not self._is_free:
            before = rules.prefix[:brace].rstrip(" \t\r\n[")
            is_bare = self._bare_dialect is not None and not before
            dialect = self._bare_dialect if is_bare else JSON_DIALECTS.get(before)
            if dialect is not None or not rules.call[0]:
                self._dialect = dialect
                self._start_object(brace)
                self._advance()

    @property
    def prefix(self) -> str:
        """The host's prefix, empty if the model began its line again."""
        return self._rules.prefix

    @property
    def text(self) -> str:
        """The turn so far, without the host's prefix."""
        return self._turn_text[self._prefix_end :]

    def find_prose_since(self, offset: int) -> tuple[str, int] | None:
        """Return the prose since an offset, and the offset of its end, or None."""
        is_other = bool(self.mends) or self._line_reading is not None
        return None if is_other else self._reader.find_prose_since(offset)

    @property
    def commentary(self) -> str:
        """The prose before the first message."""
        return "" if self._line_reading is not None else self._reader.commentary

    def is_plain_answer(self, text: str) -> bool:
        """Return whether some lines of the turn are an answer in plain text."""
        _, reading = read_without_opening(text, "stop", self._rules)
        return reading.bare_text and reading.error is None

    @property
    def is_in_object(self) -> bool:
        """True if an object is open and its parts are held to a schema."""
        return self._object is not None

    @property
    def mended_messages(self) -> tuple[int, ...]:
        """The messages that were mended within their arguments."""
        unclean = {
            mend.message for mend in self.mends[self._dropped_mend_count :] if not mend.clean
        }
        if unclean and len(self.reading.messages) != self._message_count:
            return tuple(range(len(self.reading.messages)))  # they cannot be told apart
        return tuple(sorted(unclean))

    @cached_property
    def _reader(self) -> Reader:
        """The reader of the turn, not used while the turn is one line."""
        reader = Reader(self._rules)
        reader.feed(self._turn_text[self._prefix_end : self._read_end])
        return reader

    # --- what comes -----------------------------------------------------------------------------

    def feed(self, piece: str) -> list[Delta]:
        """Take the next text of a sample; return the deltas that can be shown."""
        if self._held_back is not None:
            piece = self._held_back = self._held_back + piece
            restarted = restarts(piece, self._sent_text)
            if self._rules.result and self._prefix_end and starts_answer(piece):
                restarted = False  # it may be the value that is asked for
            if restarted is None:
                return []
            self._held_back = None
            if restarted:  # the server ignored the text that it was to continue
                self._restart()
        if not piece:
            return []
        if (
            len(self._turn_text) == self._sample_begin
            and len(self.mends) > self._dropped_mend_count
        ):
            piece = self._restore_blank(piece)
        self._token_edges.append(len(self._turn_text))
        self._turn_text += piece
        draw, deltas = self.pending_request, self._advance()
        if self.pending_request is draw and not self.should_close and self._is_repeating():
            deltas += self._end_repetition()
        return deltas

    def _is_repeating(self) -> bool:
        """Return whether the model writes the same text over and over."""
        # Only a long turn is read for its place: the place costs a reading.
        return self._repetition_watch.is_due(self._turn_text) and self._repetition_watch.repeats(
            self._turn_text, self._reader.place
        )

    def _end_repetition(self) -> list[Delta]:
        """End a text that repeats itself.

        A thought is closed, once, and the turn goes on after it. Anything else ends the turn as a
        cut at the token limit does.
        """
        closer = self._reader.thought_closer
        if not closer or not self._can_continue or self._closed_thought:
            self.repeated = True
            return self.end_turn("length")
        self._closed_thought = True
        replacement = f"\n{closer}\n\n"
        self._record_mend("thought", len(self._turn_text), self._sample_begin, replacement, None)
        self._mend_request_count += 1
        self._replace_from(len(self._turn_text), replacement)
        draw = SampleTokens(self._turn_text)
        self._set_request(draw)
        return self._advance()

    def _restart(self, text: str = "") -> None:
        """Drop the turn and the host's prefix, and begin again with ``text``."""
        self.restarts += 1
        drawn = tuple(filter(None, (self._turn_text[self._sample_begin :],)))
        mended = bool(self.mends)
        if mended:
            begun = MendRecord(
                turn=self._turn_number,
                kind="envelope",
                rejected_pieces=drawn,
                replacement=text,
                restarted=True,
            )
            self.mends.append(replace(begun, finish_reason=self._sample_finish_reason))
        self._reset(replace(self._rules, prefix=""))
        self._turn_text = text
        if mended:
            self._sample_begin = len(text)
            self._token_edges = [self._sample_begin]

    def _restore_blank(self, piece: str) -> str:
        """Return the text after a mend, with the first blank that some servers cut off."""
        if self._object is None:
            return piece
        text = self._turn_text[self._object_begin :]
        plain, blank = self._object.retry(text + piece), self._object.retry(f"{text} {piece}")
        return f" {piece}" if plain.violation is not None and blank.violation is None else piece

    def end_sample(self, reason: FinishReason, *, cut_out: bool = False) -> list[Delta]:
        """Take the end of a sample that ended by itself.

        ``cut_out``: the server did not send some of the text.
        """
        draw, self._sample_finish_reason = self.pending_request, reason
        text, self._held_back = self._held_back or "", None
        deltas = self.feed(text)
        if self.pending_request is not draw:
            return deltas
        self._finished_texts.add(self._turn_text)
        if (native := self._native_turn) is not None:
            if reason == "stop" and not cut_out:
                return deltas + self._end_native(native)
            self._native_turn = None
        if (cut_out and reason == "stop") or reason == "tool_calls":
            if self._has_message():
                return deltas + self.end_turn("tool_calls")  # some text is missing: it is not clean
            # Only text that may come between calls, which were cut out:
            blank = not self._turn_text[self._sample_begin :].strip()
            if (blank or reason == "tool_calls") and not self._has_inserted_opening:
                return deltas + self._insert_opening(is_call=reason == "tool_calls")
        held = self._object
        if reason != "stop" or held is None or (held.closable and self._read_valid(self.text)):
            return deltas + self.end_turn(reason)  # if only closers are missing, reading adds them
        if self._ended_in_object:
            return deltas + self._stop_mending()
        self._ended_in_object = True
        kind = "end" if held.tentative_violation is None else held.tentative_violation.kind
        boundary = self._object_begin + held.last_boundary
        if self._may_be_native(kind, boundary):
            native = NativeTurn(kind, boundary, self._rules)
            native.feed(self.text)
            return deltas + self._end_native(native)
        return deltas + self._mend(kind, boundary)

    def end_turn(self, reason: FinishReason | None) -> list[Delta]:
        """End the turn. ``reason`` says why its stream ended, None if it was closed here."""
        self.finish_reason, rest = reason, self._turn_text[self._read_end :]
        deltas: list[Delta] = []
        if self._line_reading is not None and not rest.strip() and reason != "tool_calls":
            self.reading = self._line_reading
        else:
            deltas = self._reader.feed(rest)
            self._read_end = len(self._turn_text)
            self.reading = self._reader.finish(reason or "stop")
            if self._prefix_end and not self.reading.messages and not self.mends:
                self._read_without_opening(reason)
        if indices := self.mended_messages:
            self.reading = with_mended(self.reading, indices)
        if self.repeated:
            self.reading = as_repetition(self.reading)
        if self.reading.messages and self.reading.error is None:
            self.unfilled = False
        self.pending_request = None
        return deltas

    def _read_without_opening(self, reason: FinishReason | None) -> None:
        """Read the turn without the host's prefix, if it is a message only so."""
        text = self.text.lstrip()
        rules, reading = read_without_opening(text, reason, self._rules)
        if reading.bare_text or not reading.messages:
            return
        self.restarts += 1
        self._rules, self._turn_text, self._prefix_end = rules, text, 0
        self._read_end, self.reading = len(text), reading

    def feed_scores(self, alternatives: Alternatives | None, text: str = "") -> list[Delta]:
        """Take the likeliest token that fits.

        ``alternatives`` are the tokens with their scores, None if the backend has none. ``text`` is
        what the model wrote during that request.
        """
        pending = self.pending_request
        assert self._pending_mend is not None and self._object is not None
        assert isinstance(pending, ScoreTokens)
        if alternatives is None:
            self._sent_counts[pending.text] -= 1
            return self._apply_mend(self._find_required_text())
        if text:  # or stripped
            self._finished_texts |= {pending.text + text, f"{pending.text} {text}"}
        self._scored_text = text
        boundary = self._pending_mend[1]
        edge = self._find_token_edge(boundary)
        owed = self._turn_text[edge:boundary]
        held = self._object.retry(self._turn_text[self._object_begin : boundary])
        fronts: list[str] = []
        for token, _ in alternatives:
            rest = token[len(owed) :] if token.startswith(owed) else ""
            fitting = rest[: held.fitting(rest)] if rest else ""
            if fitting and fitting == rest:
                return self._apply_mend(fitting + self._find_required_after(fitting), alternatives)
            fronts.append(fitting)
        for front in filter(None, fronts):
            return self._apply_mend(front, alternatives)
        if owed and any(token and owed.startswith(token) for token, _ in alternatives):
            return self.ask_scores_at_boundary()
        return self._apply_mend("", alternatives)

    @property
    def is_scored_at_boundary(self) -> bool:
        """True if scores are asked for right at the boundary, not before it."""
        return self._pending_mend is not None and self._scored_boundary == self._pending_mend[1]

    def ask_scores_at_boundary(self) -> list[Delta]:
        """Ask for scores again, right at the boundary.

        The model cuts the text before it into other tokens than those that it wrote.
        """
        assert self._pending_mend is not None
        self._scored_boundary = self._pending_mend[1]
        pending = self.pending_request
        if (
            isinstance(pending, ScoreTokens)
            and pending.text == self._turn_text[: self._scored_boundary]
        ):
            # No edge of a token is known before the boundary, as in a replay from records: it is
            # the same request, and counts once.
            self._sent_counts[pending.text] -= 1
        return self._set_request(ScoreTokens(self._turn_text[: self._scored_boundary]))

    # --- holding --------------------------------------------------------------------------------

    def _advance(self) -> list[Delta]:
        """Check the new text against the schema; mend the text that does not fit."""
        if self._native_turn is not None:
            return self._read_native(self._native_turn)
        deltas: list[Delta] = []
        while not self.should_close:
            held = self._object
            if held is None:
                if not self._find_message(deltas):
                    break
                continue
            held.feed(self._turn_text[self._object_begin + len(held.text) :])
            self.tool = held.name
            if held.is_whole and held.tentative_violation is not None:
                # It is no violation if the turn so far can be read, with valid calls.
                taken = self._read_valid(
                    self._turn_text[self._prefix_end : self._object_begin + held.end]
                )
                calls = judge(taken, self._tools) if taken is not None else ()
                held.judge(taken is not None and not any(call.error for call in calls))
            if held.violation is not None:
                self.violation = held.violation.kind
                if held.answer_end >= 0 and len(self.mends) < MAX_QUOTES:
                    self._escape_quote(self._object_begin + held.answer_end)
                    continue
                deltas += self._handle_violation(
                    held.violation.kind, self._object_begin + held.violation.boundary
                )
                break
            self._feed_reader(self._object_begin + held.settled_end, deltas)
            if not held.complete:
                break
            self._object = None
            self._message_count += 1
            self._message_end = self._object_begin + held.end
        return deltas

    def _feed_reader(self, upto: int, deltas: list[Delta]) -> None:
        """Give the reader the text up to there: it is final."""
        if upto > self._read_end:
            deltas += self._reader.feed(self._turn_text[self._read_end : upto])
            self._read_end = upto
        if self._reader.done and (self._object is None or self._object.complete):
            self.should_close = True

    def _find_message(self, deltas: list[Delta]) -> bool:
        """Read on to the next message with a schema; return False if none begins yet."""
        text = self._turn_text
        if self._is_free:
            self._feed_reader(len(text), deltas)
            return False
        if not self._read_end and text[:1] == "{" and text[-1] in "}\n":
            self._read_line(text, deltas)
        if self._line_reading is not None and not text[self._message_end :].strip():
            return False
        if self._has_guided_prefix and self._message_count and opening(self._rules.style):
            behind = self._rest_reader.read_to_call(text[self._message_end :])
            if (call_begin := behind.call_begin) is not None:
                self._feed_reader(self._message_end + call_begin, deltas)
                if not self.should_close:
                    deltas += self._restart_call(self._message_end + call_begin)
                return False
            if not (behind.done or behind.in_object or behind.in_prose):
                return False  # a call may begin there
        while self._read_end < len(text) and not self.should_close:
            part = (_TO_TOKEN if self._reader.in_object else _TO_OBJECT).match(text, self._read_end)
            self._feed_reader(part.end() if part else len(text), deltas)
            opened = None if self.should_close else self._reader.open_message
            if opened is not None and self._has_schema(opened[1]):
                self._start_object(opened[0])
                return True
        return False

    def _has_schema(self, mark: str | None) -> bool:
        """Return whether a message with this mark is held to a schema.

        The mark of a line of the protocol is None.
        """
        self._dialect = self._bare_dialect if mark == "" else JSON_DIALECTS.get(mark or "")
        if mark is None:
            return True
        return self._dialect is not None and self._rules.tool_choice != "none"

    def _read_line(self, text: str, deltas: list[Delta]) -> None:
        """Take a turn that is one clean line of the protocol and fits its schema.

        Most turns are, and need no closer reading.
        """
        reading = None if self._rules.in_thought else read_line(text, self._rules)
        choice = self._rules.tool_choice
        if reading is None or not fits_as_it_is(reading.messages[0], self._tools, choice):
            return
        shown = line_deltas(reading) if self._emits_text else []
        if shown is None:
            return
        (message,) = reading.messages
        deltas += shown
        self._line_reading = reading
        self.tool = message.name if isinstance(message, ToolCall) else ""
        self._message_count, self._message_end = 1, len(text)
        self._read_end = len(text)
        self.should_close = isinstance(message, FinalAnswer) or self._rules.max_calls == 1

    def _start_object(self, begin: int) -> None:
        """Hold the object that begins there to its schema, if it has one."""
        rules = self._rules
        form = message_schema(self._dialect, rules.tool_choice, self._tools, rules.result)
        if form is None:
            self._is_free = True
        else:
            self._object_begin, self._object = begin, ConstrainedObject(form)

    def _has_message(self) -> bool:
        reading = read(self.text, "stop", self._rules)
        return bool(reading.messages) and not reading.bare_text

    # --- mending --------------------------------------------------------------------------------

    def _handle_violation(self, kind: MendKind, boundary: int) -> list[Delta]:
        """Read text that does not fit in the model's own form, or mend it."""
        rest = self._turn_text[boundary:].lstrip('"')
        if self._has_guided_prefix and self._rest_reader.read(rest).call_begin is not None:
            # The model begins a call in its own form, in which it is read.
            return self._restart_with(self._turn_text[boundary:].lstrip('" \t\r\n'))
        if self._may_be_native(kind, boundary):
            self._native_turn = NativeTurn(kind, boundary, self._rules)
            return self._read_native(self._native_turn)
        return self._mend_violation(kind, boundary)

    def _may_be_native(self, kind: MendKind, boundary: int) -> bool:
        """Return whether the turn may be in the form that the model was trained on."""
        if not self._prefix_end or boundary > self._prefix_end or self._message_count:
            return False
        return kind != "name" or not continues_opening(self.text, self.prefix)

    def _read_native(self, native: NativeTurn) -> list[Delta]:
        """Read on in the model's own form; mend the turn if it is not in it."""
        continues = continues_opening(self.text, self.prefix)
        if self._is_free and continues:
            return self._reject_native(native)
        native.feed(self.text)
        for index, reading in native.readings():
            if is_valid_turn(reading, self._tools, self._rules):
                return self._accept_native(
                    index, is_whole=isinstance(reading.messages[0], FinalAnswer)
                )
        is_head = continues or self._first_text is not None
        longest = MAX_HEAD_CHARS if is_head else MAX_PROSE_CHARS
        is_long = native.own_reader.speech_chars >= longest
        if is_long and not any(name in self.text for name in self._tools):
            return self._reject_native(native)
        ends_at_once = native.own_reader.in_prose and is_scrap(self.text)
        return self._reject_native(native) if native.is_decided or ends_at_once else []

    def _end_native(self, native: NativeTurn) -> list[Delta]:
        """End a turn that may be in the model's own form: accept it, or mend it."""
        for index, reading in native.readings(is_end=True):
            if is_valid_turn(reading, self._tools, self._rules):
                return self._accept_native(index, is_whole=True) + self.end_turn("stop")
        deltas = self._reject_native(native)
        return deltas + self.end_turn("stop") if self._is_free else deltas

    def _accept_native(self, index: int, *, is_whole: bool) -> list[Delta]:
        """Accept the turn in the model's own form.

        ``index`` is 0 for the turn with the host's prefix, else 1. ``is_whole``: no more calls can
        follow, which would be held to their schemas.
        """
        self._native_turn = None
        if index:
            self._restart(self.text.lstrip())
        if is_whole or not index:
            self._object, self._is_free = None, True
        return self._advance()

    def _reject_native(self, native: NativeTurn) -> list[Delta]:
        """Mend a turn that is not in the model's own form."""
        self._native_turn = None
        return (
            self._advance() if self._is_free else self._mend_violation(native.kind, native.boundary)
        )

    def _mend_violation(self, kind: MendKind, boundary: int) -> list[Delta]:
        """Mend the text at ``boundary``, or leave it to reading and validation."""
        if kind == "envelope" and self._dialect is not None:
            other = _OTHER_KEY.match(self._turn_text, boundary)
            if other is not None and other[1] != self._dialect.name_key:
                self._object, self._is_free = (
                    None,
                    True,
                )  # reading takes this key, but has no schema for it
                return self._advance()
        if kind == "name":
            is_data = self._dialect is not None and self._dialect is self._bare_dialect
            is_data = is_data and self._rules.tool_choice == "auto"  # an answer may be JSON too
            name = _NAME.match(self._turn_text, boundary)
            if self._has_mended_name and not (is_data or self._message_count) and name is not None:
                self.tool, deltas = name[1], self.end_turn(None)  # no later text could count
                error = unknown_tool(self.tool, self._tools)
                if self.tool in self._tools:
                    only = f"only {self._rules.tool_choice} may be called here"
                    error = replace(error, message=only)
                self.reading = Reading(error=error)
                return deltas
            if (
                self._has_mended_name or is_data
            ):  # validation tells the model that there is no such tool
                self._object, self._is_free = None, True
                return self._advance()
            self._has_mended_name = True
            # where the model chooses call or answer
            key = _TYPE_KEY.search(self._turn_text, self._object_begin)
            free = self._rules.tool_choice == "auto"
            boundary = key.end() if key is not None and free and key.end() < boundary else boundary
        return self._mend(kind, boundary)

    def _restart_with(self, text: str) -> list[Delta]:
        """Begin the turn again with ``text``, without the host's prefix."""
        self._restart(text)
        return self._advance()

    def _drop_opening(self) -> list[Delta]:
        """Take the turn as the model wrote it first, without the host's prefix.

        If that text has not ended, the model writes on.
        """
        first, ended = (
            (self._first_text or "")[self._prefix_end :].lstrip(),
            self._first_finish_reason,
        )
        if ended is not None:
            return [*self._restart_with(first), *self.end_turn(ended)]
        self._restart()
        return self._set_request(SampleTokens(""))

    def _escape_quote(self, quote: int) -> None:
        """Escape a quote within an answer's text that seemed to end it, and read on."""
        if self._first_text is None:
            self._first_text = self._turn_text
        cut = max((e for e in self._token_edges if e <= quote), default=self._sample_begin)
        replacement = "\\" + self._turn_text[quote:]
        self._record_mend("quote", quote, cut, replacement, None)
        self._replace_from(quote, replacement)

    def _mend(self, kind: MendKind, boundary: int) -> list[Delta]:
        """Replace the text after ``boundary``, which does not fit."""
        boundary = max(boundary, self._prefix_end)
        if not self._begin_mend(kind, boundary):
            return self._stop_mending()
        forced = self._find_required_text()
        # A forced text that only begins a value is not used: the model would go on with the value
        # that did not fit.
        if kind in ("name", "value") and self._leaves_open(forced):
            forced = ""
        if forced:
            return self._apply_mend(forced)
        return self._set_request(ScoreTokens(self._turn_text[: self._find_token_edge(boundary)]))

    def _find_token_edge(self, boundary: int) -> int:
        """Return the last edge of a token that is known before ``boundary``.

        A piece that is longer than any token has no known edges within it.
        """
        edge = max((e for e in self._token_edges if e <= boundary), default=boundary)
        close = boundary - edge <= MAX_TOKEN_CHARS and boundary != self._scored_boundary
        return edge if close else boundary

    def _begin_mend(self, kind: MendKind, boundary: int) -> bool:
        if self._first_text is None:
            self._first_text, self._first_finish_reason = (
                self._turn_text,
                self._sample_finish_reason,
            )
        self._pending_mend = kind, boundary
        return self._mend_request_count < MAX_MENDS

    def _insert_opening(self, *, is_call: bool) -> list[Delta]:
        """Write the opening of a message that the server did not send, after what it sent."""
        self._has_inserted_opening = True
        begun = self._build_call_opening() if is_call else opening(self._rules.style)
        if self._object is not None and begun.startswith(self._rules.prefix):
            self._pending_mend = ("envelope", self._prefix_end)
            return self._apply_mend(begun[self._prefix_end :])
        line = "" if not self.text or self._turn_text.endswith("\n") else "\n"
        self._pending_mend = ("envelope", len(self._turn_text))
        return self._apply_mend(line + begun)

    def _restart_call(self, offset: int) -> list[Delta]:
        """Begin a call in the prescribed form, in place of another form at ``offset``."""
        if not self._begin_mend("envelope", offset):
            return self._stop_mending()
        line = "" if self._turn_text[:offset].endswith("\n") else "\n"
        return self._apply_mend(line + self._build_call_opening())

    def _build_call_opening(self) -> str:
        return forcing_prefix(self._rules.style, "required", self._rules.call)

    def _leaves_open(self, text_after: str) -> bool:
        """Return whether ``text_after``, at the mended place, leaves a key or value open."""
        assert self._pending_mend is not None
        text = self._turn_text[self._object_begin : self._pending_mend[1]] + text_after
        return self._object is not None and self._object.retry(text).is_open

    def _find_required_after(self, token: str) -> str:
        """Return the text that must follow the model's ``token``.

        It is empty in a value that the token only begins, for the model may have begun another:
        ``o`` of ``off``, ``1`` of ``15``.
        """
        return "" if self._leaves_open(token) else self._find_required_text(token)

    def _find_required_text(self, text_after: str = "") -> str:
        """Return the text that must come at the mended place, after ``text_after``."""
        assert self._pending_mend is not None
        if self._object is None:
            return ""
        text = self._turn_text[self._object_begin : self._pending_mend[1]] + text_after
        held = self._object.retry(text)
        return "" if held.violation is not None or held.complete else held.forced()

    def _apply_mend(
        self, replacement: str, alternatives: Alternatives | None = None
    ) -> list[Delta]:
        """Mend the open place with ``replacement``, and go on from there."""
        assert self._pending_mend is not None
        (kind, boundary), self._pending_mend = self._pending_mend, None
        edge = self._find_token_edge(boundary)
        if replacement and self._turn_text[:boundary] + replacement in self._finished_texts:
            # mlx_lm.server crashes on a text that it ended by itself, so one character is left off.
            replacement = replacement[:-1]
        self._record_mend(kind, boundary, max(edge, self._sample_begin), replacement, alternatives)
        self._mend_request_count += 1
        self._sample_finish_reason = None
        self._replace_from(boundary, replacement)
        self.should_close = False
        sent = self._sent_counts[self._turn_text]
        if sent and replacement and alternatives:  # the same request led to a violation before
            self._pending_mend = kind, len(self._turn_text)
            is_spent = self._mend_request_count >= MAX_MENDS
            return (
                self._stop_mending()
                if is_spent
                else self._set_request(ScoreTokens(self._turn_text))
            )
        if (
            not replacement
            and not self.text
            and self._has_guided_prefix
            and kind in ("envelope", "end")
        ):
            return self._drop_opening()  # the model writes no message after the host's prefix
        draw = SampleTokens(self._turn_text, attempt=sent + (not replacement))
        if (
            sent >= MAX_SENT
            or self._mend_request_count > MAX_MENDS
            or self._turn_text in self._finished_texts
        ):
            return self._stop_mending()
        was_held = self._object is not None
        self._set_request(draw)
        deltas = self._advance() if replacement else []
        is_whole = was_held and self._object is None and not self._is_free
        if self.pending_request is draw and (self.should_close or is_whole):
            deltas += self.end_turn(None)  # no request asks for another call
        return deltas

    def _replace_from(self, boundary: int, replacement: str) -> None:
        """Replace the text after the boundary, without giving it to the reader."""
        self._turn_text = self._turn_text[:boundary] + replacement
        self._sample_begin = len(self._turn_text)
        self._token_edges = [self._sample_begin]
        if self._read_end > boundary:
            self.restarts += 1
            self.__dict__.pop("_reader", None)
            self._read_end = boundary
        if self._object is not None:
            self._object = self._object.retry()

    def _record_mend(
        self,
        kind: MendKind,
        offset: int,
        cut: int,
        replacement: str,
        alternatives: Alternatives | None,
    ) -> None:
        """Record a mend; the rejected text is noted in two pieces, cut at ``cut``."""
        drawn = self._turn_text[self._sample_begin : cut], self._turn_text[cut:]
        has_scores = alternatives is not None
        scores = tuple({"token": token, "logprob": score} for token, score in alternatives or ())
        self.mends.append(
            MendRecord(
                turn=self._turn_number,
                kind=kind,
                message=self._message_count,
                kept_chars=offset - self._prefix_end,
                rejected_pieces=tuple(filter(None, drawn)),
                finish_reason=self._sample_finish_reason,
                alternatives=scores if has_scores else None,
                replacement=replacement,
                scored_text=self._scored_text if has_scores else "",
                after_text=has_scores and self._scored_boundary == offset,
            )
        )

    def _stop_mending(self) -> list[Delta]:
        """Give up mending: take the turn as the model wrote it first, with no schema."""
        self.unfilled = self._is_free = True
        self.restarts += 1
        self.mends, self._dropped_mend_count = [], 0  # they were in vain
        self._object = self._pending_mend = None
        self._replace_from(
            self._prefix_end, (self._first_text or self._turn_text)[self._prefix_end :]
        )
        self._feed_reader(len(self._turn_text), [])
        if self._reader.open_message is None and self._has_message():
            return self.end_turn(self._first_finish_reason)  # no request asks for another call
        is_sent = self._sent_counts[self._turn_text] >= MAX_SENT
        if self.should_close or self._first_finish_reason is not None or is_sent:
            return self.end_turn(self._first_finish_reason)
        return self._set_request(SampleTokens(self._turn_text))

    # --- the end --------------------------------------------------------------------------------

    def _read_valid(self, text: str) -> Reading | None:
        """Return how the text is read, None if it has no message or a fault."""
        reading = read(text, "stop", self._rules)
        faulty = reading.error is not None or reading.bare_text or not reading.messages
        return None if faulty else reading

    def _set_request(self, request: SampleTokens | ScoreTokens) -> list[Delta]:
        """Set the next request; skip one for scores that was sent often enough."""
        self.pending_request = request
        if isinstance(request, ScoreTokens) and self._sent_counts[request.text] >= MAX_SENT:
            return self.feed_scores([])
        self._sent_counts[request.text] += 1
        if isinstance(request, SampleTokens):
            self._sample_finish_reason = None
            if request.text != self._rules.prefix:
                self._sent_text = request.text
                self._held_back = "" if request.text and self._object is not None else None
        return []
