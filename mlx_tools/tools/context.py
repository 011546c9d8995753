"""The context of a call, which the running tool can use, and progress reports."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent import futures
from contextvars import ContextVar
from dataclasses import dataclass, field
from math import isnan
from time import monotonic
from typing import Any, Final, Protocol

from msgspec import Struct

from mlx_tools.errors import ErrorCode
from mlx_tools.messages import ToolSpec
from mlx_tools.policy import Policy
from mlx_tools.store import UndoStore
from mlx_tools.transcript import FileView

MAX_PROGRESS_CHARS: Final = 200
"""Characters of a progress message: one line of a terminal, or two."""
MAX_ERROR_CHARS: Final = 500
"""Characters of an error message: a few sentences. Longer ones are mostly tracebacks or dumps."""
MAX_LONG_ERROR_CHARS: Final = 4_000
"""Characters of an error that shows a piece of a file: as many as a model sees of an observation
with the smallest limit."""

_NO_MODEL: Final = "there is no model to ask here"
_ABANDONED: Final = "this call was cancelled"


class Progress(Struct, frozen=True):
    """The progress of a call."""

    message: str = ""
    """A few words."""
    fraction: float | None = None
    """The share that is done, from 0 to 1; None if unknown."""


OnProgress = Callable[[Progress], None]


class ToolError(Exception):
    """An error that a tool raises, with a message for the model.

    Any other exception works too; then the model also reads its type.

    Args:
        message: the problem, then the solution.
        code: the code of the error.
        passing: True if the same call may succeed a moment later.
        max_chars: the message is cut to this length, at most 4,000.
    """

    def __init__(
        self,
        message: str,
        *,
        code: ErrorCode = "tool_error",
        passing: bool = False,
        max_chars: int = MAX_ERROR_CHARS,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.passing = passing
        self.max_chars = min(max_chars, MAX_LONG_ERROR_CHARS)


class Artifacts(Protocol):
    """The stored outputs of one session."""

    def get(self, key: str, /) -> str | None:
        """Return the text of an artifact by its id, or None."""
        ...


Ask = Callable[["ToolContext", str, Sequence[str] | None], Awaitable[str]]
"""Asks the model on behalf of a call. Takes a question, and the tools that may be called."""


KnownFile = Callable[[str], FileView | None]
"""Returns the model's view of a file, by the file's identity; None if it knows nothing of it."""


Confirm = Callable[
    ["ToolContext", str, Mapping[str, Any], str], Awaitable[Mapping[str, Any] | None]
]
"""Asks a person on behalf of a call. Takes the action, its details, and the reason.

Returns the details that the person agreed to, None if the person did not agree."""


class RunTools(Protocol):
    """The tools of a run: its `Registry`."""

    def all_specs(self) -> Mapping[str, ToolSpec]:
        """Return the specs of all tools by name, disabled ones too."""
        ...

    @property
    def disabled(self) -> Mapping[str, str]:
        """The names of the disabled tools, each with the reason."""
        ...


@dataclass(slots=True, kw_only=True, eq=False)
class ToolContext:
    """The context of a call. A tool gets it for a parameter annotated with this class.

    The parameter is not part of the tool's schema.
    """

    timeout: float | None = None
    """Seconds that the call had when it started, None without a limit."""
    policy: Policy = field(default_factory=Policy)
    """The policy that allowed the call. A tool that shows or does more on behalf of its caller must
    follow it. The default allows nothing."""
    tools: RunTools | None = None
    """The tools of the run that makes the call, None outside of a run."""
    expected: str | None = None
    """The `Preview.state` that was approved, None if there was no preview. If the tool finds
    another state, it must change nothing."""
    artifacts: Artifacts | None = None
    """The artifacts of the session, None outside of a session."""
    undo: UndoStore | None = None
    """The store for old contents of files that built-in tools replace, None to store nothing."""
    session: str = ""
    """The id of the session, empty outside of a session."""
    known_file: KnownFile | None = None
    """Returns the model's view of a file by earlier calls."""
    shown_chars: int | None = None
    """Characters of the output that the model will see, None for all."""
    report: OnProgress | None = None
    """Called with each progress report."""
    asks: Ask | None = None
    """Asks the model; used by `ask`."""
    confirms: Confirm | None = None
    """Asks a person; used by `confirm`."""
    loop: asyncio.AbstractEventLoop | None = None
    """The event loop of the call."""
    cancelled: bool = field(default=False, init=False)
    """True if nobody waits for the result any more. A tool that runs long should check it now and
    then, because a function in a thread cannot be stopped from outside."""
    asking: futures.Future[str] | None = field(default=None, init=False)
    """The question to the model that a function in a thread waits for, None if there is none."""
    files: list[FileView] = field(default_factory=list, init=False)
    """The parts of files that the model knows after this call. The tool adds them."""
    _waited: float = field(default=0.0, init=False)
    _waiting: float | None = field(default=None, init=False)

    async def ask(self, question: str, tools: Sequence[str] | None = None) -> str:
        """Ask the model that called this tool, in a nested run with tools.

        The nested run's completions count against the caller's limit.

        Args:
            question: the question.
            tools: the tools that the nested run may call, None for all tools of the caller. No
                other tools are ever allowed.

        Raises:
            ToolError: there is no model to ask, no budget left, or no answer.
        """
        if self.asks is None:
            raise ToolError(_NO_MODEL)
        if self.cancelled:
            raise ToolError(_ABANDONED)
        return await self.asks(self, question, tools)

    async def confirm(
        self, action: str, details: Mapping[str, Any], reason: str
    ) -> Mapping[str, Any] | None:
        """Ask a person to agree to an action that goes beyond the call itself.

        Return the ``details``, as the person changed them or not; None if nobody can be asked, or
        the person refuses. An approval for the session never covers such an action.
        """
        if self.confirms is None or self.cancelled:
            return None
        with self.person_waits():
            return await self.confirms(self, action, details, reason)

    def ask_blocking(self, question: str, tools: Sequence[str] | None = None) -> str:
        """Do the same as `ask`, for a synchronous tool."""
        if self.asks is None or self.loop is None:
            raise ToolError(_NO_MODEL)
        self.asking = asyncio.run_coroutine_threadsafe(self.ask(question, tools), self.loop)
        # `cancelled` is set before `asking` is cancelled. So either this line sees the flag, or the
        # executor sees the future.
        if self.cancelled:  # since the question was begun
            self.asking.cancel()
        try:
            return self.asking.result()
        except futures.CancelledError:
            raise ToolError(_ABANDONED) from None
        finally:
            self.asking = None

    @contextlib.contextmanager
    def person_waits(self) -> Iterator[None]:
        """Stop the clock of the call while the block waits for a person."""
        self._waiting = asyncio.get_running_loop().time()
        try:
            yield
        finally:
            self._waited = self.waited
            self._waiting = None

    @property
    def waited(self) -> float:
        """The seconds that the call has waited for a person so far."""
        if self._waiting is None:
            return self._waited
        return self._waited + asyncio.get_running_loop().time() - self._waiting

    def progress(self, message: str = "", fraction: float | None = None) -> None:
        """Report the progress of the call, from any thread and as often as needed.

        If reports come too fast for a reader, only some are passed on. The last one always is.

        Args:
            message: a few words, cut at 200 characters.
            fraction: the share that is done, limited to 0 to 1. NaN counts as unknown.
        """
        if self.report is None or self.cancelled:
            return
        share = None if fraction is None else min(max(float(fraction), 0.0), 1.0)
        is_known = share is not None and not isnan(share)  # JSON has no NaN
        self.report(Progress(str(message)[:MAX_PROGRESS_CHARS], share if is_known else None))


