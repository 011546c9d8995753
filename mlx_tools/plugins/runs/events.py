"""The events of a session's records, as followers get them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Final

from mlx_tools.gateway import JsonObject
from mlx_tools.transcript import (
    AnswerRecord,
    CallRecord,
    CompletionRecord,
    Finished,
    Header,
    MendRecord,
    NumberedSource,
    PauseRecord,
    Record,
    RepairRecord,
    ResumedRecord,
    StoppedRecord,
    UserRecord,
    events,
    list_sources,
    make_run_outcome,
)

_UNSETTLED_RECORDS: Final = (CallRecord, RepairRecord, PauseRecord)
"""Records whose event depends on the next record, if that is not there yet."""

Numbered = tuple[int | None, JsonObject]
"""An event as JSON, and the number of its record, from 1; None for a delta."""


def closed_count(records: Sequence[Record], *, at_rest: bool) -> int:
    """Return how many of the records have final events.

    With ``at_rest`` no process adds to them.
    """
    count = len(records)
    while not at_rest and count and isinstance(records[count - 1], _UNSETTLED_RECORDS):
        count -= 1
    return count


class SessionEventReader:
    """Reads the events of a session's records in their order, each record once.

    ``last_number`` is the number of the last record whose event is known already. A transcript only
    grows, so records are never read again.
    """

    def __init__(self, last_number: int) -> None:
        self.last_number = last_number
        self._read = 0  # records that were read
        # the places of the last question, and of the first mend of a turn
        self._run = self._mends = 0
        self._calls: dict[str, CallRecord] = {}
        self._sources: dict[int, NumberedSource] = {}

    def read(self, records: Sequence[Record], upto: int) -> Iterator[Numbered]:
        """Yield the events of the next records up to a number, except those known already.

        A known number beyond the end is the end.
        """
        self.last_number = min(self.last_number, len(records))
        while self._read < upto:
            record = records[self._read]
            self._note_record(record)
            if (number := self._read) <= self.last_number:
                continue
            self.last_number = number
            if _ends(records, number):
                run = records[self._run : number]
                header = next(one for one in records if isinstance(one, Header))
                outcome = make_run_outcome(header, run, self._sources)
                yield number, Finished(outcome=outcome).to_json()
                continue
            after = (records[place] for place in range(number, len(records)))
            turn = takewhile(lambda one: not isinstance(one, CompletionRecord), after)
            event = events.make_event(record, self._select_earlier(records, record), turn)
            if event is not None:
                yield number, event.to_json()

    def _note_record(self, record: Record) -> None:
        if isinstance(record, UserRecord):
            self._run = self._read
        elif isinstance(record, CallRecord):
            self._calls[record.call] = record
        if not isinstance(record, MendRecord):
            self._mends = self._read + 1
        self._sources |= list_sources(record)
        self._read += 1

    def _select_earlier(self, records: Sequence[Record], record: Record) -> Sequence[Record]:
        """Return the records up to this one that its event depends on."""
        if isinstance(record, MendRecord):
            return records[self._mends : self._read]
        call = self._calls.get(getattr(record, "call", None) or "")
        return () if call is None else (call,)


def _ends(records: Sequence[Record], number: int) -> bool:
    """Return whether the run came to rest with this record.

    A pause that somebody ended in place does not count.
    """
    record, after = records[number - 1], records[number : number + 1]
    if isinstance(record, PauseRecord):
        return not after or isinstance(after[0], ResumedRecord | StoppedRecord)
    return isinstance(record, AnswerRecord | StoppedRecord)
