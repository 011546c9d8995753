"""The reader of a completion that comes in pieces of any size."""

from __future__ import annotations

from typing import Final

from mlx_tools.messages import FinalAnswer, FinishReason, ToolCall, replace
from mlx_tools.parsing import (
    CONTROL_ESCAPE,
    WHITE,
    Unreadable,
    arguments_span,
    decode,
    writable,
)
from mlx_tools.protocol import delimiters
from mlx_tools.protocol.reading import (
    AnswerDelta,
    ArgumentsDelta,
    CallStarted,
    Delta,
    Place,
    Reading,
    ReadingRules,
)
from mlx_tools.protocol.turn import TurnReader

_DEFAULT: Final = ReadingRules()


class Reader(TurnReader):
    """Reads one completion as it comes.

    `feed` takes a piece and returns the deltas that can be shown. Once ``done``, no later text
    counts, and the stream may be closed; later text is recorded as dropped. `finish` returns the
    `Reading`; call it once. No text makes them raise.
    """

    def __init__(self, rules: ReadingRules = _DEFAULT, *, is_inside: bool = False) -> None:
        """``is_inside``: the text is the content of a fence in another text."""
        super().__init__(rules)
        self._is_inside = is_inside

    @property
    def in_object(self) -> bool:
        """True if an object is open that begins a line: it may be a message."""
        return self._open is not None and not self._open.inline

    @property
    def speech_chars(self) -> int:
        """The number of characters read so far, without thoughts."""
        return 0 if self.thought_closer else self._draft.size

    @property
    def place(self) -> Place:
        """The place at the end of the text; an object that may be prose is an ``answer``."""
        if self.thought_closer:
            return "thought"
        one = self._open
        is_call = one is not None and (
            one.tagged
            or one.scanner.type == "tool_call"
            # By its first key it may be a call in bare JSON; a sender holds such text back.
            or one.scanner.first_key in ("name", "function", "tool")
        )
        return "call" if is_call or self._run_read is not None else "answer"

    @property
    def open_message(self) -> tuple[int, str | None] | None:
        """The offset and the mark of an open object that begins a message.

        The mark is the one that opens its dialect: empty for a bare object, None for a line of the
        protocol.
        """
        if (run := self._run_read) is not None:
            here = run.object_begin, run.dialect.open
            return None if run.object_begin < 0 or self._fence else here
        if (one := self._open) is None or one.inline:
            return None
        scanner = one.scanner
        if one.tagged:
            return scanner.start, delimiters.CALL_TAG
        if scanner.type in ("tool_call", "final_answer"):
            return scanner.start, None
        is_alone = one.is_alone and not one.in_run
        is_bare = is_alone and scanner.first_key == "name" and "" in self._rules.native
        return (scanner.start, "") if is_bare else None

    @property
    def call_begin(self) -> int | None:
        """The offset of a call that is no line of the protocol; None if there is none."""
        run = self._run_begun
        if run is not None and (run.names_tool or not run.dialect.line):
            return run.begin
        opened = self.open_message
        return None if opened is None or opened[1] is None else opened[0]

    @property
    def in_prose(self) -> bool:
        """True if the text so far is prose, and no call can begin at its end."""
        draft = self._draft
        stands = self._spoken and not (self._lead or self._run_read or self._open or self.done)
        other = draft.messages or self._objects or draft.forged or draft.quoted or draft.error
        return stands and not other

    def find_prose_since(self, offset: int) -> tuple[str, int] | None:
        """Return the prose since an offset, and the offset of its end.

        None while the text is no prose, or if the text before the offset turned out to be none.
        """
        # A closing mark without an opening one makes a thought of all text before it, shown or not.
        if not self.in_prose or 0 < offset < self._draft.forgotten:
            return None
        end = max(offset, self._settled_end)
        return self._draft.text_between(offset, end), end

    @property
    def commentary(self) -> str:
        """The prose before the first message, which may still be open."""
        draft, one = self._draft, self._open
        begin = 0 if one is None else one.begin
        end = draft.begin if draft.messages else begin
        return writable(draft.text_between(0, end).strip(WHITE))

    def feed(self, piece: str) -> list[Delta]:
        """Read on; return what is known now of the answer or of calls' arguments."""
        self._push(piece)
        deltas, self._deltas = self._deltas, []
        return deltas

    def finish(self, finish_reason: FinishReason = "stop") -> Reading:
        """End the text, for this reason, and return how it was read."""
        self._source.final = True
        self._reason = finish_reason
        self._push("")
        self._draft.is_for_user = self._for_user
        read_inside = None if self._is_inside else self._read_inside
        return self._draft.reading(self._rules, finish_reason, self._marks, read_inside)

    def _read_inside(self, text: str) -> Reading:
        """Read the text in a fence."""
        # The content is read by itself: without the host's beginning and an open thought. Fences in
        # it are not read again, or each level would cost a reading.
        rules = replace(self._rules, prefix="", in_thought=False, tool_choice="auto")
        reader = Reader(rules, is_inside=True)
        reader.feed(text)
        return reader.finish(self._reason)


def read(
    text: str, finish_reason: FinishReason = "stop", rules: ReadingRules = _DEFAULT
) -> Reading:
    """Read ``rules.prefix`` and ``text`` together. Never raises, whatever the text is.

    The result is that of a `Reader` which is fed and finished, but it comes faster.
    """
    # Most outputs are one line of the protocol, and the patterns of all marks take longer to make
    # than such a line to read. With `tool_calls` the server cut text out, so the turn is never
    # clean.
    if text[:1] == "{" and finish_reason != "tool_calls" and not (rules.prefix or rules.in_thought):
        reading = read_line(text, rules)
        if reading is not None:
            return reading
    reader = Reader(rules)
    reader.feed(text)
    return reader.finish(finish_reason)


def read_line(text: str, rules: ReadingRules) -> Reading | None:
    """Read a text that is one well-formed message and nothing else, as most are.

    None for any other text.
    """
    # Such text is valid JSON, but a call with it is refused, and an answer with it is read in
    # another way (rule 7).
    if CONTROL_ESCAPE.search(text):
        return None
    try:
        value, end = decode(text)
    except Unreadable:
        return None
    message: ToolCall | FinalAnswer
    match value:
        case _ if text[end:].strip(WHITE):
            return None
        case {"type": "tool_call", "name": str(name), "arguments": dict(arguments), **more} if name:
            given = more.pop("id", None)
            if not isinstance(given, str | None):
                return None
            message = ToolCall(name, arguments, given)
        case {"type": "final_answer", "content": str(content), **more} if rules.tool_choice in (
            "auto",
            "none",
        ):
            message = FinalAnswer(content)
        case _:
            return None
    return None if more else Reading(messages=(message,), retained_text=text[:end], clean=True)


def line_deltas(reading: Reading) -> list[Delta] | None:
    """Return the deltas of a turn that `read_line` read.

    None if they cannot be told at once.
    """
    (message,) = reading.messages
    if isinstance(message, FinalAnswer):
        return [AnswerDelta(message.content)] if message.content else []
    if (span := arguments_span(reading.retained_text)) is None:
        return None
    return [CallStarted(0, message.name), ArgumentsDelta(0, reading.retained_text[slice(*span)])]
