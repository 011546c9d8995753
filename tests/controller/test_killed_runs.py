"""kill -9 at every record, in a real process: nothing that changes things runs twice, nothing is
lost, what nobody can know is in doubt, and the run goes on to its answer."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mlx_tools.store.transcript import load
from mlx_tools.transcript.records import AnswerRecord
from tests.waiting import HANG

SCRIPT = Path(__file__).with_name("killed_run.py")
MOST = 40
"""More records than a run of the script writes."""


MODES = pytest.mark.parametrize(
    ("mode", "step"),
    [
        pytest.param("before", 1, marks=pytest.mark.slow),
        pytest.param("middle", 1, marks=pytest.mark.slow),
        pytest.param("after", 1, marks=pytest.mark.slow),
        ("after", 6),
    ],
)
"""The moments at which a run is killed, and the records: all, or every sixth."""


class Runs:
    """Runs of the script, each in a process of its own."""

    def __init__(self) -> None:
        self.server = subprocess.Popen(
            [sys.executable, str(SCRIPT)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def together(self, *jobs: dict[str, Any]) -> list[Any]:
        assert self.server.stdin is not None
        assert self.server.stdout is not None
        self.server.stdin.write(json.dumps(jobs) + "\n")
        self.server.stdin.flush()
        ended: list[Any] = json.loads(self.server.stdout.readline())
        return ended

    def start(
        self,
        folder: Path,
        session: str | None = None,
        count: int = 0,
        mode: str = "after",
        **said: bool,
    ) -> Any:
        """The outcome of a run, None where it was killed."""
        return self.together(job(folder, session, count, mode, **said))[0]

    def finish(self, folder: Path, session: str) -> set[str]:
        """Resumes until there is an answer: what is in doubt is given up, what waits is approved.
        Returns the names of the tools that were in doubt."""
        doubtful: set[str] = set()
        said: dict[str, bool] = {}
        for _ in range(6):
            if isinstance(
                load(folder / "sessions" / session / "transcript.jsonl")[-1], AnswerRecord
            ):
                return doubtful
            outcome = self.start(folder, session, **said)
            assert "error" not in outcome, outcome
            doubtful |= {c["name"] for c in outcome["calls"] if c["status"] == "in_doubt"}
            said = {
                c["id"]: c["status"] == "pending"
                for c in outcome["calls"]
                if c["status"] in ("pending", "in_doubt")
            }
        raise AssertionError("the run does not come to an end")


def job(
    folder: Path, session: str | None = None, count: int = 0, mode: str = "after", **said: bool
) -> dict[str, Any]:
    return {"folder": str(folder), "session": session, "count": count, "mode": mode, "said": said}


@pytest.fixture(scope="module")
def runs() -> Iterator[Runs]:
    made = Runs()
    yield made
    assert made.server.stdin is not None
    assert made.server.stdout is not None
    made.server.stdin.close()
    made.server.stdout.close()
    assert made.server.wait(timeout=HANG) == 0


def new_folder(folder: Path) -> Path:
    folder.mkdir()
    return folder


def only_session(folder: Path) -> str | None:
    sessions = [entry.name for entry in (folder / "sessions").iterdir() if entry.is_dir()]
    assert len(sessions) <= 1
    return sessions[0] if sessions else None


def ran(file: Path) -> int:
    return len(file.read_text().splitlines()) if file.exists() else 0


def check_end(runs: Runs, folder: Path, session: str) -> None:
    doubtful = runs.finish(folder, session)
    for name, file in (("save", "saved"), ("send", "sent")):
        # what is in doubt has run or not; all else exactly once
        assert ran(folder / file) <= 1
        assert ran(folder / file) == 1 or name in doubtful


@MODES
def test_a_run_killed_at_any_record_goes_on_to_its_answer(
    runs: Runs, tmp_path: Path, mode: str, step: int
) -> None:
    for count in range(1, MOST, step):
        folder = new_folder(tmp_path / str(count))
        outcome = runs.start(folder, None, count, mode)
        if outcome is not None:
            assert outcome["status"] == "paused"
            assert count > 8  # nothing was killed: there are no more records
            return
        session = only_session(folder)
        transcript = folder / "sessions" / str(session) / "transcript.jsonl"
        if session is not None and transcript.read_bytes().count(b"\n") >= 2:
            check_end(runs, folder, session)  # else nothing was asked yet
    raise AssertionError("the run writes more records than expected")


@pytest.mark.slow
@MODES
def test_a_resumed_run_killed_at_any_record_goes_on_to_its_answer(
    runs: Runs, tmp_path: Path, mode: str, step: int
) -> None:
    for count in range(1, MOST, step):
        folder = new_folder(tmp_path / str(count))
        paused = runs.start(folder)
        (pending,) = paused["pending"]
        outcome = runs.start(folder, paused["session"], count, mode, **{pending["call_id"]: True})
        if outcome is not None:
            assert outcome["status"] == "answered"
            assert count > 4
            return
        check_end(runs, folder, paused["session"])
    raise AssertionError("the run writes more records than expected")


@pytest.mark.parametrize("times", [1, pytest.param(20, marks=pytest.mark.slow)])
def test_two_processes_that_approve_the_same_call_run_it_once(
    runs: Runs, tmp_path: Path, times: int
) -> None:
    for number in range(times):
        folder = new_folder(tmp_path / str(number))
        paused = runs.start(folder)
        (pending,) = paused["pending"]
        approving = job(folder, paused["session"], **{pending["call_id"]: True})
        ended = runs.together(approving, approving)
        refused = [outcome["error"] for outcome in ended if "error" in outcome]
        assert len(refused) == 1
        assert "in use" in refused[0] or "already decided" in refused[0]
        assert ran(folder / "sent") == 1
