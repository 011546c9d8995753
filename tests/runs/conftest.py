"""A gateway whose runs have tools of these tests."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import anyio
import pytest

from mlx_tools import Tool, tool
from mlx_tools.gateway import Admission, Gateway
from mlx_tools.plugins.runs.runs import open_runs
from mlx_tools.plugins.runs.worker import RunWorker
from mlx_tools.store import TranscriptStore
from mlx_tools.testing import ScriptedBackend
from mlx_tools.tools import Registry
from tests.gateway.conftest import KEY as KEY
from tests.gateway.conftest import anyio_backend as anyio_backend
from tests.gateway.conftest import begin as begin
from tests.gateway.conftest import house as house
from tests.gateway.conftest import serving as serving
from tests.waiting import HANG


class Tools:
    """A tool that reads and one that writes; ``written`` is what was, ``hold`` has the latter wait
    before it is done. ``closed`` counts what was ended of what they keep open."""

    def __init__(self) -> None:
        self.written: list[str] = []
        self.closed = 0
        self.hold: Callable[[], Any] | None = None

    def registry(self) -> Registry:
        """The tools, which count how often they are closed."""
        registry = Registry(self.made())
        registry.closers.append(self._close)
        return registry

    async def _close(self) -> None:
        self.closed += 1

    def made(self) -> list[Tool]:
        @tool(effects={"read"})
        def area(width: float, height: float) -> float:
            """Area of a rectangle."""
            return width * height

        @tool(effects={"write"})
        async def keep(text: str) -> str:
            """Keeps a text."""
            self.written.append(text)
            if self.hold is not None:
                await self.hold()
            return "kept"

        return [area, keep]


@pytest.fixture
def prepare(monkeypatch: pytest.MonkeyPatch) -> Callable[[Gateway, int], dict[str, Any]]:
    """Give a gateway its runs, ``most`` of which may wait; their tools are `Tools`."""
    monkeypatch.setattr("mlx_tools.plugins.runs.runs.POLL_SECONDS", 0.05)

    def with_runs(gateway: Gateway, most: int) -> dict[str, Any]:
        tools, places = Tools(), Admission(2, most, lambda: 0.0)
        registry = lambda header: tools.registry()  # noqa: E731
        parts = gateway.configuration, gateway.models, gateway.note
        gateway.shared["runs"] = runs = open_runs(*parts, places, gateway.meters, registry)

        async def nothing() -> None:
            return

        def worker() -> RunWorker:
            """Return a worker for runs that are left to a queue."""
            queue, served = runs.execution.queue, ("scripted", "default")
            assert queue is not None
            return RunWorker(runs.execution, queue, 2, served, nothing, [].append)

        return {"runs": runs, "tools": tools, "worker": worker}

    return with_runs


async def ask(one: Any, **body: Any) -> dict[str, Any]:
    """Create a run, and wait until it rests."""
    made = await one.client.post("/v1/runs", json={"question": "How large?", **body})
    assert made.status_code == 201, made.text
    return await wait_for_rest(one, made.json()["id"])


async def create_run(one: Any) -> dict[str, Any]:
    """Create a run, and return it."""
    made: dict[str, Any] = (await one.client.post("/v1/runs", json={"question": "x"})).json()
    return made


async def wait_for_end(one: Any, run: str) -> None:
    """Wait until a run is no longer executed here."""
    if (live := one.runs.workers.live_run(run)) is not None:
        with anyio.fail_after(HANG):
            await live.has_ended.wait()


async def wait_for_rest(one: Any, run: str) -> dict[str, Any]:
    await wait_for_end(one, run)
    return (await one.client.get(f"/v1/runs/{run}")).json()


async def copy_as_killed(state: Path, killed: Path) -> None:
    """Copy what a kill would leave of a state that is in use.

    No transaction is under way meanwhile, and a file that is replaced may be gone.
    """

    def copy(source: str, target: str) -> None:
        with suppress(FileNotFoundError):
            shutil.copy2(source, target)

    def lock_and_copy() -> None:
        with ExitStack() as stack:
            for path in state.rglob("*.sqlite"):
                rows = sqlite3.connect(path, timeout=HANG, isolation_level=None)
                stack.enter_context(closing(rows)).execute("BEGIN IMMEDIATE")
            shutil.copytree(state, killed, copy_function=copy)

    await anyio.to_thread.run_sync(lock_and_copy)


def begin_with_client_approvals(begin: Any, *scripts: Any) -> Any:
    return begin(*scripts, file='[gateway]\napprovals = "client"\n')


def find_transcript(one: Any, run: str) -> Path:
    """Return the path of a run's transcript."""
    assert isinstance(one.runs.sessions, TranscriptStore)
    return one.runs.sessions.path(run)


def answer_after(event: anyio.Event, text: str) -> Any:
    """Return a completion that comes after an event."""

    class Slow(ScriptedBackend):
        async def complete(self, request: Any) -> Any:
            await event.wait()
            async for chunk in super().complete(request):
                yield chunk

    return Slow(text)
