"""The rules that reading takes, what it gathers, and the `Reading` and deltas that it gives."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

import msgspec
from msgspec import Struct

from mlx_tools.errors import ErrorCode
from mlx_tools.messages import ErrorInfo, FinalAnswer, FinishReason, Message, ToolCall, replace
from mlx_tools.messages import Style as Style
from mlx_tools.protocol.delimiters import (
    AFTER_MESSAGES,
    ANSWER_TAG,
    CALL_TAG,
    WHITE,
    Marks,
    Wrapping,
    wrapping_end,
)
from mlx_tools.protocol.source import TextSource
from mlx_tools.protocol.strict import encodable, loose_name

DEFAULT_REASONING_MARKERS: Final[tuple[tuple[str, str], ...]] = (
    ("<think>", "</think>"),  # DeepSeek-R1, Qwen3, QwQ, SmolLM3, GLM-4.5, Phi-4-reasoning
    ("<thinking>", "</thinking>"),  # many fine-tunes
    ("<thought>", "</thought>"),  # EXAONE Deep
    ("<reasoning>", "</reasoning>"),  # DeepHermes and other fine-tunes
    ("<longcat_think>", "</longcat_think>"),  # LongCat
    ("<seed:think>", "</seed:think>"),  # Seed-OSS
    ("<|think:start|>", "<|think:end|>"),  # known to mlx-lm's tokenizer wrapper
    ("<|open|>think<|sep|>", "<|close|>think<|sep|>"),  # likewise
    ("<mm:think>", "</mm:think>"),  # MiniMax M3
    ("<|channel>thought", "<channel|>"),  # Gemma 4
    ("<|channel|>analysis<|message|>", "<|channel|>final<|message|>"),  # gpt-oss
    ("<|START_THINKING|>", "<|END_THINKING|>"),  # Command A
    ("[THINK]", "[/THINK]"),  # Magistral
    ("◁think▷", "◁/think▷"),  # Kimi
)
"""What opens and closes a thought in the text of well-known models (reading rule 2)."""


def _changes_things(name: str, arguments: Mapping[str, Any]) -> bool:
    return True


class ReadingRules(Struct, frozen=True, kw_only=True):
    """The rules by which one completion is read.

    ``prefix`` is what the host wrote at the start of the model's turn; it is read together with
    the text. ``in_thought`` says that the prompt left a thought open. With ``max_calls`` (1 or
    more) reading stops at the last brace of that call. ``tool_choice`` is ``auto``, ``none``,
    ``required`` or a tool's name; with the last two an answer is no answer. ``mutates`` says
    whether a call can change things: only where it cannot are missing closers added (rule 7).
    ``catalog`` holds the tools' names, each with its parameters' schema: where it is empty, no
    dialect is a call (rule 8a). ``native`` are the opening marks of dialects that stand in the
    model's own template, so that a call in one needs no repair; an empty one stands for bare
    objects. ``call`` is how a call begins in the style ``native``: up to its name, and between that
    and the arguments. ``ends`` are what ends a turn in
    its chat format: tokens, and what the next turn opens with; one that begins with a newline
    counts at the start of a line (rule 8c). ``parted``: the model's server told calls from speech,
    so what is said before a call takes nothing from it (rule 9). ``result`` is the tool of the
    catalog whose call is the answer (`mlx_tools.protocol.result`), empty where there is none.
    """

    style: Style = "jsonl"
    prefix: str = ""
    in_thought: bool = False
    reasoning_markers: tuple[tuple[str, str], ...] = DEFAULT_REASONING_MARKERS
    max_calls: int | None = None
    tool_choice: str = "auto"
    mutates: Callable[[str, Mapping[str, Any]], bool] = _changes_things
    catalog: Mapping[str, Mapping[str, Any]] = msgspec.field(default_factory=dict)
    native: frozenset[str] = frozenset()
    call: tuple[str, str] = ("", "")
    ends: tuple[str, ...] = ()
    parted: bool = False
    result: str = ""


class Reading(Struct, frozen=True, kw_only=True):
    """The reading of a completion: messages, and at most one error.

    ``bare_text``: the one message is prose that was taken as the answer. ``commentary`` is prose
    before the messages; ``dropped`` what followed them, what the model wrote in the host's name,
    and unknown keys. ``counted`` is what goes on in the prompt, of prefix and text: up to the end
    of the last message, its closing fence or tag included, without reasoning and forgeries; all of
    it where there is no message. ``clean``: nothing stood beside the messages (rule 9).
    ``truncated``: the answer was cut off by ``length``. ``call_like``: the error is that a text
    looks like a call and could not be read as one (rule 8b).
    """

    messages: tuple[Message, ...] = ()
    bare_text: bool = False
    commentary: str = ""
    reasoning: str = ""
    dropped: tuple[str, ...] = ()
    error: ErrorInfo | None = None
    counted: str = ""
    clean: bool = False
    truncated: bool = False
    call_like: bool = False


_LOOP_SHOWN: Final = 400
"""Characters of a text that repeats itself that the model sees again: enough to know it by."""

_CUT_SHOWN: Final = 2_000
"""Characters of a call that was cut off that the model sees again: it writes the call anew, and the
whole of this one may have taken what the context had left."""


def as_repetition(reading: Reading) -> Reading:
    """Return the reading of a text that was ended since it repeated itself: if it was cut off, that
    is why. Only its beginning goes on in the prompt: a model that sees a loop goes on with it."""
    if reading.error is None or reading.error.code != "truncated_output":
        return reading
    error = ErrorInfo("repetition", "the same text came over and over, so it was stopped")
    return replace(reading, error=error, counted=reading.counted[:_LOOP_SHOWN])


def with_mended(reading: Reading, mended: Sequence[int]) -> Reading:
    """``reading`` with the repair ``mended`` on the messages of these numbers, from 0."""
    if not mended:
        return reading
    messages = tuple(
        replace(message, repairs=(*message.repairs, "mended")) if number in mended else message
        for number, message in enumerate(reading.messages)
    )
    return replace(reading, messages=messages)


class AnswerDelta(Struct, frozen=True):
    """More of the answer's text, decoded."""

    text: str


