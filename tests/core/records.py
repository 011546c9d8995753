"""Strategies for records, shared by the tests of the transcript and of what is read from it."""

from __future__ import annotations

from typing import Any, get_args

from hypothesis import strategies as st

from mlx_tools.errors import StopReason
from mlx_tools.messages import ErrorInfo, Usage
from mlx_tools.transcript import records as r

TEXT = st.text(max_size=30)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
ARGUMENTS = st.dictionaries(TEXT, JSON, max_size=3)
COUNT = st.none() | st.integers(0, 10**9)
USAGE = st.builds(Usage, COUNT, COUNT, COUNT)
ERROR = st.builds(ErrorInfo, st.sampled_from(["tool_error", "timeout"]), TEXT)
KEY = st.sampled_from(["c1", "c2"])


def _record(cls: type[Any], **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.builds(cls, **fields)


RECORDS = st.one_of(
    _record(
        r.UserRecord,
        content=TEXT,
        at=TEXT,
        tool_choice=st.none() | TEXT,
        tools=st.lists(TEXT, max_size=2).map(tuple),
    ),
    _record(
        r.CompletionRecord,
        turn=st.integers(1, 9),
        prefix=TEXT,
        text=TEXT,
        counted=TEXT,
        finish_reason=st.sampled_from([None, "stop", "length", "tool_calls"]),
        closed_early=st.booleans(),
        usage=USAGE,
        duration_ms=COUNT,
        dropped=st.lists(TEXT, max_size=2).map(tuple),
        bare_text=st.booleans(),
        prompt=st.none() | TEXT,
        kept=st.integers(0, 9),
    ),
    _record(
        r.MendRecord,
        turn=st.integers(1, 9),
        kind=st.sampled_from(get_args(r.MendKind)),
        kept=st.integers(0, 9),
        drawn=st.lists(TEXT, max_size=2).map(tuple),
        put=TEXT,
    ),
    _record(
        r.CallRecord,
        turn=st.integers(1, 9),
        call=KEY,
        name=TEXT,
        arguments=ARGUMENTS,
        id=st.none() | TEXT,
        runs=st.sampled_from(["freely", "with_approval"]),
        echoed=st.booleans(),
    ),
    _record(r.RepairRecord, turn=st.integers(1, 9), name=TEXT, call=st.none() | KEY),
    _record(
        r.DecisionRecord,
        call=KEY,
        decision=st.sampled_from(["allow", "ask", "deny"]),
        rule=TEXT,
        reason=TEXT,
    ),
    _record(
        r.ApprovalRecord,
        call=KEY,
        approved=st.booleans(),
        digest=TEXT,
        scope=st.sampled_from(["call", "session"]),
        state=TEXT,
        seal=TEXT,
    ),
    _record(r.NestedRecord, call=KEY, run=st.integers(0, 9), session=TEXT),
    _record(r.EditRecord, call=KEY, arguments=ARGUMENTS, at=TEXT),
    _record(r.ResumedRecord, policy=ARGUMENTS, at=TEXT),
    _record(
        r.PauseRecord,
        calls=st.lists(KEY, max_size=2).map(tuple),
        digests=st.lists(TEXT, max_size=2).map(tuple),
        expires_at=TEXT,
    ),
    _record(r.ExecutionRecord, call=KEY, mutates=st.booleans()),
    _record(
        r.SummaryRecord,
        call=KEY,
        parts=st.lists(
            st.fixed_dictionaries({"offset": st.integers(0, 9), "summary": TEXT}), max_size=2
        ).map(tuple),
        problem=TEXT,
        requests=st.integers(0, 9),
        usage=USAGE,
        duration_ms=COUNT,
        at=TEXT,
    ),
    _record(
        r.CompactedRecord,
        reason=st.sampled_from(["asked", "filling", "full"]),
        gone=st.integers(0, 9),
        turns=st.integers(0, 9),
        content=TEXT,
        observations=st.dictionaries(KEY, TEXT, max_size=2),
        artifacts=st.lists(TEXT, max_size=2).map(tuple),
        before=COUNT,
        after=COUNT,
        requests=st.integers(0, 9),
        usage=USAGE,
        duration_ms=COUNT,
        at=TEXT,
    ),
    _record(
        r.ObservationRecord,
        call=KEY,
        name=TEXT,
        content=st.none() | TEXT,
        error=st.none() | ERROR,
        duration_ms=COUNT,
    ),
    _record(r.CorrectionRecord, turn=st.integers(1, 9), error=ERROR),
    _record(
        r.AnswerRecord,
        turn=st.integers(1, 9),
        content=TEXT,
        sources=st.lists(JSON, max_size=2).map(tuple),
        bare_text=st.booleans(),
    ),
    _record(
        r.StoppedRecord, reason=st.sampled_from(get_args(StopReason)), message=TEXT, partial=TEXT
    ),
)
