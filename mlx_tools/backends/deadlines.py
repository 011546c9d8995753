"""The deadlines of a request, and its repetitions."""

from __future__ import annotations

import random
from collections.abc import (
    Awaitable,
    Callable,
    Iterator,
)
from contextlib import contextmanager
from typing import Final

from msgspec import Struct

from mlx_tools.backends.interface import CompletionRequest
from mlx_tools.backends.server_errors import LOG_HINT
from mlx_tools.errors import (
    BackendTimeout,
)

MORE_TIME_HINT: Final = (
    "allow more time with --timeout, of which a completion gets two fifths, or fewer tokens with "
    "--max-tokens"
)


Clock = Callable[[], float]
"""Returns seconds since some fixed point."""


WATCH_SECONDS: Final = 4.0
"""Seconds of silence after which a server is asked whether its model still runs.

A choice: a dead thread is reported within 10 seconds, and a long prompt costs only a few requests
for the server's health.
"""

Watch = Callable[[], Awaitable[None]]
"""Raises an error if the server cannot answer any more."""


def now() -> float:
    """Return the time of the event loop, in seconds."""
    import anyio

    return anyio.current_time()


class Deadlines:
    """The deadlines of one request: for all of it, and for each silence of the server.

    Nothing extends the time for all of it; any sign of life ends a silence.

    Args:
        request: the request whose timeouts hold.
        name: the backend's name in messages.
        hint: what to do if it was silent.
        clock: returns the time.
    """

    def __init__(
        self, request: CompletionRequest, name: str, hint: str = LOG_HINT, clock: Clock = now
    ) -> None:
        self._request, self._name, self._hint, self._now = request, name, hint, clock
        self._end = clock() + request.timeout

    @property
    def seconds_left(self) -> float:
        """Seconds that are left for the whole request; below 0 if there are none."""
        return self._end - self._now()

    def limit(
        self, max_seconds: float | None = None, *, silent: bool = False
    ) -> tuple[float, bool]:
        """Return the seconds of a wait, and True if the request's time ends then.

        Args:
            max_seconds: a further limit, None for none.
            silent: no sign of life can be expected yet, so the idle timeout does not count.
        """
        left, idle = self.seconds_left, self._request.idle_timeout
        if silent:
            return left, True
        seconds = min(left, idle, idle if max_seconds is None else max_seconds)
        return seconds, seconds >= left

    def error(self, seconds: float, is_end: bool) -> BackendTimeout:
        """Return the error of a wait that reached its `limit`."""
        # Which limit was the shortest decides what a person can do about it.
        if is_end:
            return BackendTimeout(
                f"{self._name} did not complete within {self._request.timeout:g} s",
                hint=MORE_TIME_HINT,
            )
        return BackendTimeout(f"{self._name} was silent for {seconds:g} s", hint=self._hint)

    @contextmanager
    def step(self, max_seconds: float | None = None, *, silent: bool = False) -> Iterator[None]:
        """Limit one wait, as `limit` says.

        Raises:
            BackendTimeout: a limit was reached; the message names it.
        """
        import anyio

        seconds, is_end = self.limit(max_seconds, silent=silent)
        # With no time left nothing is awaited at all: a wait of 0 seconds could still succeed.
        if seconds > 0:
            with anyio.move_on_after(seconds) as scope:
                yield
            if not scope.cancelled_caught:
                return
        raise self.error(seconds, is_end)


async def _sleep(seconds: float) -> None:
    import anyio

    await anyio.sleep(seconds)


class Retry(Struct, frozen=True, kw_only=True):
    """Repetitions of a request that failed in passing, and the pauses before them.

    The pauses are ``pause`` seconds, twice that, four times that. Each is multiplied by 0.5 to 1.5,
    as ``jitter`` (0 to 1) decides, so that many clients do not come back at the same moment.
    """

    times: int = 3
    """Repetitions. A choice: their pauses take about 0.7 seconds, enough for a failure that passes.
    """
    pause: float = 0.1
    jitter: Callable[[], float] = random.random
    sleep: Callable[[float], Awaitable[None]] = _sleep
    clock: Clock = now

    def delay(self, tries: int) -> float:
        """Return the seconds to wait before the next try, after ``tries`` repetitions."""
        # Exponential, so that a server that restarts is not hit by every client at once.
        seconds: float = self.pause * 2**tries * (0.5 + self.jitter())
        return seconds