class ThoughtDelta(Struct, frozen=True):
    """More of what the model thinks before it speaks."""

    text: str


class CallStarted(Struct, frozen=True):
    """A call's name is known; ``index`` is its place among the calls of this completion."""

    index: int
    name: str


class ArgumentsDelta(Struct, frozen=True):
    """More of a call's arguments, as the model wrote them."""

    index: int
    text: str


Place = Literal["answer", "thought", "call"]
"""Where a text stands while it is written: prose counts as an answer."""

Delta = AnswerDelta | ThoughtDelta | CallStarted | ArgumentsDelta


# --- what a reader has gathered so far, and the `Reading` that comes of it ----------------------

_NAME: Final = r"[A-Za-z0-9_.-]++"
_BRACKETS: Final = re.compile(
    rf"(?:(?<![A-Za-z0-9_.-])({_NAME}))?(\()|(\))[ \t\]}};.]*+\r?(\n|\Z)?"
)
_ACTION: Final = re.compile(rf"^[ \t]*+Action:[ \t]*+({_NAME})[ \t\r]*+$", re.MULTILINE)
_MEMBER: Final = re.compile(
    rf"[{{,][ \t\r\n]*+[\"']?(?:name|tool|tool_name|function|action)[\"']?[ \t\r\n]*+:"
    rf"[ \t\r\n]*+[\"']({_NAME})[\"']"
)
_FENCED: Final = re.compile(
    r"^[ \t]*+(`{3,}+|~{3,}+)[^\n]*(?P<inside>(?:\n(?![ \t]*+\1)[^\n]*)*)(?:\n[^\n]*)?",
    re.MULTILINE,
)
_INLINE_CODE: Final = re.compile(r"(`++)(?:[^\n]*?(?<!`)\1(?!`)|[^\n]*)")


