"""`mlx-tools approvals`: adding, listing and revoking approvals for many calls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mlx_tools.errors import EXIT_PAUSED, EXIT_USAGE
from mlx_tools.testing import ScriptedServer, answer, call

WRITE = call("file_access", operation="write", path="drafts/a.md", content="tea")
SHAPE = ("file_access", "operation=write", "path=drafts/*", "content=*")


@pytest.fixture
def root(home: Path) -> Path:
    """A folder with drafts."""
    folder = home / "work"
    (folder / "drafts").mkdir(parents=True)
    return folder


def asked(run: Any, root: Path, *more: str) -> Any:
    """A run whose model writes a draft."""
    with ScriptedServer(WRITE, answer("It is written.")) as server:
        given = ("--url", server.url, "--tools", "file_access", "--root", f"{root}:rw")
        return run("ask", "Write it.", "--strategy", "free", *given, *more)


def test_a_standing_yes_lets_a_script_write_until_it_is_revoked(run: Any, root: Path) -> None:
    assert asked(run, root).code == EXIT_PAUSED
    assert run("approvals", "add", *SHAPE, "--root", f"{root}:rw", "--yes").code == 0
    (made,) = run("approvals", "list", "--json").lines
    assert made["roots"] == [str(root)]
    done = asked(run, root, "--events")
    decided = [one for one in done.lines if one["type"] == "call_decided"]
    assert (done.code, decided[-1]["rule"]) == (0, f"template {made['id']}")
    assert (root / "drafts" / "a.md").read_text() == "tea"
    shown = asked(run, root, "--steps")
    assert f"! file_access is approved to write until {made['expires_at']}" in shown.err
    assert f"template {made['id']}" in run("sessions", "show", "last").out
    assert run("approvals", "revoke", made["id"]).code == 0
    assert asked(run, root).code == EXIT_PAUSED
    assert "no approval templates" in run("approvals", "list").error


def test_a_project_brings_none(run: Any, home: Path, root: Path) -> None:
    run("approvals", "add", *SHAPE, "--root", f"{root}:rw", "--yes")
    own, here = home / "config" / "approvals.json", home / "here"
    own.rename(here / "approvals.json")
    (here / "config").mkdir()
    (here / "config" / "approvals.json").write_bytes((here / "approvals.json").read_bytes())
    assert asked(run, root).code == EXIT_PAUSED
    (here / "mlx-tools.toml").write_text('[policy]\nstanding_approvals = ["*"]\n')
    refused = asked(run, root)
    assert refused.code == EXIT_USAGE and "policy.standing_approvals" in refused.err
    assert not (root / "drafts" / "a.md").exists()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("no_such_tool",), "no_such_tool"),
        (("notes_create", "title"), "is not ARGUMENT=PATTERN"),
        (("notes_create", "titel=x", "content=*"), "'titel' is no argument of it"),
        (("notes_create", "title=x", "title=y"), "is said twice"),
        (("notes_create", "title=x"), "always has content"),
        (("notes_create", "title:={", "content=*"), "title:="),
        (("notes_create", "title=x", "content=*"), "no terminal to confirm on"),
        (("notes_create", "title=x", "content=*", "--days", "0", "--yes"), "--days"),
    ],
)
def test_what_is_no_shape_of_a_call_is_refused(run: Any, given: tuple[str, ...], said: str) -> None:
    done = run("approvals", "add", *given)
    assert done.code == EXIT_USAGE and said in done.err
    assert run("approvals", "list", "--json").lines == []


def test_ids_that_name_none_are_told(run: Any) -> None:
    assert "there are no templates with" in run("approvals", "revoke", "abc").error
    assert run("approvals", "revoke").code == EXIT_USAGE


def test_a_person_sees_what_is_meant_before_it_holds(terminal: Any, home: Path, root: Path) -> None:
    shape = ["file_access", "operation=write", "path=drafts/\u202e*", "content=*"]
    screen = terminal("approvals", "add", *shape, "--root", f"{root}:rw")
    shown = screen.see("Add this approval template?")
    assert 'path: "drafts/\\u202e*"' in shown and "content: anything" in shown
    assert not (home / "config" / "approvals.json").exists()
    screen.type("y")
    screen.see("in runs whose folders lie in")
    assert screen.end() == 0
    assert (home / "config" / "approvals.json").stat().st_mode & 0o777 == 0o600
