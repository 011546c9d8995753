"""Runs, and resumes, each in a process of its own that may kill itself with SIGKILL at a chosen
append; see test_killed_runs.py, which starts this.

Standard input has a job a line, standard output what came of it: null where it was killed, else the
outcome or ``{"error": …}``. A job is a JSON list of runs that are made at the same time:

    {"folder": …, "session": ID or null, "count": N, "mode": …, "said": {"c1": true}}

``mode`` says when the process dies: ``before`` the record ``count`` is written, in the ``middle``
of it, or ``after``. A ``count`` of 0 never kills. The processes are forked off this one, so that
the interpreter has to start only once.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
from jsonschema import Draft202012Validator

from mlx_tools import Controller, Policy, Tool, TranscriptStore, tool
from mlx_tools.errors import MlxToolsError
from mlx_tools.store import load_words
from mlx_tools.store.session_store import SessionFiles
from mlx_tools.store.transcript import TranscriptFile, encode
from mlx_tools.transcript.records import Record


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Mortal(TranscriptFile):
    """A transcript that dies at the record ``count``, of those that this process writes."""

    written = 0
    count = 0
    mode = ""

    def append(self, record: Record) -> None:
        self.written += 1
        if self.written == self.count and self.mode == "before":
            die()
        if self.written == self.count and self.mode == "middle":
            line = encode(record).encode()
            with self.path.open("ab", buffering=0) as out:
                out.write(line[: len(line) // 2])
            die()
        super().append(record)
        if self.written == self.count and self.mode == "after":
            die()


class MortalStore(TranscriptStore):
    def _mortal(self, files: SessionFiles, create: bool) -> SessionFiles:
        path = files.transcript.path
        assert path is not None
        files.transcript.close()
        return SessionFiles(files.session, Mortal(path, create=create), files.artifacts)

    def create(self) -> SessionFiles:
        return self._mortal(super().create(), create=True)

    def open(self, session: str | os.PathLike[str]) -> SessionFiles:
        return self._mortal(super().open(session), create=False)


def tools(folder: Path) -> list[Tool]:
    @tool(effects={"write"})
    def save(text: str) -> str:
        """Saves a text."""
        with (folder / "saved").open("a") as out:
            out.write(text + "\n")
        return "it is saved"

    @tool(effects={"write"}, needs_approval=True)
    def send(text: str) -> str:
        """Sends a text."""
        with (folder / "sent").open("a") as out:
            out.write(text + "\n")
        return "it is sent"

    return [save, send]


async def model(prompt: str) -> str:
    """Looks, saves, sends, and answers: whichever comes next."""

    def line(**message: Any) -> str:
        return json.dumps(message, separators=(",", ":"))

    for name, done in (("save", "it is saved"), ("send", "it is sent")):
        if done not in prompt and f"whether {name} finished" not in prompt:
            return line(type="tool_call", name=name, arguments={"text": f"to {name}"})
    return line(type="final_answer", content="all done")


def run(job: Mapping[str, Any]) -> Any:
    """The result of a run, in this process."""
    folder = Path(job["folder"])
    Mortal.count, Mortal.mode = job["count"], job["mode"]
    store = MortalStore(folder / "sessions")
    controller = Controller(model, tools(folder), Policy(allow=["*"], ask_effects=()), store=store)

    async def go() -> Any:
        if job["session"] is None:
            return await controller.run("Save and send it.")
        return await controller.resume(job["session"], approvals=job["said"] or None)

    try:
        return anyio.run(go).to_json()
    except MlxToolsError as error:
        return {"error": str(error)}


def started(job: Mapping[str, Any]) -> tuple[int, int]:
    """A process that runs the job: its id, and where its outcome can be read."""
    reader, writer = os.pipe()
    child = os.fork()
    if child:
        os.close(writer)
        return child, reader
    with os.fdopen(writer, "w") as out:
        out.write(json.dumps(run(job)))
    os._exit(0)


def ended(child: int, reader: int) -> Any:
    with os.fdopen(reader) as out:
        text = out.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return None
    return json.loads(text) if text else {"error": f"the process ended with {status}"}


def warm() -> None:
    """Loads once, in the process that forks the others, what every run would load anew."""
    load_words()
    for one in tools(Path()):
        Draft202012Validator(dict(one.spec.parameters)).is_valid({})


def main() -> None:
    warm()
    for line in sys.stdin:
        children = [started(job) for job in json.loads(line)]
        print(json.dumps([ended(*child) for child in children]), flush=True)


main()
