"""What a caller is told of the records that are written: the events that follow from them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from mlx_tools.controller.session import Session
from mlx_tools.transcript import events
from mlx_tools.transcript.records import (
    CallRecord,
    CompactedRecord,
    CorrectionRecord,
    DecisionRecord,
    MendRecord,
    ObservationRecord,
    Record,
    RepairRecord,
    dropped,
)

_PREVIEW_CHARS: Final = 200


def events_of(
    record: Record, records: Sequence[Record], session: Session
) -> Iterator[events.Event]:
    """The events of a record, which ``session`` has folded; ``records`` are those that followed
    from the same completion."""
    match record:
        case CallRecord():
            fixes = (r for r in records if isinstance(r, RepairRecord))
            yield events.CallRead(
                call=record.call,
                name=record.name,
                arguments=record.arguments,
                repairs=tuple(r.name for r in fixes if r.call == record.call),
            )
        case DecisionRecord():
            yield events.CallDecided(
                call=record.call,
                name=session.current.call(record.call).name,
                decision=record.decision,
                rule=record.rule,
                reason=record.reason,
            )
        case ObservationRecord():
            yield tool_ended(record)
        case CorrectionRecord():
            yield events.FormatBroken(turn=record.turn, error=record.error)
        case CompactedRecord():
            yield events.Compacted(
                reason=record.reason,
                turns=record.turns,
                observations=len(record.observations),
                summary=record.reason != "full",
                before=record.before,
                after=record.after,
            )


def mended(mends: Sequence[MendRecord]) -> events.Mended:
    """The last of these mends, all of one turn so far."""
    last = mends[-1]
    return events.Mended(turn=last.turn, kind=last.kind, dropped=dropped(mends), put=last.put)


def tool_ended(record: ObservationRecord) -> events.ToolEnded:
    """How a call ended, with the beginning of what it gave."""
    shown = record.error.message if record.error is not None else record.content or ""
    return events.ToolEnded(
        call=record.call,
        name=record.name,
        error=record.error,
        preview=shown[:_PREVIEW_CHARS],
        duration_ms=record.duration_ms,
        output_size_chars=record.output_size_chars,
        cached=record.cached,
    )
