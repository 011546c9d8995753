"""A turn that is held to its grammar, and mended where it does not fit.

Pure: `ConstrainedTurn` says what to ask of the backend next (`SampleTokens`, `ScoreTokens`) and
takes what came. The model writes its turn in one stream. Each part of a message is held against
what may stand there; at one that does not fit the stream is closed, and the turn goes on from
before it: with the text that must stand there, else with the model's likeliest token that fits,
else drawn again. Nothing but the model, its schema and this text has a say in it.
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
"""So often may one turn be mended."""

MAX_QUOTES: Final = 200
"""So many quotes of an answer are escaped for the model."""

MAX_HEAD_CHARS: Final = 200
"""Characters within which a call in the model's own form has named its tool: with a type and an id
of 40 characters before it, it does so within 120."""

MAX_PROSE_CHARS: Final = 1_000
"""Characters of the first text, thoughts aside, within which a turn that is to be a call names its
tool: models say in a few sentences what they will do. More would keep one waiting that never calls.
"""

MAX_TOKEN_CHARS: Final = 32
"""A piece of more characters holds more than one token."""

MAX_SENT: Final = 2
"""So often is the same text gone on from."""

_TO_OBJECT: Final = re.compile(r"[^{]*+{?+")
_TO_TOKEN: Final = re.compile(r'[^":{]*+[":{]?+')
"""Up to where the reader may find itself in a message, out of an object and in one."""
_NAME: Final = re.compile(r'"([^"\\]*+(?:\\.[^"\\]*+)*)"')
_TYPE_KEY: Final = re.compile(r'"type"[ \t\r\n]*+:[ \t\r\n]*+')
_OTHER_KEY: Final = re.compile(
    r'[ \t\r\n,]*+"(name|function|tool|tool_name|action|args|input|action_input|tool_input|'
    r'tool_call_id|call_id|index)"[ \t\r\n]*+:'
)
"""A key that reading takes between a dialect's marks, though that dialect has another."""


