"""Counters: which tools were picked, failed and repaired, in one run and in many."""

from __future__ import annotations

import dataclasses
import json

from hypothesis import given
from hypothesis import strategies as st

from mlx_tools.messages import ErrorInfo, Usage
from mlx_tools.transcript.outcome import Counters, ToolCounters, count
from mlx_tools.transcript.records import (
    AnswerRecord,
    CallRecord,
    CompactedRecord,
    CompletionRecord,
    CorrectionRecord,
    ExecutionRecord,
    MendRecord,
    ObservationRecord,
    Record,
    RepairRecord,
    StoppedRecord,
    UserRecord,
)
from tests.core.records import RECORDS
from tests.examples import FEW


def made(key: str, name: str, *, ran: bool, error: ErrorInfo | None = None) -> list[Record]:
    """The records of a call that ended."""
    records: list[Record] = [CallRecord(turn=1, call=key, name=name, arguments={})]
    if ran:
        records.append(ExecutionRecord(call=key, mutates=False))
    content = "x" if error is None else None
    end = ObservationRecord(call=key, name=name, content=content, error=error, duration_ms=5)
    return [*records, end]


def test_every_call_is_counted_by_what_became_of_it() -> None:
    records: list[Record] = [
        UserRecord(content="Hi"),
        MendRecord(turn=1, kind="key"),
        MendRecord(turn=1, kind="quote"),
        CompletionRecord(turn=1, text="", requests=3, duration_ms=7, usage=Usage(9, 4, 2)),
        *made("c1", "look", ran=True),
        RepairRecord(turn=1, name="trailing_comma", call="c1"),
        RepairRecord(turn=1, name="quotes", call="c1"),
        *made("c2", "look", ran=True, error=ErrorInfo("timeout", "late")),
        *made("c3", "look", ran=False, error=ErrorInfo("invalid_arguments", "no")),
        CorrectionRecord(turn=1, error=ErrorInfo("invalid_json", "no")),
        CompletionRecord(turn=2, text="", usage=Usage(20)),
        RepairRecord(turn=2, name="quotes"),
        CallRecord(turn=2, call="c4", name="write", arguments={}),
        ExecutionRecord(call="c4", mutates=True),
        UserRecord(content="Still?"),
        StoppedRecord(reason="backend_error"),
        UserRecord(content="And now?"),
        AnswerRecord(turn=3, content="Yes."),
        CompactedRecord(reason="asked"),
    ]
    assert count(records).to_json() == {
        "questions": 3,
        "ends": {"unfinished": 1, "backend_error": 1, "answered": 1},
        "completions": 2,
        "requests": 4,
        "duration_ms": 7,
        "prompt_tokens": 29,
        "cached_tokens": 4,
        "completion_tokens": 2,
        "corrections": {"invalid_json": 1},
        "repairs": {"trailing_comma": 1, "quotes": 2},
        "mends": 1,
        "tools": {
            "look": {
                "picked": 3,
                "ran": 2,
                "ok": 1,
                "failed": 1,
                "refused": 1,
                "repaired": 1,
                "errors": {"timeout": 1, "invalid_arguments": 1},
                "repairs": {"trailing_comma": 1, "quotes": 1},
                "duration_ms": 10,
            },
            "write": ToolCounters(picked=1, ran=1).to_json(),
        },
    }


@FEW
@given(st.lists(RECORDS, max_size=20))
def test_any_records_are_counted_and_no_call_has_two_ends(records: list[Record]) -> None:
    counters = count(records)
    json.dumps(counters.to_json())
    for one in counters.tools.values():
        assert one.ok + one.failed + one.refused <= one.picked
        assert one.failed <= one.ran <= one.picked
        assert sum(one.errors.values()) == one.failed + one.refused


@FEW
@given(st.lists(st.lists(RECORDS, max_size=8), max_size=4))
def test_counters_of_runs_add_up(runs: list[list[Record]]) -> None:
    apart = [
        [UserRecord(content="Hi")]
        + [
            dataclasses.replace(record, call=f"{record.call}-{number}")  # type: ignore[call-arg]
            if getattr(record, "call", None)
            else record
            for record in run
        ]
        for number, run in enumerate(runs)
    ]
    together = count([record for run in apart for record in run])
    added = sum(map(count, apart), Counters())
    assert added == together
    assert added + Counters() == added
