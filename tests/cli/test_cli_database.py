"""Every command that keeps or reads something, with sessions in PostgreSQL."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mlx_tools.app import config, session_store
from mlx_tools.cli.completion import session_ids
from mlx_tools.golden import read_golden
from mlx_tools.plugins.postgres.postgres import get_database
from mlx_tools.plugins.schedule.command import job_ids
from mlx_tools.plugins.schedule.jobs import job_store
from mlx_tools.testing import Completion, ScriptedServer, answer, call
from tests.command_line import Run
from tests.forked import forks
from tests.gateway.postgres import Cluster
from tests.waiting import wait_until

WRITE = call("file_access", operation="write", path="a.txt", content="new\n")
SUM = call("calculator", expression="17 * 23")


@pytest.fixture
def address(home: Path, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The settings name a database, in the environment."""
    made = cluster.new()
    monkeypatch.setenv("MLX_TOOLS_SESSIONS", made)
    yield made
    get_database(made).close()


@pytest.fixture
def root(home: Path) -> Path:
    folder = home / "files"
    folder.mkdir()
    (folder / "a.txt").write_text("old\n")
    return folder


def test_a_question_waits_is_approved_undone_counted_recorded_and_removed(
    run: Run, home: Path, address: str, root: Path
) -> None:
    with ScriptedServer(WRITE, answer("Written."), answer("Yes."), answer("Bye.")) as server:
        how = ("--url", server.url, "--root", f"{root}:rw", "--preset", "workspace", "--json")
        paused = run("ask", *how, "Write it.")
        assert (paused.code, paused.json["transcript"]) == (4, None)
        (listed,) = run("sessions", "list", "--json").lines
        assert (listed["state"], listed["transcript"]) == ("paused", None)
        shown = run("sessions", "show", "last")
        assert "an approval is due for c1" in shown.out and "transcript" not in shown.out
        done = run("sessions", "resume", listed["session"], "--approve", "c1", "--json")
        assert (done.code, done.json["answer"]) == (0, "Written.")
        assert run("ask", "-c", "Sure?").out == "Yes.\n"
        talked = run("chat", "-c", stdin="/transcript\nBye!\n")
        assert f"session {listed['session']}" in talked.out and "Bye." in talked.out
    assert (root / "a.txt").read_text() == "new\n"
    assert run("undo", "--yes").code == 0 and (root / "a.txt").read_text() == "old\n"
    assert run("stats", "--json").json["sessions"] == 1
    assert run("golden", "record", "kept", "--session", "last").code == 0
    assert len(read_golden(Path("golden_transcripts/kept.jsonl")).golden.outcomes) == 3
    assert run("golden", "run", "golden_transcripts").code == 0
    assert run("sessions", "delete", "last", "--yes").code == 0
    assert run("sessions", "list").out == "" and not (home / "state" / "sessions").exists()


def test_what_a_tool_may_do_an_hour_is_counted_over_all_processes_of_a_session(
    run: Run, configure: Any, address: str
) -> None:
    configure('[policy]\nrate_limits = { calculator = "1/hour" }\n')
    with ScriptedServer(SUM, answer("391."), SUM, answer("No.")) as server:
        first = run("ask", "--url", server.url, "--json", "What is 17 * 23?")
        second = run("ask", "-c", "--json", "Again?")
    assert [one["status"] for one in first.json["calls"]] == ["ok"]
    assert second.json["calls"][-1]["error_code"] == "rate_limited"


def test_a_job_is_kept_run_and_completed(run: Run, address: str) -> None:
    with ScriptedServer(SUM, answer("391.")) as server:
        how = ("--url", server.url, "--when", "0 7 * * *")
        job = run("schedule", "add", *how, "What is 17 * 23?", "--json").json
        store = job_store(session_store(config.load()))
        with store.tables.transaction(write=True) as db:
            db.execute("UPDATE jobs SET next_due = 1, try_at = 1")
        (ended,) = run("schedule", "run", "--json").lines
    assert (ended["status"], ended["job"], job_ids()) == ("answered", job["id"], [job["id"]])
    assert [word for word, _ in session_ids()] == ["last", ended["session"]]


def test_doctor_tries_the_database_and_says_what_keeps_it_from_being_used(
    run: Run, home: Path, address: str, cluster: Cluster
) -> None:
    def transcripts(server: ScriptedServer) -> Any:
        told = run("doctor", "--url", server.url, "--json").json["checks"]
        return next(one for one in told if one["name"] == "transcripts")

    with ScriptedServer(*[answer()] * 40) as server:
        found = transcripts(server)
        assert (found["status"], address.partition("@/")[2].partition("?")[0]) == (
            "ok",
            found["detail"].partition("postgresql:///")[2].split()[0],
        )
        with get_database(cluster.dsn).connection() as db:
            name = address.partition("@/")[2].partition("?")[0]
            db.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
        get_database(address).close()
        found = transcripts(server)
    assert found["status"] == "fail" and "it is read-only" in found["detail"]
    assert not (home / "state" / "sessions").exists()
    get_database(cluster.dsn).close()


def test_a_shell_is_told_the_ids_also_where_a_file_names_the_database(
    run: Run, configure: Any, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert session_ids() == [("last", "")]
    files = session_store(config.load()).create()
    files.transcript.close()
    monkeypatch.delenv("MLX_TOOLS_SESSIONS")
    assert session_ids() == [("last", "")]
    configure(f'sessions = "{address}"\n')
    assert [word for word, _ in session_ids()] == ["last", files.session]


def test_a_shell_is_told_nothing_where_the_database_is_not_reached(
    home: Path, environ: Any
) -> None:
    environ = {
        "MLX_TOOLS_SESSIONS": f"postgresql:///n?host={home}",
        "MLX_TOOLS_CONFIG_DIR": str(home),
        "_MLX_TOOLS_COMPLETE": "complete_bash",
        "COMP_WORDS": "mlx-tools sessions show ",
        "COMP_CWORD": "3",
        "HOME": str(home),
    }
    assert forks().start(environ=environ).communicate() == (b"", b"")


def test_ctrl_c_says_the_session_and_json_what_became_of_it(
    home: Path, address: str, run: Run
) -> None:
    slow = Completion('{"type":"final_answer","content":"' + "x" * 400, delay=0.2)
    with ScriptedServer(slow) as server:
        process = forks().start("ask", "--url", server.url, "--json", "Hello?")
        wait_until(lambda: server.bodies)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    (session,) = session_store(config.load()).ids()
    assert process.returncode == 130 and f"the transcript is in session {session}" in err.decode()
    assert f'"session":"{session}"' in out.decode() and '"interrupted"' in out.decode()
