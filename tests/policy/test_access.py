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
from hypothesis import example, given
from hypothesis import strategies as st

from mlx_tools.errors import TranscriptError
from mlx_tools.messages import ToolSpec, replace
from mlx_tools.store.access_list import RunPermit, RunPermitFile, fingerprints

LOOK = ToolSpec("look", effects=frozenset({"read"}))
SAVE = ToolSpec("save", effects=frozenset({"write"}))
SPECS = (LOOK, SAVE)


@pytest.fixture
def access(tmp_path: Path) -> RunPermitFile:
    made = RunPermitFile(path=tmp_path / "access.json")
    made.begin("s1", "p1", SPECS)
    return made


def why(access: RunPermit, spec: ToolSpec = LOOK) -> str:
    decision = access.check(spec)
    if decision is None:
        return ""
    assert (decision.decision, decision.rule) == ("deny", "access_list")
    assert decision.code == "not_allowed" and decision.reason
    return decision.reason


def test_an_intact_list_refuses_nothing_and_only_its_owner_can_read_it(
    access: RunPermitFile,
) -> None:
    assert not why(access) and not why(access, SAVE)
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


def replaced(make: Callable[[Path], object]) -> Callable[[Path], object]:
    """Something else of the same name, the list beside it."""
    return lambda path: make(path.rename(path.with_name("aside")).with_name(path.name))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (Path.unlink, "is gone"),
        *(
            (lambda path, data=data: path.write_bytes(data), "not the one that this run wrote")
            for data in (b"", b"{}", b"\xff\xfe\0", b"[" * 100_000, b" " * 5_000_000)
        ),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), "not the one"),
        (lambda path: path.write_bytes(path.read_bytes() * 2), "not the one"),
        *(
            (edited(**change), "not the one")
            for change in (
                *({"session": "s2"}, {"policy": "p2"}, {"version": 2}, {"more": 1}, {"tools": {}}),
                *({"tools": {"look": "0"}}, {"configuration": {"/etc/x": "absent"}}),
            )
        ),
        (wider, "not the one"),
        (lambda path: path.chmod(0o666), "others may write to it"),
        (replaced(os.mkfifo), "no regular file"),
        (replaced(Path.mkdir), "no regular file"),
        (replaced(lambda path: path.symlink_to("aside")), "cannot be read"),
    ],
)
def test_a_list_that_is_not_what_it_was_lets_nothing_run_and_is_not_waited_for(
    access: RunPermitFile, damage: Callable[[Path], object], said: str
) -> None:
    damage(access.path)
    assert said in why(access)


@given(noise=st.binary(max_size=60), start=st.integers(0, 400), length=st.integers(0, 400))
@example(noise=b" ", start=0, length=0)  # JSON that says the same
@example(noise=b"\n", start=400, length=0)
def test_no_other_bytes_let_a_tool_run(
    tmp_path_factory: pytest.TempPathFactory, noise: bytes, start: int, length: int
) -> None:
    path = tmp_path_factory.mktemp("access") / "access.json"
    access = RunPermitFile(path=path)
    access.begin("s1", "p1", SPECS)
    own = path.read_bytes()
    other = own[:start] + noise + own[start + length :]
    path.write_bytes(other)
    assert bool(why(access)) == (other != own)


def test_a_list_that_is_locked_lets_nothing_run(access: RunPermitFile) -> None:
    with access.path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert "is locked" in why(access)
    assert not why(access)


CHANGES: list[dict[str, Any]] = [
    *({"description": "does more"}, {"needs_approval": True}, {"timeout": 3.0}, {"private": True}),
    *({"retry": "read_only"}, {"plugin": "other"}, {"effects": frozenset({"read", "network"})}),
    *({"effects": lambda arguments: frozenset({"read"})}, {"parameters": {"type": "array"}}),
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: next(iter(change)))
def test_a_tool_that_declares_something_else_than_when_the_run_began_does_not_run(
    access: RunPermitFile, change: dict[str, Any]
) -> None:
    assert "look has changed" in why(access, replace(LOOK, **change))
    assert "no tool of this run" in why(access, ToolSpec("later"))


@pytest.mark.parametrize("kind", ["file", "memory"])
def test_a_list_holds_while_its_run_goes_on_and_the_configuration_stays(
    tmp_path: Path, kind: str
) -> None:
    user, project = tmp_path / "config.toml", tmp_path / "mlx-tools.toml"
    user.write_text("[policy]\nallow = ['*']\n")
    watched, path = fingerprints([user, project]), tmp_path / "access.json"
    access = RunPermitFile(watched, path=path) if kind == "file" else RunPermit(watched)
    assert "no access list" in why(access)
    access.begin("s1", "p1", SPECS)
    user.touch()
    assert not why(access)
    project.write_text("[policy]\ndeny = ['*']\n")
    assert str(project) in why(access)
    project.unlink()
    assert not why(access)
    user.write_text("[policy]\nallow = []\n")
    assert str(user) in why(access)
    user.unlink()
    os.mkfifo(user)
    assert str(user) in why(access)
    access.end()
    access.end()
    assert "no access list" in why(access) and not path.exists()


def test_a_list_that_a_killed_run_left_does_not_help_the_next_one(access: RunPermitFile) -> None:
    again = RunPermitFile(path=access.path)
    assert "no access list" in why(again)
    again.begin("s1", "p2", [LOOK])
    assert not why(again) and why(again, SAVE)
    assert why(access)  # the first one, should it still be there


def test_a_list_that_cannot_be_written_is_told_and_lets_nothing_run(tmp_path: Path) -> None:
    access = RunPermitFile(path=tmp_path / "nowhere" / "access.json")
    with pytest.raises(TranscriptError, match="access list"):
        access.begin("s1", "p1", SPECS)
    assert why(access)
