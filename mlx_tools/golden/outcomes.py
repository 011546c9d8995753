"""What the questions of a transcript came to, without what changes from run to run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from mlx_tools.errors import TranscriptError
from mlx_tools.transcript.outcome import outcome_of
from mlx_tools.transcript.records import Header, Record, UserRecord

_KEPT: Final = ("status", "answer", "reason", "turns", "sources", "repairs", "strategy")
_OF_CALLS: Final = (
    *("id", "name", "arguments", "status", "repairs"),
    *("output_size_chars", "error_code", "error_preview"),
)
UNFINISHED: Final = "unfinished"
"""The status of a question that has not come to rest."""


def outcomes_of(header: Header, records: Sequence[Record]) -> tuple[Mapping[str, Any], ...]:
    """An object a question, in their order."""
    starts = [i for i, record in enumerate(records) if isinstance(record, UserRecord)]
    ends = [*starts[1:], len(records)]
    return tuple(
        _outcome(header, records[start:end]) for start, end in zip(starts, ends, strict=True)
    )


def _outcome(header: Header, run: Sequence[Record]) -> Mapping[str, Any]:
    try:
        whole = outcome_of((header, *run)).to_json()
    except TranscriptError:
        return {"status": UNFINISHED}
    calls = [{key: call[key] for key in _OF_CALLS} for call in whole["calls"]]
    waiting = [{key: call[key] for key in ("call_id", "name")} for call in whole["pending"]]
    own = {key: whole[key] for key in _KEPT if whole[key] not in (None, [], {})}
    own |= {"mends": whole["mends"]} if whole["mends"] else {}
    return own | {"calls": calls} | ({"pending": waiting} if waiting else {})
