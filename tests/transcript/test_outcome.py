"""The end of a run, read from its records."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_tools.messages import ErrorInfo, Usage, replace
from mlx_tools.transcript.call_history import RunHistory
from mlx_tools.transcript.counters import Counters, CounterSum, ToolCounters, count
from mlx_tools.transcript.outcome import Answered, Stopped, make_outcome
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
from tests.controller.records import RECORDS
from tests.controller.sessions import SPECS, completion, header
from tests.examples import FEW

SHAPE = {
    *("status", "answer", "bare_text", "truncated", "truncated_by", "call_like", "reason"),
    *("session", "transcript"),
    *("turns", "calls", "sources", "pending", "usage", "repairs", "mends", "context", "model"),
    "strategy",
}
CALL_SHAPE = {
    *("id", "name", "arguments", "status", "repairs", "duration_ms", "output_size_chars"),
    *("output_omitted", "error_code", "error_preview"),
}


def _call(key: str) -> CallRecord:
    return CallRecord(turn=1, call=key, name="look", arguments={"x": 1})


def _run(*records: Record) -> list[Record]:
    return [header(), UserRecord(content="hello"), *records]


def test_an_answered_run_has_every_key_of_the_interface() -> None:
    outcome = make_outcome(
        _run(
            completion(1, ""),
            _call("c1"),
            RepairRecord(turn=1, name="inline", call="c1"),
            ExecutionRecord(call="c1", mutates=False),
            ObservationRecord(
                call="c1", name="look", content="ab…", duration_ms=3, output_size_chars=9
            ),
            completion(2, ""),
            AnswerRecord(turn=2, content="done", sources=(7,)),
        ),
        transcript="t.jsonl",
        outputs={"c1": "abcdefghi"},
    )
    assert isinstance(outcome, Answered)
    assert outcome.exit_code == 0
    value = outcome.to_json()
    assert set(value) == SHAPE
    tokens = dict.fromkeys(("prompt_tokens", "cached_tokens", "completion_tokens"))
    assert value["usage"] == {"requests": 2, **tokens}  # nobody reported any: null, not zero
    (call,) = value["calls"]
    assert set(call) == CALL_SHAPE
    assert call["status"] == "ok"
    assert call["output_omitted"] is True
    assert value["repairs"] == {"inline": 1}
    assert value["turns"] == 2
    (whole,) = outcome.to_json(include_outputs=True)["calls"]
    assert whole["output"] == "abcdefghi"
    assert whole["output_omitted"] is False


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("tool_error", "error"),
        ("timeout", "error"),
        ("invalid_arguments", "error"),
        ("not_allowed", "denied"),
        ("disabled", "denied"),
        ("denied", "denied"),
        ("dry_run", "dry_run"),
    ],
)
def test_an_error_gives_a_call_its_status_and_a_short_preview(code: str, status: str) -> None:
    error = ErrorInfo(code, "x" * 600)  # type: ignore[arg-type]
    outcome = make_outcome(
        _run(
            completion(1, ""),
            _call("c1"),
            ObservationRecord(call="c1", name="look", error=error),
            AnswerRecord(turn=2, content=""),
        )
    )
    (call,) = outcome.calls
    assert call.status == status
    assert call.error_code == code
    assert call.error_preview == "x" * 500


def test_calls_without_an_end_are_denied_or_in_doubt() -> None:
    read = completion(1, ""), _call("c1"), ExecutionRecord(call="c1", mutates=True)
    outcome = make_outcome(_run(*read, _call("c2"), StoppedRecord(reason="repeated_call")))
    ends = [(call.status, call.error_code) for call in outcome.calls]
    assert ends == [("in_doubt", None), ("denied", "repeated_call")]


@pytest.mark.parametrize(
    ("record", "code"),
    [
        (StoppedRecord(reason="format_errors"), 1),
        (StoppedRecord(reason="backend_error", waiting_for="backend"), 3),
        (StoppedRecord(reason="completion_timeout", waiting_for="backend"), 3),
        (StoppedRecord(reason="total_timeout", waiting_for="backend"), 1),
        (StoppedRecord(reason="total_timeout", waiting_for="tool"), 1),
        (StoppedRecord(reason="interrupted"), 130),
    ],
)
def test_a_stopped_run_has_the_exit_code_of_its_reason(record: StoppedRecord, code: int) -> None:
    outcome = make_outcome(_run(record))
    assert isinstance(outcome, Stopped)
    assert outcome.exit_code == code
    assert outcome.to_json()["reason"] == record.reason


# --- counters -------------------------------------------------------------------------------------


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
        assert one.ok + one.failures + one.refusals <= one.picked
        assert one.failures <= one.ran <= one.picked
        assert sum(one.errors.values()) == one.failures + one.refusals


@FEW
@given(st.lists(st.lists(RECORDS, max_size=8), max_size=4))
def test_counters_of_runs_add_up(runs: list[list[Record]]) -> None:
    apart = [
        [UserRecord(content="Hi")]
        + [
            replace(record, call=f"{record.call}-{number}")  # type: ignore[call-arg]
            if getattr(record, "call", None)
            else record
            for record in run
        ]
        for number, run in enumerate(runs)
    ]
    together = count([record for run in apart for record in run])
    added, in_place = sum(map(count, apart), Counters()), CounterSum()
    for run in apart:
        in_place.add(count(run))
    assert added == together == in_place.value
    assert added + Counters() == added


def test_a_change_that_is_made_again_makes_no_call_after_it_a_new_one() -> None:
    history = RunHistory()
    calls = ("look", "write", "look", "write", "look")
    assert [history.add(name, {}, SPECS[name]) for name in calls] == [1, 1, 1, 2, 2]


def test_a_fault_is_that_of_the_call_that_was_made_last_and_no_reminder() -> None:
    history, made = RunHistory(), CallRecord(turn=1, call="c1", name="look", arguments={})
    fault = ErrorInfo("tool_error", "no")
    history.end(made, fault)
    history.end(made, ErrorInfo("repeated_call", "again"))
    assert history.fault(made) == fault
    history.end(made, None)
    assert history.fault(made) is None
