"""The knowledge base: incremental, and unbroken by whatever ends an add."""

from __future__ import annotations

import os
import sqlite3
import stat
import threading
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_tools.errors import KnowledgeBaseError, UsageError
from mlx_tools.plugins.kb.database import TABLES
from mlx_tools.plugins.kb.knowledge_base import KnowledgeBase
from tests.controller.full_disk import file_size_limit
from tests.examples import FEW
from tests.forked import forks
from tests.kb.shelf import TEXTS, paths
from tests.tools.file_calls import write_files
from tests.waiting import set_time_back

KILLED = Path(__file__).with_name("killed_add.py")


def contents(base: KnowledgeBase) -> tuple[list[Any], list[Any]]:
    """All that a knowledge base holds, but for numbers and times; and what its index answers."""
    sql = sqlite3.connect(base.path)
    files = sql.execute(
        "SELECT corpus.name, path, shown, size, hash, reader, problem, title, pages, text "
        "FROM file JOIN corpus ON corpus.id = corpus ORDER BY 1, 2"
    ).fetchall()
    parts = sql.execute(
        "SELECT path, start, stop, line, end_line, heading FROM passage "
        "JOIN file ON file.id = file ORDER BY 1, 2"
    ).fetchall()
    for index in TABLES:
        sql.execute(f"INSERT INTO {index}({index}) VALUES('integrity-check')")
    held = (f"SELECT 1 FROM {table} WHERE {table} MATCH term" for table in TABLES[1:3])
    orphans = " AND ".join(f"NOT EXISTS ({one})" for one in held)
    assert sql.execute(f"SELECT term FROM word WHERE {orphans}").fetchall() == []
    sql.close()
    found = [
        (question, [(h.path, h.line, h.score) for h in base.search(question, limit=20)])
        for question in (
            "milk boil",
            "heat water",
            "cups",
            "leaves three minutes",
            "kettel minuets",
        )
    ]
    return [*files, *parts], found


# --- again --------------------------------------------------------------------------------------


def test_adding_again_touches_only_what_changed(base: KnowledgeBase, folder: Path) -> None:
    for path in folder.rglob("*"):
        os.utime(path, (1e9, 1e9))
    base.add([folder])
    rows = "SELECT id, path FROM file ORDER BY path"
    with closing(sqlite3.connect(base.path)) as sql, sql:
        before = dict(sql.execute(rows).fetchall())
    (folder / "tea.md").write_text("# Tea\n\nNow with lemon.\n")
    (folder / "milk/cold.txt").unlink()
    (folder / "new.txt").write_text("Sugar is out.\n")
    os.utime(folder / "page.html", (2e9, 2e9))  # another time, and the same
    done = base.add([folder])
    assert (done.added_files, done.changed_files, done.unchanged, done.removed) == (1, 1, 3, 1)
    with closing(sqlite3.connect(base.path)) as sql, sql:
        after = dict(sql.execute(rows).fetchall())
    kept = {Path(path).name for number, path in before.items() if after.get(number) == path}
    assert kept == {"warm.rst", "kettle.py", "page.html"}
    assert paths(base, "lemon") == ["tea.md"]
    assert paths(base, "fridge shelf") == []
    assert base.add([folder]).unchanged == 5


@pytest.mark.parametrize("time", [10**18, None], ids=["long ago", "as it was"])
def test_a_change_whose_time_was_set_back_is_seen(
    base: KnowledgeBase, folder: Path, time: int | None
) -> None:
    path = folder / "tea.md"
    modified = time or path.stat().st_mtime_ns
    os.utime(path, ns=(modified, modified))
    before = path.stat()
    base.add([folder])
    path.write_text(TEXTS["tea.md"].replace("water", "broth"))
    set_time_back(path, before)
    assert base.add([folder]).changed_files == 1 and paths(base, "broth") == ["tea.md"]


def test_what_has_the_same_stamp_is_not_read(base: KnowledgeBase, folder: Path) -> None:
    base.add([folder])
    with (
        closing(sqlite3.connect(base.path)) as sql,
        sql,
    ):  # whoever reads sees that this is not what was kept
        sql.execute("UPDATE file SET hash=x'00'")
    assert base.add([folder]).unchanged == 5
    os.utime(folder / "tea.md", (1e9, 1e9))
    assert base.add([folder]).changed_files == 1