CONTEXT: ContextVar[ToolContext | None] = ContextVar("mlx_tools_context", default=None)
"""The context of the call that runs here."""


def current_context() -> ToolContext:
    """Return the context of the call that runs here, or an empty one."""
    return CONTEXT.get() or ToolContext()


# --- limiting the rate of reports -----------------------------------------------------------------

BURST: Final = 20
"""Reports that are passed on at any rate, so that a short call shows all of its steps."""

REPORT_INTERVAL: Final = 0.05
"""Seconds between two later reports: nobody reads more than 20 a second."""


class Reports:
    """Passes the reports of one call to a listener, at a limited rate.

    A tool may report from any thread, at any rate. The first `BURST` reports are passed on at once,
    then 20 a second, and always the last one. So a busy tool does not flood its listeners.

    Create it in the event loop; the listener is called there.

    Args:
        listener: called with each report that is passed on.
        clock: returns seconds.
    """

    def __init__(self, listener: OnProgress, clock: Callable[[], float] = monotonic) -> None:
        self._listener, self._clock = listener, clock
        self._loop = asyncio.get_running_loop()
        # Guards all fields below but `_due`, whose `append` and `popleft` are atomic.
        self._lock = threading.Lock()
        self._due: deque[Progress] = deque()
        self._pending: Progress | None = None
        self._room, self._sent_at = float(BURST), clock()
        self._is_over = False

    def take(self, progress: Progress) -> None:
        """Take a report, from any thread."""
        with self._lock:
            if self._is_over:
                return
            now = self._clock()
            self._room = min(float(BURST), self._room + (now - self._sent_at) / REPORT_INTERVAL)
            self._sent_at = now
            waits, self._pending = self._pending is not None, progress
            if self._room >= 1:
                self._release()
                call: tuple[Any, ...] = (self._pass_on,)
            elif waits:
                return
            else:
                call = (self._loop.call_later, REPORT_INTERVAL, self._pass_on)
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens any more
            self._loop.call_soon_threadsafe(*call)

    def end(self, *, cancelled: bool = False) -> None:
        """Pass on the report that is held back, unless the call was ``cancelled``.

        Later reports are dropped.
        """
        with self._lock:
            self._is_over = True
            if cancelled:
                self._due.clear()
                self._pending = None
        self._pass_on()

    def _release(self) -> None:
        if self._pending is not None:
            self._room -= 1
            self._due.append(self._pending)
            self._pending = None

    def _pass_on(self) -> None:
        """Pass on the reports that are due, and the one that is held back."""
        with self._lock:
            self._release()
        while self._due:
            progress = self._due.popleft()
            try:
                self._listener(progress)
            except Exception as error:  # a listener's error must not make the call fail
                error_context = {"message": "a listener to progress failed", "exception": error}
                self._loop.call_exception_handler(error_context)
