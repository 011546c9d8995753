"""`mlx-tools undo`: what a call wrote is taken back; and a dry run, which shows what it would."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mlx_tools.errors import UsageError
from mlx_tools.plugins.files.command import undo_question
from mlx_tools.testing import ScriptedServer, answer, call

WRITE = '{"operation": "write", "path": "monday.txt", "content": "Buy flour.\\n"}'
OLD = "Buy milk.\n"


@pytest.fixture
def root(home: Path) -> Path:
    folder = home / "notes"
    folder.mkdir()
    (folder / "monday.txt").write_text(OLD)
    return folder


def write(run: Any, root: Path, *more: str) -> Any:
    how = ("--root", f"{root}:rw", "--tools", "file_access", *more)
    return run("tools", "call", "file_access", WRITE, *how)


def test_a_dry_run_shows_what_would_be_changed(run: Any, root: Path) -> None:
    direct = write(run, root, "--dry-run")
    with ScriptedServer(call("file_access", **json.loads(WRITE)), answer("Written.")) as server:
        how = ("--url", server.url, "--root", f"{root}:rw", "--preset", "workspace", "--dry-run")
        asked = run("ask", *how, "Write it.")
    for done in (direct, asked):
        assert done.code == 0 and "| -Buy milk.\n| +Buy flour.\n" in done.err
    assert (root / "monday.txt").read_text() == OLD
    assert run("undo").err.count("left nothing that can be undone") == 1


def test_a_dry_run_shows_a_call_whose_tool_cannot_tell_what_it_would_change(run: Any) -> None:
    script = (call("fetch_url", url="http://example.org/?a=b\u202e"), answer("Fetched."))
    with ScriptedServer(*script) as server:
        options = ("--url", server.url, "--tools", "fetch_url", "--dry-run")
        done = run("ask", "Fetch it.", *options)
    shown = '| {\n|   "url": "http://example.org/?a=b\\u202e"\n| }\n'
    assert done.code == 0 and f"fetch_url would be called with:\n{shown}" in done.err


def test_a_call_without_a_model_shows_what_it_waits_with(run: Any, root: Path) -> None:
    waits = write(run, root)
    assert waits.code == 4 and "| -Buy milk.\n| +Buy flour.\n" in waits.err
    assert write(run, root, "--json").json["preview"].startswith("--- monday.txt\n")


def test_without_a_terminal_nothing_is_undone_unless_it_is_said(run: Any, root: Path) -> None:
    assert write(run, root, "--approve", "always").code == 0
    asked = run("undo")
    assert asked.code == 2 and f"restore {root / 'monday.txt'}\n" in asked.err
    assert "--yes" in asked.err and (root / "monday.txt").read_text() == "Buy flour.\n"
    assert run("undo", "--json").code == 2
    done = run("undo", "last", "--yes", "--json").json
    assert done["changes"] == [
        {
            "session": done["session"],
            "path": str(root / "monday.txt"),
            "action": "restore",
            "status": "undone",
            "reason": None,
        }
    ]
    assert (done["undone"], done["refused"]) == (1, 0)
    again = run("undo", "--json")
    assert (again.code, again.json["changes"]) == (0, [])


def test_what_cannot_be_undone_is_told_and_is_no_success(run: Any, root: Path) -> None:
    assert write(run, root, "--approve", "always").code == 0
    (root / "monday.txt").write_text("mine\n")
    refused = run("undo")  # nothing is to be decided
    assert refused.code == 1 and refused.out.startswith("cannot restore ")
    assert "it has changed since the run" in refused.out
    assert "1 change of 1 could not be undone" in refused.err
    assert (root / "monday.txt").read_text() == "mine\n"
    refused = run("undo", "--json")
    assert (refused.code, refused.json["refused"]) == (1, 1)


def test_in_a_chat_a_refused_change_does_not_hide_one_of_an_earlier_session(
    run: Any, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / "tuesday.txt").write_text(OLD)
    sessions = []
    for name in ("monday.txt", "tuesday.txt"):
        arguments = json.dumps({**json.loads(WRITE), "path": name})
        how = ("--root", f"{root}:rw", "--tools", "file_access", "--approve", "always", "--json")
        sessions.append(run("tools", "call", "file_access", arguments, *how).json["session"])
    (root / "tuesday.txt").write_text("mine\n")
    with pytest.raises(UsageError) as raised:  # nobody is here to be asked
        undo_question(sessions, sessions[-1])
    assert f"mlx-tools undo {sessions[0]} --yes" in str(raised.value)
    told = capsys.readouterr()
    assert f"cannot restore {root / 'tuesday.txt'}: it has changed since the run" in told.out
    assert f"restore {root / 'monday.txt'}\n" in told.err


def test_where_the_last_session_left_nothing_the_one_that_did_is_named(
    run: Any, root: Path
) -> None:
    session = write(run, root, "--approve", "always", "--json").json["session"]
    run("tools", "call", "calculator", '{"expression": "1"}')
    nothing = run("undo")
    assert nothing.code == 0 and f"mlx-tools undo {session}" in nothing.err
    assert run("undo", session, "--yes").code == 0
    assert run("undo", "20200101-000000-00000000").code == 2
