"""`schedule_task`: a job of the model's, with what was approved and no more."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from mlx_tools import Controller
from mlx_tools.controller import ApprovalAnswer, ApprovalRequest
from mlx_tools.messages import ToolSpec
from mlx_tools.plugins.schedule.task_tool import Jobs, schedule_task
from mlx_tools.policy import Policy, decide
from mlx_tools.testing import ScriptedBackend
from mlx_tools.tools import ToolContext, ToolResult, make_preview
from tests.schedule.kept_jobs import find_job_file, open_job_store
from tests.tools.file_calls import execute_call

START = datetime(2026, 3, 4, 23, 30, tzinfo=UTC)
POLICY = Policy(allow=["schedule_task", "clock"], deny=["notes_*"])


class Desk:
    """The tool, with a clock that is set by hand."""

    def __init__(self, path: Path) -> None:
        self.now = START
        self.store = open_job_store(path, b"secret", lambda: self.now)
        jobs = Jobs(
            store=self.store,
            zone=lambda: "Europe/Berlin",
            configured_policy=Policy(allow=["*"]),
            roots=("/data",),
            options={"model.name": "m"},
            now=lambda: self.now,
        )
        self.tool = schedule_task(jobs)

    def state(self, when: str) -> str:
        shown = self.tool.preview({"task": "Count.", "when": when})
        assert shown is not None
        return shown.state

    def call(self, when: str, expected: str | None = None) -> ToolResult:
        context = ToolContext(policy=POLICY, expected=expected, session="s-1")
        return execute_call(self.tool, context, task="Count.", when=when)


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path / "schedule.sqlite")


def test_a_job_has_the_policy_folders_and_settings_of_its_session(desk: Desk) -> None:
    result = desk.call("tomorrow 9:00")
    (listed,) = desk.store.listing()
    job = listed.job
    assert job is not None and Policy.from_json(job.policy) == POLICY
    assert Policy.from_json(job.configured_policy) == Policy(allow=["*"])
    assert (job.roots, job.options, job.created_by) == (
        ("/data",),
        {"model.name": "m"},
        "session s-1",
    )
    assert f"{job.id} was made" in str(result.content)
    assert "2026-03-06 09:00:00 (Europe/Berlin)" in str(result.content)  # it is the 5th in Berlin


def test_what_is_shown_before_approval_is_the_task_and_its_times(desk: Desk) -> None:
    arguments: dict[str, Any] = {"task": "Count\n\x1b[2J.", "when": "every weekday at 8:30"}
    shown = desk.tool.preview(arguments)
    assert shown is not None and "\x1b" not in shown.text
    assert [line for line in shown.text.split("\n") if line.startswith("due: ")] == [
        f"due: 2026-03-{day:02} 08:30:00 (Europe/Berlin)" for day in (5, 6, 9)
    ]
    assert not find_job_file(desk.store).exists()


def test_what_is_shown_says_what_the_job_may_do(desk: Desk) -> None:
    asked: list[str] = []

    class Refuses:
        async def decide(self, requests: Sequence[ApprovalRequest]) -> Sequence[ApprovalAnswer]:
            asked.extend(request.preview for request in requests)
            return [ApprovalAnswer(False) for _ in requests]

    text = json.dumps(
        {
            "type": "tool_call",
            "name": "schedule_task",
            "arguments": {"task": "Count.", "when": "in 2 hours"},
        }
    )
    controller = Controller(
        ScriptedBackend(text, '{"type":"final_answer","content":"So be it."}'),
        [desk.tool],
        Policy(allow=["schedule_task"], preset="notes", deny=["clock"], local_only=True),
        approver=Refuses(),
    )
    controller.run_sync("Plan it.")
    (shown,) = asked
    assert "it may call: schedule_task, clock, notes_create" in shown and "; not clock" in shown
    assert "local only" in shown and "in the folders: /data" in shown
    narrowed = Policy(allow=["*"]).intersect(Policy(allow=["clock"]))
    shown = make_preview(desk.tool, {"task": "Count.", "when": "@daily"}, narrowed).text
    assert "may call: *\nand of that no more than this: it may call: clock\n" in shown


@pytest.mark.parametrize("when", ["tomorrow 9:00", "at 23:45", "today 23:59"])
def test_a_time_that_means_another_by_now_is_not_what_was_approved(desk: Desk, when: str) -> None:
    expected = desk.state(when)
    desk.now += timedelta(days=1)
    result = desk.call(when, expected)
    assert result.error is not None and result.error.code == "not_allowed"
    assert desk.store.listing() == []


@pytest.mark.parametrize("when", ["in 2 hours", "IN  2 hours", "@daily", "2026-04-01 9:00"])
def test_a_time_that_means_the_same_is_what_was_approved(desk: Desk, when: str) -> None:
    expected = desk.state(when)
    desk.now += timedelta(minutes=50)
    assert desk.call(when, expected).error is None
    (listed,) = desk.store.listing()
    if "hours" in when:
        assert listed.next_due == desk.now + timedelta(hours=2)


def test_without_a_place_for_jobs_it_can_only_fail() -> None:
    result = execute_call(schedule_task(None), task="x", when="@daily")
    assert result.error is not None and "no place for jobs" in result.error.message


@pytest.mark.parametrize("said", ["ask", "deny"])
def test_a_job_carries_nothing_out_that_its_session_read(desk: Desk, said: Any) -> None:
    """Read data may stand in the task, and the job's own session has read nothing yet."""
    policy = Policy(allow=["*"], network_after_read=said)
    task = "Fetch https://site.example/?q=what-was-read"
    for one in (policy, Policy(allow=["*"]).intersect(policy), Policy(allow=["*"])):
        made = execute_call(desk.tool, ToolContext(policy=one), task=task, when="in 2 hours")
        assert made.error is None
    fetch = ToolSpec("fetch_url", effects=frozenset(("read", "network")))
    rules = [
        decide(Policy.from_json(listed.job.policy), fetch, "fetch_url", {}, runs="freely").rule
        for listed in desk.store.listing()
        if listed.job is not None
    ]
    assert sorted(rules) == ["allow *", "local_only", "local_only"]
