"""Whoever is killed while the tools folder is changed leaves whole tools."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from mlx_tools.errors import UsageError
from mlx_tools.plugins.folders.collection import ToolCollection
from mlx_tools.plugins.folders.definition import read_folder
from mlx_tools.plugins.folders.offers import list_folder_offers
from mlx_tools.policy import Policy
from mlx_tools.tools import Registry
from tests.folders.tool_folders import make_folder

KILLED = 99
RENAMES = ("os.rename",)
ALL = (*RENAMES, "open", "os.mkdir", "os.remove", "os.rmdir", "shutil.rmtree", "os.listdir")


def code(version: str) -> str:
    return f"def execute(arguments):\n    return {{'version': '{version}'}}\n"


def collection_in(place: Path) -> ToolCollection:
    return ToolCollection(place, patience=0.05)


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
    begin: Callable[[ToolCollection], object],
    work: Callable[[ToolCollection], object],
) -> Iterator[ToolCollection]:
    """The collection after the work was killed, before every event in it, and after all of it."""
    number, killed = 0, True
    while killed:
        place = tmp_path / str(number)
        place.mkdir()
        collection = collection_in(place)
        begin(collection)
        killed = killed_at(number, events, partial(work, collection))
        yield collection
        number += 1
    assert number > len(events)


def registry(collection: ToolCollection) -> Registry:
    return Registry().with_offers(list_folder_offers(collection))


def source(tmp_path: Path, version: str) -> Path:
    path = tmp_path / version
    return path / "echo" if path.exists() else make_folder(path, code=code(version))


@contextmanager
def changing(collection: ToolCollection) -> Iterator[None]:
    """Another program is changing the folder."""
    with collection.choices.path.with_name(f".{collection.choices.path.name}.lock").open(
        "w"
    ) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def hidden_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("events", [RENAMES, pytest.param(ALL, marks=pytest.mark.slow)])
def test_a_tool_that_is_replaced_is_the_old_one_or_the_new_one(
    tmp_path: Path, events: tuple[str, ...]
) -> None:
    old, new = read_folder(source(tmp_path, "old")), read_folder(source(tmp_path, "new"))
    add_old, add_new = (partial(ToolCollection.add, folder=one) for one in (old, new))
    found = set()
    for collection in each_kill(tmp_path, events, add_old, add_new):
        made = registry(collection)
        assert made.lacks("echo", Policy(allow=["*"])) is None, hidden_in(collection.folder)
        found.add((collection.folder / "echo" / "execute.py").read_text())
        assert hidden_in(collection.folder) == []
    assert found == {code("old"), code("new")}
    assert asyncio.run(made.get("echo").call({})) == {"version": "new"}


def test_a_tool_that_is_removed_is_whole_or_gone(tmp_path: Path) -> None:
    add = partial(ToolCollection.add, folder=read_folder(source(tmp_path, "old")))
    found = set()
    for collection in each_kill(
        tmp_path, RENAMES, add, partial(ToolCollection.remove, name="echo")
    ):
        made = registry(collection)
        found.add("echo" in made.specs())
        assert hidden_in(collection.folder) == []
        assert "echo" not in made.disabled
    assert found == {True, False}


@pytest.fixture
def collection(tmp_path: Path) -> ToolCollection:
    """One with a tool in it."""
    made = collection_in(tmp_path)
    made.add(read_folder(source(tmp_path, "new")))
    return made


def test_what_a_person_wrote_after_a_kill_is_not_taken_back(
    tmp_path: Path, collection: ToolCollection
) -> None:
    source(tmp_path, "old").rename(collection.folder / ".echo.old")
    written = collection.folder / "echo" / "execute.py"
    written.write_text(code("mine"))
    registry(collection)
    assert written.read_text() == code("mine")


def test_what_somebody_is_still_at_is_left_alone(
    tmp_path: Path, collection: ToolCollection
) -> None:
    draft, found = collection.folder / ".other.draft", read_folder(source(tmp_path, "new"))
    draft.mkdir()
    with changing(collection):
        assert "echo" in registry(collection).specs()
        for change in (partial(collection.add, found), partial(collection.remove, "echo")):
            with pytest.raises(UsageError, match="another program"):
                change()
        assert draft.exists()
    assert "echo" in registry(collection).specs()
    assert not draft.exists()


def test_a_tool_that_is_being_replaced_is_waited_for_by_who_looks(tmp_path: Path) -> None:
    old, new = read_folder(source(tmp_path, "old")), read_folder(source(tmp_path, "new"))
    collection = ToolCollection(tmp_path)
    collection.add(old)
    child = os.fork()
    if child == 0:
        try:
            while True:
                collection.add(new)
                collection.add(old)
        finally:
            os._exit(0)
    try:
        assert {found.reason for _ in range(20) for found in collection.tools()} == {None}
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
