"""The end of a run in words for a person: what happened, then what to do."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from mlx_tools.errors import StopReason
from mlx_tools.transcript.records import (
    CompletionRecord,
    CorrectionRecord,
    Record,
    StoppedRecord,
)

STOP_WORDS: Final[Mapping[StopReason, tuple[str, str]]] = MappingProxyType(
    {
        "total_timeout": (
            "the time for one question is over",
            "raise it with --timeout SECONDS, or /set total_timeout in chat",
        ),
        "completion_timeout": (
            "the server took too long for one completion",
            "see whether it is busy: mlx-tools doctor; then ask again, or /retry in chat",
        ),
        "backend_error": (
            "the model's server failed",
            "check it with mlx-tools doctor, then ask again, or /retry in chat",
        ),
        "internal_error": (
            "mlx-tools failed, which is a fault of its own",
            "please report it with the transcript; ask again, or /retry in chat",
        ),
        "interrupted": ("it was interrupted", "go on with mlx-tools ask -c, or /retry in chat"),
        "cancelled": ("it was cancelled", "ask again, or /retry in chat"),
        "context_full": (
            "the model's context is full",
            "ask for less at once, begin a new session, or /compact in chat",
        ),
        "format_errors": (
            "the model wrote nothing that could be read",
            "/retry in chat, another --style (mlx-tools doctor --probe measures which), or "
            "another model",
        ),
        "iteration_limit": (
            "it took all its steps",
            "raise it with --max-iterations, or /set max_iterations in chat",
        ),
        "repeated_call": (
            "the model made the same call three times",
            "ask in other words, or /retry in chat",
        ),
        "repetition": (
            "the model wrote the same text over and over",
            "/retry in chat, a higher --temperature, or another model",
        ),
    }
)
"""The meaning of each stop reason, and what a person can do."""

_MORE_TOKENS: Final = "raise it with --max-tokens, or /set max_tokens in chat"

_THOUGHT: Final = (
    "the model only thought and wrote no answer",
    "raise --max-tokens, or give it --reasoning off",
)


def stopped_in_words(records: Sequence[Record], *, advice: bool = True) -> str:
    """Return why a run stopped, and what to do.

    Args:
        records: those of the question, the last one a `StoppedRecord`.
        advice: say what to do, for a person at a terminal.
    """
    last = records[-1]
    assert isinstance(last, StoppedRecord)
    what, way_out = STOP_WORDS[last.reason]
    message = last.message if advice else drop_advice(last.message)
    completions = [r for r in records if isinstance(r, CompletionRecord)]
    if last.reason == "iteration_limit" and completions:
        what = f"stopped after {len(completions)} steps"
        return f"{what} ({way_out})" if advice else what
    if last.reason == "format_errors" and completions:
        what, way_out = _unreadable(completions[-1], records) or (what, way_out)
    elif last.reason == "context_full":
        what = message or what
    elif message and last.reason not in ("interrupted", "cancelled"):  # these say it all
        what = f"{what}: {message}"
        is_of_server = last.reason in ("backend_error", "completion_timeout")
        if is_of_server and message.endswith(")"):
            return f"stopped: {what}"  # the error says itself what to do
    return f"stopped: {what} ({way_out})" if advice else f"stopped: {what}"


_TERMINAL_ADVICE: Final = re.compile(r"mlx-tools [a-z]|--[a-z]|/[a-z]+ in chat")
"""A command, an option or a command of chat."""


def drop_advice(message: str) -> str:
    """Return a recorded message without its advice for a person at a terminal.

    The advice is in parentheses at the end; there may be others within.
    """
    begin, depth = len(message), 0
    if message.endswith(")"):
        # No pattern: it would take the square of a long text's time.
        for bracket in reversed([*re.finditer(r"[()]", message)]):
            depth += 1 if bracket[0] == ")" else -1
            if not depth:
                begin = bracket.start()
                break
    is_advice = message[:begin].endswith(" ") and _TERMINAL_ADVICE.search(message, begin)
    return message[: begin - 1] if is_advice else message


EMPTY_ANSWER: Final = "the model gave an empty answer"


def cut_in_words(records: Sequence[Record], *, repeated: bool = False) -> str:
    """Return why an answer was cut off, and what to do.

    Args:
        records: those of the question.
        repeated: the answer was cut off since its text repeated itself.
    """
    if repeated:
        way_out = STOP_WORDS["repetition"][1]
        return f"the answer repeated the same text over and over, so it was cut off ({way_out})"
    completions = [r for r in records if isinstance(r, CompletionRecord)]
    return f"the answer was cut off{_at_tokens(completions[-1:])} ({_MORE_TOKENS})"


def _unreadable(last: CompletionRecord, records: Sequence[Record]) -> tuple[str, str] | None:
    """Return what was wrong with the last completion, and the remedy.

    It is None if nothing more is known than that the completion could not be read.
    """
    corrections = [r for r in records if isinstance(r, CorrectionRecord)]
    if not corrections or corrections[-1].error.code != "truncated_output":
        return None
    if last.reasoning and not last.retained_text.strip():
        return _THOUGHT
    return f"the call was cut off{_at_tokens([last])}", _MORE_TOKENS


def _at_tokens(completions: Sequence[CompletionRecord]) -> str:
    """Return words for the number of tokens before the cut, if the server counts them."""
    counts = [r.usage.completion_tokens for r in completions if r.requests == 1]
    return f" at {counts[0]:,} tokens" if counts and counts[0] else " at the token limit"
