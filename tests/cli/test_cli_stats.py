"""`mlx-tools stats`: all sessions counted, by model and tool; what cannot be read is named."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from mlx_tools.errors import EXIT_USAGE
from mlx_tools.messages import ErrorInfo, Usage
from mlx_tools.store.transcript import encode
from mlx_tools.transcript.records import (
    AnswerRecord,
    CallRecord,
    CompletionRecord,
    ExecutionRecord,
    Header,
    ObservationRecord,
    Record,
    StoppedRecord,
    UserRecord,
)

Keep = Callable[[str, Sequence[Record | str]], None]
LONG_AGO = "2020-01-01T00:00:00+00:00"


@pytest.fixture
def keep(home: Path) -> Keep:
    """Keeps a session of these records, or lines as they are."""

    def write(session: str, records: Sequence[Record | str]) -> None:
        place = home / "state" / "sessions" / session
        place.mkdir(parents=True)
        lines = (one if isinstance(one, str) else encode(one) for one in records)
        (place / "transcript.jsonl").write_text("".join(f"{line}\n" for line in lines))

    return write


def question(
    at: str, tool: str = "look", error: ErrorInfo | None = None, key: str = "c1"
) -> list[Record]:
    """A question for which a tool was called, and its answer."""
    return [
        UserRecord(content="Where?", recorded_at=at),
        CompletionRecord(turn=1, text="", usage=Usage(50, 20, 5), duration_ms=1500),
        CallRecord(turn=1, call=key, name=tool, arguments={}),
        ExecutionRecord(call=key, mutates=False),
        ObservationRecord(call=key, name=tool, error=error, duration_ms=8),
        AnswerRecord(turn=2, content="There."),
    ]


@pytest.fixture
def kept(keep: Keep) -> str:
    """Two models' sessions, a call without one, and one that is damaged; the time now."""
    now = (datetime.now(UTC) - timedelta(minutes=5)).isoformat(timespec="milliseconds")
    head = Header(session="s", created=LONG_AGO, model="small")
    failed = question(now, error=ErrorInfo("timeout", "late"), key="c2")
    keep("20260101-000000-00000001", [head, *question(LONG_AGO), *failed])
    other = Header(session="s", created=now, model="large")
    keep("20260101-000000-00000002", [other, UserRecord(content="?", recorded_at=now)])
    keep("20260101-000000-00000003", [Header(session="s", created=LONG_AGO), *question("")[2:5]])
    stopped = StoppedRecord(reason="backend_error")
    keep("20260101-000000-00000004", [head, UserRecord(content="?", recorded_at=now), stopped])
    keep("20260101-000000-00000005", [head, '{"type":"user","content":7}'])
    return now


def test_sessions_are_counted_by_model_and_tool_and_a_damaged_one_is_named(
    run: Any, kept: str
) -> None:
    told = run("stats", "--json").json
    assert told["sessions"] == 4
    assert [one["session"] for one in told["damaged"]] == ["20260101-000000-00000005"]
    assert "line 2" in told["damaged"][0]["reason"]
    assert [*told["models"]] == ["small", "large", "no model"]
    small = told["models"]["small"]
    assert small["ends"] == {"answered": 2, "backend_error": 1}
    assert (small["prompt_tokens"], small["duration_ms"]) == (100, 3000)
    assert (small["tools"]["look"]["ok"], small["tools"]["look"]["failed"]) == (1, 1)
    assert told["models"]["large"]["ends"] == {"unfinished": 1}
    assert told["total"]["tools"]["look"]["picked"] == 3
    assert told["total"]["questions"] == 4


def test_only_what_was_asked_since_a_time_is_counted(run: Any, kept: str) -> None:
    told = run("stats", "--json", "--since", "1h").json
    assert told["sessions"] == 3
    assert told["models"]["small"]["ends"] == {"answered": 1, "backend_error": 1}
    assert told["total"]["tools"]["look"]["picked"] == 1
    assert run("stats", "--json", "--since", "2019-12-31").json["total"]["questions"] == 4
    assert run("stats", "--json", "--since", "2999-01-01").json["sessions"] == 0


def test_a_person_reads_a_table_and_no_name_can_steer_a_terminal(run: Any, keep: Keep) -> None:
    assert run("stats").out == "0 sessions, 0 questions\n"
    head = Header(session="s", created=LONG_AGO, model="small\x1b[2J")
    keep("20260101-000000-00000001", [head, *question(LONG_AGO, "lo\u043ek\x1b[2J")])
    keep("20260101-000000-00000002", ["{"])
    done = run("stats")
    assert done.code == 0
    assert "answered 1 (100 %)" in done.out
    assert "lo\\u043ek" in done.out
    assert "\x1b" not in done.out
    assert "20260101-000000-00000002" in done.error


@pytest.mark.parametrize("when", ["soon", "7", "-1d", "999999w", "2026-13-01"])
def test_what_is_no_time_is_wrong_usage(run: Any, when: str) -> None:
    done = run("stats", "--since", when)
    assert done.code == EXIT_USAGE
    assert "--since" in done.error