class ConstrainedTurn:
    """One turn of the model, from the host's prefix on.

    ``pending_request`` is what to ask for next, None once the turn has ended. What a `SampleTokens`
    brings is given to `feed` piece by piece, until ``closing`` says that the stream is to be
    closed, or it ends by itself (`end`); what a `ScoreTokens` brings to `take_scores`. At the end
    ``text`` is the turn, ``reading`` how it is read, ``mends`` how it was mended; ``unfilled`` says
    that a place found nothing that fits, and that the turn was written freely from there.
    ``repeated``: the turn was ended since its text repeated itself. Unless it is ``told`` to
    anybody, less of it is shown.
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
        self._tools, self._number, self._emits_text = tools, number, emits_text
        self._holds = bool(tools) and strategy in ("auto", "guided")
        # A server that is asked by its chat interface alone cannot go on from a text.
        self._can_continue = not (rules.server_split_calls and strategy == "free")
        self._watch = RepetitionWatch()
        self._closed_thought = self.repeated = False
        self._guides = strategy == "guided"
        self.tool = ""  # that is called last
        self.violation = ""  # what did not fit last
        self._sent_counts: defaultdict[str, int] = defaultdict(int)  # of requests, by their text
        self._finished: set[str] = set()  # texts that ended by themselves
        self._request_count = 0  # mends that a request followed
        self.restarts = 0  # times that text which was read stood no more
        self.mends: list[MendRecord] = []
        self._begin_with(rules)
        self.pending_request: SampleTokens | ScoreTokens | None = None
        self._ask(SampleTokens(self._whole))

    def _begin_with(self, rules: ReadingRules) -> None:
        """Begin the turn with the host's prefix, and nothing else."""
        self._remaining = len(self.mends)  # mends of a text that does not stand any more
        self.reading = Reading()
        self.finish_reason: FinishReason | None = None
        self.unfilled = False
        self.closing = False
        self._rules = rules
        self._prefix = self._drawn_from = self._fed = len(rules.prefix)
        self._text_after = self._prefix  # the last whole message, or the beginning
        self._whole = rules.prefix
        self._edges = [self._prefix]
        self.__dict__.pop("_reader", None)
        self._rest_reader = RestReader(rules)
        self._line: Reading | None = None  # of a turn that is one line of the protocol so far
        self._first: str | None = None  # the turn as it was at the first misfit
        self._first_ended: FinishReason | None = None
        self._end_reason: FinishReason | None = None  # how the last draw ended
        self._open: tuple[MendKind, int] | None = None  # what is to be mended, and from where
        # what may be a message in the model's own form
        self._native_turn: NativeTurn | None = None
        self._guided = self._guides and bool(rules.prefix)
        self._renamed = self._ended_inside = self._was_cut_out = False
        self._free = not self._holds  # nothing is held (any more)
        if self._free and rules.prefix and rules.tool_choice not in ("auto", "none"):
            self._native_turn = NativeTurn("envelope", self._prefix, rules)
        self._gone_on_from = rules.prefix
        self._held_back: str | None = "" if rules.prefix else None  # until it shows what it is
        self._scored_text = ""
        self._exact = -1  # a place that is no edge of the model's tokens
        self._dialect: Dialect | None = None
        self._bare = bare_dialect(rules) if "" in rules.native else None
        self._messages = 0
        self._object: ConstrainedObject | None = None
        self._begin = 0  # of the object that is held
        brace = rules.prefix.find("{")
        if brace >= 0 and not self._free:
            before = rules.prefix[:brace].rstrip(" \t\r\n[")
            is_bare = self._bare is not None and not before
            dialect = self._bare if is_bare else JSON_DIALECTS.get(before)
            if dialect is not None or not rules.call[0]:
                self._dialect = dialect
                self._hold(brace)
                self._go_on()

    @property
    def prefix(self) -> str:
        """The host's prefix, empty where the model began its line anew."""
        return self._rules.prefix

    @property
    def text(self) -> str:
        """The turn so far, without the host's prefix."""
        return self._whole[self._prefix :]

    def prose_since(self, offset: int) -> tuple[str, int] | None:
        """Return the prose since an offset, and the offset of its end, or None."""
        is_other = bool(self.mends) or self._line is not None
        return None if is_other else self._reader.prose_since(offset)

    @property
    def commentary(self) -> str:
        """The prose before the first message."""
        return "" if self._line is not None else self._reader.commentary

    def is_text(self, text: str) -> bool:
        """Return whether some lines of the turn are an answer in plain text."""
        _, reading = read_without_opening(text, "stop", self._rules)
        return reading.bare_text and reading.error is None

    @property
    def is_held(self) -> bool:
        """True if an object is open and its parts are held to a schema."""
        return self._object is not None

    @property
    def mended_messages(self) -> tuple[int, ...]:
        """The messages that needed a mend of more than what stands around their arguments."""
        unclean = {mend.message for mend in self.mends[self._remaining :] if not mend.clean}
        if unclean and len(self.reading.messages) != self._messages:
            return tuple(range(len(self.reading.messages)))  # they cannot be told apart
        return tuple(sorted(unclean))

    @cached_property
    def _reader(self) -> Reader:
        """Reads the turn, but for a line that is all of it."""
        reader = Reader(self._rules)
        reader.feed(self._whole[self._prefix : self._fed])
        return reader

    # --- what comes -----------------------------------------------------------------------------

    def feed(self, piece: str) -> list[Delta]:
        """Take in the next text of a draw; return what can be shown of it."""
        if self._held_back is not None:
            piece = self._held_back = self._held_back + piece
            restarted = restarts(piece, self._gone_on_from)
            if self._rules.result and self._prefix and starts_answer(piece):
                restarted = False  # it may be the value that is wanted
            if restarted is None:
                return []
            self._held_back = None
            if restarted:  # the server paid no heed to what it was to go on from
                self._restart()
        if not piece:
            return []
        if len(self._whole) == self._drawn_from and len(self.mends) > self._remaining:
            piece = self._unstripped(piece)
        self._edges.append(len(self._whole))
        self._whole += piece
        draw, deltas = self.pending_request, self._go_on()
        if self.pending_request is draw and not self.closing and self._repeats():
            deltas += self._end_repetition()
        return deltas

    def _repeats(self) -> bool:
        """Return whether the model writes the same text over and over."""
        # To know the place the turn is read, which most short ones need not be.
        return self._watch.is_due(self._whole) and self._watch.repeats(
            self._whole, self._reader.place
        )

    def _end_repetition(self) -> list[Delta]:
        """End a text that repeats itself.

        A thought is closed, once, and the turn goes on after it. Anything else ends the turn as a
        cut at the token limit does.
        """
        closer = self._reader.thought_closer
        if not closer or not self._can_continue or self._closed_thought:
            self.repeated = True
            return self.close("length")
        self._closed_thought = True
        put = f"\n{closer}\n\n"
        self._note("thought", len(self._whole), self._drawn_from, put, None)
        self._request_count += 1
        self._go_on_from(len(self._whole), put)
        draw = SampleTokens(self._whole)
        self._ask(draw)
        return self._go_on()

    def _restart(self, text: str = "") -> None:
        """Drop what stood and what the host began with; let the turn be ``text``."""
        self.restarts += 1
        drawn = tuple(filter(None, (self._whole[self._drawn_from :],)))
        mended = bool(self.mends)
        if mended:
            begun = MendRecord(
                turn=self._number,
                kind="envelope",
                rejected_pieces=drawn,
                replacement=text,
                restarted=True,
            )
            self.mends.append(replace(begun, finish_reason=self._end_reason))
        self._begin_with(replace(self._rules, prefix=""))
        self._whole = text
        if mended:
            self._drawn_from = len(text)
            self._edges = [self._drawn_from]

    def _unstripped(self, piece: str) -> str:
        """Return what goes on from a mend, with the first blank that some servers take."""
        if self._object is None:
            return piece
        text = self._whole[self._begin :]
        plain, blank = self._object.retried(text + piece), self._object.retried(f"{text} {piece}")
        return f" {piece}" if plain.violation is not None and blank.violation is None else piece

    def end(self, reason: FinishReason, *, cut_out: bool = False) -> list[Delta]:
        """Take the end of a draw that ended by itself.

        ``cut_out``: the server kept some of the text to itself.
        """
        draw, self._end_reason = self.pending_request, reason
        text, self._held_back = self._held_back or "", None
        deltas = self.feed(text)
        if self.pending_request is not draw:
            return deltas
        self._finished.add(self._whole)
        if (own := self._native_turn) is not None:
            if reason == "stop" and not cut_out:
                return deltas + self._end_own(own)
            self._native_turn = None
        if (cut_out and reason == "stop") or reason == "tool_calls":
            if self._has_message():
                return deltas + self.close("tool_calls")  # some of it is gone: it is not clean
            # Nothing was drawn but what may stand between calls that were cut out:
            blank = not self._whole[self._drawn_from :].strip()
            if (blank or reason == "tool_calls") and not self._was_cut_out:
                return deltas + self._begin_cut_out(is_call=reason == "tool_calls")
        held = self._object
        if reason != "stop" or held is None or (held.closable and self._read_well(self.text)):
            return deltas + self.close(reason)  # or only closers are missing, which reading adds
        if self._ended_inside:
            return deltas + self._give_up()
        self._ended_inside = True
        kind = "end" if held.tentative_violation is None else held.tentative_violation.kind
        boundary = self._begin + held.last_boundary
        if self._begins_own(kind, boundary):
            own = NativeTurn(kind, boundary, self._rules)
            own.feed(self.text)
            return deltas + self._end_own(own)
        return deltas + self._mend(kind, boundary)

    def close(self, reason: FinishReason | None) -> list[Delta]:
        """End the turn for the ``reason`` that its stream ended, None where it was closed."""
        self.finish_reason, rest = reason, self._whole[self._fed :]
        deltas: list[Delta] = []
        if self._line is not None and not rest.strip() and reason != "tool_calls":
            self.reading = self._line
        else:
            deltas = self._reader.feed(rest)
            self._fed = len(self._whole)
            self.reading = self._reader.finish(reason or "stop")
            if self._prefix and not self.reading.messages and not self.mends:
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
        """Let a turn that is no message with the host's beginning be one without it."""
        text = self.text.lstrip()
        rules, reading = read_without_opening(text, reason, self._rules)
        if reading.bare_text or not reading.messages:
            return
        self.restarts += 1
        self._rules, self._whole, self._prefix = rules, text, 0
        self._fed, self.reading = len(text), reading

    def take_scores(self, alternatives: Alternatives | None, text: str = "") -> list[Delta]:
        """Take the likeliest token that fits.

        ``alternatives`` is None if the backend has no likelihoods. ``text`` is what the model wrote
        while it was asked for them.
        """
        pending = self.pending_request
        assert self._open is not None and self._object is not None
        assert isinstance(pending, ScoreTokens)
        if alternatives is None:
            self._sent_counts[pending.text] -= 1
            return self._insert(self._forced())
        if text:  # or stripped
            self._finished |= {pending.text + text, f"{pending.text} {text}"}
        self._scored_text = text
        boundary = self._open[1]
        edge = self._edge(boundary)
        owed = self._whole[edge:boundary]
        held = self._object.retried(self._whole[self._begin : boundary])
        fronts: list[str] = []
        for token, _ in alternatives:
            rest = token[len(owed) :] if token.startswith(owed) else ""
            fitting = rest[: held.fitting(rest)] if rest else ""
            if fitting and fitting == rest:
                return self._insert(fitting + self._forced_after(fitting), alternatives)
            fronts.append(fitting)
        for front in filter(None, fronts):
            return self._insert(front, alternatives)
        if owed and any(token and owed.startswith(token) for token, _ in alternatives):
            return self.request_next_scores()
        return self._insert("", alternatives)

    @property
    def requests_next_scores(self) -> bool:
        """True if the likelihoods that are asked for are those behind what stands."""
        return self._open is not None and self._exact == self._open[1]

    def request_next_scores(self) -> list[Delta]:
        """Ask for the scores after the text up to which its tokens are known.

        The model cuts the text there into other tokens than it wrote.
        """
        assert self._open is not None
        self._exact = self._open[1]
        pending = self.pending_request
        if isinstance(pending, ScoreTokens) and pending.text == self._whole[: self._exact]:
            # Whoever asks knows no edge of a token before there, as one who draws a turn again
            # from its records: it is the same request, and counts once.
            self._sent_counts[pending.text] -= 1
        return self._ask(ScoreTokens(self._whole[: self._exact]))

    # --- holding --------------------------------------------------------------------------------

    def _go_on(self) -> list[Delta]:
        if self._native_turn is not None:
            return self._read_own(self._native_turn)
        deltas: list[Delta] = []
        while not self.closing:
            held = self._object
            if held is None:
                if not self._find_message(deltas):
                    break
                continue
            held.feed(self._whole[self._begin + len(held.text) :])
            self.tool = held.name
            if held.is_whole and held.tentative_violation is not None:
                # Whether the rules read the turn up to there, and its calls are valid:
                taken = self._read_well(self._whole[self._prefix : self._begin + held.end])
                calls = judge(taken, self._tools) if taken is not None else ()
                held.judge(taken is not None and not any(call.error for call in calls))
            if held.violation is not None:
                self.violation = held.violation.kind
                if held.answer_end >= 0 and len(self.mends) < MAX_QUOTES:
                    self._escape(self._begin + held.answer_end)
                    continue
                deltas += self._misfit(held.violation.kind, self._begin + held.violation.boundary)
                break
            self._read_on(self._begin + held.settled_end, deltas)
            if not held.complete:
                break
            self._object = None
            self._messages += 1
            self._text_after = self._begin + held.end
        return deltas

    def _read_on(self, upto: int, deltas: list[Delta]) -> None:
        """Let the reader have the text up to there: it will stand."""
        if upto > self._fed:
            deltas += self._reader.feed(self._whole[self._fed : upto])
            self._fed = upto
        if self._reader.done and (self._object is None or self._object.complete):
            self.closing = True

    def _find_message(self, deltas: list[Delta]) -> bool:
        """Read on to where a message begins that is held; False where none does yet."""
        text = self._whole
        if self._free:
            self._read_on(len(text), deltas)
            return False
        if not self._fed and text[:1] == "{" and text[-1] in "}\n":
            self._take_line(text, deltas)
        if self._line is not None and not text[self._text_after :].strip():
            return False
        if self._guided and self._messages and opening(self._rules.style):
            behind = self._rest_reader.read_to_call(text[self._text_after :])
            if (own := behind.call_begin) is not None:
                self._read_on(self._text_after + own, deltas)
                if not self.closing:
                    deltas += self._restart_call(self._text_after + own)
                return False
            if not (behind.done or behind.in_object or behind.in_prose):
                return False  # a call may begin there
        while self._fed < len(text) and not self.closing:
            part = (_TO_TOKEN if self._reader.in_object else _TO_OBJECT).match(text, self._fed)
            self._read_on(part.end() if part else len(text), deltas)
            opened = None if self.closing else self._reader.open_message
            if opened is not None and self._may_hold(opened[1]):
                self._hold(opened[0])
                return True
        return False

    def _may_hold(self, mark: str | None) -> bool:
        """Return whether a message is held whose dialect has this mark.

        The mark of a line of the protocol is None.
        """
        self._dialect = self._bare if mark == "" else JSON_DIALECTS.get(mark or "")
        if mark is None:
            return True
        return self._dialect is not None and self._rules.tool_choice != "none"

    def _take_line(self, text: str, deltas: list[Delta]) -> None:
        """Take a turn that is one clean line of the protocol and plainly fits.

        Most are, and no more has to be known of them.
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
        self._line = reading
        self.tool = message.name if isinstance(message, ToolCall) else ""
        self._messages, self._text_after = 1, len(text)
        self._fed = len(text)
        self.closing = isinstance(message, FinalAnswer) or self._rules.max_calls == 1

    def _hold(self, begin: int) -> None:
        """Hold the object that begins there; the rest is free if it has no form."""
        rules = self._rules
        form = message_schema(self._dialect, rules.tool_choice, self._tools, rules.result)
        if form is None:
            self._free = True
        else:
            self._begin, self._object = begin, ConstrainedObject(form)

    def _has_message(self) -> bool:
        reading = read(self.text, "stop", self._rules)
        return bool(reading.messages) and not reading.bare_text

    # --- mending --------------------------------------------------------------------------------

    def _misfit(self, kind: MendKind, boundary: int) -> list[Delta]:
        rest = self._whole[boundary:].lstrip('"')
        if self._guided and self._rest_reader.read(rest).call_begin is not None:
            # The model begins a call in a form of its own: so it is read.
            return self._take_whole(self._whole[boundary:].lstrip('" \t\r\n'))
        if self._begins_own(kind, boundary):
            self._native_turn = NativeTurn(kind, boundary, self._rules)
            return self._read_own(self._native_turn)
        return self._mend_misfit(kind, boundary)

    def _begins_own(self, kind: MendKind, boundary: int) -> bool:
        """Return whether the model may have begun its turn in a form of its own."""
        if not self._prefix or boundary > self._prefix or self._messages:
            return False
        return kind != "name" or not continues_opening(self.text, self.prefix)

    def _read_own(self, native: NativeTurn) -> list[Delta]:
        """Read on in what may be the model's own form; mend it once it cannot be."""
        continues = continues_opening(self.text, self.prefix)
        if self._free and continues:
            return self._give_own_up(native)
        native.feed(self.text)
        for index, reading in native.readings():
            if is_valid_turn(reading, self._tools, self._rules):
                return self._take_own(index, is_whole=isinstance(reading.messages[0], FinalAnswer))
        is_head = continues or self._first is not None
        longest = MAX_HEAD_CHARS if is_head else MAX_PROSE_CHARS
        is_long = native.own_reader.speech_chars >= longest
        if is_long and not any(name in self.text for name in self._tools):
            return self._give_own_up(native)
        ends_at_once = native.own_reader.in_prose and is_scrap(self.text)
        return self._give_own_up(native) if native.is_decided or ends_at_once else []

    def _end_own(self, native: NativeTurn) -> list[Delta]:
        """End the text: take it in the model's own form, or mend it."""
        for index, reading in native.readings(is_end=True):
            if is_valid_turn(reading, self._tools, self._rules):
                return self._take_own(index, is_whole=True) + self.close("stop")
        deltas = self._give_own_up(native)
        return deltas + self.close("stop") if self._free else deltas

    def _take_own(self, index: int, *, is_whole: bool) -> list[Delta]:
        """Let the turn be what the model wrote; ``index`` 0: with what the host began.

        ``is_whole``: no more calls can follow, which would be held.
        """
        self._native_turn = None
        if index:
            self._restart(self.text.lstrip())
        if is_whole or not index:
            self._object, self._free = None, True
        return self._go_on()

    def _give_own_up(self, native: NativeTurn) -> list[Delta]:
        self._native_turn = None
        return self._go_on() if self._free else self._mend_misfit(native.kind, native.boundary)

    def _mend_misfit(self, kind: MendKind, boundary: int) -> list[Delta]:
        if kind == "envelope" and self._dialect is not None:
            other = _OTHER_KEY.match(self._whole, boundary)
            if other is not None and other[1] != self._dialect.name_key:
                self._object, self._free = None, True  # a form that nothing is held to
                return self._go_on()
        if kind == "name":
            is_data = self._dialect is not None and self._dialect is self._bare
            is_data = is_data and self._rules.tool_choice == "auto"  # an answer may be JSON too
            name = _NAME.match(self._whole, boundary)
            if self._renamed and not (is_data or self._messages) and name is not None:
                self.tool, deltas = name[1], self.close(None)  # nothing that followed could count
                self.reading = Reading(error=unknown_tool(self.tool, self._tools))
                return deltas
            if self._renamed or is_data:  # validation tells the model that there is no such
                self._object, self._free = None, True
                return self._go_on()
            self._renamed = True
            key = _TYPE_KEY.search(self._whole, self._begin)  # where call or answer is chosen
            free = self._rules.tool_choice == "auto"
            boundary = key.end() if key is not None and free and key.end() < boundary else boundary
        return self._mend(kind, boundary)

    def _take_whole(self, text: str) -> list[Delta]:
        """Take the turn for what the model wrote, without what the host began it with."""
        self._restart(text)
        return self._go_on()

    def _without_opening(self) -> list[Delta]:
        """Take the turn for what the model wrote first.

        If that has not ended the model writes on, without what the host began the turn with.
        """
        first, ended = (self._first or "")[self._prefix :].lstrip(), self._first_ended
        if ended is not None:
            return [*self._take_whole(first), *self.close(ended)]
        self._restart()
        return self._ask(SampleTokens(""))

    def _escape(self, quote: int) -> None:
        """Escape a quote within an answer's text that seemed to end it, and read on."""
        if self._first is None:
            self._first = self._whole
        cut = max((e for e in self._edges if e <= quote), default=self._drawn_from)
        put = "\\" + self._whole[quote:]
        self._note("quote", quote, cut, put, None)
        self._go_on_from(quote, put)

    def _mend(self, kind: MendKind, boundary: int) -> list[Delta]:
        """Go on from ``boundary``: what stands after it does not fit."""
        boundary = max(boundary, self._prefix)
        if not self._may_mend(kind, boundary):
            return self._give_up()
        forced = self._forced()
        # What must stand has to be more than the beginning of a value that the model has to choose:
        # left to itself, it would go on with the one that did not fit.
        if kind in ("name", "value") and self._is_open(forced):
            forced = ""
        if forced:
            return self._insert(forced)
        return self._ask(ScoreTokens(self._whole[: self._edge(boundary)]))

    def _edge(self, boundary: int) -> int:
        """Return the last edge of a token that is known before ``boundary``.

        A piece that is longer than any token tells of none.
        """
        edge = max((e for e in self._edges if e <= boundary), default=boundary)
        close = boundary - edge <= MAX_TOKEN_CHARS and boundary != self._exact
        return edge if close else boundary

    def _may_mend(self, kind: MendKind, boundary: int) -> bool:
        if self._first is None:
            self._first, self._first_ended = self._whole, self._end_reason
        self._open = kind, boundary
        return self._request_count < MAX_MENDS

    def _begin_cut_out(self, *, is_call: bool) -> list[Delta]:
        """Write the opening of what the server kept to itself, after what it let through."""
        self._was_cut_out = True
        begun = self._call_opening() if is_call else opening(self._rules.style)
        if self._object is not None and begun.startswith(self._rules.prefix):
            self._open = ("envelope", self._prefix)
            return self._insert(begun[self._prefix :])
        line = "" if not self.text or self._whole.endswith("\n") else "\n"
        self._open = ("envelope", len(self._whole))
        return self._insert(line + begun)

    def _restart_call(self, offset: int) -> list[Delta]:
        """Begin a call in the asked form that the model begins in another."""
        if not self._may_mend("envelope", offset):
            return self._give_up()
        line = "" if self._whole[:offset].endswith("\n") else "\n"
        return self._insert(line + self._call_opening())

    def _call_opening(self) -> str:
        return forcing_prefix(self._rules.style, "required", self._rules.call)

    def _is_open(self, text_after: str) -> bool:
        """Return whether ``text_after``, at the mended place, leaves a key or value open."""
        assert self._open is not None
        text = self._whole[self._begin : self._open[1]] + text_after
        return self._object is not None and self._object.retried(text).is_open

    def _forced_after(self, token: str) -> str:
        """Return the text that must follow the model's ``token``.

        It is empty in a value that the token only begins, for the model may have begun another:
        ``o`` of ``off``, ``1`` of ``15``.
        """
        return "" if self._is_open(token) else self._forced(token)

    def _forced(self, text_after: str = "") -> str:
        """Return what must stand at the place that is mended, after ``text_after``."""
        assert self._open is not None
        if self._object is None:
            return ""
        text = self._whole[self._begin : self._open[1]] + text_after
        held = self._object.retried(text)
        return "" if held.violation is not None or held.complete else held.forced()

    def _insert(self, replacement: str, alternatives: Alternatives | None = None) -> list[Delta]:
        """Mend the open place with ``replacement``, and go on from there."""
        assert self._open is not None
        (kind, boundary), self._open = self._open, None
        edge = self._edge(boundary)
        if replacement and self._whole[:boundary] + replacement in self._finished:
            # mlx_lm.server dies of what it ended by itself: the rest is held to.
            replacement = replacement[:-1]
        self._note(kind, boundary, max(edge, self._drawn_from), replacement, alternatives)
        self._request_count += 1
        self._end_reason = None
        self._go_on_from(boundary, replacement)
        self.closing = False
        sent = self._sent_counts[self._whole]
        if sent and replacement and alternatives:  # it leads where it led before
            self._open = kind, len(self._whole)
            is_spent = self._request_count >= MAX_MENDS
            return self._give_up() if is_spent else self._ask(ScoreTokens(self._whole))
        if not replacement and not self.text and self._guided and kind in ("envelope", "end"):
            return self._without_opening()  # the model writes no message
        draw = SampleTokens(self._whole, attempt=sent + (not replacement))
        if sent >= MAX_SENT or self._request_count > MAX_MENDS or self._whole in self._finished:
            return self._give_up()
        was_held = self._object is not None
        self._ask(draw)
        deltas = self._go_on() if replacement else []
        is_whole = was_held and self._object is None and not self._free
        if self.pending_request is draw and (self.closing or is_whole):
            deltas += self.close(None)  # no request asks for another call
        return deltas

    def _go_on_from(self, boundary: int, replacement: str) -> None:
        """Let ``replacement`` stand after the boundary; the reader has had nothing of it."""
        self._whole = self._whole[:boundary] + replacement
        self._drawn_from = len(self._whole)
        self._edges = [self._drawn_from]
        if self._fed > boundary:
            self.restarts += 1
            self.__dict__.pop("_reader", None)
            self._fed = boundary
        if self._object is not None:
            self._object = self._object.retried()

    def _note(
        self,
        kind: MendKind,
        offset: int,
        cut: int,
        replacement: str,
        alternatives: Alternatives | None,
    ) -> None:
        """Record a mend; the rejected text is noted in two pieces, cut at ``cut``."""
        drawn = self._whole[self._drawn_from : cut], self._whole[cut:]
        has_scores = alternatives is not None
        scores = tuple({"token": token, "logprob": score} for token, score in alternatives or ())
        self.mends.append(
            MendRecord(
                turn=self._number,
                kind=kind,
                message=self._messages,
                kept_chars=offset - self._prefix,
                rejected_pieces=tuple(filter(None, drawn)),
                finish_reason=self._end_reason,
                alternatives=scores if has_scores else None,
                replacement=replacement,
                scored_text=self._scored_text if has_scores else "",
                after_text=has_scores and self._exact == offset,
            )
        )

    def _give_up(self) -> list[Delta]:
        """Let the turn be what the model wrote first, read by the rules alone."""
        self.unfilled = self._free = True
        self.restarts += 1
        self.mends, self._remaining = [], 0  # they led nowhere
        self._object = self._open = None
        self._go_on_from(self._prefix, (self._first or self._whole)[self._prefix :])
        self._read_on(len(self._whole), [])
        if self._reader.open_message is None and self._has_message():
            return self.close(self._first_ended)  # no request asks for another call
        is_sent = self._sent_counts[self._whole] >= MAX_SENT
        if self.closing or self._first_ended is not None or is_sent:
            return self.close(self._first_ended)
        return self._ask(SampleTokens(self._whole))

    # --- the end --------------------------------------------------------------------------------

    def _read_well(self, text: str) -> Reading | None:
        reading = read(text, "stop", self._rules)
        faulty = reading.error is not None or reading.bare_text or not reading.messages
        return None if faulty else reading

    def _ask(self, due: SampleTokens | ScoreTokens) -> list[Delta]:
        self.pending_request = due
        if isinstance(due, ScoreTokens) and self._sent_counts[due.text] >= MAX_SENT:
            return self.take_scores([])
        self._sent_counts[due.text] += 1
        if isinstance(due, SampleTokens):
            self._end_reason = None
            if due.text != self._rules.prefix:
                self._gone_on_from = due.text
                self._held_back = "" if due.text and self._object is not None else None
        return []
