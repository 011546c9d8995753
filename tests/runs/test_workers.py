"""Workers: they do what gateways are asked for, go on where one of them dies, and no run is done
twice. At full size `benchmarks/chaos.py` shows it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx
import psycopg
import pytest

from mlx_tools.backends import Chunk
from mlx_tools.plugins.runs import worker as worker_module
from mlx_tools.testing import Completion, ScriptedBackend, answer, call
from tests.forked import forks
from tests.gateway.postgres import BINARIES, Cluster
from tests.runs.conftest import answer_after, create_run
from tests.waiting import moment, until, wait_until

pytestmark = pytest.mark.anyio

WRITES = call("create_file", path="b.txt", content="new")


# --- as processes ---------------------------------------------------------------------------------


@pytest.fixture
def settled(house: Any, cluster: Cluster) -> Callable[..., Any]:
    """Begin a gateway over a database of its own."""

    def begin(*scripts: Any) -> Any:
        return house(*scripts, SESSIONS=cluster.new(), GATEWAY_APPROVALS="client")

    return begin


def test_a_run_waits_for_a_worker_and_goes_on_as_its_client_decides(settled: Any) -> None:
    house = settled(WRITES, answer("written"), answer("sure"))
    run = house.post(question="x", status=201)["id"]
    assert house.get(run)["status"] == "queued"
    worker = house.worker()
    assert "finished" in house.events(run)
    assert house.get(run)["status"] == "paused"  # whoever is told so may decide at once
    assert not (house.files / "b.txt").exists()
    wrong = {"call_id": "c1", "digest": "0" * 64, "decision": "approve"}
    assert house.post(f"/{run}/approvals", status=409, **wrong)["error"]["code"] == "conflict"
    (waits,) = house.get(run)["pending"]
    said = {"call_id": "c1", "digest": waits["digest"], "decision": "approve"}
    house.post(f"/{run}/approvals", status=200, **said)
    assert house.until(run, "answered")["answer"] == "written"
    assert (house.files / "b.txt").read_text() == "new"
    house.post(f"/{run}/continue", status=200, question="Sure?")
    assert house.until(run, "answered")["answer"] == "sure"
    text = httpx.get(house.url.replace("v1", "metrics")).text
    assert 'mlx_tools_workers{of="runs"} 1\n' in text
    assert 'mlx_tools_waiting{of="runs"} 0\n' in text
    worker.send_signal(signal.SIGTERM)
    assert worker.wait() == 0


def test_a_worker_that_says_that_it_works_ends_in_order(settled: Any) -> None:
    worker = settled().worker()
    worker.send_signal(signal.SIGTERM)
    assert worker.wait() == 0


def test_a_run_whose_worker_is_killed_is_gone_on_with_by_another(settled: Any) -> None:
    house = settled(Completion(answer("word " * 2000), size=5, delay=0.05), answer("done"))
    first = house.worker()
    run = house.post(question="x", status=201)["id"]
    wait_until(lambda: house.server.prompts)
    first.kill()
    first.wait()
    with psycopg.connect(house.environ["MLX_TOOLS_SESSIONS"], autocommit=True) as db:
        old = "UPDATE mlx_tools_queue.procrastinate_workers SET last_heartbeat = now() - '1 h'"
        db.execute(old + "::interval")  # its lease is over
    house.worker()
    assert house.until(run, "answered")["answer"] == "done"


def test_a_job_of_the_schedule_that_is_due_is_run_by_a_worker(settled: Any) -> None:
    house = settled(answer("swept"))
    daily = ("schedule", "add", "Sweep.", "--when", "every day at 7:00")
    process = house.start(*daily, "--url", house.server.url)
    _, said = process.communicate()
    assert process.returncode == 0, said
    with psycopg.connect(house.environ["MLX_TOOLS_SESSIONS"], autocommit=True) as db:
        # Its time has come, and the tick.
        db.execute('UPDATE "mlx_tools_schedule".jobs SET next_due = 1000, try_at = 1000')
        house.worker()
        tick = "INSERT INTO procrastinate_jobs (queue_name, task_name, args)"
        db.execute("SET search_path = mlx_tools_queue")
        db.execute(f"{tick} VALUES ('due', 'due', %s)", ('{"timestamp": 0}',))

        def ended() -> Any:
            found = db.execute('SELECT status FROM "mlx_tools_schedule".runs').fetchall()
            return found if found and found[0] != ("running",) else None

        found = wait_until(ended)
    assert found == [("answered",)]


def test_a_worker_over_files_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLX_TOOLS_SESSIONS", raising=False)
    process = forks().start("worker", "--url", "http://127.0.0.1:1")
    _, said = process.communicate()
    assert process.returncode == 2 and b"PostgreSQL" in said


# --- in this process ------------------------------------------------------------------------------


@pytest.fixture
def over(begin: Any, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Begin a gateway over a database of its own, whose workers are quick to look and to give
    up."""
    for name in ("POLL_SECONDS", "GRACE", "RETRY_SECONDS"):
        monkeypatch.setattr(worker_module, name, 0.1)
    return lambda *scripts: begin(*scripts, environ={"MLX_TOOLS_SESSIONS": cluster.new()})


