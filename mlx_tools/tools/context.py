"""What a running tool may know of its call, and how it reports progress."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from concurrent import futures
from contextvars import ContextVar, Token
from dataclasses import dataclass
from math import isnan
from typing import Any, Final, Protocol

from mlx_tools.errors import ErrorCode
from mlx_tools.policy import Policy
from mlx_tools.store.artifacts import UndoStore

MAX_PROGRESS_CHARS: Final = 200


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a call has come: a few words, and the share done from 0 to 1 where it is known."""

    message: str = ""
    fraction: float | None = None


class ToolError(Exception):
    """Raise it in a tool to say in plain words what went wrong; the model reads the message.

    Any other exception does too, with its type before its text. ``code`` is the error's code.
    """

    def __init__(self, message: str, *, code: ErrorCode = "tool_error") -> None:
        super().__init__(message)
        self.code = code


class Artifacts(Protocol):
    """The whole outputs that one session has kept."""

    def get(self, key: str, /) -> str | None:
        """The text of the artifact with this id, None where there is none."""
        ...


Ask = Callable[["ToolContext", str, Sequence[str] | None], Awaitable[str]]
"""Asks the model on behalf of a call: a question, and the tools that may be called."""


class ToolContext:
    """Handed to a tool whose function has a parameter annotated with this class.

    The parameter is not part of the tool's schema. ``timeout`` is what the call had when it
    started, in seconds, None without a limit. ``policy`` is the one that let the call run: a tool
    that shows or does more on behalf of its caller holds itself to it. Without one it allows
    nothing. ``expected`` is the `Preview.state` of what the call was approved on, None where it had
    no preview: a tool that finds another state must change nothing. ``artifacts`` are those of the
    session that made the call, None outside of one; ``undo`` is where the built-in tools keep what
    they replace, None for nowhere. ``session`` is its id, empty where there is
    none. ``shown_chars`` is how many characters of the
    output the model will see, None for all.
    """

    __slots__ = (
        "_ask",
        "_asking",
        "_cancelled",
        "_loop",
        "_report",
        "_waited",
        "_waiting",
        "artifacts",
        "expected",
        "policy",
        "session",
        "shown_chars",
        "timeout",
        "undo",
    )

    def __init__(
        self,
        report: Callable[[Progress], None] | None = None,
        timeout: float | None = None,
        policy: Policy | None = None,
        expected: str | None = None,
        artifacts: Artifacts | None = None,
        shown_chars: int | None = None,
        ask: Ask | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
        session: str = "",
        undo: UndoStore | None = None,
    ) -> None:
        self.timeout = timeout
        self.undo = undo
        self.expected = expected
        self.artifacts = artifacts
        self.shown_chars = shown_chars
        self.policy = policy or Policy()
        self.session = session
        self._report = report
        self._ask = ask
        self._loop = loop
        self._cancelled = False
        self._asking: futures.Future[str] | None = None
        self._waited = 0.0
        self._waiting: float | None = None

    @property
    def cancelled(self) -> bool:
        """Whether nobody waits for the result any more. A tool that runs long looks now and then:
        a function in a thread cannot be stopped from outside."""
        return self._cancelled

    def cancel(self) -> None:
        """Says that nobody waits any more; what the call asks the model is given up too."""
        self._cancelled = True
        if self._asking is not None:
            self._asking.cancel()

    async def ask(self, question: str, tools: Sequence[str] | None = None) -> str:
        """The answer of the model that called this tool, in a run of its own with tools.

        ``tools`` are those that the run may call, None for all that the caller may; none beyond
        that is ever allowed. The run takes its completions out of the caller's budget. Raises
        `ToolError` where there is no model to ask, no budget left, or no answer.
        """
        if self._ask is None:
            raise ToolError("there is no model to ask here")
        if self._cancelled:
            raise ToolError("nobody waits for this call any more")
        return await self._ask(self, question, tools)

    def ask_blocking(self, question: str, tools: Sequence[str] | None = None) -> str:
        """`ask`, for a tool that is not asynchronous."""
        if self._ask is None or self._loop is None:
            raise ToolError("there is no model to ask here")
        asking: Coroutine[Any, Any, str] = self.ask(question, tools)
        self._asking = asyncio.run_coroutine_threadsafe(asking, self._loop)
        if self._cancelled:  # meanwhile
            self._asking.cancel()
        try:
            return self._asking.result()
        except futures.CancelledError:
            raise ToolError("nobody waits for this call any more") from None
        finally:
            self._asking = None

    @contextlib.contextmanager
    def person_waits(self) -> Iterator[None]:
        """While a person is asked on behalf of the call, its time stands still."""
        self._waiting = asyncio.get_running_loop().time()
        try:
            yield
        finally:
            self._waited += asyncio.get_running_loop().time() - self._waiting
            self._waiting = None

    @property
    def waited(self) -> float:
        """Seconds that a person was waited for, up to now."""
        if self._waiting is None:
            return self._waited
        return self._waited + asyncio.get_running_loop().time() - self._waiting

    def progress(self, message: str = "", fraction: float | None = None) -> None:
        """Reports how far the call has come; may be called from any thread, as often as one likes.

        ``message`` is cut at 200 characters, ``fraction`` is held between 0 and 1; one that is no
        number (NaN) is left out. Of reports that come too fast for a reader only some are passed
        on, the last always.
        """
        if self._report is None or self._cancelled:
            return
        share = None if fraction is None else min(max(float(fraction), 0.0), 1.0)
        known = share is not None and not isnan(share)  # what JSON does not have says nothing
        self._report(Progress(str(message)[:MAX_PROGRESS_CHARS], share if known else None))


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
