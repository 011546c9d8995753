"""The user's tools folder: only what was added runs, and only as long as it stays as it was."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from mlx_tools.errors import ConfigError, ToolDefinitionError, UsageError
from mlx_tools.plugins.folders import load_tool
from mlx_tools.plugins.folders.collection import (
    ToolCollection,
    write_template,
)
from mlx_tools.plugins.folders.definition import read_folder
from mlx_tools.plugins.folders.folder_tool import folder_tool
from mlx_tools.plugins.folders.offers import list_folder_offers
from mlx_tools.policy import Policy
from mlx_tools.tools import Registry, ToolError, ToolResult, execute
from mlx_tools.tools.user_choices import NO_CHOICES, find_exposure
from tests.folders.tool_folders import ECHO, make_folder
from tests.waiting import HANG


@pytest.fixture
def collection(tmp_path: Path) -> ToolCollection:
    return ToolCollection(tmp_path / "data")


@pytest.fixture
def echo(tmp_path: Path, collection: ToolCollection) -> Path:
    """The folder of a tool that was added."""
    return collection.add(read_folder(make_folder(tmp_path))).path


def registry(collection: ToolCollection) -> Registry:
    return Registry().with_offers(list_folder_offers(collection))


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@contextmanager
def unrecordable(collection: ToolCollection) -> Iterator[None]:
    """While nothing can be written into the record."""
    lock = collection.choices.path.with_name(f".{collection.choices.path.name}.lock")
    lock.unlink(missing_ok=True)
    lock.mkdir()
    yield
    lock.rmdir()


def why(collection: ToolCollection, name: str = "echo") -> str | None:
    return registry(collection).lacks(name, Policy(allow=["*"]))


def called(tool: Any, **arguments: Any) -> ToolResult:
    return asyncio.run(execute(tool, arguments, timeout=HANG))


def test_a_folder_that_was_added_is_a_tool_of_the_files_that_were_read(
    tmp_path: Path, collection: ToolCollection
) -> None:
    source = make_folder(tmp_path)
    read = read_folder(source)
    (source / "execute.py").write_text("changed at its source")
    collection.add(read)
    made = registry(collection)
    assert made.specs()["echo"].plugin == "folder"
    assert called(made.get("echo"), a=1).content == '{"got":{"a":1}}'
    assert (collection.folder / "echo").stat().st_mode & 0o777 == 0o700
    assert (collection.folder / "echo" / "execute.py").stat().st_mode & 0o777 == 0o600
    assert why(collection) is None
    assert names_in(collection.folder) == ["echo"]


def test_what_was_put_there_by_hand_is_not_run(collection: ToolCollection) -> None:
    make_folder(collection.folder)
    made = registry(collection)
    reason = "it is not trusted yet (mlx-tools tools trust echo)"
    assert made.disabled["plugin:folder/echo"] == reason
    assert "echo" not in made.all_specs()
    with pytest.raises(UsageError, match="echo is disabled: it is not trusted yet"):
        made.get("echo")
    assert made.lacks("echo", Policy()) == f"it is disabled: {reason}"
    (row,) = made.listing(Policy(allow=["*"]))
    assert (row["plugin"], row["enabled"], row["description"]) == ("folder", False, "")
    collection.trust(collection.read("echo"))
    assert why(collection) is None
    (collection.folder / "echo").rename(collection.folder / "other")
    with pytest.raises(ToolDefinitionError, match="holds the tool echo, not other"):
        collection.read("other")


@pytest.mark.parametrize(
    "change",
    [
        lambda f: (f / "execute.py").write_text(ECHO.replace("got", "git")),
        lambda f: (f / "json.py").touch(),
        lambda f: (f / "tool_definition.json").chmod(0o700),
        lambda f: (f / "config.json").write_text('{"effects": []}'),
        lambda f: (f / "config.json").unlink(),
    ],
)
def test_a_change_of_any_file_switches_the_tool_off(
    collection: ToolCollection, echo: Path, change: Callable[[Path], Any]
) -> None:
    running = registry(collection).get("echo")
    change(echo)
    assert "its files have changed since they were added" in (why(collection) or "")
    result = called(running)
    assert result.error is not None and result.error.code == "disabled"
    collection.trust(collection.read("echo"))
    assert why(collection) is None


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda f: (f / "execute.py").unlink(), "execute.py is missing"),
        (lambda f: (f / "config.json").write_text("["), "config.json is not JSON"),
        (lambda f: f.rename(f.with_name("other")), "it is not trusted yet"),
        (lambda f: f.rename(f.with_name("a b")), "'a b' cannot name a tool"),
        (lambda f: (f / "x").symlink_to(f), "is a symbolic link"),
    ],
)
def test_what_cannot_be_used_is_listed_with_the_reason(
    collection: ToolCollection, echo: Path, damage: Callable[[Path], Any], said: str
) -> None:
    damage(echo)
    made = registry(collection)
    assert not made.all_specs()
    assert [said in reason for reason in made.disabled.values()] == [True]


def test_a_link_to_a_trusted_folder_is_not_trusted(
    tmp_path: Path, collection: ToolCollection, echo: Path
) -> None:
    echo.rename(tmp_path / "elsewhere")
    echo.symlink_to(tmp_path / "elsewhere")
    assert "is a symbolic link" in (why(collection) or "")
    collection.remove("echo")
    assert (tmp_path / "elsewhere" / "execute.py").exists()


def test_a_tool_that_its_configuration_switches_off_can_be_switched_on(
    tmp_path: Path, collection: ToolCollection
) -> None:
    collection.add(read_folder(make_folder(tmp_path, enabled=False)))
    for said, off in ((None, True), (True, False), (None, True)):
        collection.choices.switch("echo", said)
        assert ("switched off" in (why(collection) or "")) is off


def test_removing_deletes_the_folder_and_forgets(collection: ToolCollection, echo: Path) -> None:
    collection.choices.switch("echo", False)
    collection.remove("echo")
    assert not echo.exists()
    assert collection.choices.load() == NO_CHOICES
    make_folder(collection.folder)
    assert "not trusted yet" in (why(collection) or "")


def test_whatever_has_a_tools_name_can_be_removed(
    tmp_path: Path, collection: ToolCollection
) -> None:
    collection.folder.mkdir(parents=True)
    odd = collection.folder / "odd"
    for make in (odd.touch, lambda: os.mkfifo(odd), lambda: odd.symlink_to(tmp_path)):
        make()
        collection.remove("odd")
        assert names_in(collection.folder) == []
    assert tmp_path.exists()


def test_what_is_no_folder_is_listed_and_can_be_removed_by_its_offer(
    tmp_path: Path, collection: ToolCollection
) -> None:
    collection.folder.mkdir(parents=True)
    odd = collection.folder / "odd"
    makers = (
        *(odd.touch, lambda: os.mkfifo(odd)),
        *(lambda: odd.symlink_to(tmp_path / "gone"), lambda: odd.symlink_to(odd)),
    )
    for make in makers:
        make()
        (offer,) = list_folder_offers(collection)
        with pytest.raises(ToolDefinitionError, match="it is no folder"):
            offer.load()
        assert offer.remove is not None
        assert offer.remove(lambda question: True) == "removed odd"
        assert names_in(collection.folder) == []
    for name in (".hidden", "no name of a tool.txt"):
        (collection.folder / name).touch()
    assert list_folder_offers(collection) == []


def test_what_cannot_be_removed_or_added_leaves_what_was_there(
    tmp_path: Path, collection: ToolCollection, echo: Path
) -> None:
    for name in ("echo", "other"):
        new = read_folder(make_folder(tmp_path / "new", name, "def execute(a): return {}"))
        with unrecordable(collection), pytest.raises(ConfigError, match=r"tools\.json"):
            collection.add(new)
    with unrecordable(collection), pytest.raises(ConfigError, match=r"tools\.json"):
        collection.remove("echo")
    assert why(collection) is None
    assert (echo / "execute.py").read_text() == ECHO
    assert names_in(collection.folder) == ["echo"]


def test_a_change_that_fails_halfway_leaves_the_files_and_what_is_trusted(
    tmp_path: Path, collection: ToolCollection, echo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new, said = (
        read_folder(make_folder(tmp_path / "new", "echo", "execute = 1")),
        collection.choices.load(),
    )

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    rename = Path.rename
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", lambda a, b: (full if "draft" in a.name else rename)(a, b))
        with pytest.raises(UsageError, match="No space left"):
            collection.add(new)
    assert collection.choices.load() == said
    with monkeypatch.context() as patch:
        patch.setattr("mlx_tools.tools.user_choices.write_whole", full)
        with pytest.raises(ConfigError, match="No space left"):
            collection.remove("echo")
    assert why(collection) is None
    assert (echo / "execute.py").read_text() == ECHO
    assert names_in(collection.folder) == ["echo"]


def test_a_tools_folder_that_cannot_be_read_is_told_of(collection: ToolCollection) -> None:
    collection.folder.parent.mkdir()
    assert registry(collection).specs() == {}  # nothing was added yet
    collection.folder.touch()
    with pytest.raises(ConfigError, match=r"tools cannot be read: Not a directory"):
        registry(collection)


@pytest.mark.parametrize("name", ["nl\nx", "\x1b[31mred", "\u202eback", os.fsdecode(b"\xff")])
def test_the_name_of_a_folder_that_is_no_tools_stands_on_one_line(
    collection: ToolCollection, name: str
) -> None:
    (collection.folder / name).mkdir(parents=True)
    (found,) = collection.tools()
    assert found.name.isprintable()
    assert "cannot name a tool" in (found.reason or "")


@pytest.mark.parametrize("name", ["-x", "--help", ".x"])
def test_no_folder_has_a_name_that_reads_as_an_option(
    tmp_path: Path, collection: ToolCollection, name: str
) -> None:
    with pytest.raises(UsageError, match="cannot be the name of a tool's folder"):
        collection.add(read_folder(make_folder(tmp_path, name)))
    assert not collection.folder.exists()


@pytest.mark.parametrize("name", ["nothing", "..", ".", "", "a/b", "../data", ".hidden"])
def test_no_name_leads_out_of_the_folder(collection: ToolCollection, echo: Path, name: str) -> None:
    for attempt in (collection.remove, collection.read):
        with pytest.raises(UsageError, match="there is no tool"):
            attempt(name)
    assert echo.exists()


# --- what was said ------------------------------------------------------------------------------


def test_two_who_change_the_record_at_once_lose_nothing(collection: ToolCollection) -> None:
    def switch(start: int) -> None:
        for number in range(start, start + 20):
            collection.choices.switch(f"t{number}", False)

    threads = [Thread(target=switch, args=(start,)) for start in (0, 100, 200)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(collection.choices.load().switched) == 60
    assert collection.choices.path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", "null", "[" * 100_000, "\\ud800"),
        '{"version": 2, "trusted": {}, "switched": {}}',
        '{"version": 1, "trusted": [], "switched": {}}',
        '{"version": 1, "trusted": {"a": 1}, "switched": {}}',
        '{"version": 1, "trusted": {}, "switched": {"a": 0}}',
        '{"version": 1, "trusted": {}}',
    ],
)
def test_a_record_that_cannot_be_read_stops_everything(
    collection: ToolCollection, text: str
) -> None:
    collection.choices.path.parent.mkdir()
    collection.choices.path.write_text(text)
    collection.choices.path.chmod(0o600)
    with pytest.raises(ConfigError, match=r"tools\.json is damaged"):
        registry(collection)
    with pytest.raises(ConfigError, match="is damaged"):
        collection.choices.switch("clock", False)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda path: path.unlink() or path.mkdir(), "it is no regular file"),
        (lambda path: path.chmod(0o666), "others may write to it"),
        (lambda path: path.unlink() or path.symlink_to("other"), "cannot be read"),
    ],
)
def test_a_record_that_may_be_somebody_elses_is_not_believed(
    collection: ToolCollection, damage: Any, said: str
) -> None:
    collection.choices.switch("clock", False)
    damage(collection.choices.path)
    with pytest.raises(ConfigError, match=said):
        registry(collection)


def test_trust_in_a_folder_is_none_in_one_of_the_same_name_elsewhere(
    tmp_path: Path, collection: ToolCollection, echo: Path
) -> None:
    other = ToolCollection(tmp_path / "other")
    make_folder(other.folder)
    shutil.copy(collection.choices.path, other.choices.path)
    assert "not trusted yet" in (why(other) or "")


def test_a_root_that_can_be_written_must_not_hold_the_record(
    tmp_path: Path, collection: ToolCollection
) -> None:
    assert find_exposure(collection.choices.path, [str(tmp_path), "/usr:rw"]) is None
    assert "lies below the root" in (
        find_exposure(collection.choices.path, [f"{tmp_path}:rw"]) or ""
    )
    hidden = ToolCollection(tmp_path / ".local" / "share")
    assert find_exposure(hidden.choices.path, [f"{tmp_path}:rw"]) is None


# --- a new one ----------------------------------------------------------------------------------


def test_a_new_tool_works_as_it_is(tmp_path: Path) -> None:
    tool = load_tool(write_template(tmp_path, "word-count"))
    assert tool.spec.name == "word-count"
    assert tool.spec.effects == {"read"}
    assert json.loads(called(tool, text="one two").content or "")["words"] == 2
    error = called(tool, text=" ").error
    assert error is not None and error.message == "there is no text to count in"
    assert (tmp_path / "word-count" / "test_word_count.py").exists()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        *((name, "cannot name a tool") for name in ("a b", "../a", "é")),
        *((name, "cannot be the name of a tool's folder") for name in (".a", "-a")),
        ("there", "is there already"),
        ("queryKnowledgeBase", "is another name of query_knowledge_base"),
    ],
)
def test_a_name_that_cannot_be_or_is_taken_makes_nothing(
    tmp_path: Path, name: str, said: str
) -> None:
    (tmp_path / "there").mkdir()
    with pytest.raises(UsageError, match=said):
        write_template(tmp_path, name)
    assert names_in(tmp_path) == ["there"]


def test_a_tool_that_is_made_runs_as_its_files_are_at_the_call(
    tmp_path: Path, collection: ToolCollection
) -> None:
    folder = make_folder(tmp_path)
    collection.make("echo", folder)
    (one,) = collection.tools()
    assert one.folder is not None and one.log is not None
    made = folder_tool(one.folder, one.reason, one.log)
    (folder / "execute.py").write_text("def execute(arguments):\n    return {'now': 1}\n")
    assert asyncio.run(made.call({"text": "a"})) == {"now": 1}
    definition = folder / "tool_definition.json"
    definition.write_text(definition.read_text().replace("Does what", "Is"))
    with pytest.raises(ToolError, match="its description has changed"):
        asyncio.run(made.call({"text": "a"}))
