"""The time that a run may take, which stands still while a person is asked."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import anyio


class RunClock:
    """The time limit of the run under way."""

    def __init__(self) -> None:
        self._scope: anyio.CancelScope | None = None

    @contextmanager
    def limit(self, seconds: float) -> Iterator[anyio.CancelScope]:
        """End the work in this context after so many seconds.

        The scope says whether it was ended.
        """
        with anyio.move_on_after(seconds) as scope:
            self._scope = scope
            yield scope

    @contextmanager
    def person_waits(self) -> Iterator[None]:
        """While a person is asked, the run's time stands still."""
        scope = self._scope or anyio.CancelScope()
        began, deadline = anyio.current_time(), scope.deadline
        # Not cancelled and begun again: the work in the scope goes on, and only its end moves.
        scope.deadline = math.inf
        try:
            yield
        finally:
            # By the loop's clock, which does not jump when the system's is set.
            scope.deadline = deadline + anyio.current_time() - began
