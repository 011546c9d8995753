"""Whoever is killed while the tools folder is changed leaves whole tools."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from mlx_tools.errors import UsageError
from mlx_tools.policy import Policy
from mlx_tools.tools import Registry
from mlx_tools.tools.folder.collection import Shelf, alone
from mlx_tools.tools.folder.definition import ToolFolder, read_folder
from tests.tools.tool_folders import make_folder

KILLED = 99
RENAMES = ("os.rename",)
ALL = (*RENAMES, "open", "os.mkdir", "os.remove", "os.rmdir", "shutil.rmtree", "os.listdir")


def code(version: str) -> str:
    return f"def execute(arguments):\n    return {{'version': '{version}'}}\n"


def shelf_in(place: Path) -> Shelf:
    return Shelf(place / "tools", place / "tools.json", patience=0.05)


def killed_at(number: int, events: tuple[str, ...], work: Callable[[], object]) -> bool:
    """Does the work in a process that is killed before its ``number``-th event; False where it has
    fewer."""
    child = os.fork()
    if child == 0:
        left = number

        def hook(event: str, arguments: object) -> None:
            nonlocal left
            left -= event in events
            if left < 0:
                os._exit(KILLED)  # as SIGKILL: nothing is tidied up

        sys.addaudithook(hook)
        try:
            work()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == KILLED


def each_kill(
    tmp_path: Path,
    events: tuple[str, ...],
    begin: Callable[[Shelf], object],
    work: Callable[[Shelf], object],
) -> Iterator[Shelf]:
    """The shelf after the work was killed, once for every event in it, and once after all of it."""
    number, killed = 0, True
    while killed:
        place = tmp_path / str(number)
        place.mkdir()
        shelf = shelf_in(place)
        begin(shelf)
        killed = killed_at(number, events, partial(work, shelf))
        yield shelf
        number += 1
    assert number > len(events)


def adding(found: ToolFolder) -> Callable[[Shelf], object]:
    return lambda shelf: shelf.add(found)


def registry(shelf: Shelf) -> Registry:
    return Registry().with_folder(shelf)


def source(tmp_path: Path, version: str) -> Path:
    path = tmp_path / version
    return path / "echo" if path.exists() else make_folder(path, code=code(version))


def hidden_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("events", [RENAMES, pytest.param(ALL, marks=pytest.mark.slow)])
def test_a_tool_that_is_replaced_is_the_old_one_or_the_new_one(
    tmp_path: Path, events: tuple[str, ...]
) -> None:
    old, new = read_folder(source(tmp_path, "old")), read_folder(source(tmp_path, "new"))
    found = set()
    for shelf in each_kill(tmp_path, events, adding(old), adding(new)):
        made = registry(shelf)
        assert made.lacks("echo", Policy(allow=["*"])) is None, hidden_in(shelf.folder)
        found.add((shelf.folder / "echo" / "execute.py").read_text())
        assert hidden_in(shelf.folder) == []
    assert found == {code("old"), code("new")}
    assert asyncio.run(made.get("echo").call({})) == {"version": "new"}


def test_a_tool_that_is_removed_is_whole_or_gone(tmp_path: Path) -> None:
    old = read_folder(source(tmp_path, "old"))
    found = set()
    for shelf in each_kill(
        tmp_path,
        RENAMES,
        adding(old),
        lambda shelf: shelf.remove("echo"),
    ):
        made = registry(shelf)
        found.add("echo" in made.specs())
        assert hidden_in(shelf.folder) == []
        assert "echo" not in made.disabled
    assert found == {True, False}


def test_files_that_nobody_trusted_are_back_where_they_were(tmp_path: Path) -> None:
    new = read_folder(source(tmp_path, "new"))

    def begin(shelf: Shelf) -> None:
        make_folder(shelf.folder, code=code("by hand"))

    found = set()
    for shelf in each_kill(tmp_path, RENAMES, begin, adding(new)):
        shelf.tools()
        kept = [path.read_text() for path in shelf.folder.glob("*echo*/execute.py")]
        trusted = registry(shelf).lacks("echo", Policy(allow=["*"])) is None
        assert trusted or code("by hand") in kept
        found.add(trusted)
    assert found == {True, False}


def test_what_a_person_wrote_after_a_kill_is_not_taken_back(tmp_path: Path) -> None:
    shelf = shelf_in(tmp_path)
    shelf.add(read_folder(source(tmp_path, "new")))
    make_folder(tmp_path / "aside", code=code("old"))
    (tmp_path / "aside" / "echo").rename(shelf.folder / f".echo.old.{'0' * 16}")
    written = shelf.folder / "echo" / "execute.py"
    written.write_text(code("mine"))
    registry(shelf)
    assert written.read_text() == code("mine")


def test_what_somebody_is_still_at_is_left_alone(tmp_path: Path) -> None:
    shelf = shelf_in(tmp_path)
    shelf.add(read_folder(source(tmp_path, "new")))
    draft = shelf.folder / f".other.draft.{'0' * 16}"
    draft.mkdir()
    with alone(shelf.folder, 0.0):
        assert "echo" in registry(shelf).specs()
        assert draft.exists()
    registry(shelf)
    assert not draft.exists()


def test_a_tool_that_is_being_replaced_is_waited_for_by_who_looks(tmp_path: Path) -> None:
    old, new = read_folder(source(tmp_path, "old")), read_folder(source(tmp_path, "new"))
    shelf = Shelf(tmp_path / "tools", tmp_path / "tools.json")
    shelf.add(old)
    child = os.fork()
    if child == 0:
        try:
            while True:
                shelf.add(new)
                shelf.add(old)
        finally:
            os._exit(0)
    try:
        assert {found.reason for _ in range(20) for found in shelf.tools()} == {None}
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_folder_that_is_being_changed_is_told_of(tmp_path: Path) -> None:
    shelf = shelf_in(tmp_path)
    found = read_folder(source(tmp_path, "new"))
    shelf.add(found)
    with alone(shelf.folder, 0.0), pytest.raises(UsageError, match="another program"):
        shelf.add(found)
    with alone(shelf.folder, 0.0), pytest.raises(UsageError, match="another program"):
        shelf.remove("echo")
    assert "echo" in registry(shelf).specs()
