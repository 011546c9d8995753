"""What a running tool may know of its call, and how it reports progress."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar, Token
from dataclasses import dataclass
from typing import Final, Protocol

from mlx_tools.policy import Policy

MAX_PROGRESS_CHARS: Final = 200


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a call has come: a few words, and the share done from 0 to 1 where it is known."""

    message: str = ""
    fraction: float | None = None


class Artifacts(Protocol):
    """The whole outputs that one session has kept."""

    def get(self, key: str, /) -> str | None:
        """The text of the artifact with this id, None where there is none."""
        ...


class ToolContext:
    """Handed to a tool whose function has a parameter annotated with this class.

    The parameter is not part of the tool's schema. ``timeout`` is what the call had when it
    started, in seconds, None without a limit. ``policy`` is the one that let the call run: a tool
    that shows or does more on behalf of its caller holds itself to it. Without one it allows
    nothing. ``expected`` is the `Preview.state` of what the call was approved on, None where it had
    no preview: a tool that finds another state must change nothing. ``artifacts`` are those of the
    session that made the call, None outside of one. ``shown_chars`` is how many characters of the
    output the model will see, None for all.
    """

    __slots__ = (
        "_cancelled",
        "_report",
        "artifacts",
        "expected",
        "policy",
        "shown_chars",
        "timeout",
    )

    def __init__(
        self,
        report: Callable[[Progress], None] | None = None,
        timeout: float | None = None,
        policy: Policy | None = None,
        expected: str | None = None,
        artifacts: Artifacts | None = None,
        shown_chars: int | None = None,
    ) -> None:
        self.timeout = timeout
        self.expected = expected
        self.artifacts = artifacts
        self.shown_chars = shown_chars
        self.policy = policy or Policy()
        self._report = report
        self._cancelled = False

    @property
    def cancelled(self) -> bool:
        """Whether nobody waits for the result any more. A tool that runs long looks now and then:
        a function in a thread cannot be stopped from outside."""
        return self._cancelled

    def cancel(self) -> None:
        """Says that nobody waits any more."""
        self._cancelled = True

    def progress(self, message: str = "", fraction: float | None = None) -> None:
        """Reports how far the call has come; may be called from any thread, as often as one likes.

        ``message`` is cut at 200 characters, ``fraction`` is held between 0 and 1.
        """
        if self._report is None or self._cancelled:
            return
        share = None if fraction is None else min(max(float(fraction), 0.0), 1.0)
        self._report(Progress(str(message)[:MAX_PROGRESS_CHARS], share))


_current: ContextVar[ToolContext | None] = ContextVar("mlx_tools_context", default=None)


def current_context() -> ToolContext:
    """The context of the call that runs here; one that reports to nobody where there is none."""
    return _current.get() or ToolContext()


def set_context(context: ToolContext) -> Token[ToolContext | None]:
    """Makes ``context`` the one that `current_context` gives to what is started from here."""
    return _current.set(context)


def reset_context(token: Token[ToolContext | None]) -> None:
    """Takes `set_context` back."""
    _current.reset(token)
