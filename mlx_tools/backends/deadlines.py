"""How long a completion may take, and how long it may be silent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from mlx_tools.backends.interface import CompletionRequest
from mlx_tools.errors import BackendTimeout

Clock = Callable[[], float]
"""Seconds, from any beginning."""

LOG_HINT: Final = "see the server's log; ask again"


MORE_TIME_HINT: Final = (
    "allow more time: limits.completion_timeout_ms for one completion, --timeout for all; "
    "or fewer tokens: --max-tokens"
)


def now() -> float:
    """The event loop's own clock."""
    import anyio

    return anyio.current_time()


@contextmanager
def found_within(seconds: float, option: str = "--timeout") -> Iterator[None]:
    """Bounds what is asked of a server before the first completion: what it is, what it serves.

    ``option`` is what allows more time.

    Raises:
        BackendTimeout: it was not done in time.
    """
    import anyio

    if seconds > 0:
        with anyio.move_on_after(seconds) as scope:
            yield
        if not scope.cancelled_caught:
            return
    raise BackendTimeout(
        f"the server did not say what it serves in the {max(seconds, 0):.3g} s that there were",
        hint=f"allow more time with {option}, or see the server's log",
    )


class Deadlines:
    """A request's deadlines: nothing extends the whole, any sign of life breaks the silence.

    ``name`` is what the messages call the backend, ``hint`` what to do where it was silent.
    """

    def __init__(
        self, request: CompletionRequest, name: str, hint: str = LOG_HINT, clock: Clock = now
    ) -> None:
        self._now = clock
        self._whole = request.timeout
        self._idle = request.idle_timeout
        self._end = self._now() + request.timeout
        self._name = name
        self._hint = hint

    @property
    def left(self) -> float:
        """Seconds that are left of the whole; below 0 where it is over."""
        return self._end - self._now()

    @contextmanager
    def step(self, most: float | None = None, *, silent: bool = False) -> Iterator[None]:
        """Bound one wait by what is left of the whole, the idle limit, and ``most`` seconds.

        ``silent``: no sign of life can be expected yet, so the idle limit does not count.

        Raises:
            BackendTimeout: which limit it was stands in the message.
        """
        import anyio

        left = self.left
        bound = left if silent else min(left, self._idle, self._idle if most is None else most)
        if bound > 0:
            with anyio.move_on_after(bound) as scope:
                yield
            if not scope.cancelled_caught:
                return
        if bound >= left:
            raise BackendTimeout(
                f"{self._name} did not complete within {self._whole:g} s",
                hint=MORE_TIME_HINT,
            )
        raise BackendTimeout(f"{self._name} was silent for {bound:g} s", hint=self._hint)
