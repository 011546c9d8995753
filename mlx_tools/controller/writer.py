"""Writes the records of a session down, folds them, and tells of them.

This is the one way in which anything of a session is recorded. The driver, approvals and runs
within calls share it, and need nothing else of one another to record what they do.

Events go to whoever asked, and to observers, for programs that record runs. An observer changes
nothing of a run, and no fault of one reaches it.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Final, Protocol

from msgspec import structs

from mlx_tools.controller.session import Session
from mlx_tools.errors import wrong_argument
from mlx_tools.packages import must_pass
from mlx_tools.policy import Policy
from mlx_tools.protocol import Reading
from mlx_tools.transcript import Record, events

_log = logging.getLogger(__name__)

WALL_CLOCK: Final = partial(datetime.now, UTC)
"""The wall clock, as the default of those that take a clock."""

Emit = Callable[[events.Event], None]


class SessionWriter:
    """The records of one session, as they are written."""

    def __init__(
        self,
        session: Session,
        transcript: list[Record],
        *,
        secret: bytes,
        now: Callable[[], datetime],
    ) -> None:
        self.session = session
        self.transcript = transcript
        """The records so far, the header first."""
        self.secret = secret
        """The key that seals what a person said."""
        self.now = now
        """The wall clock, in UTC."""
        self.emit: Emit | None = None
        """Called with every event; None if nobody listens."""

    @property
    def policy(self) -> Policy:
        """The policy in force."""
        return self.session.policy

    def timestamp(self) -> str:
        """Return the time now, as records have it."""
        return self.now().isoformat(timespec="milliseconds")

    def append(
        self, record: Record, later_records: Sequence[Record] = (), reading: Reading | None = None
    ) -> Record:
        """Write a record down, go on from it, and tell of it.

        Args:
            record: what happened.
            later_records: the records that follow from the same completion.
            reading: how a completion was read, if that is known already.

        Returns:
            The record as it is written: it has its time.

        Raises:
            TranscriptError: the record may not come now. Nothing is written.
            StorageError: the record cannot be written down.
        """
        if getattr(record, "recorded_at", None) == "":
            record = structs.replace(record, recorded_at=self.timestamp())
        # In this order: a record that may not come is never written, and the session goes on only
        # from written records. So after a crash the transcript is complete.
        self.session.check(record)
        self.transcript.append(record)
        self.session.fold(record, reading)
        if self.emit is not None:
            event = events.make_event(record, self.transcript, later_records)
            if event is not None:
                self.emit(event)
        return record

    def append_all(self, records: Sequence[Record]) -> None:
        """Write the records that follow from one completion."""
        for record in records:
            self.append(record, records)

    def tell(self, event: events.Event) -> None:
        """Emit an event that has no record."""
        if self.emit is not None:
            self.emit(event)


# --- observers of runs ---------------------------------------------------------------------------


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
    """Report the events of one run to its observers while the context lasts.

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
    """The failures of an observer in one run: one warning names it."""

    def __init__(self, observer: Observer) -> None:
        module = getattr(observer, "__module__", "") or ""
        name = getattr(observer, "__qualname__", "") or type(observer).__qualname__
        self._name, self._is_known = f"{module}.{name}".lstrip("."), False

    @contextlib.contextmanager
    def logged(self) -> Iterator[None]:
        """Log an exception of an observer: no run ends because of it."""
        try:
            yield
        except BaseException as error:  # somebody else's code: nothing is known of it
            if must_pass(error):
                raise
            # Not its text, which may quote an event.
            kind, level = type(error).__name__, logging.INFO if self._is_known else logging.WARNING
            _log.log(
                level, "mlx-tools: warning: the observer of runs %s failed: %s", self._name, kind
            )
            self._is_known = True
