"""A disk that is full at any one write of a run: the run breaks off there, with one message that
says how to go on, and does; what changes things runs once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import anyio
import pytest

from mlx_tools import Controller, Policy, tool
from mlx_tools.controller import ApprovalAnswer, ApprovalRequest
from mlx_tools.errors import EXIT_USAGE, BackendBroken, StorageError
from mlx_tools.messages import replace
from mlx_tools.policy import Limits
from mlx_tools.store.access_list import ConsumedApprovalsFile, RunPermitFile
from mlx_tools.store.artifacts import ArtifactStore, BlobFiles
from mlx_tools.store.session_folder import TranscriptStore
from mlx_tools.store.session_store import SessionFiles
from mlx_tools.store.transcript import TranscriptFile, load
from mlx_tools.testing import ScriptedBackend, answer, call
from mlx_tools.tools import Tool, ToolContext
from mlx_tools.transcript.outcome import Answered, Outcome, Stopped
from mlx_tools.transcript.records import ObservationRecord, StoppedRecord, UserRecord
from tests.controller.full_disk import file_size_limit


class Disk:
    """Has no room at the write ``full_at`` (from 1, 0 for never): at that one alone, or where it
    ``stays`` full from there on. A file may then grow by a few bytes, and no more."""

    def __init__(self, full_at: int, stays: bool) -> None:
        self.full_at, self.stays = full_at, stays
        self.writes = 0

    def write(self, path: Path, writing: Callable[[], Any]) -> Any:
        self.writes += 1
        full = self.full_at and (
            self.writes >= self.full_at if self.stays else self.writes == self.full_at
        )
        if not full:
            return writing()
        with file_size_limit((path.stat().st_size if path.is_file() else 0) + 10):
            return writing()


class Store(TranscriptStore):
    """A store on such a disk."""

    def __init__(self, folder: Path, disk: Disk) -> None:
        super().__init__(folder)
        self.disk = disk

    def create(self) -> SessionFiles:
        return self._on_disk(super().create())

    def open(self, session: str | os.PathLike[str]) -> SessionFiles:
        return self._on_disk(super().open(session))

    def _on_disk(self, files: SessionFiles) -> SessionFiles:
        disk, path = self.disk, files.transcript.path
        assert path is not None
        files.transcript.close()

        class Transcript(TranscriptFile):
            def append(self, record: Any) -> None:
                disk.write(path, lambda: super(Transcript, self).append(record))

        class Artifacts(ArtifactStore):
            def add(self, text: str) -> Any:
                return disk.write(path.parent / "none", lambda: super(Artifacts, self).add(text))

        class Checked(RunPermitFile):
            def begin(self, *of: Any) -> None:
                disk.write(path.parent / "none", lambda: super(Checked, self).begin(*of))

        class UsedUp(ConsumedApprovalsFile):
            def take(self, digest: str) -> Any:
                return disk.write(used, lambda: super(UsedUp, self).take(digest))

        used = self.folder / "used"
        return replace(
            files,
            transcript=Transcript(path),
            artifacts=Artifacts(BlobFiles(path.parent / "artifacts")),
            access=Checked(path=path.parent / "access.json"),
            consumed_approvals=UsedUp(used),
        )


class Person:
    """Approves whatever is asked, but what may have been done already."""

    def __init__(self) -> None:
        self.doubted: set[str] = set()

    async def decide(self, requests: Sequence[ApprovalRequest]) -> list[ApprovalAnswer]:
        self.doubted |= {request.name for request in requests if request.in_doubt}
        return [ApprovalAnswer(not request.in_doubt) for request in requests]


LONG = "word " * 300


def tools_of(folder: Path) -> list[Tool]:
    def did(name: str) -> None:
        with (folder / name).open("a") as out:
            out.write("once\n")

    @tool(effects={"read"})
    def look(at: str) -> str:
        """Looks at a thing."""
        return f"seen: {at} {LONG}"

    @tool(effects={"write"})
    def save(text: str) -> str:
        """Saves a text."""
        did("save")
        return f"it is saved: {LONG}"

    @tool(effects={"write"}, needs_approval=True)
    def send(text: str) -> str:
        """Sends a text."""
        did("send")
        return "it is sent"

    @tool(effects={"read"})
    async def consult(about: str, context: ToolContext) -> str:
        """Asks the model about a thing."""
        return f"it says: {await context.ask(f'Tell of {about}', tools=['look'])}"

    return [look, save, send, consult]


async def model(prompt: str) -> str:
    """Looks at two things at once, saves, consults, sends and answers: whichever comes next."""
    if "Tell of tea" in prompt and "Do all" not in prompt:
        done = "seen: leaves" in prompt
        return answer("it is green") if done else call("look", at="leaves")
    if "seen: this" not in prompt:
        return call("look", at="this") + "\n" + call("look", at="that")
    steps = {
        "save": ("it is saved", {"text": "a"}),
        "consult": ("it says: it is green", {"about": "tea"}),
        "send": ("it is sent", {"text": "b"}),
    }
    for name, (seen, arguments) in steps.items():
        if seen not in prompt and f"whether {name} finished" not in prompt:
            return call(name, **arguments)
    return answer("all done")


def controller(folder: Path, disk: Disk, person: Person) -> Controller:
    return Controller(
        model,
        tools_of(folder),
        Policy(allow=["*"]),
        limits=Limits(max_iterations=20, max_observation_chars=400),
        store=Store(folder / "sessions", disk),
        approver=person,
    )


def begun(folder: Path) -> tuple[Path, list[Any]] | None:
    """The transcript of the run itself, not of one within, where its question stands in it."""
    for path in sorted((folder / "sessions").glob("*/transcript.jsonl")):
        records = load(path)
        if records and not records[0].parent and any(isinstance(r, UserRecord) for r in records):  # type: ignore[union-attr]
            return path, records
    return None


def check_broken_off(folder: Path, error: StorageError) -> None:
    assert error.exit_code == EXIT_USAGE and "\n" not in str(error)
    assert "free some space" in str(error)
    found = begun(folder)
    if found is None:
        assert "start again" in str(error)
        return
    path, records = found
    assert f"mlx-tools sessions resume {path.parent.name}" in str(error)
    assert not any(isinstance(record, StoppedRecord) for record in records)
    assert not path.with_name("access.json").exists()


def go_on(folder: Path, disk: Disk, person: Person) -> Outcome:
    """Resumes the run, or begins it where nothing was asked yet."""
    found, again = begun(folder), controller(folder, disk, person)
    return again.run_sync("Do all") if found is None else anyio.run(again.resume, found[0])


def check_end(folder: Path, outcome: Outcome, doubtful: set[str]) -> None:
    assert isinstance(outcome, Answered) and outcome.answer == "all done"
    for name in ("save", "send"):
        ran = (folder / name).read_text().count("once") if (folder / name).exists() else 0
        assert ran <= 1
        assert ran == 1 or name in doubtful
    listed = TranscriptStore(folder / "sessions")
    states = {listed.describe(name).status.state for name in listed.ids()}
    assert states <= {"answered", "empty", "interrupted"}  # the latter, where it never was asked


def folders(folder: Path, step: int) -> Iterator[tuple[int, Path]]:
    for number in count(1, step):
        own = folder / str(number)
        own.mkdir()
        yield number, own


def test_a_disk_that_is_full_when_the_backend_failed_tells_how_to_go_on(tmp_path: Path) -> None:
    async def model(prompt: str) -> str:
        if "unknown_tool" not in prompt:
            return '{"type":"tool_call","name":"nope","arguments":{}}'
        raise BackendBroken("gone")

    for number, folder in folders(tmp_path, 1):
        controller = Controller(
            model, [], Policy(), store=Store(folder / "sessions", Disk(number, True))
        )
        try:
            outcome = controller.run_sync("Now?")
        except StorageError as error:
            check_broken_off(folder, error)
        else:
            assert isinstance(outcome, Stopped) and outcome.reason == "backend_error"
            assert number > 5
            return


class FullArtifacts(ArtifactStore):
    """Has no room for any output."""

    def add(self, text: str) -> Any:
        raise StorageError("no room for the output: free some space")


class NoArtifacts(TranscriptStore):
    """Has room for transcripts, and none for outputs."""

    def create(self) -> SessionFiles:
        files = super().create()
        return replace(files, artifacts=FullArtifacts(BlobFiles(self.folder / "none")))


def test_a_change_is_recorded_as_done_though_its_output_finds_no_room(tmp_path: Path) -> None:
    """Else the session would ask, when it goes on, whether to change it once more."""
    person = Person()

    def saving(store: TranscriptStore, *script: str) -> Controller:
        return Controller(
            ScriptedBackend(*script),
            tools_of(tmp_path),
            Policy(allow=["*"], ask_effects=()),
            limits=Limits(max_observation_chars=400),
            store=store,
            approver=person,
        )

    folder = tmp_path / "sessions"
    with pytest.raises(StorageError, match="no room"):
        saving(NoArtifacts(folder), call("save", text="a")).run_sync("Save it.")
    found = begun(tmp_path)
    assert found is not None
    assert [r.name for r in found[1] if isinstance(r, ObservationRecord)] == ["save"]
    again = saving(TranscriptStore(folder), answer("all done"))
    assert isinstance(anyio.run(again.resume, found[0]), Answered)
    assert (tmp_path / "save").read_text().count("once") == 1
    assert person.doubted == set()


@pytest.mark.parametrize(
    ("stays", "step"),
    [
        pytest.param(False, 7, id="once"),
        pytest.param(True, 11, id="from there on"),
        *(pytest.param(stays, 1, marks=pytest.mark.slow) for stays in (False, True)),
    ],
)
def test_a_run_whose_disk_fills_at_any_write_goes_on_to_its_answer(
    tmp_path: Path, stays: bool, step: int
) -> None:
    for number, folder in folders(tmp_path, step):
        person = Person()
        disks = (Disk(number, stays), Disk(number % 7 + 1, stays), Disk(0, False))
        for disk in disks:  # full in the run, and again when it goes on
            try:
                outcome = go_on(folder, disk, person)
            except StorageError as error:
                check_broken_off(folder, error)
            else:
                break
        check_end(folder, outcome, person.doubted)
        if disk is disks[0]:
            assert number > 40  # there were so many writes
            return