def looks_like_call(prose: str, names: Collection[str]) -> bool:
    """Return whether a tool of this name is called in ``prose``, outside code and fences.

    That is a name whose bracket closes at its line's end, an ``Action:``, or an object with the
    name under a key for it. Where the fence is all there is, what stands in it counts.
    """
    if not names:
        return False
    known = {loose_name(name) for name in names}
    text = _INLINE_CODE.sub("", _FENCED.sub("", prose))
    if not text.strip():
        text = "".join(found["inside"] for found in _FENCED.finditer(prose))
    found = [*_ACTION.findall(text), *_MEMBER.findall(text)]
    return any(loose_name(name) in known for name in found) or _is_called(text, known)


_CALL_BEGUN: Final = re.compile(
    rf"(?<![A-Za-z0-9_.-])({_NAME})\(|^[ \t]*+Action:|"
    rf"[\"'](?:name|tool|tool_name|function|action)[\"']?[ \t\r\n]*+:",
    re.MULTILINE,
)


def may_look_like_call(prose: str, names: Collection[str]) -> bool:
    """Return whether what is said so far may go on to look like a call (`looks_like_call`)."""
    known = {loose_name(name) for name in names}
    found = _CALL_BEGUN.finditer(prose)
    return any(one[1] is None or loose_name(one[1]) in known for one in found)


def _is_called(text: str, known: Collection[str]) -> bool:
    opened: list[bool] = []
    for found in _BRACKETS.finditer(text):
        name, opening, _, end = found.groups()
        if opening:
            opened.append(bool(name) and loose_name(name) in known)
        elif opened and opened.pop() and end is not None:
            return True
    return False


_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_SURPLUS: Final = f"{WHITE}}}],"
"""What stands behind an object that was closed more than once; no answer."""

_TAGGED_ANSWER: Final = re.compile(r"<final_answer>(.*?)(?:</final_answer>)?", re.DOTALL)


def writable(text: str) -> str:
    """``text`` with U+FFFD for lone surrogates, which cannot be written as UTF-8."""
    return text if encodable(text) else _SURROGATE.sub("�", text)


class Alias(NamedTuple):
    """A call in another protocol's form, and where it stands."""

    call: ToolCall
    typed: bool
    dropped: tuple[str, ...]
    begin: int
    end: int
    wrapping: Wrapping