def test_a_file_that_holds_no_text_any_more_counts_as_removed(
    base: KnowledgeBase, folder: Path
) -> None:
    base.add([folder])
    (folder / "tea.md").write_bytes(b"\0\1\2")
    done = base.add([folder])
    assert (done.added_files, done.changed_files, done.unchanged, done.removed) == (0, 0, 4, 1)
    assert [one.reason for one in done.skipped] == ["it is binary"]
    (folder / "tea.md").write_text(TEXTS["tea.md"])
    assert base.add([folder]).added_files == 1


NAMES = ["a.md", "b/c.txt", "b/d.py", "e.html", "f.bin"]
CONTENT = st.sampled_from(
    ["# Milk\n\nboil", "heat water\n" * 200, "cups", "\0\0", "", "def kettle(): pass"]
)


@FEW
@given(st.lists(st.dictionaries(st.sampled_from(NAMES), CONTENT), min_size=1, max_size=4))
def test_adding_step_by_step_comes_to_what_adding_once_does(steps: list[dict[str, str]]) -> None:
    with TemporaryDirectory() as made:
        folder = Path(made, "docs")
        grown, fresh = KnowledgeBase(Path(made, "1")), KnowledgeBase(Path(made, "2"))
        for step in steps:
            for name in NAMES:
                (folder / name).unlink(missing_ok=True)
            folder.mkdir(exist_ok=True)
            write_files(folder, step)
            grown.add([folder])
        fresh.add([folder])
        assert contents(grown) == contents(fresh)


# --- what is passed over ------------------------------------------------------------------------


def test_what_no_person_wrote_links_and_hidden_files_are_passed_over(
    base: KnowledgeBase, folder: Path
) -> None:
    outside = write_files(folder.parent / "outside", {"secret.txt": "the secret word is plover"})
    (folder / "link.txt").symlink_to(outside / "secret.txt")
    (folder / "links").symlink_to(outside, target_is_directory=True)
    (folder / "loop").symlink_to(folder, target_is_directory=True)
    passed_over = (".git/config", ".env", "__pycache__/x.py", "env/lib/x.py", "t/y.md")
    write_files(
        folder, {"env/pyvenv.cfg": "", "t/CACHEDIR.TAG": ""} | dict.fromkeys(passed_over, "plover")
    )
    (folder / "image.png").write_bytes(b"\x89PNG\0plover")
    os.mkfifo(folder / "pipe")
    done = base.add([folder])
    assert done.added_files == 5
    assert [(Path(one.path).name, one.reason) for one in done.skipped] == [
        ("image.png", "it is binary")
    ]
    assert base.search("plover") == []
    assert base.add([folder]).unchanged == 5
    assert base.add([folder / "env"]).added_files == 2  # it was named
    assert paths(base, "plover") == ["x.py"]


def test_a_link_that_a_person_names_is_followed(base: KnowledgeBase, folder: Path) -> None:
    (folder.parent / "there").symlink_to(folder)
    assert base.add([folder.parent / "there"]).added_files == 5
    assert base.add([folder]).unchanged == 5


