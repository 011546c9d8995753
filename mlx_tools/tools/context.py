"""The context of a call that a running tool may ask for, and its reports of progress."""

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
MAX_ERROR_CHARS: Final = 500
MAX_LONG_ERROR_CHARS: Final = 4_000
"""Of an error that shows a piece of a file: what a model is shown of an observation in any case."""

_NO_MODEL: Final = "there is no model to ask here"
_GIVEN_UP: Final = "nobody waits for this call any more"


class Progress(Struct, frozen=True):
    """The progress of a call: a few words, and the share done from 0 to 1 where it is known."""

    message: str = ""
    fraction: float | None = None


OnProgress = Callable[[Progress], None]


class ToolError(Exception):
    """Raise it in a tool to say in plain words what went wrong; the model reads the message.

    Any other exception does too, with its type before its text.

    Args:
        code: the error's code.
        passing: the same call might succeed a moment later.
        max_chars: the message is cut to so many characters, at most 4,000.
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
    """The whole outputs that one session has kept."""

    def get(self, key: str, /) -> str | None:
        """The text of the artifact with this id, None where there is none."""
        ...


Ask = Callable[["ToolContext", str, Sequence[str] | None], Awaitable[str]]
"""Asks the model on behalf of a call: a question, and the tools that may be called."""


KnownFile = Callable[[str], FileView | None]
"""Gives what the model knows of a file, by what identifies it; None if nothing."""


Confirm = Callable[
    ["ToolContext", str, Mapping[str, Any], str], Awaitable[Mapping[str, Any] | None]
]
"""Asks a person on behalf of a call: what about, its details, and why. Gives the details as they
were agreed to, None where nobody did."""


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
    """Handed to a tool whose function has a parameter annotated with this class.

    The parameter is not part of the tool's schema. ``timeout`` is what the call had when it
    started, in seconds, None without a limit. ``policy`` is the one that let the call run: a tool
    that shows or does more on behalf of its caller holds itself to it. Without one it allows
    nothing. ``tools`` are those of the run that makes the call, None outside of one. ``expected``
    is the `Preview.state` of what the call was approved on, None where it had no preview: a tool
    that finds another state must change nothing. ``artifacts`` are those of the session that made
    the call, None outside of one; ``undo`` is where the built-in tools keep what they replace, None
    for nowhere. ``session`` is its id, empty where there is none. ``known_file`` gives what the
    model knows of a file from earlier calls; ``files`` takes what it knows by this one.
    ``shown_chars`` is how many characters of the output the model will see, None for all.
    ``report`` takes what the tool reports, ``asks`` asks the model and ``confirms`` a person, in
    ``loop``.

    ``cancelled`` is whether nobody waits for the result any more. A tool that runs long looks now
    and then: a function in a thread cannot be stopped from outside. ``asking`` is what a function
    in a thread has asked the model, while it waits for the answer.
    """

    timeout: float | None = None
    policy: Policy = field(default_factory=Policy)
    tools: RunTools | None = None
    expected: str | None = None
    artifacts: Artifacts | None = None
    undo: UndoStore | None = None
    session: str = ""
    known_file: KnownFile | None = None
    shown_chars: int | None = None
    report: OnProgress | None = None
    asks: Ask | None = None
    confirms: Confirm | None = None
    loop: asyncio.AbstractEventLoop | None = None
    cancelled: bool = field(default=False, init=False)
    asking: futures.Future[str] | None = field(default=None, init=False)
    files: list[FileView] = field(default_factory=list, init=False)
    _waited: float = field(default=0.0, init=False)
    _waiting: float | None = field(default=None, init=False)

    async def ask(self, question: str, tools: Sequence[str] | None = None) -> str:
        """The answer of the model that called this tool, in a run of its own with tools.

        ``tools`` are those that the run may call, None for all that the caller may; none beyond
        that is ever allowed. The run takes its completions out of the caller's budget. Raises
        `ToolError` where there is no model to ask, no budget left, or no answer.
        """
        if self.asks is None:
            raise ToolError(_NO_MODEL)
        if self.cancelled:
            raise ToolError(_GIVEN_UP)
        return await self.asks(self, question, tools)

    async def confirm(
        self, action: str, details: Mapping[str, Any], reason: str
    ) -> Mapping[str, Any] | None:
        """What a person agrees to, of what a call wants besides having run: the ``details``, as
        they are or as the person changed them; None where nobody is there, or they say no. No
        standing consent covers it."""
        if self.confirms is None or self.cancelled:
            return None
        with self.person_waits():
            return await self.confirms(self, action, details, reason)

    def ask_blocking(self, question: str, tools: Sequence[str] | None = None) -> str:
        """`ask`, for a tool that is not asynchronous."""
        if self.asks is None or self.loop is None:
            raise ToolError(_NO_MODEL)
        self.asking = asyncio.run_coroutine_threadsafe(self.ask(question, tools), self.loop)
        if self.cancelled:  # meanwhile
            self.asking.cancel()
        try:
            return self.asking.result()
        except futures.CancelledError:
            raise ToolError(_GIVEN_UP) from None
        finally:
            self.asking = None

    @contextlib.contextmanager
    def person_waits(self) -> Iterator[None]:
        """While a person is asked on behalf of the call, its time stands still."""
        self._waiting = asyncio.get_running_loop().time()
        try:
            yield
        finally:
            self._waited = self.waited
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
        if self.report is None or self.cancelled:
            return
        share = None if fraction is None else min(max(float(fraction), 0.0), 1.0)
        known = share is not None and not isnan(share)  # what JSON does not have says nothing
        self.report(Progress(str(message)[:MAX_PROGRESS_CHARS], share if known else None))


CONTEXT: ContextVar[ToolContext | None] = ContextVar("mlx_tools_context", default=None)
"""The context of the call that runs here."""


def current_context() -> ToolContext:
    """The context of the call that runs here; one that reports to nobody where there is none."""
    return CONTEXT.get() or ToolContext()


# --- reports on their way to a listener -----------------------------------------------------------

BURST: Final = 20
"""So many reports are passed on however fast they come."""

EVERY: Final = 0.05
"""Seconds between two of those that come after them."""


class Reports:
    """The reports of one call, taken from any thread, on their way to ``listener``, which is called
    in the event loop; as fast as people read.

    A tool may report as often as it likes. What it says in the beginning is passed on whole, then a
    report twenty times a second, and the last one in any case: what stands in an event or on a
    screen does not grow with how busy a tool is. To be made in the loop. ``clock`` gives seconds.
    """

    def __init__(self, listener: OnProgress, clock: Callable[[], float] = monotonic) -> None:
        self._listener, self._clock = listener, clock
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._due: deque[Progress] = deque()
        self._pending: Progress | None = None
        self._room, self._sent_at = float(BURST), clock()
        self._is_over = False

    def take(self, progress: Progress) -> None:
        """Takes a report, from any thread."""
        with self._lock:
            if self._is_over:
                return
            now = self._clock()
            self._room = min(float(BURST), self._room + (now - self._sent_at) / EVERY)
            self._sent_at = now
            waits, self._pending = self._pending is not None, progress
            if self._room >= 1:
                self._release()
                call: tuple[Any, ...] = (self._pass_on,)
            elif waits:
                return
            else:
                call = (self._loop.call_later, EVERY, self._pass_on)
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens any more
            self._loop.call_soon_threadsafe(*call)

    def end(self, *, cancelled: bool = False) -> None:
        """Passes on what is held back, but where the call was ``cancelled``; later reports go
        nowhere."""
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
        """Pass on what is due, and what is held back: that it is called is late enough."""
        with self._lock:
            self._release()
        while self._due:
            progress = self._due.popleft()
            try:
                self._listener(progress)
            except Exception as error:  # a listener's fault costs no call its result
                said = {"message": "a listener to progress failed", "exception": error}
                self._loop.call_exception_handler(said)
