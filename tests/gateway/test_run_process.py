"""Runs of a gateway that is a process of its own: killed in the middle, and told to end."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from mlx_tools.cli.serve import _flags
from mlx_tools.testing import Completion, ScriptedServer, answer, call
from tests.forked import forks
from tests.gateway.test_process import Running

WRITES = call("create_file", path="b.txt", content="new")


class RunsOf(Running):
    """A gateway whose runs may see and write the files of a folder."""

    def __init__(self, server: ScriptedServer, folder: Path) -> None:
        self.folder = folder
        (folder / "files").mkdir(exist_ok=True)
        tools = ("--tools", "create_file,calculator", "--root", f"{folder / 'files'}:rw")
        super().__init__(server, folder, *tools)

    def post(self, path: str = "", **body: Any) -> dict[str, Any]:
        found: dict[str, Any] = httpx.post(f"{self.url}/runs{path}", json=body, timeout=30).json()
        return found

    def get(self, run: str) -> dict[str, Any]:
        found: dict[str, Any] = httpx.get(f"{self.url}/runs/{run}", timeout=30).json()
        return found

    def events(self, run: str) -> Iterator[str]:
        """The kinds of the events of a run, as they come."""
        with httpx.stream("GET", f"{self.url}/runs/{run}/events", timeout=30) as response:
            for line in response.iter_lines():
                if line.startswith("event: "):
                    yield line.removeprefix("event: ")


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Any]:
    """Begin a gateway on a server, with the state of those before it."""
    begun: list[RunsOf] = []

    def begin(server: ScriptedServer) -> RunsOf:
        begun.append(RunsOf(server, tmp_path))
        return begun[-1]

    yield begin
    for one in begun:
        if one.process.poll() is None:
            one.process.kill()
        one.process.communicate()


def test_a_server_that_is_killed_in_mid_run_leaves_runs_that_are_found_as_they_are(
    gateway: Any, tmp_path: Path
) -> None:
    slow = Completion(answer("word " * 2000), size=5, delay=0.05)
    with ScriptedServer(answer("one"), WRITES, slow, answer("written")) as server:
        one = gateway(server)
        done, waits, broken = (one.post(question=text)["id"] for text in ("1", "2", "3"))
        assert list(one.events(done))[-1] == "finished"
        assert "finished" in one.events(waits)
        assert "answer_piece" in one.events(broken)
        one.process.kill()
        two = gateway(server)
        found = {
            run: (two.get(run)["status"], two.get(run)["reason"]) for run in (done, waits, broken)
        }
        assert found == {
            done: ("answered", None),
            waits: ("paused", None),
            broken: ("stopped", "interrupted"),
        }
        assert not (tmp_path / "files" / "b.txt").exists()
        assert len(server.prompts) == 3


def test_a_person_decides_in_another_process_and_whoever_follows_hears_of_it(
    gateway: Any, tmp_path: Path
) -> None:
    with ScriptedServer(WRITES, answer("written")) as server:
        one = gateway(server)
        run = one.post(question="x")["id"]
        follows = one.events(run)
        assert "finished" in follows
        (waits,) = one.get(run)["pending"]
        environ = os.environ | {
            f"XDG_{name}_HOME": str(tmp_path) for name in ("CONFIG", "STATE", "DATA")
        }
        said = ("sessions", "resume", run, "--approve", f"c1={waits['digest']}")
        process = forks().start(*said, environ=environ, folder=tmp_path)
        process.communicate()
        assert list(follows)[-1] == "finished"
        assert one.get(run)["answer"] == "written"
        assert (tmp_path / "files" / "b.txt").read_text() == "new"


def test_a_gateway_that_is_installed_sees_the_folders_that_were_meant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given = {"tools.roots": ["files:rw", "."], "policy.preset": "workspace"}
    roots = ["--root", f"{tmp_path / 'files'}:rw", "--root", str(tmp_path)]
    assert _flags(given) == [*roots, "--preset", "workspace"]


def test_told_to_end_it_closes_the_streams_of_runs_that_wait(gateway: Any) -> None:
    with ScriptedServer(WRITES) as server:
        one = gateway(server)
        follows = one.events(one.post(question="x")["id"])
        assert "finished" in follows
        one.process.send_signal(signal.SIGTERM)
        assert list(follows) == []
        one.process.communicate()