def test_a_folder_that_cannot_be_looked_at_loses_nothing(
    base: KnowledgeBase, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base.add([folder])
    real, milk = os.scandir, (folder / "milk").stat().st_ino

    def closed(path: Any) -> Any:
        if os.stat(path).st_ino == milk:  # noqa: PTH116 - an open folder
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(os, "scandir", closed)
    done = base.add([folder])
    assert (done.removed, done.unchanged) == (0, 3)
    assert "Permission denied" in done.skipped[0].reason
    assert "cold.txt" in paths(base, "milk fridge")


@pytest.mark.parametrize("given", [["/nowhere/at/all"], ["/dev/null"], [], ["\0"], [""]])
def test_what_cannot_be_added_is_the_callers_fault(base: KnowledgeBase, given: list[str]) -> None:
    with pytest.raises(UsageError):
        base.add(given)
    assert not base.path.exists()


# --- the file -----------------------------------------------------------------------------------


def test_a_corpus_that_is_removed_leaves_the_others_as_they_were(
    base: KnowledgeBase, folder: Path
) -> None:
    base.add([folder / "milk"], "stays")
    before, told = contents(base), []
    base.add([folder], "goes")
    assert base.remove("goes", on_progress=lambda *done: told.append(done[:2])) == 5
    assert contents(base) == before and told[-1] == (5, 5)


def test_the_only_corpus_is_removed_at_once(base: KnowledgeBase, folder: Path) -> None:
    base.add([folder])
    told: list[object] = []
    assert base.remove("default", on_progress=lambda *done: told.append(done)) == 5
    assert (base.corpora(), paths(base, "milk"), contents(base)[0], told) == ([], [], [], [])
    assert base.add([folder]).added_files == 5 and paths(base, "heatWater")[0] == "kettle.py"


def test_the_file_is_made_by_adding_alone_for_its_owner_and_never_over_anothers(
    base: KnowledgeBase, folder: Path
) -> None:
    assert base.search("x") == []
    assert base.corpora() == []
    assert not base.path.exists()
    before = os.umask(0)
    try:
        base.add([folder])
    finally:
        os.umask(before)
    assert stat.S_IMODE(base.path.stat().st_mode) == 0o600
    base.path.unlink()
    with closing(sqlite3.connect(base.path)) as sql, sql:
        sql.execute("CREATE TABLE other(x)")
    with pytest.raises(KnowledgeBaseError, match="no knowledge base"):
        base.add([folder])


def test_two_may_add_at_once(base: KnowledgeBase, tmp_path: Path) -> None:
    texts = {f"{n}.md": f"# {n}\n\nmilk and tea number{n}\n" for n in range(104)}
    docs = write_files(tmp_path / "many", texts)
    environ = {**os.environ, "MLX_TOOLS_DATA_DIR": str(tmp_path / "data")}
    running = [forks().start("kb", "add", str(docs), environ=environ) for _ in range(3)]
    assert [one.communicate() and one.returncode for one in running] == [0, 0, 0]
    shared = KnowledgeBase(tmp_path / "data" / "knowledge-base.sqlite3")
    base.add([docs])
    assert contents(shared) == contents(base)


def test_threads_may_search_while_one_adds(base: KnowledgeBase, tmp_path: Path) -> None:
    """A passage that a search has found may be gone before it is shown."""
    docs = write_files(tmp_path / "many", {f"{n}.md": "milk\n" * 50 for n in range(40)})
    base.add([docs])
    failed: list[BaseException] = []
    over = threading.Event()
    looking = threading.Semaphore(0)

    def look() -> None:
        try:
            while not over.is_set():
                assert base.search("milk", limit=30)
                looking.release()
        except BaseException as error:
            failed.append(error)
            looking.release()

    threads = [threading.Thread(target=look) for _ in range(2)]
    for thread in threads:
        thread.start()
    for turn in range(6):
        looking.acquire()  # it is searched while this goes on
        write_files(docs, {f"{n}.md": f"milk {turn}\n" * 50 for n in range(40)})
        base.add([docs])
    over.set()
    for thread in threads:
        thread.join()
    assert failed == []


@pytest.mark.parametrize("count", [0, 5, 14, 44, 90, 500])
def test_whoever_is_killed_loses_nothing_that_was_finished(
    base: KnowledgeBase, tmp_path: Path, count: int
) -> None:
    docs = write_files(
        tmp_path / "docs", {**TEXTS, **{f"{n}.md": f"# {n}\n\nmilk {n}" for n in range(9)}}
    )
    fresh = KnowledgeBase(tmp_path / "fresh")
    fresh.add([docs])
    run = forks().start(str(base.path), str(docs), str(count), code=KILLED.read_text())
    _, said = run.communicate()
    assert run.returncode == (-9 if count < 200 else 0), said
    kept = len(base.search("milk boil heat cups leaves", limit=99))
    done = base.add([docs])
    assert done.added_files + done.unchanged == 14
    assert done.unchanged >= kept
    assert contents(base) == contents(fresh)


# --- full disks, and those that may not be written to ---------------------------------------------


def test_a_full_disk_can_be_searched(base: KnowledgeBase, folder: Path) -> None:
    base.add([folder])
    for _ in range(2):  # the first leaves behind what it could not finish
        with file_size_limit(20_000):
            assert paths(base, "Where are the cups?") == ["page.html"]
            assert [one.files for one in base.corpora()] == [5]
            with pytest.raises(KnowledgeBaseError, match="full"):
                base.remove("default")
    assert base.remove("default") == 5


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_disk_that_is_read_only_can_be_searched(base: KnowledgeBase, folder: Path) -> None:
    base.add([folder])
    base.path.chmod(0o400)
    base.path.parent.chmod(0o500)
    try:
        assert paths(base, "Where are the cups?") == ["page.html"]
        assert [one.files for one in base.corpora()] == [5]
        with pytest.raises(KnowledgeBaseError, match="may not be written"):
            base.remove("default")
    finally:
        base.path.parent.chmod(0o700)
        base.path.chmod(0o600)
