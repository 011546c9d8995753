"""`mlx-tools schedule`: from adding a task to what came of it, over real HTTP."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import stat
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from mlx_tools.paths import data_dir, state_dir
from mlx_tools.testing import Completion, ScriptedServer, answer, call
from tests.forked import forks

NOTE = call("notes_create", title="Bread", content="Buy flour.")
TASK = ("Write down what is to be bought.", "--when", "every day at 9:00", "--timezone", "UTC")


def database() -> Path:
    return state_dir() / "schedule.sqlite"


def make_due(ago: float = 1) -> None:
    """Lets all jobs be due: when they are is no part of what is sealed."""
    with closing(sqlite3.connect(database())) as db, db:
        now = int(time.time() - ago)
        db.execute("UPDATE jobs SET next_due = ?, try_at = ?, planned_at = ?", (now, now, now - 60))
    db.close()


def listed(run: Any) -> Any:
    (one,) = run("schedule", "list", "--json").lines
    return one


def header_of(session: str) -> Any:
    transcript = state_dir() / "sessions" / session / "transcript.jsonl"
    return json.loads(transcript.read_text().splitlines()[0])


def added(run: Any, server: ScriptedServer, *options: str, task: Any = TASK, **environ: str) -> Any:
    result = run("schedule", "add", *task, "--url", server.url, "--json", *options, **environ)
    assert (result.code, result.err) == (0, "")
    return result.json


# --- add, list, remove --------------------------------------------------------------------------


def test_a_job_is_added_listed_and_removed(run: Any) -> None:
    result = run("schedule", "add", *TASK)
    job, due = result.out.split("  due ")
    assert result.code == 0 and due.endswith(" 09:00 UTC\n")
    assert job in run("schedule", "list").out and "every day at 9:00" in run("schedule", "list").out
    value = listed(run)
    assert list(value) == [
        *("id", "state", "task", "when", "cron", "at", "timezone", "by"),
        *("created", "policy", "roots", "next_due", "runs"),
    ]
    assert value["cron"] == "0 9 * * *" and value["by"] == "user" and value["runs"] == []
    assert stat.S_IMODE(database().stat().st_mode) == 0o600
    assert run("schedule", "remove", job[:4]).err == f"mlx-tools: done: removed {job}\n"
    assert run("schedule", "list").out == "" and run("schedule", "remove", job).code == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("x", "--when", "soon"), "every weekday at 8:30"),
        (("x", "--when", "2020-01-01 09:00"), "is past"),
        (("", "--when", "@daily"), "the task is empty"),
        (("x", "--when", "@daily", "--tools", "notes_creat"), "did you mean notes_create?"),
        (("x",), "--when"),
        (("x", "--when", "@daily", "--timezone", "Berlin"), "did you mean Europe/Berlin?"),
        (("x", "--when", "@daily", "--tools", "*", "--preset", "notes"), "excludes"),
        (("x", "--when", "@daily", "--approve", "always"), "no such option"),
    ],
)
def test_what_cannot_be_is_one_line_and_nothing_is_kept(
    run: Any, arguments: tuple[str, ...], said: str
) -> None:
    result = run("schedule", "add", *arguments)
    assert result.code == 2 and said in result.error and not database().exists()


def test_nothing_is_made_where_there_is_nothing_to_run(run: Any) -> None:
    ran, shown = run("schedule", "run"), run("schedule", "list")
    assert (ran.code, ran.out, ran.err) == (0, "", "")  # the log of a cron job stays empty
    assert (shown.code, shown.out) == (0, "")
    assert shown.error.endswith("there are no jobs: mlx-tools schedule add TASK --when WHEN")
    assert not database().exists()


def test_a_person_is_told_that_a_loop_stays_and_how_it_ends(terminal: Any) -> None:
    screen = terminal("schedule", "run", "--loop")
    screen.until("each job runs when it is due; Ctrl-C ends this")
    screen.press("ctrl-c")
    screen.until(r"\r\nmlx-tools: interrupted: mlx-tools schedule list")
    assert screen.end() == 130


# --- run ----------------------------------------------------------------------------------------


@pytest.fixture
def notes_unasked(run: Any) -> None:
    """The user has said yes to whatever notes are taken."""
    run("approvals", "add", "notes_create", "title=*", "content=*", "--yes")


@pytest.mark.usefixtures("notes_unasked")
def test_a_job_that_is_due_runs_once_in_a_session_of_its_own(run: Any) -> None:
    with ScriptedServer(NOTE, answer("It is noted.")) as server:
        job = added(run, server, "--preset", "notes")
        assert run("schedule", "run", "--json").lines == []
        make_due()
        result = run("schedule", "run", "--json")
        again = run("schedule", "run", "--json")
    (ended,) = result.lines
    assert result.code == 0 and again.lines == [] and ended["job"] == job["id"]
    assert (ended["status"], ended["answer"]) == ("answered", "It is noted.")
    assert list(ended) == [
        *("job", "due", "attempt", "started", "ended", "status", "session", "reason", "answer")
    ]
    assert "Write down what is to be bought." in server.prompts[0]
    (note,) = (data_dir() / "notes").iterdir()
    assert f"session {ended['session']}" in note.read_text()
    value = listed(run)
    assert value["state"] == "scheduled" and value["runs"][0]["session"] == ended["session"]
    sessions = run("sessions", "list", "--json").lines
    assert [one["session"] for one in sessions] == [ended["session"]]


@pytest.mark.parametrize(
    "made",
    [
        ("schedule", "add", *TASK),
        (
            *("tools", "call", "schedule_task", '{"task": "x", "when": "@daily"}'),
            *("--tools", "schedule_task", "--approve", "always"),
        ),
    ],
)
def test_a_job_that_was_made_for_this_machine_alone_asks_no_other(
    run: Any, made: tuple[str, ...], configure: Any
) -> None:
    assert run(*made, POLICY_LOCAL_ONLY="true").code == 0
    make_due()
    configure('[backend]\nurl = "http://192.0.2.1:8080"\n')
    result = run("schedule", "run", "--json")
    assert result.lines[0]["status"] == "failed"
    assert "not on this machine" in result.lines[0]["reason"]


def test_a_call_that_needs_approval_pauses_and_resume_goes_on(run: Any, configure: Any) -> None:
    with ScriptedServer(NOTE, answer("Noted."), answer("Again.")) as server:
        configure('[policy]\nask = ["notes_create"]\napprove = "always"\n')
        added(run, server, "--preset", "notes")
        make_due()
        result = run("schedule", "run")
        assert result.code == 4 and not (data_dir() / "notes").exists()
        session = listed(run)["runs"][0]["session"]
        assert f"sessions resume {session}" in result.err
        assert f"sessions resume {session}" in run("schedule", "list").out
        make_due(50)
        assert run("schedule", "run", "--json").lines == []  # one at a time
        assert listed(run)["state"] == "paused"
        assert run("sessions", "resume", session, "--approve-all").code == 0
        assert listed(run)["state"] == "scheduled"
        assert [one.name for one in (data_dir() / "notes").iterdir()] == ["Bread.md"]
        make_due(90)
        assert run("schedule", "run", "--json").lines[0]["answer"] == "Again."


def test_what_goes_on_after_a_pause_keeps_to_the_limits_of_the_job(
    run: Any, configure: Any
) -> None:
    again = [call("notes_create", title=f"Bread {n}", content="x") for n in range(6)]
    with ScriptedServer(NOTE, *again) as server:
        configure('[policy]\nask = ["notes_create"]\n')
        added(run, server, "--preset", "notes", MAX_ITERATIONS="1")
        make_due()
        assert run("schedule", "run").code == 4
        session = listed(run)["runs"][0]["session"]
        resumed = run("sessions", "resume", session, "--approve-all", "--json")
    assert (resumed.code, resumed.json["reason"]) == (1, "iteration_limit")
    assert listed(run)["runs"][0]["status"] == "stopped"


def test_a_job_that_is_removed_leaves_its_session_and_says_so(run: Any, configure: Any) -> None:
    with ScriptedServer(NOTE, answer("Noted.")) as server:
        configure('[policy]\nask = ["notes_create"]\n')
        job = added(run, server, "--preset", "notes")
        make_due()
        run("schedule", "run")
        session = listed(run)["runs"][0]["session"]
        removed = run("schedule", "remove", job["id"])
        assert f"sessions resume {session}" in removed.err and run("schedule", "list").out == ""
        assert run("sessions", "resume", session, "--approve-all").code == 0
    assert len(list((data_dir() / "notes").iterdir())) == 1


def test_folders_and_limits_go_along_and_the_folder_is_absolute(run: Any, home: Path) -> None:
    (home / "here" / "data").mkdir()
    (home / "here" / "data" / "plan.txt").write_text("Buy flour.")
    read = call("file_access", operation="read", path="plan.txt")
    with ScriptedServer(read, answer("Flour.")) as server:
        limits = {"MAX_ITERATIONS": "2", "TOTAL_TIMEOUT_MS": "91500"}
        job = added(run, server, "--root", "data", **limits)
        assert job["roots"] == [str((home / "here" / "data").resolve())]
        make_due()
        os.chdir(home)
        result = run("schedule", "run", "--json")
        session = result.lines[0]["session"]
    assert result.lines[0]["answer"] == "Flour." and "Buy flour." in server.prompts[1]
    header = run("sessions", "show", session, "--json").lines[0]
    assert header["limits"]["max_iterations"] == 2 and header["limits"]["total_timeout"] == 91.5


def test_what_was_set_for_the_model_and_the_limits_is_kept(
    run: Any, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "here" / "model").mkdir()
    monkeypatch.delenv("MLX_TOOLS_TOOL_TIMEOUT_MS")
    monkeypatch.setenv("MLX_TOOLS_TOTAL_TIMEOUT_MS", "12345678")
    monkeypatch.setenv("MLX_TOOLS_BACKEND_API_KEY", "a-key-of-mine")
    monkeypatch.setenv("MLX_TOOLS_TOOLS_CACHE", "off")
    monkeypatch.setenv("MLX_TOOLS_MODEL_TEMPERATURE", "0.5")
    run("schedule", "add", *TASK, "--model", "model")
    monkeypatch.delenv("MLX_TOOLS_TOOLS_CACHE")
    with closing(sqlite3.connect(database())) as db, db:
        (text,) = db.execute("SELECT definition FROM jobs").fetchone()
    db.close()
    assert json.loads(text)["options"] == {
        "model.name": str((home / "here" / "model").resolve()),
        "model.temperature": "0.5",
        "limits.total_timeout_ms": "12345.678",
        "tools.cache": "off",
    }
    assert "a-key-of-mine" not in text


# --- jobs that a model makes --------------------------------------------------------------------


SCHEDULE = call("schedule_task", task="Write a note.", when="every day at 7:00")


def test_a_model_makes_a_job_after_approval_with_no_more_than_its_session_may(run: Any) -> None:
    with ScriptedServer(SCHEDULE, answer("Planned."), NOTE, answer("I may not.")) as server:
        asked = run(
            *("ask", "Plan it", "--url", server.url, "--tools", "schedule_task,clock", "--json")
        )
        assert asked.code == 4 and not database().exists()
        session = asked.json["session"]
        assert run("sessions", "resume", session, "--approve-all", "--json").code == 0
        value = listed(run)
        assert value["by"] == f"session {session}" and value["task"] == "Write a note."
        assert value["policy"]["allow"] == ["schedule_task", "clock"]
        make_due()
        result = run("schedule", "run", "--json")
    assert result.lines[0]["answer"] == "I may not." and not (data_dir() / "notes").exists()
    assert len(server.prompts) == 4  # the job asked the server of its session


def test_a_job_of_a_session_that_went_on_has_the_limits_of_that_session(
    run: Any, environ: Any
) -> None:
    with ScriptedServer(SCHEDULE, answer("Planned."), answer("Done.")) as server:
        asked = run(
            *("ask", "Plan it", "--url", server.url, "--tools", "schedule_task", "--json"),
            *("--max-iterations", "3", "--timeout", "90.5", "--temperature", "0.25", "--seed", "7"),
            *("--max-tokens", "123", "--strategy", "free", "--style", "markdown-json"),
        )
        environ(MAX_ITERATIONS="9")
        run("sessions", "resume", asked.json["session"], "--approve-all")
        make_due()
        ended = run("schedule", "run", "--json")
    header, was = header_of(ended.lines[0]["session"]), header_of(asked.json["session"])
    same = ("limits", "sampling", "strategy", "style", "reasoning", "backend")
    assert {key: header.get(key) for key in same} == {key: was.get(key) for key in same}
    assert header["limits"]["max_iterations"] == 3 and header["limits"]["total_timeout"] == 90.5


# --- crashes ------------------------------------------------------------------------------------


def background(*arguments: str) -> subprocess.Popen[bytes]:
    """The program as a script starts it in the background, which is with Ctrl-C ignored."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        return subprocess.Popen(
            [sys.executable, "-m", "mlx_tools", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        )
    finally:
        signal.signal(signal.SIGINT, before)


