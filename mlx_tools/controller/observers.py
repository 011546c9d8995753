"""Observers of runs: they take every event, for programs that record runs.

An observer changes nothing of a run, and no fault of one reaches it.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from mlx_tools.controller.writer import Emit
from mlx_tools.transcript import Record, events

_log = logging.getLogger(__name__)


class RunObserver(Protocol):
    """Observes one run."""

    def tell(self, event: events.Event) -> None:
        """Take an event, once its record is written."""
        ...

    def end(self, error: BaseException | None) -> None:
        """Take the end of the run, and the exception that it raised, if any."""
        ...


Observer = Callable[[Sequence[Record]], RunObserver | None]
"""Is called when a run begins, with the session's transcript.

The header comes first, and the list grows as the run goes on. Returns None if this run is not
observed.
"""


@contextlib.contextmanager
def observe_run(
    observers: Sequence[Observer], transcript: Sequence[Record], emit: Emit | None
) -> Iterator[Emit | None]:
    """Observe one run while the context lasts.

    Args:
        observers: the observers that are there.
        transcript: the records of the session.
        emit: the caller's function for events, which comes after the observers.

    Yields:
        The function that takes the events, None if nobody does.
    """
    begun = (_begin(observer, transcript) for observer in observers)
    watching = [run for run in begun if run is not None]
    if not watching:
        yield emit
        return

    def tell(event: events.Event) -> None:
        for run in watching:
            run.tell(event)
        if emit is not None:
            emit(event)

    failure: BaseException | None = None
    try:
        yield tell
    except BaseException as error:
        failure = error
        raise
    finally:
        for run in watching:
            run.end(failure)


def _begin(observer: Observer, transcript: Sequence[Record]) -> RunObserver | None:
    """Return the observer of this run, if there is one."""
    run: RunObserver | None = None
    with _failures_logged():
        run = observer(transcript)
    return None if run is None else _GuardedObserver(run)


class _GuardedObserver:
    """An observer of a run whose failures are logged."""

    def __init__(self, run: RunObserver) -> None:
        self._run = run

    def tell(self, event: events.Event) -> None:
        with _failures_logged():
            self._run.tell(event)

    def end(self, error: BaseException | None) -> None:
        with _failures_logged():
            self._run.end(error)


@contextlib.contextmanager
def _failures_logged() -> Iterator[None]:
    """Log what an observer raises: no run ends because of one."""
    try:
        yield
    except Exception as error:
        _log.info("an observer of runs failed: %s", type(error).__name__)
