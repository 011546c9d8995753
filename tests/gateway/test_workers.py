"""Workers: they do what gateways are asked for, go on where one of them dies, and no run is done
twice. At full size `benchmarks/chaos.py` shows it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from mlx_tools.testing import Completion, ScriptedServer, answer, call
from tests.forked import Forked, forks
from tests.gateway.postgres import BINARIES, Cluster

WRITES = call("create_file", path="b.txt", content="new")


class House:
    """A gateway and workers over one database, in front of a scripted server."""

    def __init__(self, server: ScriptedServer, folder: Path, sessions: str) -> None:
        self.server, self.folder, self.sessions = server, folder, sessions
        self.environ = os.environ | {
            f"XDG_{name}_HOME": str(folder) for name in ("CONFIG", "STATE", "DATA")
        }
        self.environ |= {
            "MLX_TOOLS_SESSIONS": sessions,
            "MLX_TOOLS_GATEWAY_APPROVALS": "client",
            "MLX_TOOLS_GATEWAY_CONCURRENCY": "2",
            "MLX_TOOLS_MODEL_CHAT_FORMAT": "chatml",
        }
        (folder / "files").mkdir()
        self.processes: list[Forked] = []
        self.gateway = self.start("serve", "--port", "0")
        self.url = self.said(self.gateway, r"served at (http://\S+)") + "/runs"

    def start(self, *words: str, code: str = "") -> Forked:
        tools = ("--tools", "create_file,calculator", "--root", f"{self.folder / 'files'}:rw")
        how = ("--url", self.server.url, *tools)
        made = forks().start(*words, *how, code=code, environ=self.environ, folder=self.folder)
        self.processes.append(made)
        return made

    def said(self, process: Forked, pattern: str) -> str:
        lines = iter(process.stderr.readline, b"")
        return next(filter(None, (re.search(pattern, line.decode()) for line in lines)))[1]

    def worker(self) -> Forked:
        made = self.start("worker")
        assert self.said(made, r"runs of (\S+) are done here") == "scripted"
        return made

    def post(self, path: str = "", status: int = 0, **body: Any) -> dict[str, Any]:
        got = httpx.post(self.url + path, json=body, timeout=30)
        assert not status or got.status_code == status, got.text
        found: dict[str, Any] = got.json()
        return found

    def get(self, run: str) -> dict[str, Any]:
        found: dict[str, Any] = httpx.get(f"{self.url}/{run}", timeout=30).json()
        return found

    def until(self, run: str, *statuses: str) -> dict[str, Any]:
        """The run, once it stands so."""
        for _ in range(600):
            if (found := self.get(run))["status"] in statuses:
                return found
            time.sleep(0.05)
        raise AssertionError(found)

    def close(self) -> None:
        for one in self.processes:
            one.kill()
            one.communicate()


@pytest.fixture
def begin(tmp_path: Path, cluster: Cluster) -> Iterator[Callable[..., House]]:
    servers: list[ScriptedServer] = []
    houses: list[House] = []

    def made(*scripts: Any) -> House:
        servers.append(ScriptedServer(*scripts).__enter__())
        houses.append(House(servers[-1], tmp_path, cluster.new()))
        return houses[-1]

    yield made
    for house in houses:
        house.close()
    for server in servers:
        server.__exit__(None, None, None)


def test_a_run_waits_for_a_worker_and_goes_on_as_its_client_decides(begin: Any) -> None:
    house = begin(WRITES, answer("written"), answer("sure"))
    run = house.post(question="x", status=201)["id"]
    assert house.get(run)["status"] == "queued"
    house.worker()
    with httpx.stream("GET", f"{house.url}/{run}/events", timeout=30) as response:
        assert "event: finished" in response.iter_lines()
    assert house.get(run)["status"] == "paused"  # whoever is told so may decide at once
    assert not (house.folder / "files" / "b.txt").exists()
    wrong = {"call_id": "c1", "digest": "0" * 64, "decision": "approve"}
    assert house.post(f"/{run}/approvals", status=409, **wrong)["error"]["code"] == "conflict"
    (waits,) = house.get(run)["pending"]
    said = {"call_id": "c1", "digest": waits["digest"], "decision": "approve"}
    house.post(f"/{run}/approvals", status=200, **said)
    assert house.until(run, "answered")["answer"] == "written"
    assert (house.folder / "files" / "b.txt").read_text() == "new"
    house.post(f"/{run}/continue", status=200, question="Sure?")
    assert house.until(run, "answered")["answer"] == "sure"
    text = httpx.get(house.url.replace("v1/runs", "metrics")).text
    assert 'mlx_tools_workers{of="runs"} 1\n' in text
    assert 'mlx_tools_waiting{of="runs"} 0\n' in text


def test_a_run_that_waits_for_a_worker_is_cancelled_at_once_and_never_begun(begin: Any) -> None:
    house = begin(answer("no"))
    run = house.post(question="x", status=201)["id"]
    assert house.post(f"/{run}/cancel", status=200)["status"] == "cancelled"
    house.worker()
    other = house.post(question="y", status=201)["id"]
    assert house.until(other, "answered")["answer"] == "no"
    assert house.get(run)["status"] == "cancelled" and len(house.server.prompts) == 1


def test_a_run_that_a_worker_is_at_is_cancelled(begin: Any) -> None:
    house = begin(Completion(answer("word " * 2000), size=5, delay=0.05))
    house.worker()
    run = house.post(question="x", status=201)["id"]
    house.until(run, "running")
    assert house.post(f"/{run}/cancel", status=200)["status"] == "cancelled"


def test_a_run_whose_worker_is_killed_is_gone_on_with_by_another(begin: Any) -> None:
    slow = Completion(answer("word " * 2000), size=5, delay=0.05)
    house = begin(slow, answer("done"))
    first = house.worker()
    run = house.post(question="x", status=201)["id"]
    while not house.server.prompts:
        time.sleep(0.02)
    first.kill()
    first.wait()
    with psycopg.connect(house.sessions, autocommit=True) as db:  # its lease is over
        old = "UPDATE mlx_tools_queue.procrastinate_workers SET last_heartbeat = now() - '1 h'"
        db.execute(old + "::interval")
    house.worker()
    assert house.until(run, "answered")["answer"] == "done"


def test_a_worker_that_is_told_to_end_takes_no_more_and_ends_what_it_has(begin: Any) -> None:
    house = begin(Completion(answer("word " * 20), size=5, delay=0.05))
    worker = house.worker()
    run = house.post(question="x", status=201)["id"]
    house.until(run, "running")
    worker.send_signal(signal.SIGTERM)
    assert house.until(run, "answered")
    assert worker.wait() == 0
    other = house.post(question="y", status=201)["id"]
    assert house.get(other)["status"] == "queued"


def test_what_a_worker_cannot_end_in_time_is_handed_on_to_another(begin: Any) -> None:
    house = begin(Completion(answer("word " * 2000), size=5, delay=0.05), answer("done"))
    hasty = "import sys; from mlx_tools.cli import main; from mlx_tools.gateway import run_worker"
    program = f"{hasty}; run_worker.GRACE = 0.2; sys.exit(main(sys.argv[1:]))"
    worker = house.start("worker", code=program)
    run = house.post(question="x", status=201)["id"]
    house.until(run, "running")
    worker.send_signal(signal.SIGTERM)
    assert worker.wait() == 0 and house.get(run)["status"] == "queued"
    house.worker()
    assert house.until(run, "answered")["answer"] == "done"


def test_a_worker_outlives_its_database(begin: Any, cluster: Cluster) -> None:
    house = begin(answer("one"), answer("two"))
    house.worker()
    run = house.post(question="x", status=201)["id"]
    house.until(run, "answered")
    cluster.kill()
    cluster.start()
    run = house.post(question="y", status=201)["id"]
    assert house.until(run, "answered")["answer"] == "two"


def test_whoever_follows_a_run_hears_what_its_worker_is_told_by_the_model(begin: Any) -> None:
    house = begin(Completion(answer("\N{SNOWMAN} word " * 20), size=5, delay=0.03))
    house.worker()
    run = house.post(question="x", status=201)["id"]
    with httpx.stream("GET", f"{house.url}/{run}/events", timeout=30) as response:
        lines = [line for line in response.iter_lines() if line.startswith(("data: ", "id: "))]
    told = [json.loads(line.removeprefix("data: ")) for line in lines if line[0] == "d"]
    kinds = [event["type"] for event in told]
    assert kinds[-2:] == ["turn_ended", "finished"] and kinds.count("answer_piece") > 3
    pieces = "".join(event["text"] for event in told if event["type"] == "answer_piece")
    assert pieces and ("\N{SNOWMAN} word " * 20).startswith(pieces)


def test_a_worker_over_files_says_what_it_needs(tmp_path: Path) -> None:
    with ScriptedServer() as server:
        environ = {
            name: value for name, value in os.environ.items() if name != "MLX_TOOLS_SESSIONS"
        }
        environ |= {f"XDG_{name}_HOME": str(tmp_path) for name in ("CONFIG", "STATE", "DATA")}
        process = forks().start("worker", "--url", server.url, environ=environ, folder=tmp_path)
        _, said = process.communicate()
    assert process.returncode == 2 and b"PostgreSQL" in said


def test_a_job_of_the_schedule_that_is_due_is_run_by_a_worker(begin: Any) -> None:
    house = begin(answer("swept"))
    added = ("schedule", "add", "Sweep.", "--when", "every day at 7:00", "--url", house.server.url)
    process = forks().start(*added, environ=house.environ, folder=house.folder)
    _, said = process.communicate()
    assert process.returncode == 0, said
    with psycopg.connect(house.sessions, autocommit=True) as db:  # its time has come, and the tick
        db.execute('UPDATE "mlx_tools_schedule".jobs SET next_due = 1000, try_at = 1000')
        house.worker()
        tick = (
            "INSERT INTO procrastinate_jobs (queue_name, task_name, args) VALUES ('due', 'due', %s)"
        )
        db.execute("SET search_path = mlx_tools_queue")
        db.execute(tick, ('{"timestamp": 0}',))
        for _ in range(300):
            found = db.execute('SELECT status FROM "mlx_tools_schedule".runs').fetchall()
            if found and found[0] != ("running",):
                break
            time.sleep(0.05)
    assert found == [("answered",)]


def test_a_queue_of_an_older_version_is_made_anew_and_nothing_that_waits_is_lost(
    begin: Any,
) -> None:
    house = begin(answer("done"))
    run = house.post(question="x", status=201)["id"]
    with psycopg.connect(house.sessions, autocommit=True) as db:
        db.execute("UPDATE mlx_tools.formats SET version = 3001 WHERE name = 'queue'")
        db.execute("DROP TABLE mlx_tools_queue.procrastinate_jobs CASCADE")
    house.worker()
    assert house.until(run, "answered")["answer"] == "done"


@pytest.mark.slow
@pytest.mark.parametrize("store", ["postgres", "files"])
def test_nothing_is_lost_or_twice_while_processes_are_killed_at_random(store: str) -> None:
    if store == "postgres" and not BINARIES:
        pytest.skip("PostgreSQL is not installed")
    root = Path(__file__).resolve().parents[2]
    made = subprocess.run(
        [sys.executable, "benchmarks/chaos.py", "--store", store, "--runs", "20", "--kills", "8"],
        cwd=root,
        env=os.environ | {"PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
    )
    assert made.returncode == 0, made.stdout + made.stderr