SLOW = Completion('{"type":"final_answer","content":"' + "slow " * 200 + '"}', size=1, delay=0.5)


@pytest.mark.slow
@pytest.mark.parametrize("start", [lambda *options: forks().start(*options), background])
def test_a_loop_runs_what_comes_and_ends_when_it_is_told_to(run: Any, start: Any) -> None:
    with ScriptedServer(answer("First.")) as server:
        added(run, server)
        make_due()
        child = start("schedule", "run", "--loop", "--json")
        try:
            assert child.stdout is not None
            assert json.loads(child.stdout.readline())["answer"] == "First."
            child.send_signal(signal.SIGTERM)
            assert child.wait(120) == 130
        finally:
            child.kill()
            child.communicate()
    assert listed(run)["state"] == "scheduled"
    assert list((state_dir() / "schedule.sqlite.runners").iterdir()) == []


def test_what_starts_jobs_is_shown_asked_about_and_taken_away(
    run: Any, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("systemctl", "launchctl"):
        program = home / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", str(home / "bin"))
    asked = run("schedule", "install")
    assert asked.code == 2 and "--yes writes it" in asked.err
    assert "schedule" in asked.out and "MLX_TOOLS_STATE_DIR=" in asked.out
    assert not list(home.rglob("org.mlx-tools.schedule.*"))
    assert run("schedule", "install", "--yes").code == 0
    written = [one.read_text() for one in home.rglob("org.mlx-tools.schedule.*")]
    assert written and all(text in asked.out for text in written)
    assert run("schedule", "uninstall").code == 0
    assert not list(home.rglob("org.mlx-tools.schedule.*"))
    assert "nothing is installed" in run("schedule", "uninstall").err
