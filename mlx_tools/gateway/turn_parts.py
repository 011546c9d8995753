"""The parts of the driver in a turn for a client, who makes the calls."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NoReturn

from mlx_tools.controller import (
    Session,
    SessionWriter,
)
from mlx_tools.policy import Decision
from mlx_tools.protocol import Reading
from mlx_tools.tools import Preview, Progress
from mlx_tools.transcript import (
    ApprovalRecord,
    CallRecord,
    MendRecord,
    PendingCall,
    Record,
)


class TurnWriter(SessionWriter):
    """Keeps the records of a turn in memory, with the readings of completions."""

    def __init__(self, session: Session) -> None:
        super().__init__(session, [], secret=b"", now=lambda: datetime.now(UTC))
        self.turned: list[tuple[Record, Reading | None]] = []
        """The records of the turn, without its mends."""

    def append(
        self, record: Record, later_records: Sequence[Record] = (), reading: Reading | None = None
    ) -> Record:
        record = super().append(record, later_records, reading)
        if not isinstance(record, MendRecord):
            self.turned.append((record, reading))
        return record


class ClientRunner:
    """Runs nothing: the client makes the calls."""

    def begin(self) -> None: ...

    def end(self) -> None: ...

    def find_spec(self, call: CallRecord) -> NoReturn:
        raise AssertionError(f"the client makes the call {call.call}")

    def find_denial(self, call: CallRecord) -> Decision | None:
        raise AssertionError(f"the client makes the call {call.call}")

    async def run(self, call: CallRecord, expected_state: str | None) -> NoReturn:
        raise AssertionError(f"the client makes the call {call.call}")

    def waiting(self) -> tuple[PendingCall, ...]:
        return ()

    def is_in_doubt(self, sessions: object) -> bool:
        return False

    def report(self, call: CallRecord, progress: Progress) -> None: ...


class ClientDecisions:
    """Decides nothing: the client decides about its own calls."""

    def __init__(self, writer: TurnWriter) -> None:
        self._writer = writer

    async def write(self, records: Sequence[Record]) -> None:
        self._writer.append_all(records)

    async def decide_again(self) -> None: ...

    async def preview(self, call: CallRecord) -> Preview:
        return Preview("", "")

    async def approve_by_template(self, calls: Sequence[CallRecord]) -> bool:
        return False

    async def ask(self, calls: Sequence[CallRecord]) -> None: ...

    async def pause(self, calls: Sequence[CallRecord], nested_calls: object) -> None: ...

    async def consume_approval(self, call: CallRecord, approval: ApprovalRecord) -> NoReturn:
        raise AssertionError(f"the client makes the call {call.call}")

    async def check_template(self, call: CallRecord, rule: str) -> NoReturn:
        raise AssertionError(f"the client makes the call {call.call}")
