"""The rules of reading, and the `Reading` and deltas that it returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

from mlx_tools.messages import ErrorInfo, Message, replace
from mlx_tools.messages import Style as Style

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
"""The marks that open and close a thought in the text of well-known models (reading rule 2)."""


def _changes_things(name: str, arguments: Mapping[str, Any]) -> bool:
    return True


class ReadingRules(Struct, frozen=True, kw_only=True):
    """The rules by which one completion is read."""

    style: Style = "jsonl"
    prefix: str = ""
    """The text that the host wrote at the start of the model's turn; it is read with the rest."""
    in_thought: bool = False
    """True if the prompt left a thought open."""
    reasoning_markers: tuple[tuple[str, str], ...] = DEFAULT_REASONING_MARKERS
    max_calls: int | None = None
    """The call, from 1, at whose last brace reading stops."""
    tool_choice: str = "auto"
    """``auto``, ``none``, ``required`` or a tool's name; with the last two no answer counts."""
    mutates: Callable[[str, Mapping[str, Any]], bool] = _changes_things
    """Returns whether a call can change things; only if not, missing closers are added (rule 7)."""
    catalog: Mapping[str, Mapping[str, Any]] = msgspec.field(default_factory=dict)
    """The tools' names, each with its parameters' schema. If it is empty, no dialect is a call
    (rule 8a)."""
    native: frozenset[str] = frozenset()
    """The opening marks in the model's own template: a call in their dialects needs no repair. An
    empty mark is that of bare objects."""
    call: tuple[str, str] = ("", "")
    """The beginning of a call in the style ``native``: the text up to its name, and the text
    between name and arguments."""
    ends: tuple[str, ...] = ()
    """The texts that end a turn in its chat format: tokens, and the opening of the next turn. One
    that begins with a newline counts at the start of a line (rule 8c)."""
    server_split_calls: bool = False
    """True if the model's server separated calls from prose: prose before a call does it no harm
    (rule 9)."""
    result: str = ""
    """The tool of the catalog whose call is the answer, empty if there is none."""


class Reading(Struct, frozen=True, kw_only=True):
    """The reading of a completion: messages, and at most one error."""

    messages: tuple[Message, ...] = ()
    bare_text: bool = False
    """True if the one message is prose that was taken as the answer."""
    commentary: str = ""
    """The prose before the messages."""
    reasoning: str = ""
    dropped: tuple[str, ...] = ()
    """The text after the messages, text that the model wrote in the host's name, unknown keys."""
    error: ErrorInfo | None = None
    retained_text: str = ""
    """The part of prefix and text that stays in the prompt, without thoughts and forgeries. It goes
    up to the end of the last message with its closing fence or tag; without a message it is all."""
    clean: bool = False
    """True if there is nothing but the messages (rule 9)."""
    truncated: bool = False
    """True if the answer was cut off by ``length``."""
    call_like: bool = False
    """True if the error is that a text looks like a call and cannot be read as one (rule 8b)."""


_MAX_LOOP_CHARS: Final = 400
"""Characters of a repeating text that the model sees again: enough to recognise it."""


def as_repetition(reading: Reading) -> Reading:
    """Return the reading of a text that was ended because it repeated itself.

    A cut-off is explained by that. Only the beginning of the text goes on in the prompt: a model
    that sees a loop continues it.
    """
    if reading.error is None or reading.error.code != "truncated_output":
        return reading
    error = ErrorInfo("repetition", "the same text came over and over, so it was stopped")
    return replace(reading, error=error, retained_text=reading.retained_text[:_MAX_LOOP_CHARS])


def with_mended(reading: Reading, indices: Sequence[int]) -> Reading:
    """Return ``reading`` with the repair ``mended`` on some messages.

    ``indices`` are their numbers, from 0.
    """
    if not indices:
        return reading
    messages = tuple(
        replace(message, repairs=(*message.repairs, "mended")) if number in indices else message
        for number, message in enumerate(reading.messages)
    )
    return replace(reading, messages=messages)


class AnswerDelta(Struct, frozen=True):
    """More of the answer's text, decoded."""

    text: str


class ThoughtDelta(Struct, frozen=True):
    """More of the model's thought."""

    text: str


class CallStarted(Struct, frozen=True):
    """The name of a call; ``index`` is its place among those of the completion."""

    index: int
    name: str


class ArgumentsDelta(Struct, frozen=True):
    """More of a call's arguments, as the model wrote them."""

    index: int
    text: str


Place = Literal["answer", "thought", "call"]
"""The state of a text while it is written: prose counts as an answer."""

Delta = AnswerDelta | ThoughtDelta | CallStarted | ArgumentsDelta
