"""Runs of a gateway that is a process."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from mlx_tools.testing import Completion, answer, call

LONG = answer("word " * 2000)

WRITES = call("create_file", path="b.txt", content="new")


@pytest.mark.heavy
def test_a_server_that_is_killed_in_mid_run_leaves_runs_that_are_found_as_they_are(
    house: Any,
) -> None:
    slow = Completion(answer("word " * 2000), size=5, delay=0.05)
    one = house(answer("one"), WRITES, slow, answer("written"))
    runs = []
    for last in ("finished", "finished", "answer_piece"):
        runs.append(one.post(question="x")["id"])
        assert last in one.events(runs[-1])
    done, waits, broken = runs
    one.gateway.kill()
    one.serve()
    found = {run: one.get(run) for run in (done, waits, broken)}
    assert {run: (said["status"], said["reason"]) for run, said in found.items()} == {
        done: ("answered", None),
        waits: ("paused", None),
        broken: ("stopped", "interrupted"),
    }
    assert not (one.files / "b.txt").exists()
    assert len(one.server.prompts) == 3


@pytest.mark.heavy
def test_a_person_decides_in_another_process_and_whoever_follows_hears_of_it(
    house: Any,
) -> None:
    one = house(WRITES, answer("written"))
    run = one.post(question="x")["id"]
    follows = one.events(run)
    assert "finished" in follows
    (waits,) = one.get(run)["pending"]
    one.start("sessions", "resume", run, "--approve", f"c1={waits['digest']}").communicate()
    assert list(follows)[-1] == "finished"
    assert one.get(run)["answer"] == "written"
    assert (one.files / "b.txt").read_text() == "new"


@pytest.mark.heavy
def test_told_to_end_it_closes_the_streams_of_runs_that_wait(house: Any) -> None:
    one = house(WRITES)
    follows = one.events(one.post(question="x")["id"])
    assert "finished" in follows
    one.gateway.send_signal(signal.SIGTERM)
    assert list(follows) == []
    one.gateway.wait()
