"""A turn that is checked against its schema while the model writes it, and mended.

Pure: `ConstrainedTurn` has the next request to the backend (`SampleTokens`, `ScoreTokens`), and is
fed with its result. The model writes its turn as one stream, a *sample*. Each part of a message is
checked against the schema as soon as it arrives. At the first part that does not fit, the stream is
closed, and that part is replaced (a *mend*):

1. by the text that the schema requires there, if there is only one,
2. else by the model's likeliest token that fits,
3. else by a new sample.

Then the model continues after the replacement. The result depends only on the model, the schema and
the text so far.

Some models ignore the host's prefix and write the form that they were trained on. Such a turn is
read in that form first (`NativeTurn`), and mended only if it is not a valid message.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from functools import cached_property
from typing import Final

from mlx_tools.decoding.message_schemas import (
    JSON_DIALECTS,
    find_bare_dialect,
    fits_unchanged,
    get_message_schema,
    is_valid_turn,
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
"""Mends of one turn that ask the backend again."""

MAX_QUOTES: Final = 200
"""Quotes that are escaped in the answers of one turn. They need no request."""

MAX_HEAD_CHARS: Final = 200
"""Characters within which a call in the model's own form names its tool. A type and an id of 40
characters before the name come to 120."""

MAX_PROSE_CHARS: Final = 1_000
"""Characters of prose, without thoughts, before a call names its tool. Models say in a few
sentences what they will do. With a higher limit a model that never calls would be corrected later.
"""

MAX_TOKEN_CHARS: Final = 32
"""Characters of the longest token. A longer piece has more than one token."""

MAX_SENT: Final = 2
"""Requests with the same text."""

_TO_OBJECT: Final = re.compile(r"[^{]*+{?+")
_TO_TOKEN: Final = re.compile(r'[^":{]*+[":{]?+')
"""Text up to where a message may begin, outside of an object and inside of one."""
_NAME: Final = re.compile(r'"([^"\\]*+(?:\\.[^"\\]*+)*)"')
_TYPE_KEY: Final = re.compile(r'"type"[ \t\r\n]*+:[ \t\r\n]*+')
_OTHER_KEY: Final = re.compile(
    r'[ \t\r\n,]*+"(name|function|tool|tool_name|action|args|input|action_input|tool_input|'
    r'tool_call_id|call_id|index)"[ \t\r\n]*+:'
)
"""A key of another dialect that the reader accepts too."""


class ConstrainedTurn:
    """One turn of the model, after the host's prefix.

    Send ``pending_request`` to the backend until it is None:

    - For a `SampleTokens`, pass each piece of text to `feed`. If ``should_close`` becomes true,
      close the stream and call `end_turn`. If the stream ends by itself, call `end_sample`. If
      ``pending_request`` has changed, close the stream and send the new request.
    - For a `ScoreTokens`, pass the result to `feed_scores`.

    These methods return the deltas that can be shown. At the end, ``text``, ``reading`` and
    ``mends`` are the turn, its messages and its mends.

    Args:
        rules: the rules for reading the turn; their prefix is the host's.
        tools: the tools that may be called.
        strategy: ``auto`` and ``guided`` check against schemas, other strategies do not.
        number: the number of the turn in its session.
        emits_text: False if the text of an answer is not needed as deltas.
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
        # A server with only a chat interface cannot continue a text.
        self._can_continue = not (rules.server_split_calls and strategy == "free")
        self._repetition_watch = RepetitionWatch()
        self._closed_thought = False
        self.repeated = False
        """True if the turn was ended because its text repeated itself."""
        self._uses_guided_strategy = strategy == "guided"
        self.tool = ""
        """The tool of the last call."""
        self.violation = ""
        """The kind of the last violation."""
        self._sent_counts: defaultdict[str, int] = defaultdict(int)
        """The number of requests with each text."""
        self._finished_texts: set[str] = set()
        """Texts after which the model ended its turn."""
        self._mend_request_count = 0
        self.restarts = 0
        """The number of times that text was replaced after the reader had read it."""
        self.mends: list[MendRecord] = []
        self._reset(rules)
        self.pending_request: SampleTokens | ScoreTokens | None = None
        self._set_request(SampleTokens(self._turn_text))

    def _reset(self, rules: ReadingRules) -> None:
        """Set the turn to the host's prefix, and nothing else."""
        self._dropped_mend_count = len(self.mends)
        """The number of mends in a text that was dropped since."""
        self.reading = Reading()
        self.finish_reason: FinishReason | None = None
        self.unfilled = False
        """True if nothing fitted at some place, and the turn was written without a schema."""
        self.should_close = False
        """True if the turn is complete, so the stream can be closed."""
        self._rules = rules
        self._turn_text = rules.prefix
        """The host's prefix, and the turn so far."""
        self._prefix_end = self._sample_begin = self._read_end = len(rules.prefix)
        """Offsets in the text: the end of the prefix, the begin of the sample, and the end of the
        text that the reader has read."""
        self._message_end = self._prefix_end
        """The end of the last complete message, or of the prefix."""
        self._token_edges = [self._prefix_end]
        """Offsets in the sample between two tokens of the model: the ends of streamed pieces."""
        self.__dict__.pop("_reader", None)
        self._rest_reader = RestReader(rules)
        self._line_reading: Reading | None = None
        """The reading while the turn is one valid line of the protocol."""
        self._first_text: str | None = None
        """The text at the first violation, None before it."""
        self._first_finish_reason: FinishReason | None = None
        """The finish reason of that text."""
        self._sample_finish_reason: FinishReason | None = None
        """The finish reason of the last sample, None if its stream was closed."""
        self._pending_mend: tuple[MendKind, int] | None = None
        """The kind and the offset of the next mend."""
        self._native_turn: NativeTurn | None = None
        """The turn as a message in the form that the model was trained on, while that is open."""
        self._has_guided_prefix = self._uses_guided_strategy and bool(rules.prefix)
        self._has_mended_name = self._ended_in_object = self._has_inserted_opening = False
        self._is_free = not self._is_constrained
        """True if the rest of the turn is not checked against a schema."""
        if self._is_free and rules.prefix and rules.tool_choice not in ("auto", "none"):
            self._native_turn = NativeTurn("envelope", self._prefix_end, rules)
        self._sent_text = rules.prefix
        """The text of the last sample's request."""
        self._held_back: str | None = "" if rules.prefix else None
        """The beginning of a sample, until it is clear if the model began its line again."""
        self._scored_text = ""
        """The text of the model during the last request for scores."""
        self._scored_boundary = -1
        """An offset inside a token of the model, for which scores were asked separately."""
        self._dialect: Dialect | None = None
        """The dialect of the open message, None for the protocol's own form."""
        self._bare_dialect = find_bare_dialect(rules) if "" in rules.native else None
        self._message_count = 0
        """The number of complete messages."""
        self._object: ConstrainedObject | None = None
        """The open message, if it is checked against a schema."""
        self._object_begin = 0
        """The offset of the object."""
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
        """Return the prose since an offset and the offset of its end.

        None if there is no such prose, or if the turn was mended.
        """
        has_no_prose = bool(self.mends) or self._line_reading is not None
        return None if has_no_prose else self._reader.find_prose_since(offset)

    @property
    def commentary(self) -> str:
        """The prose before the first message."""
        return "" if self._line_reading is not None else self._reader.commentary

    def is_plain_answer(self, text: str) -> bool:
        """Return whether some lines of a turn are an answer in plain text."""
        _, reading = read_without_opening(text, "stop", self._rules)
        return reading.bare_text and reading.error is None

    @property
    def is_in_object(self) -> bool:
        """True if a message is open and checked against a schema."""
        return self._object is not None

    @property
    def mended_messages(self) -> tuple[int, ...]:
        """The indexes of the messages that were mended inside their arguments."""
        unclean = {
            mend.message for mend in self.mends[self._dropped_mend_count :] if not mend.clean
        }
        if unclean and len(self.reading.messages) != self._message_count:
            # The reader counted other messages, so the mended ones are unknown: it may be each.
            return tuple(range(len(self.reading.messages)))
        return tuple(sorted(unclean))

    @cached_property
    def _reader(self) -> Reader:
        """The reader of the turn. It is not used while the turn is one line."""
        reader = Reader(self._rules)
        reader.feed(self._turn_text[self._prefix_end : self._read_end])
        return reader

    # --- results of the backend -----------------------------------------------------------------

    def feed(self, piece: str) -> list[Delta]:
        """Read the next text of a sample, and return the deltas that can be shown."""
        if self._held_back is not None:
            piece = self._held_back = self._held_back + piece
            restarted = restarts(piece, self._sent_text)
            if self._rules.result and self._prefix_end and starts_answer(piece):
                restarted = False  # it may be a part of the requested value
            if restarted is None:
                return []
            self._held_back = None
            if restarted:  # the server or the model ignored the text that it should continue
                self._restart()
        if not piece:
            return []
        if (
            len(self._turn_text) == self._sample_begin
            and len(self.mends) > self._dropped_mend_count
        ):
            piece = self._restore_blank(piece)
        # A server sends whole tokens, so a piece begins at a token edge.
        self._token_edges.append(len(self._turn_text))
        self._turn_text += piece
        request, deltas = self.pending_request, self._advance()
        if self.pending_request is request and not self.should_close and self._is_repeating():
            deltas += self._end_repetition()
        return deltas

    def _is_repeating(self) -> bool:
        """Return whether the model repeats the same text."""
        # Checked first, because ``place`` makes the reader read the turn.
        return self._repetition_watch.is_due(self._turn_text) and self._repetition_watch.repeats(
            self._turn_text, self._reader.place
        )

    def _end_repetition(self) -> list[Delta]:
        """End a text that repeats itself.

        The first such thought is closed, and the turn goes on after it. Any other text ends the
        turn, in the same way as the token limit.
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
        self._set_request(SampleTokens(self._turn_text))
        return self._advance()

    def _restart(self, text: str = "") -> None:
        """Drop the turn and the host's prefix, and begin again with ``text``."""
        self.restarts += 1
        rejected = tuple(filter(None, (self._turn_text[self._sample_begin :],)))
        has_mends = bool(self.mends)
        if has_mends:
            mend = MendRecord(
                turn=self._turn_number,
                kind="envelope",
                rejected_pieces=rejected,
                finish_reason=self._sample_finish_reason,
                replacement=text,
                restarted=True,
            )
            self.mends.append(mend)
        self._reset(replace(self._rules, prefix=""))
        self._turn_text = text
        if has_mends:
            self._sample_begin = len(text)
            self._token_edges = [self._sample_begin]

    def _restore_blank(self, piece: str) -> str:
        """Return the first text after a mend, with the space that some servers cut off."""
        if self._object is None:
            return piece
        text = self._turn_text[self._object_begin :]
        without, with_space = (
            self._object.retry(text + piece),
            self._object.retry(f"{text} {piece}"),
        )
        fits_only_with = without.violation is not None and with_space.violation is None
        return f" {piece}" if fits_only_with else piece

    def end_sample(self, reason: FinishReason, *, cut_out: bool = False) -> list[Delta]:
        """End a sample whose stream ended by itself.

        Args:
            reason: the finish reason of the sample.
            cut_out: True if the server did not send some of the text.
        """
        request, self._sample_finish_reason = self.pending_request, reason
        text, self._held_back = self._held_back or "", None
        deltas = self.feed(text)
        if self.pending_request is not request:
            return deltas
        self._finished_texts.add(self._turn_text)
        if (native := self._native_turn) is not None:
            if reason == "stop" and not cut_out:
                return deltas + self._end_native(native)
            self._native_turn = None
        if (cut_out and reason == "stop") or reason == "tool_calls":
            if self._has_message():
                # Not ``stop``, because some text is missing.
                return deltas + self.end_turn("tool_calls")
            # Blank text comes between calls, so the server has cut out calls.
            is_blank = not self._turn_text[self._sample_begin :].strip()
            if (is_blank or reason == "tool_calls") and not self._has_inserted_opening:
                return deltas + self._insert_opening(is_call=reason == "tool_calls")
        open_object = self._object
        if (
            reason != "stop"
            or open_object is None
            or (open_object.closable and self._read_valid(self.text))
        ):
            # If only closing brackets are missing, the reader adds them.
            return deltas + self.end_turn(reason)
        if self._ended_in_object:
            return deltas + self._stop_mending()
        self._ended_in_object = True
        kind = (
            "end"
            if open_object.tentative_violation is None
            else open_object.tentative_violation.kind
        )
        boundary = self._object_begin + open_object.last_boundary
        if self._may_be_native(kind, boundary):
            native = NativeTurn(kind, boundary, self._rules)
            native.feed(self.text)
            return deltas + self._end_native(native)
        return deltas + self._mend(kind, boundary)

    def end_turn(self, reason: FinishReason | None) -> list[Delta]:
        """End the turn, and read its messages.

        Args:
            reason: the finish reason of the stream, None if it was closed.
        """
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
        """Read the turn without the host's prefix, if that makes it a message."""
        text = self.text.lstrip()
        rules, reading = read_without_opening(text, reason, self._rules)
        if reading.bare_text or not reading.messages:
            return
        self.restarts += 1
        self._rules, self._turn_text, self._prefix_end = rules, text, 0
        self._read_end, self.reading = len(text), reading

    def feed_scores(self, alternatives: Alternatives | None, text: str = "") -> list[Delta]:
        """Mend the text with the likeliest token that fits.

        Args:
            alternatives: the tokens with their scores, None if the backend cannot score tokens.
            text: the text of the model during the request.
        """
        pending = self.pending_request
        assert self._pending_mend is not None and self._object is not None
        assert isinstance(pending, ScoreTokens)
        if alternatives is None:
            # A request that the backend cannot answer does not count as sent.
            self._sent_counts[pending.text] -= 1
            return self._apply_mend(self._find_required_text())
        if text:  # some servers strip the space before it
            self._finished_texts |= {pending.text + text, f"{pending.text} {text}"}
        self._scored_text = text
        boundary = self._pending_mend[1]
        edge = self._find_token_edge(boundary)
        # The scores are of tokens after the edge, so a token must begin with the text up to the
        # boundary.
        owed = self._turn_text[edge:boundary]
        open_object = self._object.retry(self._turn_text[self._object_begin : boundary])
        fitting_beginnings: list[str] = []
        for token, _ in alternatives:
            rest = token[len(owed) :] if token.startswith(owed) else ""
            fitting = rest[: open_object.fitting(rest)] if rest else ""
            if fitting and fitting == rest:
                return self._apply_mend(fitting + self._find_required_after(fitting), alternatives)
            fitting_beginnings.append(fitting)
        # No whole token fits, so the beginning of the likeliest one is used.
        for beginning in filter(None, fitting_beginnings):
            return self._apply_mend(beginning, alternatives)
        if owed and any(token and owed.startswith(token) for token, _ in alternatives):
            return self.ask_scores_at_boundary()
        return self._apply_mend("", alternatives)

    @property
    def is_scored_at_boundary(self) -> bool:
        """True if the request for scores is for the token at the boundary of the mend."""
        return self._pending_mend is not None and self._scored_boundary == self._pending_mend[1]

    def ask_scores_at_boundary(self) -> list[Delta]:
        """Ask for scores again, for the token at the boundary of the mend.

        The first request was for the token before it, which the model now divides in another way.
        """
        assert self._pending_mend is not None
        self._scored_boundary = self._pending_mend[1]
        pending = self.pending_request
        if (
            isinstance(pending, ScoreTokens)
            and pending.text == self._turn_text[: self._scored_boundary]
        ):
            # No token edge is known before the boundary, as in a replay from records. So it is the
            # same request, and counts once.
            self._sent_counts[pending.text] -= 1
        return self._set_request(ScoreTokens(self._turn_text[: self._scored_boundary]))

    # --- checking -------------------------------------------------------------------------------

    def _advance(self) -> list[Delta]:
        """Check the new text against the schema, and mend the part that does not fit."""
        if self._native_turn is not None:
            return self._read_native(self._native_turn)
        deltas: list[Delta] = []
        while not self.should_close:
            open_object = self._object
            if open_object is None:
                if not self._find_message(deltas):
                    break
                continue
            open_object.feed(self._turn_text[self._object_begin + len(open_object.text) :])
            self.tool = open_object.name
            if open_object.is_whole and open_object.tentative_violation is not None:
                # It is not a violation if the turn so far can be read, and its calls are valid.
                reading = self._read_valid(
                    self._turn_text[self._prefix_end : self._object_begin + open_object.end]
                )
                calls = judge(reading, self._tools) if reading is not None else ()
                open_object.judge(reading is not None and not any(call.error for call in calls))
            if open_object.violation is not None:
                self.violation = open_object.violation.kind
                if open_object.answer_end >= 0 and len(self.mends) < MAX_QUOTES:
                    self._escape_quote(self._object_begin + open_object.answer_end)
                    continue
                deltas += self._handle_violation(
                    open_object.violation.kind, self._object_begin + open_object.violation.boundary
                )
                break
            self._feed_reader(self._object_begin + open_object.settled_end, deltas)
            if not open_object.complete:
                break
            self._object = None
            self._message_count += 1
            self._message_end = self._object_begin + open_object.end
        return deltas

    def _feed_reader(self, upto: int, deltas: list[Delta]) -> None:
        """Let the reader read the text up to an offset. That text is not mended any more."""
        if upto > self._read_end:
            deltas += self._reader.feed(self._turn_text[self._read_end : upto])
            self._read_end = upto
        if self._reader.done and (self._object is None or self._object.complete):
            self.should_close = True

    def _find_message(self, deltas: list[Delta]) -> bool:
        """Read on to the next message with a schema, and return whether there is one."""
        text = self._turn_text
        if self._is_free:
            self._feed_reader(len(text), deltas)
            return False
        if not self._read_end and text[:1] == "{" and text[-1] in "}\n":
            self._read_line(text, deltas)
        if self._line_reading is not None and not text[self._message_end :].strip():
            return False
        if self._has_guided_prefix and self._message_count and opening(self._rules.style):
            rest = self._rest_reader.read_to_call(text[self._message_end :])
            if (call_begin := rest.call_begin) is not None:
                self._feed_reader(self._message_end + call_begin, deltas)
                if not self.should_close:
                    deltas += self._restart_call(self._message_end + call_begin)
                return False
            if not (rest.done or rest.in_object or rest.in_prose):
                return False  # a call in another form may begin there
        while self._read_end < len(text) and not self.should_close:
            part = (_TO_TOKEN if self._reader.in_object else _TO_OBJECT).match(text, self._read_end)
            self._feed_reader(part.end() if part else len(text), deltas)
            opened = None if self.should_close else self._reader.open_message
            if opened is not None and self._has_schema(opened[1]):
                self._start_object(opened[0])
                return True
        return False

    def _has_schema(self, mark: str | None) -> bool:
        """Return whether a message with an opening mark is checked against a schema.

        Args:
            mark: the opening mark, None for a line of the protocol.
        """
        self._dialect = self._bare_dialect if mark == "" else JSON_DIALECTS.get(mark or "")
        if mark is None:
            return True
        return self._dialect is not None and self._rules.tool_choice != "none"

    def _read_line(self, text: str, deltas: list[Delta]) -> None:
        """Read the turn if it is one clean line of the protocol that fits its schema.

        Most turns are. It is faster than the reader.
        """
        reading = None if self._rules.in_thought else read_line(text, self._rules)
        choice = self._rules.tool_choice
        if reading is None or not fits_unchanged(reading.messages[0], self._tools, choice):
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
        """Check the object at an offset against its schema from now on, if it has one."""
        rules = self._rules
        form = get_message_schema(self._dialect, rules.tool_choice, self._tools, rules.result)
        if form is None:
            self._is_free = True
        else:
            self._object_begin, self._object = begin, ConstrainedObject(form)

    def _has_message(self) -> bool:
        reading = read(self.text, "stop", self._rules)
        return bool(reading.messages) and not reading.bare_text

    # --- mending --------------------------------------------------------------------------------

    def _handle_violation(self, kind: MendKind, boundary: int) -> list[Delta]:
        """Mend text that does not fit, unless it may be a message in the model's own form."""
        rest = self._turn_text[boundary:].lstrip('"')
        if self._has_guided_prefix and self._rest_reader.read(rest).call_begin is not None:
            # The model begins a call in its own form, so it is read in that form.
            return self._restart_with(self._turn_text[boundary:].lstrip('" \t\r\n'))
        if self._may_be_native(kind, boundary):
            self._native_turn = NativeTurn(kind, boundary, self._rules)
            return self._read_native(self._native_turn)
        return self._mend_violation(kind, boundary)

    def _may_be_native(self, kind: MendKind, boundary: int) -> bool:
        """Return whether the turn may be a message in the model's own form."""
        if not self._prefix_end or boundary > self._prefix_end or self._message_count:
            return False
        return kind != "name" or not continues_opening(self.text, self.prefix)

    def _read_native(self, native: NativeTurn) -> list[Delta]:
        """Read on in the model's own form; mend the turn if it has another form."""
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
        max_chars = MAX_HEAD_CHARS if is_head else MAX_PROSE_CHARS
        is_long = native.own_reader.speech_chars >= max_chars
        if is_long and not any(name in self.text for name in self._tools):
            return self._reject_native(native)
        ends_at_once = native.own_reader.in_prose and is_scrap(self.text)
        return self._reject_native(native) if native.is_decided or ends_at_once else []

    def _end_native(self, native: NativeTurn) -> list[Delta]:
        """Accept or mend a turn in the model's own form whose sample has ended."""
        for index, reading in native.readings(is_end=True):
            if is_valid_turn(reading, self._tools, self._rules):
                return self._accept_native(index, is_whole=True) + self.end_turn("stop")
        deltas = self._reject_native(native)
        return deltas + self.end_turn("stop") if self._is_free else deltas

    def _accept_native(self, index: int, *, is_whole: bool) -> list[Delta]:
        """Accept the turn in the model's own form.

        Args:
            index: 0 if it is a message after the host's prefix, 1 if it is one without the prefix.
            is_whole: True if no more calls can follow. Those would be checked against schemas.
        """
        self._native_turn = None
        if index:
            self._restart(self.text.lstrip())
        if is_whole or not index:
            self._object, self._is_free = None, True
        return self._advance()

    def _reject_native(self, native: NativeTurn) -> list[Delta]:
        """Mend a turn that does not have the model's own form."""
        self._native_turn = None
        return (
            self._advance() if self._is_free else self._mend_violation(native.kind, native.boundary)
        )

    def _mend_violation(self, kind: MendKind, boundary: int) -> list[Delta]:
        """Mend the text at an offset, or leave it to the reader and to validation."""
        if kind == "envelope" and self._dialect is not None:
            other = _OTHER_KEY.match(self._turn_text, boundary)
            if other is not None and other[1] != self._dialect.name_key:
                # The reader accepts this key, but there is no schema for it.
                self._object, self._is_free = None, True
                return self._advance()
        return self._mend_name(boundary) if kind == "name" else self._mend(kind, boundary)

    def _mend_name(self, boundary: int) -> list[Delta]:
        """Mend the first wrong name of a tool in a turn; a later one is an error."""
        can_answer = self._rules.tool_choice == "auto"
        # A bare object may be an answer in JSON.
        is_bare = self._dialect is not None and self._dialect is self._bare_dialect
        is_data = is_bare and can_answer
        name = _NAME.match(self._turn_text, boundary)
        if self._has_mended_name and not (is_data or self._message_count) and name is not None:
            return self._reject_name(name[1])
        if self._has_mended_name or is_data:
            # Validation reports the unknown tool.
            self._object, self._is_free = None, True
            return self._advance()
        self._has_mended_name = True
        # Mend at the value of "type", so that the model can choose an answer instead.
        key = _TYPE_KEY.search(self._turn_text, self._object_begin)
        if key is not None and can_answer and key.end() < boundary:
            boundary = key.end()
        return self._mend("name", boundary)

    def _reject_name(self, name: str) -> list[Delta]:
        """End the turn with the error about a tool that may not be called."""
        self.tool, deltas = name, self.end_turn(None)
        error = unknown_tool(name, self._tools)
        if name in self._tools:
            error = replace(error, message=f"only {self._rules.tool_choice} may be called here")
        self.reading = Reading(error=error)
        return deltas

    def _restart_with(self, text: str) -> list[Delta]:
        """Begin the turn again with a text of the model, without the host's prefix."""
        self._restart(text)
        return self._advance()

    def _drop_opening(self) -> list[Delta]:
        """Use the text of the model before any mend, without the host's prefix.

        If that text has not ended, the model is asked again without the prefix.
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
        """Escape a quote in an answer that would end the answer too early."""
        if self._first_text is None:
            self._first_text = self._turn_text
        edges = (edge for edge in self._token_edges if edge <= quote)
        cut = max(edges, default=self._sample_begin)
        replacement = "\\" + self._turn_text[quote:]
        self._record_mend("quote", quote, cut, replacement, None)
        self._replace_from(quote, replacement)

    def _mend(self, kind: MendKind, boundary: int) -> list[Delta]:
        """Replace the text after an offset, because it does not fit."""
        boundary = max(boundary, self._prefix_end)
        if not self._begin_mend(kind, boundary):
            return self._stop_mending()
        required = self._find_required_text()
        # A required text that only begins a value is not used, because the model would continue it
        # to the same value that did not fit.
        if kind in ("name", "value") and self._leaves_open(required):
            required = ""
        if required:
            return self._apply_mend(required)
        return self._set_request(ScoreTokens(self._turn_text[: self._find_token_edge(boundary)]))

    def _find_token_edge(self, boundary: int) -> int:
        """Return the last known token edge before an offset, or the offset itself.

        A piece that is longer than any token has unknown edges inside.
        """
        edge = max((edge for edge in self._token_edges if edge <= boundary), default=boundary)
        is_near = boundary - edge <= MAX_TOKEN_CHARS and boundary != self._scored_boundary
        return edge if is_near else boundary

    def _begin_mend(self, kind: MendKind, boundary: int) -> bool:
        """Begin a mend at an offset; return False if there were too many."""
        if self._first_text is None:
            self._first_text, self._first_finish_reason = (
                self._turn_text,
                self._sample_finish_reason,
            )
        self._pending_mend = kind, boundary
        return self._mend_request_count < MAX_MENDS

    def _insert_opening(self, *, is_call: bool) -> list[Delta]:
        """Add the opening of a message that the server did not send."""
        self._has_inserted_opening = True
        text = self._build_call_opening() if is_call else opening(self._rules.style)
        if self._object is not None and text.startswith(self._rules.prefix):
            self._pending_mend = ("envelope", self._prefix_end)
            return self._apply_mend(text[self._prefix_end :])
        line = "" if not self.text or self._turn_text.endswith("\n") else "\n"
        self._pending_mend = ("envelope", len(self._turn_text))
        return self._apply_mend(line + text)

    def _restart_call(self, offset: int) -> list[Delta]:
        """Begin a call in the prescribed form, in place of a call in another form."""
        if not self._begin_mend("envelope", offset):
            return self._stop_mending()
        line = "" if self._turn_text[:offset].endswith("\n") else "\n"
        return self._apply_mend(line + self._build_call_opening())

    def _build_call_opening(self) -> str:
        """Return the text that begins a call in the prescribed form."""
        return forcing_prefix(self._rules.style, "required", self._rules.call)

    def _leaves_open(self, text_after: str) -> bool:
        """Return whether a text at the mended place leaves a key or a value open."""
        assert self._pending_mend is not None
        text = self._turn_text[self._object_begin : self._pending_mend[1]] + text_after
        return self._object is not None and self._object.retry(text).is_open

    def _find_required_after(self, token: str) -> str:
        """Return the text that must follow the model's token.

        Empty if the token only begins a value, because the model may mean another value: ``o`` may
        begin ``off``, and ``1`` may begin ``15``.
        """
        return "" if self._leaves_open(token) else self._find_required_text(token)

    def _find_required_text(self, text_after: str = "") -> str:
        """Return the text that the schema requires at the mended place.

        Args:
            text_after: a text at the mended place that comes before it.
        """
        assert self._pending_mend is not None
        if self._object is None:
            return ""
        text = self._turn_text[self._object_begin : self._pending_mend[1]] + text_after
        open_object = self._object.retry(text)
        return (
            ""
            if open_object.violation is not None or open_object.complete
            else open_object.forced()
        )

    def _apply_mend(
        self, replacement: str, alternatives: Alternatives | None = None
    ) -> list[Delta]:
        """Replace the text at the pending mend, and go on after the replacement."""
        assert self._pending_mend is not None
        (kind, boundary), self._pending_mend = self._pending_mend, None
        edge = self._find_token_edge(boundary)
        if replacement and self._turn_text[:boundary] + replacement in self._finished_texts:
            # mlx_lm.server crashes if it must continue a text that it has ended itself. So the last
            # character is left out.
            replacement = replacement[:-1]
        self._record_mend(kind, boundary, max(edge, self._sample_begin), replacement, alternatives)
        self._mend_request_count += 1
        self._sample_finish_reason = None
        self._replace_from(boundary, replacement)
        self.should_close = False
        sent = self._sent_counts[self._turn_text]
        if sent and replacement and alternatives:  # a sample after this text did not fit before
            self._pending_mend = kind, len(self._turn_text)
            if self._mend_request_count >= MAX_MENDS:
                return self._stop_mending()
            return self._set_request(ScoreTokens(self._turn_text))
        if (
            not replacement
            and not self.text
            and self._has_guided_prefix
            and kind in ("envelope", "end")
        ):
            return self._drop_opening()  # the model does not continue the host's prefix
        request = SampleTokens(self._turn_text, attempt=sent + (not replacement))
        if (
            sent >= MAX_SENT
            or self._mend_request_count > MAX_MENDS
            or self._turn_text in self._finished_texts
        ):
            return self._stop_mending()
        was_open = self._object is not None
        self._set_request(request)
        deltas = self._advance() if replacement else []
        is_complete = was_open and self._object is None and not self._is_free
        if self.pending_request is request and (self.should_close or is_complete):
            deltas += self.end_turn(None)  # the model is not asked for another call
        return deltas

    def _replace_from(self, boundary: int, replacement: str) -> None:
        """Replace the text after an offset; the reader does not read the replacement yet."""
        self._turn_text = self._turn_text[:boundary] + replacement
        self._sample_begin = len(self._turn_text)
        self._token_edges = [self._sample_begin]
        if self._read_end > boundary:
            self.restarts += 1
            # The reader has read text that is replaced now, so the next use makes a new one.
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
        """Record a mend.

        Args:
            kind: the kind of the violation.
            offset: the offset of the replacement.
            cut: an offset that divides the rejected text into two pieces.
            replacement: the text in place of the rejected text.
            alternatives: the tokens that the backend scored, None without such a request.
        """
        rejected = self._turn_text[self._sample_begin : cut], self._turn_text[cut:]
        has_scores = alternatives is not None
        scores = tuple({"token": token, "logprob": score} for token, score in alternatives or ())
        self.mends.append(
            MendRecord(
                turn=self._turn_number,
                kind=kind,
                message=self._message_count,
                kept_chars=offset - self._prefix_end,
                rejected_pieces=tuple(filter(None, rejected)),
                finish_reason=self._sample_finish_reason,
                alternatives=scores if has_scores else None,
                replacement=replacement,
                scored_text=self._scored_text if has_scores else "",
                after_text=has_scores and self._scored_boundary == offset,
            )
        )

    def _stop_mending(self) -> list[Delta]:
        """Give up mending, and use the model's first text without a schema."""
        self.unfilled = self._is_free = True
        self.restarts += 1
        # The mended text is dropped, so its mends must not be recorded.
        self.mends, self._dropped_mend_count = [], 0
        self._object = self._pending_mend = None
        self._replace_from(
            self._prefix_end, (self._first_text or self._turn_text)[self._prefix_end :]
        )
        self._feed_reader(len(self._turn_text), [])
        if self._reader.open_message is None and self._has_message():
            # The model is not asked for another call.
            return self.end_turn(self._first_finish_reason)
        is_sent = self._sent_counts[self._turn_text] >= MAX_SENT
        if self.should_close or self._first_finish_reason is not None or is_sent:
            return self.end_turn(self._first_finish_reason)
        return self._set_request(SampleTokens(self._turn_text))

    # --- requests -------------------------------------------------------------------------------

    def _read_valid(self, text: str) -> Reading | None:
        """Return the reading of a text, None if it has no message or an error."""
        reading = read(text, "stop", self._rules)
        is_faulty = reading.error is not None or reading.bare_text or not reading.messages
        return None if is_faulty else reading

    def _set_request(self, request: SampleTokens | ScoreTokens) -> list[Delta]:
        """Set the next request, unless it asks too often for the same scores."""
        self.pending_request = request
        if isinstance(request, ScoreTokens) and self._sent_counts[request.text] >= MAX_SENT:
            # The same scores would lead to the same violation.
            return self.feed_scores([])
        self._sent_counts[request.text] += 1
        if isinstance(request, SampleTokens):
            self._sample_finish_reason = None
            if request.text != self._rules.prefix:
                self._sent_text = request.text
                self._held_back = "" if request.text and self._object is not None else None
        return []
