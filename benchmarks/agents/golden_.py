"""A golden transcript of mlx-tools' run, replayed: read from its file, folded, compared."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from agents import ANSWER, Agent
from agents.mlx_tools_ import Subject as Recorded
from mlx_tools.golden import Golden, make_golden, replay_file, write_golden
from mlx_tools.store import load
from mlx_tools.tools import Registry


def record(steps: int, path: Path, name: str) -> None:
    """Writes the golden transcript of a run of so many calls and an answer."""
    run = Recorded(durable=True)
    try:
        run.prepare(steps)
        run.outcome(run.run())
        assert run.folder is not None
        (session,) = run.folder.rglob("transcript.jsonl")
        golden = make_golden(
            Golden.from_records(load(session)),
            name=name,
            registry=Registry(run.tools),
            source="scripted",
        )
        write_golden(golden, path)
    finally:
        run.close()


class Subject(Agent):
    def build(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="mlx-tools-bench-"))

    def prepare(self, steps: int) -> None:
        super().prepare(steps)
        self.path = self.folder / f"{steps}.jsonl"
        record(steps, self.path, f"{steps} steps")

    def ask(self, steps: int) -> str:
        check = replay_file(self.path)
        self.counter.calls = steps  # nothing is called: what was recorded is compared
        return ANSWER if check.passed else str(check.to_json())

    def close(self) -> None:
        shutil.rmtree(self.folder)
