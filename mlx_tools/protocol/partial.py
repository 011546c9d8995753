"""The parts that a reader has collected, and the `Reading` made of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from mlx_tools.errors import ErrorCode
from mlx_tools.messages import ErrorInfo, FinalAnswer, FinishReason, Message
from mlx_tools.parsing import WHITE, TextSource, encodable, writable
from mlx_tools.protocol.answer import find_answer
from mlx_tools.protocol.catalog import ToolCatalog
from mlx_tools.protocol.delimiters import (
    AFTER_MESSAGES,
    ANSWER_TAG,
    CALL_TAG,
    Marks,
    Wrapping,
    wrapping_end,
)
from mlx_tools.protocol.reading import Reading, ReadingRules, Style
from mlx_tools.protocol.unmarked import ProseJudge, ProseJudgement

_MAX_CUT_CHARS: Final = 2_000
"""Characters of a call that was cut off that the model sees again. It writes the call again, and
the whole of this one may have filled the context."""

_EXTRA_CLOSERS: Final = f"{WHITE}}}],"
"""Text after an object that was closed more than once; it is no answer."""


@dataclass(slots=True, eq=False)
class PartialReading:
    """The parts found in the text of ``source``, with places in that text.

    ``begin`` and ``end`` are those of the messages, with the wrapping before them. ``stop`` is
    where reading ended, -1 before that; later text is dropped.
    """

    source: TextSource
    catalog: ToolCatalog
    stop: int = -1
    messages: list[Message] = field(default_factory=list)
    begin: int = 0
    end: int = 0
    wrapping: Wrapping = field(default_factory=Wrapping)
    dropped: list[str] = field(default_factory=list)
    error: ErrorInfo | None = None
    quoted: ErrorInfo | None = None  # an error unless messages follow
    quoted_at: int = 0  # the place of a message that could not be read
    is_for_user: bool = False  # prose is for the user, by its message's header
    alias_error: ErrorInfo | None = None  # an error, unless calls in other forms are the whole text
    unclean: bool = False
    bullet: bool = False  # a bullet comes right before the next message
    is_turn_ended: bool = False  # the turn ends where reading ended
    call_like: bool = False
    cut_answer: bool = False
    wrapping_may_follow: bool = False  # reading ended right after the last message
    reasoning: list[str] = field(default_factory=list)
    forgotten: int = 0  # up to here the text is a thought, as a later mark showed
    _thoughts: list[tuple[int, int]] = field(default_factory=list)  # with their marks
    forged: list[tuple[int, int]] = field(default_factory=list)
    _thought_chars: int = 0

    @property
    def size(self) -> int:
        """The number of characters read so far, without thoughts."""
        return self.source.pos - self._thought_chars

    def text_between(self, begin: int, end: int, *, forged: bool = False) -> str:
        """Return the text from ``begin`` to ``end`` without thoughts.

        Text that the model wrote in the host's name is left out unless ``forged``.
        """
        left_out = self._thoughts if forged else sorted(self._thoughts + self.forged)
        parts = []
        for first, last in left_out:
            if begin <= first < end:
                parts.append(self.source.text[begin:first])
                begin = last
        return "".join((*parts, self.source.text[begin:end]))

    def fail(self, code: ErrorCode, message: str) -> None:
        """Note the error of this reading, unless it has one already."""
        if self.error is None:
            self.error = ErrorInfo(code, message[:500])

    def cut(self, begin: int) -> None:
        """Note that the text was cut off: an error, and no call of a run of calls runs."""
        self._withdraw("truncated_output", "the output was cut off", begin)

    def _withdraw(self, code: ErrorCode, message: str, begin: int) -> None:
        """Drop the messages, and the text from ``begin`` on, and note an error."""
        # The model sees the text up to the first call, and writes that call again.
        self.stop = self.begin if self.messages else begin
        self.wrapping_may_follow = False
        self.messages.clear()
        self.fail(code, message)

    def leave_out(self, begin: int) -> None:
        """Leave out the text from ``begin`` on: a thought, or what precedes a message."""
        self._thoughts.append((begin, self.source.pos))
        self._thought_chars += self.source.pos - begin

    def drop_forged(self, begin: int) -> None:
        """Drop the text from ``begin`` on: the model wrote it in the host's name."""
        self.forged.append((begin, self.source.pos))
        self.dropped.append(self.source.text[begin : self.source.pos].strip())

    def add(
        self, message: Message, begin: int, wrapping: Wrapping, dropped: Sequence[str] = ()
    ) -> None:
        """Add a message that ends at the reader's place."""
        if not self.messages:
            self.begin = begin
        self.messages.append(message)
        self.end = self.source.pos
        self.wrapping = wrapping
        self.dropped += dropped
        self.unclean = self.unclean or self.bullet or bool(dropped)
        self.bullet = False

    def forget(self, end: int) -> None:
        """Take all text up to here as a thought that was open in the prompt."""
        thought = self.text_between(0, end, forged=True)
        self.reasoning.append(thought)
        self.unclean = self.unclean or bool(thought.strip(WHITE))
        # All of it was a thought, and a thought has no faults.
        self.quoted = self.alias_error = None
        self._thoughts, self.forged, self._thought_chars = [], [], 0
        self.forgotten = self.source.pos
        self.leave_out(0)

    # --- the result ---

    def reading(
        self,
        rules: ReadingRules,
        reason: FinishReason,
        marks: Marks,
        read_inside: Callable[[str], Reading] | None,
    ) -> Reading:
        """Return the reading of all that was collected.

        ``read_inside`` reads the content of a fence; None within a fence.
        """
        if self.stop < 0:
            self.stop = self.source.pos
        may_answer = rules.tool_choice in ("auto", "none")
        is_answer = bool(self.messages) and isinstance(self.messages[0], FinalAnswer)
        if is_answer and not may_answer:
            self._withdraw("not_allowed", "a tool_call is required", self.begin)
        size = len(self.source.text)
        rest = self.text_between(self.stop, size, forged=True)
        leftover = self._leftover(rest, marks) if rest else ""
        bare, judgement = False, ProseJudgement()
        if not self.messages and self.error is None:
            judgement = self._judge_prose(rules, reason, read_inside)
            bare = not judgement.messages and self._take_prose(rules, reason, judgement)
        if judgement.messages and self.error is None:
            prose = self.text_between(0, self.stop)
            commentary = prose[: judgement.begin]
            counted = prose[: judgement.end]
        elif self.messages and not bare:
            commentary = self.text_between(0, self.begin)
            after = self.text_between(self.end, size, forged=True)
            counted = (
                self.text_between(0, self.end) + after[: wrapping_end(after, 0, self.wrapping)]
            )
        else:
            counted = self.text_between(0, self.stop)
            commentary = "" if bare else counted
            counted += "" if self.is_turn_ended else without_thoughts(rest, marks)
        dropped = (*self.dropped, *((leftover,) if leftover else ()))
        commentary = commentary.strip(WHITE)
        thoughts = filter(None, map(str.strip, self.reasoning))
        said = commentary and not rules.server_split_calls
        beside = (
            bare or said or dropped or self.unclean or self.cut_answer or reason == "tool_calls"
        )
        if self.error is not None and self.error.code == "truncated_output":
            counted = counted[:_MAX_CUT_CHARS]
        return Reading(
            messages=tuple(self.messages),
            bare_text=bare,
            commentary=writable(commentary),
            reasoning=writable("\n".join(thoughts)),
            dropped=tuple(map(writable, dropped)),
            error=self.error,
            retained_text=writable(counted),
            clean=bool(self.messages) and self.error is None and not beside,
            truncated=self.cut_answer or (bare and reason == "length" and not self.is_turn_ended),
            call_like=self.call_like and self.error is not None and may_answer,
        )

    def _judge_prose(
        self,
        rules: ReadingRules,
        reason: FinishReason,
        read_inside: Callable[[str], Reading] | None,
    ) -> ProseJudgement:
        """Judge whether the text is calls without marks, by the tools that it names."""
        prose = self.text_between(0, self.stop)
        if self.forged or self.is_for_user or not prose.strip():
            return ProseJudgement()
        judgement = ProseJudge(prose, self.catalog, rules, reason, read_inside).judgement()
        is_answer = any(isinstance(one, FinalAnswer) for one in judgement.messages)
        if is_answer and rules.tool_choice not in ("auto", "none"):
            return ProseJudgement()
        self.messages += judgement.messages
        self.dropped += judgement.dropped
        self.unclean = self.unclean or not judgement.is_alone
        return judgement

    def _leftover(self, remainder: str, marks: Marks) -> str:
        """Return the text after the messages that is more than their wrapping."""
        pos = 0
        # One bracket closes the array of the calls; another one is the model's text.
        array = self.wrapping.array
        while self.wrapping_may_follow:
            found = AFTER_MESSAGES.match(remainder, pos)
            pos = found.end() if found else pos
            if remainder.startswith(",", pos):
                self.unclean = True
            elif not (array and remainder.startswith("]", pos)):
                break
            else:
                array = False
            pos += 1
        if ending := marks.turn_end.match(remainder, pos):
            pos = ending.end()
        return remainder[pos:].strip(WHITE)

    def _ends_in_quoted(self) -> bool:
        """Return whether the unreadable object ends the prose in its line."""
        text = self.source.text
        line_end = text.find("\n", self.quoted_at) % (len(text) + 1)
        _, bracket, rest = text[self.quoted_at : line_end].rpartition("}")
        return not (bracket and any(map(str.isalnum, rest)))

    def _take_prose(
        self, rules: ReadingRules, reason: FinishReason, judgement: ProseJudgement
    ) -> bool:
        """Take prose alone as the answer (rule 11), unless there are reasons against it."""
        prose = self.text_between(0, self.stop).strip()
        if self.alias_error is not None or (self.quoted is not None and self._ends_in_quoted()):
            self.error = self.alias_error or self.quoted
        elif reason == "tool_calls":
            self.fail("invalid_json", "the model used its own tool-call markers")
        elif self.forged and not prose.strip(_EXTRA_CLOSERS):
            self.fail("invalid_json", "a tool_observation is the host's to write")
        elif not prose:
            self.fail("invalid_json", "the output is empty")
        elif _ends_in_tag(prose, rules.style) or (reason == "length" and _is_wrapping(prose)):
            self.fail("truncated_output", "the output ends before a message began")
        elif _is_wrapping(prose):
            self.fail("invalid_json", "the output is empty")
        elif judgement.error is not None:
            self.fail(judgement.error.code, judgement.error.message)
            self.call_like = judgement.is_call_like
        # This comes after a fault in the text, which the model can mend.
        elif rules.tool_choice not in ("auto", "none"):
            self.fail("invalid_json", "a tool_call is required")
        elif not encodable(prose):
            self.fail("invalid_json", "the text holds half of a surrogate pair")
        else:
            answer, thought = find_answer(prose)
            self.reasoning.append(thought)
            self.messages.append(FinalAnswer(answer))
            return True
        return False


def _is_wrapping(prose: str) -> bool:
    found = AFTER_MESSAGES.match(prose)
    return not prose.strip("`~") or (found is not None and found.end() == len(prose))


def _ends_in_tag(prose: str, style: Style) -> bool:
    """Return whether the last line is a call's tag alone, or begins a tag."""
    last = prose[prose.rfind("\n") + 1 :].lstrip()
    # The limit was reached within the tag, before any text.
    if style == "xml" and ANSWER_TAG.startswith(last):
        return True
    return last == CALL_TAG or (style == "xml" and CALL_TAG.startswith(last))


def without_thoughts(text: str, marks: Marks) -> str:
    """Return ``text`` without its thoughts; an open one goes to the end."""
    pieces = []
    pos = 0
    while found := marks.opener.search(text, pos):
        pieces.append(text[pos : found.start()])
        closer, _ = marks.closers[found[0]]
        end = text.find(closer, found.end())
        if end < 0:
            return "".join(pieces)
        pos = end + len(closer)
    return "".join((*pieces, text[pos:]))
