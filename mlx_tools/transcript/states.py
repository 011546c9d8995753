"""Where a session can stand, and which records may come next."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final


class State(StrEnum):
    """Where a session stands."""

    EMPTY = "empty"
    IDLE = "idle"
    COMPLETING = "completing"
    READING = "reading"
    CALLING = "calling"
    PAUSED = "paused"
    STOPPED = "stopped"


TRANSITIONS: Final[Mapping[State, frozenset[str]]] = {
    State.EMPTY: frozenset({"header"}),
    State.IDLE: frozenset({"golden", "user", "compacted"}),
    State.COMPLETING: frozenset(
        {"mend", "completion", "compacted", "correction", "resumed", "stopped"}
    ),
    State.READING: frozenset(
        {"tool_call", "repair", "decision", "tool_observation", "correction", "final_answer"}
        | {"resumed", "stopped"}
    ),
    State.CALLING: frozenset(
        {"decision", "paused", "edited", "approval", "execution_started", "nested_run"}
        | {"summary", "tool_observation", "resumed", "stopped"}
    ),
    State.PAUSED: frozenset({"edited", "approval", "tool_observation", "resumed", "stopped"}),
    State.STOPPED: frozenset({"user", "compacted"}),
}
"""Which records may come next. One that may not is a `TranscriptError`, and changes nothing."""
