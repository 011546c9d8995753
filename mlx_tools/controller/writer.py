"""Writes the records of a session down, folds them, and tells of them.

This is the one way in which anything of a session is recorded. The driver, approvals and runs
within calls share it, and need nothing else of one another to record what they do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

from mlx_tools.controller.session import Session
from mlx_tools.policy import Policy
from mlx_tools.protocol import Reading
from mlx_tools.transcript import Record, events

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
        """Is called with every event; None if nobody listens."""

    @property
    def policy(self) -> Policy:
        """The policy in force."""
        return self.session.policy

    def timestamp(self) -> str:
        """The time now, as records have it."""
        return self.now().isoformat(timespec="milliseconds")

    def append(
        self, record: Record, later_records: Sequence[Record] = (), reading: Reading | None = None
    ) -> None:
        """Write a record down, go on from it, and tell of it.

        Args:
            record: what happened.
            later_records: the records that follow from the same completion.
            reading: how a completion was read, if that is known already.

        Raises:
            TranscriptError: the record may not come now. Nothing is written.
            StorageError: the record cannot be written down.
        """
        # In this order: a record that may not come is never written, and the session goes on only
        # from what is written, so that a crash leaves nothing that the transcript does not say.
        self.session.check(record)
        self.transcript.append(record)
        self.session.fold(record, reading)
        if self.emit is not None:
            event = events.event_of(record, self.transcript, later_records)
            if event is not None:
                self.emit(event)

    def append_all(self, records: Sequence[Record]) -> None:
        """Write down records that follow from one completion."""
        for record in records:
            self.append(record, records)

    def tell(self, event: events.Event) -> None:
        """Tell of what has no record."""
        if self.emit is not None:
            self.emit(event)
