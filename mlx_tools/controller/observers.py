"""Observers of runs: they take every event, for programs that record runs.

An observer changes nothing of a run, and no fault of one reaches it.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from mlx_tools.controller.writer import Emit, SessionWriter
from mlx_tools.errors import wrong_argument
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
    observers: Sequence[Observer], writer: SessionWriter, emit: Emit | None = None
) -> Iterator[None]:
    """Tell of the events of one run while the context lasts.

    Args:
        observers: the observers that are there.
        writer: writes the records of the run, and tells of its events.
        emit: the caller's function for events, which comes after the observers.

    Raises:
        UsageError: ``emit`` is no function.
    """
    if emit is not None and not callable(emit):
        raise wrong_argument("emit", emit, "give a function that takes an event")
    begun = (_begin(observer, writer.transcript) for observer in observers)
    watching = [run for run in begun if run is not None]
    writer.emit = emit
    if not watching:
        yield
        return

    def tell(event: events.Event) -> None:
        for run in watching:
            run.tell(event)
        if emit is not None:
            emit(event)

    writer.emit = tell
    failure: BaseException | None = None
    try:
        yield
    except BaseException as error:
        failure = error
        raise
    finally:
        for run in watching:
            run.end(failure)


def _begin(observer: Observer, transcript: Sequence[Record]) -> RunObserver | None:
    """Return the observer of this run, if there is one."""
    run: RunObserver | None = None
    failures = _Failures(observer)
    with failures.logged():
        run = observer(transcript)
    return None if run is None else _GuardedObserver(run, failures)


class _GuardedObserver:
    """An observer of a run whose failures are logged."""

    def __init__(self, run: RunObserver, failures: _Failures) -> None:
        self._run, self._failures = run, failures

    def tell(self, event: events.Event) -> None:
        with self._failures.logged():
            self._run.tell(event)

    def end(self, error: BaseException | None) -> None:
        with self._failures.logged():
            self._run.end(error)


class _Failures:
    """The failures of an observer in one run: a warning names it, once."""

    def __init__(self, observer: Observer) -> None:
        module = getattr(observer, "__module__", "") or ""
        name = getattr(observer, "__qualname__", "") or type(observer).__qualname__
        self._name, self._is_known = f"{module}.{name}".lstrip("."), False

    @contextlib.contextmanager
    def logged(self) -> Iterator[None]:
        """Log what an observer raises: no run ends because of one."""
        try:
            yield
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # somebody else's code: nothing is known of it
            # Not its text, which may quote an event.
            kind, level = type(error).__name__, logging.INFO if self._is_known else logging.WARNING
            _log.log(level, "the observer of runs %s failed: %s", self._name, kind)
            self._is_known = True
