"""The deadlines of a request, and its retries."""

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
"""Seconds of silence after which the server's health is checked.

A choice: a dead thread is reported within 10 seconds, and a long prompt costs only a few checks.
"""

Watch = Callable[[], Awaitable[None]]
"""Raises an error if the server cannot answer any more."""


def now() -> float:
    """Return the time of the event loop, in seconds."""
    import anyio

    return anyio.current_time()


class Deadlines:
    """The deadlines of one request: for the whole request, and for each silence.

    The first is never extended. Any byte from the server ends a silence.

    Args:
        request: the request, with its timeouts.
        name: the backend's name in messages.
        hint: the hint of the error after too long a silence.
        clock: returns the time.
    """

    def __init__(
        self, request: CompletionRequest, name: str, hint: str = LOG_HINT, clock: Clock = now
    ) -> None:
        self._request, self._name, self._hint, self._now = request, name, hint, clock
        self._end = clock() + request.timeout

    @property
    def seconds_left(self) -> float:
        """The remaining seconds of the whole request; below 0 if its time is over."""
        return self._end - self._now()

    def limit(
        self, max_seconds: float | None = None, *, silent: bool = False
    ) -> tuple[float, bool]:
        """Return the seconds of a wait, and True if the request's time ends then.

        Args:
            max_seconds: another limit, or None.
            silent: True if the server sends nothing before its whole answer, so that the idle
                timeout does not count.
        """
        left, idle = self.seconds_left, self._request.idle_timeout
        if silent:
            return left, True
        seconds = min(left, idle, idle if max_seconds is None else max_seconds)
        return seconds, seconds >= left

    def error(self, seconds: float, is_end: bool) -> BackendTimeout:
        """Return the error of a wait that reached its `limit`."""
        # The advice for a person depends on the limit that was reached.
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
        # If no time is left, nothing is awaited: a wait of 0 seconds could still succeed.
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
    """The retries of a failed request, and the pauses before them."""

    times: int = 3
    """The number of retries. A choice: their pauses take about 0.7 seconds, enough for a short
    failure."""
    pause: float = 0.1
    """Seconds of the first pause; each pause is twice the one before."""
    jitter: Callable[[], float] = random.random
    """Returns a number from 0 to 1. Each pause is multiplied by it plus 0.5, so that many clients
    do not come back at the same moment."""
    sleep: Callable[[float], Awaitable[None]] = _sleep
    clock: Clock = now

    def find_delay(self, tries: int) -> float:
        """Return the seconds to wait before the next try, after ``tries`` retries."""
        seconds: float = self.pause * 2**tries * (0.5 + self.jitter())
        return seconds