@asynccontextmanager
async def at_work(one: Any) -> AsyncIterator[Any]:
    """A worker, which ends with the block."""
    worker = one.worker()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(worker.serve)
        yield worker
        worker.stop()


async def reaches(one: Any, run: dict[str, Any], status: str) -> Any:
    """The run, once it stands so."""

    async def current() -> Any:
        found = (await one.client.get(f"/v1/runs/{run['id']}")).json()
        return found if found["status"] == status else None

    return await until(current, f"it is never {status}")


async def test_a_run_is_cancelled_before_and_while_a_worker_is_at_it(over: Any) -> None:
    one = over(answer("no"))
    never, other = await create_run(one), await create_run(one)
    path = "/v1/runs/{id}/cancel"
    cancelled = await one.client.post(path.format(**never))
    assert cancelled.json()["status"] == "cancelled"
    async with at_work(one):
        assert (await reaches(one, other, "answered"))["answer"] == "no"
        await reaches(one, never, "cancelled")
        assert len(one.backend.prompts) == 1
        one.speaker.backend = answer_after(anyio.Event(), "never")
        run = await create_run(one)
        await reaches(one, run, "running")
        assert (await one.client.post(path.format(**run))).json()["status"] == "cancelled"


async def test_a_worker_that_is_told_to_end_takes_no_more_and_ends_what_it_has(
    over: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "GRACE", 30.0)

    one, come = over(), anyio.Event()
    one.speaker.backend = answer_after(come, answer("late"))
    async with at_work(one) as worker:
        run = await create_run(one)
        await reaches(one, run, "running")
        worker.stop()
        come.set()
    assert (await reaches(one, run, "answered"))["answer"] == "late"
    assert (await create_run(one))["status"] == "queued"


async def test_what_a_worker_cannot_end_in_time_is_handed_on_to_another(over: Any) -> None:
    one = over()
    one.speaker.backend = answer_after(anyio.Event(), "never")
    async with at_work(one):
        run = await create_run(one)
        await reaches(one, run, "running")
    await reaches(one, run, "queued")
    one.speaker.backend = ScriptedBackend(answer("done"))
    async with at_work(one):
        assert (await reaches(one, run, "answered"))["answer"] == "done"


def test_a_worker_outlives_its_database(over: Any, cluster: Cluster) -> None:
    async def main() -> None:
        one = over(answer("one"), answer("two"))
        async with at_work(one):
            await reaches(one, await create_run(one), "answered")
            await anyio.to_thread.run_sync(cluster.kill)
            away = await one.client.post("/v1/runs", json={"question": "x"})
            error = away.json()["error"]["code"]
            assert (away.status_code, error) == (503, "storage_unavailable")
            await anyio.to_thread.run_sync(cluster.start)
            assert (await reaches(one, await create_run(one), "answered"))["answer"] == "two"

    anyio.run(main)  # what breaks off in a task of the queue's own fails no test there


class Talking(ScriptedBackend):
    """A model that goes on with its answer until enough of it was heard."""

    def __init__(self, heard_enough: Callable[[], bool]) -> None:
        super().__init__()
        self.said = ""
        self._heard_enough = heard_enough

    async def complete(self, request: Any) -> Any:
        opening, _, end = answer("|").partition("|")
        yield Chunk(opening)
        for number in range(10_000):  # where nothing is ever heard, the test fails
            self.said += (word := f"\N{SNOWMAN}{number} ")
            yield Chunk(word)
            await moment()
            if self._heard_enough():
                break
        yield Chunk(end)
        yield Chunk("", "stop")


async def test_whoever_follows_a_run_hears_what_its_worker_is_told_by_the_model(over: Any) -> None:
    one, told = over(), list[dict[str, Any]]()

    def pieces() -> list[str]:
        return [event["text"] for event in told if event["type"] == "answer_piece"]

    one.speaker.backend = model = Talking(lambda: len(pieces()) > 3)
    await one.runs.open()
    run = await create_run(one)
    async with at_work(one):
        row = await one.runs.find(None, run["id"])
        async for event in one.runs.follow(row, 0):
            told += [] if event is None else [event[1]]
    await one.runs.aclose()
    kinds = [event["type"] for event in told]
    assert kinds[-2:] == ["turn_ended", "finished"] and len(pieces()) > 3
    assert "".join(pieces()) in model.said


async def test_a_queue_of_an_older_version_is_made_anew_and_nothing_that_waits_is_lost(
    over: Any, begin: Any
) -> None:
    one = over(answer("done"))
    run, address = await create_run(one), one.runs.sessions.dsn
    with psycopg.connect(address, autocommit=True) as db:
        db.execute("UPDATE mlx_tools.formats SET version = 3001 WHERE name = 'queue'")
        db.execute("DROP TABLE mlx_tools_queue.procrastinate_jobs CASCADE")
    two = begin(answer("done"), environ={"MLX_TOOLS_SESSIONS": address})
    async with at_work(two):
        assert (await reaches(two, run, "answered"))["answer"] == "done"


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
