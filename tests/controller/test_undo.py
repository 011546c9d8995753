"""Changes of a run come back, and nothing that is no longer what the run left is touched."""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_tools import builtin_tools
from mlx_tools.errors import TranscriptError
from mlx_tools.plugins.files.restore import Undo, UndoStep, find_outermost, find_undoable
from mlx_tools.policy import Policy
from mlx_tools.store.artifacts import UNDO_FOLDER, Change, Sweeper, UndoStore
from mlx_tools.store.changes import MAX_UNDO_BYTES
from mlx_tools.store.session_folder import TranscriptStore
from mlx_tools.store.session_store import SessionFiles
from mlx_tools.store.transcript import encode
from mlx_tools.tools import ToolContext, ToolResult, execute
from mlx_tools.transcript.records import Header, NestedRecord, UserRecord
from tests.controller.full_disk import file_size_limit
from tests.forked import forks
from tests.tools.file_calls import make_fast_folder, read_tree
from tests.waiting import HANG


class Place:
    """A root, a session whose calls change it, and undoing that."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "root"
        (self.root / "sub").mkdir(parents=True)
        (self.root / "a.txt").write_text("one\n")
        self.store = TranscriptStore(folder / "sessions")
        self.files = self.begun()
        self.tools = builtin_tools([f"{self.root}:rw"], notes=self.root / "notes")

    def begun(self, parent: str = "") -> SessionFiles:
        """A session that nobody is at."""
        files = self.store.create()
        files.transcript.append(Header(session=files.session, created="", parent=parent))
        files.transcript.close()
        return files

    def call(self, name: str, undo: Any = None, **arguments: Any) -> ToolResult:
        context = ToolContext(undo=self.files.undo if undo is None else undo)
        return asyncio.run(execute(self.tools.get(name), arguments, context, timeout=HANG))

    def write(self, path: str, content: str, **more: Any) -> ToolResult:
        return self.call("file_access", operation="write", path=path, content=content, **more)

    def delete(self, path: str, **more: Any) -> ToolResult:
        return self.call("file_access", operation="delete", path=path, **more)

    def create(self, path: str, content: str, **more: Any) -> ToolResult:
        return self.call("create_file", path=path, content=content, **more)

    @property
    def folder(self) -> TranscriptStore:
        return TranscriptStore(self.store.folder)

    def undo(self, session: str = "") -> list[UndoStep]:
        with Undo(self.folder, session or self.files.session) as undoing:
            return [undoing.undo(s) if s.status == "due" else s for s in undoing.list_steps()]

    def contents(self) -> dict[str, bytes]:
        return {
            str(path.relative_to(self.root)): path.read_bytes()
            for path in self.root.rglob("*")
            if path.is_file() and not path.is_symlink()
        }

    def kept(self) -> list[Path]:
        return sorted((self.store.folder / self.files.session / UNDO_FOLDER).glob("*"))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def told(steps: list[UndoStep]) -> list[tuple[str, str]]:
    return [(step.action, step.status) for step in steps]


def test_what_was_replaced_deleted_and_made_comes_back(place: Place) -> None:
    (place.root / "b.bin").write_bytes(b"\0\xff" * 500)
    (place.root / "b.bin").chmod(0o600)
    (place.root / "a.txt").chmod(0o640)
    before = place.contents()
    for done in (
        place.write("a.txt", "two\n"),
        place.delete("b.bin"),
        place.create("sub/new.txt", "new\n"),
        place.call("notes_create", title="Plan", content="text"),
    ):
        assert done.error is None
    assert told(place.undo()) == [
        ("remove", "undone"),
        ("remove", "undone"),
        ("bring_back", "undone"),
        ("restore", "undone"),
    ]
    assert place.contents() == before
    modes = {name: stat.S_IMODE((place.root / name).stat().st_mode) for name in before}
    assert modes == {"a.txt": 0o640, "b.bin": 0o600}
    assert place.kept() == [] and place.undo() == []


def test_the_folders_that_a_call_made_go_with_the_file_unless_they_are_used(place: Place) -> None:
    for path in ("x/y/one.txt", "x/y/two.txt", "sub/z/three.txt", "w/v/four.txt"):
        assert place.create(path, "new\n").error is None
    (place.root / "w" / "of mine").mkdir()
    assert told(place.undo()) == [("remove", "undone")] * 4
    folders = {str(path.relative_to(place.root)) for path in place.root.rglob("*")}
    assert folders == {"a.txt", "sub", "w", "w/of mine"}


def test_a_change_that_changes_nothing_keeps_no_copy(place: Place) -> None:
    assert place.write("a.txt", "one\n").error is None
    assert place.kept() == []


def test_copies_are_told_from_the_newest_on_though_the_clock_is_set_back(place: Place) -> None:
    undo = place.files.undo
    assert undo is not None
    change = Change(root="r", inode=1, names=("a",), old_state="", new_state="", mode=0)
    years_ahead = f"{2**62:016x}{'0' * 16}"
    first = undo.keep_old(change, b"")
    (place.kept()[0].parent / years_ahead).write_bytes(place.kept()[0].read_bytes())
    second = undo.keep_old(change, b"")
    assert [one.key for one in undo.changes()] == [second, years_ahead, first]


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["write", "delete", "create"]),
        st.sampled_from(["a", "b", "sub/c"]),
        st.sampled_from(["", "1\n", "2\n", "x" * 2000]),
    ),
    max_size=8,
)


@given(STEPS, st.integers(0, 8))
def test_any_changes_of_a_session_come_back_in_any_portions(
    steps: list[tuple[str, str, str]], stop: int
) -> None:
    with make_fast_folder(Path("/tmp")) as folder:
        here = Path(folder) / "place"
        shutil.rmtree(here, ignore_errors=True)
        place = Place(here)
        before = place.contents()
        for operation, path, content in steps:
            if operation == "delete":
                place.delete(path)
            else:
                getattr(place, operation)(path, content)
        with Undo(place.folder, place.files.session) as undoing:
            for step in undoing.list_steps()[:stop]:  # a process that is killed in between
                undoing.undo(step)
        assert {step.status for step in place.undo()} <= {"undone"}
        assert place.contents() == before


def test_what_is_kept_is_for_its_owner_alone_and_no_tool_sees_it(place: Place) -> None:
    place.write("a.txt", "two\n")
    (copy,) = place.kept()
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    assert stat.S_IMODE(copy.parent.stat().st_mode) == 0o700
    assert copy.read_bytes().endswith(b"\none\n")
    seeing = builtin_tools([str(place.store.folder)])
    path = str(copy.relative_to(place.store.folder))
    arguments = {"operation": "read", "path": path}
    result = asyncio.run(execute(seeing.get("file_access"), arguments, timeout=HANG))
    assert result.error is not None and "private" in result.error.message


def test_copies_expire_with_the_artifacts(place: Place) -> None:
    place.write("a.txt", "two\n")
    (copy,) = place.kept()
    half = copy.with_name("." + "0" * 32)
    half.touch()
    for path in (copy, half):
        os.utime(path, (1_000_000_000, 1_000_000_000))
    assert Sweeper(place.store.folder, keep=60).sweep() == 2
    assert place.undo() == [] and (place.root / "a.txt").read_text() == "two\n"


def test_a_file_that_is_too_large_is_changed_and_the_approval_says_so(place: Place) -> None:
    big = place.root / "big"
    with big.open("wb") as file:
        file.truncate(MAX_UNDO_BYTES + 1)
    tool = place.tools.get("file_access")
    for operation in ("write", "delete"):
        arguments = {"operation": operation, "path": "big", "content": "x"}
        shown = tool.preview(arguments)  # type: ignore[attr-defined]
        assert "cannot be undone" in shown.text
    assert place.delete("big").error is None
    assert place.kept() == [] and not big.exists()
    with big.open("wb") as file:
        file.truncate(MAX_UNDO_BYTES)
    assert place.delete("big").error is None
    assert told(place.undo()) == [("bring_back", "undone")]
    assert big.stat().st_size == MAX_UNDO_BYTES


# --- what is refused ---


def refused(place: Place) -> str:
    """Return the reason why nothing is touched; the copy stays for another time."""
    before, kept = read_tree(place.root), place.kept()
    (step,) = place.undo()
    assert step.status == "refused"
    assert read_tree(place.root) == before and place.kept() == kept
    return step.reason


NOT_LEFT = "it has changed since the run"


@pytest.mark.parametrize(
    ("done", "name", "since", "why"),
    [
        (lambda p: p.write("a.txt", "two\n"), "a.txt", lambda f: f.write_text("mine\n"), NOT_LEFT),
        (lambda p: p.write("a.txt", "two\n"), "a.txt", lambda f: f.unlink(), NOT_LEFT),
        (lambda p: p.write("a.txt", "two\n"), "a.txt", lambda f: f.chmod(0o444), "read-only"),
        (lambda p: p.delete("a.txt"), "a.txt", lambda f: f.write_text("mine\n"), NOT_LEFT),
        (lambda p: p.create("n.txt", "n\n"), "n.txt", lambda f: f.write_text("n\nm\n"), NOT_LEFT),
    ],
    ids=["changed", "deleted", "read-only", "name taken", "made and changed"],
)
def test_what_somebody_did_since_to_a_file_stays(
    place: Place, done: Any, name: str, since: Any, why: str
) -> None:
    done(place)
    since(place.root / name)
    assert why in refused(place)


def test_older_changes_of_a_file_wait_for_the_newer_ones(place: Place) -> None:
    place.write("a.txt", "two\n")
    place.write("a.txt", "three\n")
    (place.root / "a.txt").write_text("mine\n")
    assert told(place.undo()) == [("restore", "refused")] * 2
    (place.root / "a.txt").write_text("three\n")
    assert told(place.undo()) == [("restore", "undone")] * 2
    assert (place.root / "a.txt").read_text() == "one\n"


def test_one_that_is_refused_does_not_hold_up_the_others(place: Place) -> None:
    place.write("a.txt", "two\n")
    place.create("new.txt", "new\n")
    (place.root / "a.txt").write_text("mine\n")
    assert told(place.undo()) == [("remove", "undone"), ("restore", "refused")]


@pytest.mark.parametrize("where", ["file", "folder", "root", "above"])
def test_a_link_that_was_put_in_its_place_is_not_followed(
    place: Place, tmp_path: Path, where: str
) -> None:
    place.write("sub/b.txt", "two\n")
    outside = tmp_path / "outside"
    (outside / "root" / "sub").mkdir(parents=True)
    for folder in (outside, outside / "sub", outside / "root" / "sub"):
        folder.mkdir(exist_ok=True)
        (folder / "b.txt").write_text("two\n")  # just what the run left
    before = read_tree(outside)
    target = {
        "file": (place.root / "sub" / "b.txt", outside / "b.txt"),
        "folder": (place.root / "sub", outside),
        "root": (place.root, outside),
        "above": (place.root, outside / "root"),
    }[where]
    replaced, leads = target
    replaced.rename(tmp_path / "aside")
    replaced.symlink_to(leads)
    (step,) = place.undo()
    assert step.status == "refused" and step.reason
    assert read_tree(outside) == before
    replaced.unlink()
    (tmp_path / "aside").rename(replaced)
    assert told(place.undo()) == [("remove", "undone")]


def test_another_folder_of_the_same_name_is_left_alone(place: Place, tmp_path: Path) -> None:
    place.create("new.txt", "new\n")
    place.root.rename(tmp_path / "aside")
    place.root.mkdir()
    (place.root / "new.txt").write_text("new\n")
    assert "a different folder now" in refused(place)


def test_a_file_with_another_name_elsewhere_is_left_alone(place: Place, tmp_path: Path) -> None:
    place.write("a.txt", "two\n")
    (tmp_path / "other").hardlink_to(place.root / "a.txt")
    assert "hard links" in refused(place)


def test_a_copy_that_is_damaged_brings_nothing_back(place: Place) -> None:
    place.write("a.txt", "two\n")
    (copy,) = place.kept()
    whole = copy.read_bytes()
    copy.write_bytes(whole[:-2] + b"X\n")
    assert "damaged" in refused(place)
    for nonsense in (b"{", b"[]\n", b'{"root": 5}\n', b"", whole.replace(b'"/', b'3, "/', 1)):
        copy.write_bytes(nonsense)
        assert place.undo() == []


def test_a_forged_copy_leads_nowhere_else(place: Place, tmp_path: Path) -> None:
    place.create("new.txt", "new\n")
    (tmp_path / "new.txt").write_text("new\n")
    (copy,) = place.kept()
    for names in (b'["..", "new.txt"]', b'["../new.txt"]', b'["sub/../../new.txt"]', b"[]"):
        copy.write_bytes(copy.read_bytes().replace(b'["new.txt"]', names))
        (step,) = place.undo()
        assert step.status == "refused"
        copy.write_bytes(copy.read_bytes().replace(names, b'["new.txt"]'))
    assert (tmp_path / "new.txt").exists()
    assert told(place.undo()) == [("remove", "undone")]


# --- processes, crashes, room ---


def test_a_session_that_somebody_is_at_is_not_undone(place: Place) -> None:
    place.write("a.txt", "two\n")
    open_ = place.store.open(place.files.session)
    with pytest.raises(TranscriptError, match="in use"):
        place.undo()
    open_.transcript.close()
    assert told(place.undo()) == [("restore", "undone")]


def test_two_processes_do_not_undo_the_same(place: Place) -> None:
    place.write("a.txt", "two\n")
    code = (
        "import sys, pathlib\n"
        "from mlx_tools.store.session_folder import TranscriptStore\n"
        "from mlx_tools.plugins.files.restore import Undo\n"
        "folder = TranscriptStore(pathlib.Path(sys.argv[1]))\n"
        "try:\n    Undo(folder, sys.argv[2]).__enter__()\n"
        "except Exception as error:\n    print(error)\n"
    )
    with Undo(place.folder, place.files.session) as undoing:
        other = forks().start(str(place.store.folder), place.files.session, code=code)
        assert b"in use by another process" in other.communicate()[0]
        with pytest.raises(TranscriptError, match="in use"):
            place.store.open(place.files.session)
        (step,) = undoing.list_steps()
        assert undoing.undo(step).status == "undone"


class Mortal(UndoStore):
    """Dies once the old content is kept."""

    def keep_old(self, change: Change, content: bytes) -> str:
        super().keep_old(change, content)
        os._exit(9)


@pytest.mark.parametrize("operation", ["write", "delete", "create"])
def test_a_process_that_dies_before_the_change_loses_nothing(place: Place, operation: str) -> None:
    before = place.contents()
    assert place.files.undo is not None
    mortal = Mortal(place.files.undo.blobs)
    child = os.fork()
    if not child:
        if operation == "delete":
            place.delete("a.txt", undo=mortal)
        elif operation == "write":
            place.write("a.txt", "two\n", undo=mortal)
        else:
            place.create("new.txt", "new\n", undo=mortal)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert place.contents() == before and len(place.kept()) == 1
    assert place.undo() == [] and place.kept() == []  # it never came to pass
    assert place.contents() == before


class Touched(UndoStore):
    """Something else changes the file once its old content was kept."""

    def keep_old(self, change: Change, content: bytes) -> str:
        key = super().keep_old(change, content)
        Path(change.path).write_text("meanwhile\n")
        return key


@pytest.mark.parametrize("operation", ["write", "delete"])
def test_what_was_not_kept_is_not_replaced(place: Place, operation: str) -> None:
    assert place.files.undo is not None
    touched = Touched(place.files.undo.blobs)
    if operation == "write":
        done = place.write("a.txt", "two\n", undo=touched)
    else:
        done = place.delete("a.txt", undo=touched)
    assert done.error is not None and "nothing was changed" in done.error.message
    assert (place.root / "a.txt").read_text() == "meanwhile\n"
    assert place.kept() == []


def test_where_there_is_no_room_to_keep_it_nothing_is_changed(place: Place) -> None:
    (place.root / "a.txt").write_text("x" * 50_000)
    before = read_tree(place.root)
    with file_size_limit(20_000):
        errors = [place.write("a.txt", "small").error, place.delete("a.txt").error]
    for error in errors:
        assert error is not None and "cannot be kept for undo" in error.message
    assert read_tree(place.root) == before and place.kept() == []


# --- sessions ---


def test_what_the_last_question_changed_can_be_undone_alone(place: Place) -> None:
    def asked() -> None:
        at = datetime.now(UTC).isoformat()
        files = place.store.open(place.files.session)
        files.transcript.append(UserRecord(content="?", recorded_at=at))
        files.transcript.close()

    def undone() -> list[tuple[str, str]]:
        with Undo(place.folder, place.files.session) as undoing:
            steps = undoing.list_steps(of_question=True)
            return [(s.action, Path(undoing.undo(s).change.path).name) for s in steps]

    asked()
    place.write("a.txt", "two\n")
    asked()
    place.write("a.txt", "three\n")
    place.create("b.txt", "b\n")
    asked()
    assert undone() == [("remove", "b.txt"), ("restore", "a.txt")]
    assert place.contents() == {"a.txt": b"two\n"}
    assert undone() == [("restore", "a.txt")] and undone() == []


def test_runs_within_a_call_are_undone_with_it(place: Place) -> None:
    inner = place.begun(f"{place.files.session}/c1")
    assert find_outermost(place.folder, inner.session) == place.files.session
    assert find_outermost(place.folder, place.files.session) == place.files.session
    outer = place.store.open(place.files.session)
    outer.transcript.append(NestedRecord(call="c1", run=0, session=inner.session))
    outer.transcript.close()
    place.write("a.txt", "two\n")
    place.write("a.txt", "three\n", undo=inner.undo)
    place.write("a.txt", "four\n")
    assert find_undoable(place.folder) in (inner.session, place.files.session)
    steps = place.undo()
    assert [step.session for step in steps] == [
        place.files.session,
        inner.session,
        place.files.session,
    ]
    assert {step.status for step in steps} == {"undone"}
    assert (place.root / "a.txt").read_text() == "one\n"
    assert find_undoable(place.folder) is None


def test_other_sessions_are_not_looked_at(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TranscriptStore, "ids", lambda store: pytest.fail("all were listed"))
    place.write("a.txt", "two\n")
    assert find_outermost(place.folder, place.files.session) == place.files.session
    assert told(place.undo()) == [("restore", "undone")]


def test_a_session_whose_copies_have_expired_is_not_searched(place: Place) -> None:
    place.write("a.txt", "two\n")
    path = place.folder.path(place.files.session)
    assert find_undoable(place.folder) == place.files.session
    os.utime(path, (1, 1))
    place.folder.index.check()
    assert find_undoable(place.folder) is None


def test_a_session_that_names_itself_as_its_parent_is_undone(place: Place) -> None:
    path = place.folder.path(place.files.session)
    header = Header(session=place.files.session, created="", parent=f"{place.files.session}/c1")
    path.write_text(f"{encode(header)}\n")
    place.write("a.txt", "two\n")
    assert find_outermost(place.folder, place.files.session) == place.files.session
    assert told(place.undo()) == [("restore", "undone")]


def test_a_damaged_transcript_does_not_keep_the_files(place: Place) -> None:
    place.write("a.txt", "two\n")
    place.folder.path(place.files.session).write_text("no transcript\n")
    assert told(place.undo()) == [("restore", "undone")]


def test_a_call_outside_of_a_session_keeps_nothing(place: Place) -> None:
    arguments = {"operation": "write", "path": "a.txt", "content": "two\n"}
    context = ToolContext(policy=Policy(allow=["*"]))
    asyncio.run(execute(place.tools.get("file_access"), arguments, context, timeout=HANG))
    assert place.kept() == [] and (place.root / "a.txt").read_text() == "two\n"
