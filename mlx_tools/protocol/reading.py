"""The rules of reading, and the `Reading` and deltas that come of it."""

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
    counts at the start of a line (rule 8c). ``server_split_calls``: the model's server told calls
    from speech, so what is said before a call takes nothing from it (rule 9). ``result`` is the
    tool of the catalog whose call is the answer, empty where there is none.
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
    server_split_calls: bool = False
    result: str = ""


class Reading(Struct, frozen=True, kw_only=True):
    """The reading of a completion: messages, and at most one error.

    ``bare_text``: the one message is prose that was taken as the answer. ``commentary`` is prose
    before the messages; ``dropped`` what followed them, what the model wrote in the host's name,
    and unknown keys. ``retained_text`` is what goes on in the prompt, of prefix and text: up to the
    end of the last message, its closing fence or tag included, without reasoning and forgeries; all
    of it where there is no message. ``clean``: nothing stood beside the messages (rule 9).
    ``truncated``: the answer was cut off by ``length``. ``call_like``: the error is that a text
    looks like a call and could not be read as one (rule 8b).
    """

    messages: tuple[Message, ...] = ()
    bare_text: bool = False
    commentary: str = ""
    reasoning: str = ""
    dropped: tuple[str, ...] = ()
    error: ErrorInfo | None = None
    retained_text: str = ""
    clean: bool = False
    truncated: bool = False
    call_like: bool = False


_MAX_LOOP_CHARS: Final = 400
"""Characters of a text that repeats itself that the model sees again: enough to know it by."""


def as_repetition(reading: Reading) -> Reading:
    """Return the reading of a text that was ended since it repeated itself.

    If it was cut off, that is why. Only its beginning goes on in the prompt: a model that sees a
    loop goes on with it.
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
    """More of what the model thinks before it speaks."""

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