@dataclass(slots=True, eq=False)
class Draft:
    """What was found in the text that ``source`` holds; places are those in it.

    ``begin`` and ``end`` are those of the messages, wrapping before them included. ``stop`` is
    where reading ended, -1 before that: what follows is dropped.
    """

    source: TextSource
    stop: int = -1
    messages: list[Message] = field(default_factory=list)
    begin: int = 0
    end: int = 0
    wrapping: Wrapping = field(default_factory=Wrapping)
    aliases: list[Alias] = field(default_factory=list)
    only_aliases: bool = True  # nothing but aliases and their wrapping so far
    dropped: list[str] = field(default_factory=list)
    error: ErrorInfo | None = None
    quoted: ErrorInfo | None = None  # an error unless messages follow
    unclean: bool = False
    bullet: bool = False  # a bullet stands right before what comes next
    ended: bool = False  # the turn ends where reading did
    call_like: bool = False
    cut_answer: bool = False
    wrapping_may_follow: bool = False  # reading ended right after the last message
    reasoning: list[str] = field(default_factory=list)
    _thoughts: list[tuple[int, int]] = field(default_factory=list)  # their marks included
    forged: list[tuple[int, int]] = field(default_factory=list)
    _thought_chars: int = 0

    @property
    def size(self) -> int:
        """The number of characters read so far, without thoughts."""
        return self.source.pos - self._thought_chars

    def said(self, begin: int, end: int, *, forged: bool = False) -> str:
        """The text from ``begin`` to ``end`` without thoughts, and without what the model wrote in
        the host's name unless ``forged``."""
        left_out = self._thoughts if forged else sorted(self._thoughts + self.forged)
        parts = []
        for first, last in left_out:
            if begin <= first < end:
                parts.append(self.source.text[begin:first])
                begin = last
        return "".join((*parts, self.source.text[begin:end]))

    def fail(self, code: ErrorCode, message: str) -> None:
        """The error of this reading. The first counts."""
        if self.error is None:
            self.error = ErrorInfo(code, message[:500])

    def cut(self, begin: int) -> None:
        """The text was cut off in what begins there: an error, and a run of calls runs none."""
        self._withdraw("truncated_output", "the output was cut off", begin)

    def _withdraw(self, code: ErrorCode, message: str, begin: int) -> None:
        """The messages, and what begins there, do not count: an error."""
        self.stop = self.begin if self.messages else begin
        self.wrapping_may_follow = False
        self.messages.clear()
        self.aliases.clear()
        self.fail(code, message)

    def void_aliases(self) -> bool:
        """Something else stands beside the aliases: they were prose. False if that is an error."""
        self.only_aliases = False
        typed = any(alias.typed for alias in self.aliases)
        self.aliases.clear()
        if typed:
            self.fail("invalid_arguments", "arguments: an object")
        return not typed

    def leave_out(self, begin: int) -> None:
        """The text from there on is no speech: a thought, or what precedes a message."""
        self._thoughts.append((begin, self.source.pos))
        self._thought_chars += self.source.pos - begin

    def forge(self, begin: int) -> None:
        """The text from there on was written in the host's name."""
        self.forged.append((begin, self.source.pos))
        self.dropped.append(self.source.text[begin : self.source.pos].strip())

    def add(
        self, message: Message, begin: int, wrapping: Wrapping, dropped: Sequence[str] = ()
    ) -> None:
        """A message that ends where the text is read now."""
        if not self.messages:
            self.begin = begin
        self.messages.append(message)
        self.end = self.source.pos
        self.wrapping = wrapping
        self.dropped += dropped
        self.unclean = self.unclean or self.bullet or bool(dropped)
        self.bullet = False

    def forget(self, end: int) -> None:
        """All up to there turns out to be the end of a thought that was open in the prompt."""
        thought = self.said(0, end, forged=True)
        self.reasoning.append(thought)
        self.unclean = self.unclean or bool(thought.strip(WHITE))
        self.aliases, self.only_aliases, self.quoted = [], True, None
        self._thoughts, self.forged, self._thought_chars = [], [], 0
        self.leave_out(0)

    # --- the result ---

    def reading(self, rules: ReadingRules, reason: FinishReason, marks: Marks) -> Reading:
        """The reading of all that was gathered."""
        if self.stop < 0:
            self.stop = self.source.pos
        if not self.messages and self.error is None:
            self._take_aliases(rules.max_calls, own="" in rules.native)
        is_answer = bool(self.messages) and isinstance(self.messages[0], FinalAnswer)
        if is_answer and rules.tool_choice not in ("auto", "none"):
            self._withdraw("not_allowed", "a tool_call is required", self.begin)
        size = len(self.source.text)
        rest = self.said(self.stop, size, forged=True)
        leftover = self._leftover(rest, marks) if rest else ""
        bare = False
        if not self.messages and self.error is None:
            self.error = self.quoted
        if not self.messages and self.error is None:
            bare = self._take_prose(rules, reason)
        if self.messages and not bare:
            commentary = self.said(0, self.begin)
            after = self.said(self.end, size, forged=True)
            counted = self.said(0, self.end) + after[: wrapping_end(after, 0, self.wrapping)]
        else:
            counted = self.said(0, self.stop)
            commentary = "" if bare else counted
            counted += "" if self.ended else without_thoughts(rest, marks)
        dropped = (*self.dropped, *((leftover,) if leftover else ()))
        commentary = commentary.strip(WHITE)
        thoughts = filter(None, map(str.strip, self.reasoning))
        said = commentary and not rules.parted
        beside = (
            bare or said or dropped or self.unclean or self.cut_answer or reason == "tool_calls"
        )
        if self.error is not None and self.error.code == "truncated_output":
            counted = counted[:_CUT_SHOWN]
        return Reading(
            messages=tuple(self.messages),
            bare_text=bare,
            commentary=writable(commentary),
            reasoning=writable("\n".join(thoughts)),
            dropped=tuple(map(writable, dropped)),
            error=self.error,
            counted=writable(counted),
            clean=bool(self.messages) and self.error is None and not beside,
            truncated=self.cut_answer or (bare and reason == "length" and not self.ended),
            call_like=self.call_like and self.error is not None,
        )

    def _take_aliases(self, most: int | None, *, own: bool) -> None:
        """Aliases count where they are the whole output (rule 7); ``own``: they are the form in
        which the model's own template has it call."""
        if not self.only_aliases:
            return
        for number, alias in enumerate(self.aliases):
            if most is not None and number >= most:
                self.dropped.append(self.said(self.end, self.stop, forged=True).strip())
                break
            if not self.messages:
                self.begin = alias.begin
            repairs = alias.call.repairs
            if own:
                repairs = tuple(one for one in repairs if one != "envelope_alias")
            self.messages.append(replace(alias.call, repairs=repairs))
            self.end, self.wrapping = alias.end, alias.wrapping
            self.dropped += alias.dropped
            self.unclean = self.unclean or bool(alias.dropped)

    def _leftover(self, rest: str, marks: Marks) -> str:
        """Return what of the text after the messages is more than their wrapping."""
        pos = 0
        array = self.wrapping.array
        while self.wrapping_may_follow:
            found = AFTER_MESSAGES.match(rest, pos)
            pos = found.end() if found else pos
            if rest.startswith(",", pos):
                self.unclean = True
            elif not (array and rest.startswith("]", pos)):
                break
            else:
                array = False
            pos += 1
        if ending := marks.turn_end.match(rest, pos):
            pos = ending.end()
        return rest[pos:].strip(WHITE)

    def _take_prose(self, rules: ReadingRules, reason: FinishReason) -> bool:
        """Prose alone is the answer (rule 11), unless there are reasons against it."""
        prose = self.said(0, self.stop).strip()
        if reason == "tool_calls":
            self.fail("invalid_json", "the model used its own tool-call markers")
        elif self.forged and not prose.strip(_SURPLUS):
            self.fail("invalid_json", "a tool_observation is the host's to write")
        elif not prose:
            self.fail("invalid_json", "the output is empty")
        elif _ends_in_tag(prose, rules.style) or (reason == "length" and _is_wrapping(prose)):
            self.fail("truncated_output", "the output ends before a message began")
        elif _is_wrapping(prose):
            self.fail("invalid_json", "the output is empty")
        elif rules.tool_choice not in ("auto", "none"):
            self.fail("invalid_json", "a tool_call is required")
        elif not encodable(prose):
            self.fail("invalid_json", "the text holds half of a surrogate pair")
        elif looks_like_call(prose, rules.catalog):
            self.fail("invalid_json", "the text looks like a call, and is none")
            self.call_like = True
        else:
            tagged = _TAGGED_ANSWER.fullmatch(prose)
            self.messages.append(FinalAnswer(tagged[1].strip() if tagged else prose))
            return True
        return False


def _is_wrapping(prose: str) -> bool:
    found = AFTER_MESSAGES.match(prose)
    return not prose.strip("`~") or (found is not None and found.end() == len(prose))


def _ends_in_tag(prose: str, style: Style) -> bool:
    """Return whether the last line is a call's tag and nothing more, or the beginning of a tag."""
    last = prose[prose.rfind("\n") + 1 :].lstrip()
    if style == "xml" and ANSWER_TAG.startswith(last):
        return True
    return last == CALL_TAG or (style == "xml" and CALL_TAG.startswith(last))


def without_thoughts(text: str, marks: Marks) -> str:
    """``text`` without the thoughts in it; one that is open goes to the end."""
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
