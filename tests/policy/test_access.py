"""The access list: whatever is wrong with it, and whatever changed, no call runs."""

from __future__ import annotations

import fcntl
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mlx_tools.errors import TranscriptError
from mlx_tools.messages import ToolSpec, replace
from mlx_tools.store.access_list import Access, AccessFile, fingerprints

LOOK = ToolSpec("look", effects=frozenset({"read"}))
SAVE = ToolSpec("save", effects=frozenset({"write"}))
SPECS = (LOOK, SAVE)


@pytest.fixture
def access(tmp_path: Path) -> Access:
    made = AccessFile(path=tmp_path / "access.json")
    made.begin("s1", "p1", SPECS)
    return made


def why(access: Access, spec: ToolSpec = LOOK) -> str | None:
    decision = access.check(spec)
    if decision is None:
        return None
    assert (decision.decision, decision.rule) == ("deny", "access_list")
    assert decision.code == "not_allowed"
    return decision.reason


def test_an_intact_list_refuses_nothing_and_only_its_owner_can_read_it(access: Access) -> None:
    assert why(access) is None and why(access, spec=SAVE) is None
    assert stat.S_IMODE(access.path.stat().st_mode) == 0o600
    assert [path.name for path in access.path.parent.iterdir()] == ["access.json"]


def edited(**change: Any) -> Callable[[Path], object]:
    def edit(path: Path) -> object:
        value = json.loads(path.read_bytes()) | change
        return path.write_text(json.dumps(value, sort_keys=True))

    return edit


def wider(path: Path) -> object:
    value = json.loads(path.read_bytes())
    value["tools"]["other"] = ToolSpec("other").digest()
    return path.write_text(json.dumps(value, sort_keys=True))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (Path.unlink, "is gone"),
        (lambda path: path.write_bytes(b""), "not the one"),
        (lambda path: path.write_bytes(b"{}"), "not the one"),
        (lambda path: path.write_bytes(b"\xff\xfe\x00"), "not the one"),
        (lambda path: path.write_bytes(b"[" * 100_000), "not the one"),
        (lambda path: path.write_bytes(b'{"version":' + b"9" * 5000 + b"}"), "not the one"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), "not the one"),
        (lambda path: path.write_bytes(path.read_bytes() * 2), "not the one"),
        (lambda path: path.write_bytes(b" " * 5_000_000), "too large"),
        (edited(session=""), "not the one"),
        (edited(session=None), "not the one"),
        (edited(more=1), "not the one"),
        (edited(version=2), "not the one"),
        (edited(tools=[]), "not the one"),
        (edited(session="s2"), "not the one"),
        (edited(policy="p2"), "not the one"),
        (edited(tools={}), "not the one"),
        (edited(tools={"look": "0"}), "not the one"),
        (edited(configuration={"/etc/x": "absent"}), "not the one"),
        (wider, "not the one that this run wrote"),
        (lambda path: path.chmod(0o666), "others may write to it"),
    ],
)
def test_a_list_that_is_not_what_it_was_lets_nothing_run(
    access: Access, damage: Callable[[Path], object], said: str
) -> None:
    damage(access.path)
    assert said in (why(access) or "")


def test_a_list_that_is_locked_lets_nothing_run(access: Access) -> None:
    with access.path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert "is locked" in (why(access) or "")
    assert why(access) is None


def test_what_is_no_file_lets_nothing_run_and_is_not_waited_for(access: Access) -> None:
    data = access.path.read_bytes()
    access.path.unlink()
    os.mkfifo(access.path, 0o600)
    assert "no regular file" in (why(access) or "")
    access.path.unlink()
    access.path.mkdir()
    assert why(access) is not None
    access.path.rmdir()
    other = access.path.with_name("other")
    other.write_bytes(data)
    access.path.symlink_to(other)
    assert why(access) is not None


def test_the_list_of_another_session_does_not_help(access: Access, tmp_path: Path) -> None:
    other = AccessFile(path=tmp_path / "other.json")
    other.begin("s2", "p1", SPECS)
    access.path.write_bytes(other.path.read_bytes())
    assert "not the one" in (why(access) or "")


CHANGES: list[dict[str, Any]] = [
    {"description": "does more"},
    {"effects": frozenset({"read", "network"})},
    {"effects": lambda arguments: frozenset({"read"})},
    {"parameters": {"type": "object", "properties": {"x": {}}}},
    {"needs_approval": True},
    {"timeout": 3.0},
    {"retry": "read_only"},
    {"plugin": "other"},
    {"private": True},
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: next(iter(change)))
def test_a_tool_that_declares_something_else_than_when_the_run_began_does_not_run(
    access: Access, change: dict[str, Any]
) -> None:
    assert "look has changed" in (why(access, spec=replace(LOOK, **change)) or "")


def test_a_tool_that_came_later_does_not_run(access: Access) -> None:
    assert "no tool of this run" in (why(access, spec=ToolSpec("later")) or "")


@pytest.mark.parametrize("kind", ["file", "memory"])
def test_a_configuration_that_changed_lets_nothing_run(tmp_path: Path, kind: str) -> None:
    user, project = tmp_path / "config.toml", tmp_path / "mlx-tools.toml"
    user.write_text("[policy]\nallow = ['*']\n")
    watched = fingerprints([user, project])
    access = (
        AccessFile(watched, path=tmp_path / "access.json")
        if kind == "file"
        else Access(watched=watched)
    )
    access.begin("s1", "p1", SPECS)
    assert why(access) is None
    user.touch()
    assert why(access) is None
    project.write_text("[policy]\ndeny = ['*']\n")
    assert str(project) in (why(access) or "")
    project.unlink()
    assert why(access) is None
    user.write_text("[policy]\nallow = []\n")
    assert str(user) in (why(access) or "")
    user.unlink()
    os.mkfifo(user)
    assert str(user) in (why(access) or "")


@pytest.mark.parametrize("kind", ["file", "memory"])
def test_before_a_run_begins_and_after_it_ended_nothing_runs(tmp_path: Path, kind: str) -> None:
    access = AccessFile(path=tmp_path / "access.json") if kind == "file" else Access()
    assert "no access list" in (why(access) or "")
    access.begin("s1", "p1", SPECS)
    assert why(access) is None
    access.end()
    assert "no access list" in (why(access) or "")
    assert list(tmp_path.iterdir()) == []
    access.end()


def test_a_list_that_a_killed_run_left_does_not_help_the_next_one(access: Access) -> None:
    again = AccessFile(path=access.path)
    assert "no access list" in (why(again) or "")
    again.begin("s1", "p2", [LOOK])
    assert why(again) is None
    assert why(again, spec=SAVE) is not None
    assert why(access) is not None  # the first one, should it still be there


def test_a_list_that_cannot_be_written_is_told_and_lets_nothing_run(tmp_path: Path) -> None:
    access = AccessFile(path=tmp_path / "nowhere" / "access.json")
    with pytest.raises(TranscriptError, match="access list"):
        access.begin("s1", "p1", SPECS)
    assert why(access) is not None
