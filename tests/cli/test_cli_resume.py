"""`mlx-tools sessions resume`: all but what was decided comes from the transcript."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mlx_tools.testing import ScriptedServer, answer, call

MAKE = call("create_file", path="note.txt", content="hello\n")


@pytest.fixture
def root(home: Path) -> Path:
    folder = home / "root"
    folder.mkdir()
    return folder


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    """Calls create_file, then answers whatever is asked."""
    with ScriptedServer(MAKE, answer("Made."), answer("Again.")) as made:
        yield made


@pytest.fixture
def outcome(run: Any, server: ScriptedServer, root: Path) -> Any:
    """The outcome of a question whose call waits."""
    options = ("--url", server.url, "--root", str(root), "--tools", "create_file", "--json")
    result = run("ask", *options, "Make a note.")
    assert result.code == 4, result.err
    return result.json


@pytest.fixture
def resume(run: Any, outcome: Any) -> Any:
    """Goes on with it."""
    return partial(run, "sessions", "resume", outcome["session"])


def test_a_paused_session_resumes_with_nothing_said_but_the_decision(
    outcome: Any, resume: Any, root: Path
) -> None:
    assert outcome["status"] == "paused"
    (pending,) = outcome["pending"]
    assert not (root / "note.txt").exists()
    again = resume("--json")  # nothing is said
    assert (again.code, again.json["pending"][0]["call_id"]) == (4, "c1")
    done = resume("--approve", pending["call_id"], "--json")
    assert (done.code, done.json["status"], done.json["answer"]) == (0, "answered", "Made.")
    assert (root / "note.txt").read_text() == "hello\n"
    again = resume("--approve", pending["call_id"], "--json")
    assert again.code == 2
    assert "already decided" in again.err


def test_the_digest_that_was_shown_can_be_named(outcome: Any, resume: Any, root: Path) -> None:
    (pending,) = outcome["pending"]
    wrong = resume("--approve", f"c1={'0' * 64}")
    assert wrong.code == 2 and not (root / "note.txt").exists()
    right = resume("--approve", f"c1={pending['digest']}")
    assert right.code == 0 and (root / "note.txt").exists()


def test_a_denied_call_is_told_to_the_model_with_the_reason(
    resume: Any, server: ScriptedServer, root: Path
) -> None:
    done = resume("--deny", "c1", "--reason", "no notes today", "--json")
    assert done.code == 0
    assert done.json["calls"][0]["status"] == "denied"
    assert "no notes today" in server.prompts[-1]
    assert not (root / "note.txt").exists()


def test_an_edited_call_runs_as_it_was_edited(resume: Any, root: Path) -> None:
    edited = json.dumps({"path": "other.txt", "content": "bye\n"})
    done = resume("--edit", "c1", edited, "--json")
    assert done.code == 0, done.err
    assert done.json["calls"][0]["arguments"] == {"path": "other.txt", "content": "bye\n"}
    assert (root / "other.txt").read_text() == "bye\n"
    assert not (root / "note.txt").exists()


@pytest.mark.parametrize(
    "options",
    [
        ("--edit", "c1", "{"),
        ("--edit", "c1", "[]"),
        ("--edit", "c1", '{"path": 5}'),
        ("--edit", "c1", '{"path": "../out.txt", "content": ""}', "--deny", "c1"),
        ("--approve-all", "--deny", "c1"),
        ("--approve-all", "--reason", "it is late"),
        ("--approve", "c7"),
        ("--reason", "nothing to say it of"),
    ],
)
def test_what_cannot_be_decided_is_wrong_usage_and_runs_nothing(
    resume: Any, root: Path, options: tuple[str, ...]
) -> None:
    done = resume(*options)
    assert done.code == 2
    assert list(root.iterdir()) == []
    assert resume("--approve-all").code == 0


def test_a_target_that_came_meanwhile_voids_what_was_shown(resume: Any, root: Path) -> None:
    (root / "note.txt").write_text("somebody else's")
    done = resume("--approve", "c1")
    assert done.code == 2 and "changed" in done.err
    assert (root / "note.txt").read_text() == "somebody else's"


def test_what_is_configured_since_narrows_the_session(
    resume: Any, root: Path, configure: Any
) -> None:
    configure('[policy]\ndeny = ["create_file"]\n')
    done = resume("--approve-all", "--json")
    assert not (root / "note.txt").exists()
    assert done.code in (0, 2)


def test_a_choice_made_by_an_option_still_counts(
    configure: Any, root: Path, request: pytest.FixtureRequest
) -> None:
    configure('[policy]\nallow = ["calculator"]\n')  # before the question
    done = request.getfixturevalue("resume")("--approve-all")
    assert done.code == 0, done.err
    assert (root / "note.txt").exists()


@pytest.mark.parametrize(
    ("section", "key", "new"),
    [
        ("limits", "total_timeout", "x"),
        ("backend", "url", "http://127.0.0.1:9"),
        ("limits", "a", 1),
    ],
)
def test_a_header_that_was_changed_is_refused_before_anything_it_says_is_done(
    outcome: Any, resume: Any, section: str, key: str, new: object
) -> None:
    transcript = Path(outcome["transcript"])
    first, *rest = transcript.read_text().splitlines(keepends=True)
    header = json.loads(first)
    header[section][key] = new
    transcript.write_text(json.dumps(header) + "\n" + "".join(rest))
    refused = resume("--approve-all")
    assert refused.code == 2 and "its header was changed" in refused.error


def test_a_server_that_is_gone_leaves_the_session_as_it_was(
    outcome: Any, resume: Any, run: Any, server: ScriptedServer
) -> None:
    server.stop()
    done = resume("--approve-all", "--json")
    assert (done.code, done.json["status"]) == (3, "stopped")
    listed = run("sessions", "list", "--json").lines[0]
    assert (listed["session"], listed["state"]) == (outcome["session"], "paused")


def test_a_call_without_a_model_has_nothing_to_go_on_with(run: Any) -> None:
    run("tools", "call", "calculator", '{"expression": "1"}')
    result = run("sessions", "resume", "last")
    assert (result.code, result.out) == (2, "")
    assert "it is a call without a model (call it again)" in result.error
