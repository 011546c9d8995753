"""Going on with a conversation: `ask -c`, `ask --session`, `chat --continue` and `--session`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mlx_tools.plugins.runs import RunRow, RunRows
from mlx_tools.plugins.schedule.jobs import job_store
from mlx_tools.store import TranscriptStore
from mlx_tools.store.transcript import TranscriptFile
from mlx_tools.testing import ScriptedServer, answer, call
from tests.folders.tool_folders import make_folder

MAKE = call("create_file", path="note.txt", content="hello\n")


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    """Answers whatever is asked, and says how often it was."""
    with ScriptedServer(*[answer(f"answer {number}") for number in range(1, 9)]) as made:
        yield made


def asked(run: Any, server: ScriptedServer, *more: str, code: int = 0) -> Any:
    result = run("ask", "--url", server.url, "--json", *more, "First?")
    assert result.code == code, result.err
    return result.json


@pytest.mark.parametrize("by", ["-c", "id", "beginning", "path"])
def test_a_question_goes_on_with_a_conversation_in_its_own_transcript(
    run: Any, server: ScriptedServer, by: str
) -> None:
    first = asked(run, server)
    named = {
        "-c": ("-c",),
        "id": ("--session", first["session"]),
        "beginning": ("--session", first["session"][:-3]),
        "path": ("--session", first["transcript"]),
    }[by]
    second = run("ask", *named, "--json", "Second?")
    assert (second.code, second.json["answer"]) == (0, "answer 2"), second.err
    assert second.json["session"] == first["session"]
    assert second.json["usage"]["requests"] == 1
    assert server.prompts[1].startswith(server.prompts[0])
    assert "answer 1" in server.prompts[1]


def test_the_last_conversation_is_the_one_that_was_written_to_last(
    run: Any, server: ScriptedServer
) -> None:
    older = asked(run, server)
    newer = asked(run, server)
    run("ask", "--session", older["session"], "Again?")
    assert run("ask", "-c", "--json", "And?").json["session"] == older["session"]
    assert run("ask", "--session", "last", "--json", "And?").json["session"] == older["session"]
    assert newer["session"] != older["session"]
    told = run("ask", "-c", "--session", newer["session"], "And?")
    assert (told.code, "--continue and --session name two sessions" in told.error) == (2, True)


def test_this_folders_last_conversation_goes_on_before_the_last_of_all(
    run: Any, server: ScriptedServer, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = asked(run, server)
    (home / "garden").mkdir()
    monkeypatch.chdir(home / "garden")
    went_on = run("ask", "-c", "--json", "Second?")
    assert went_on.json["session"] == ours["session"]
    assert f"going on with {ours['session']} of ~/here: First?" in went_on.error
    other = asked(run, server)
    run("ask", "--session", ours["session"], "Third?")
    went_on = run("chat", "-c", stdin="Fourth?\n")
    assert went_on.err.startswith(f"mlx-tools: note: going on with {other['session']}: First?")
    monkeypatch.chdir(home / "here")
    assert run("ask", "-c", "--json", "Fifth?").json["session"] == ours["session"]


def test_what_is_no_conversation_of_a_persons_is_passed_over(
    run: Any, server: ScriptedServer
) -> None:
    none = run("ask", "-c", "Second?")
    assert (none.code, "no conversation to go on with" in none.err) == (2, True)
    ours = asked(run, server)
    job = asked(run, server)
    clients = asked(run, server)
    broken = asked(run, server)
    store = TranscriptStore(Path(clients["transcript"]).parents[1])
    RunRows(store).add(RunRow(clients["session"], "owner", {}), None)
    run("tools", "call", "calculator", '{"expression": "1+1"}')
    lines = Path(broken["transcript"]).read_text().splitlines()
    Path(broken["transcript"]).write_text("\n".join([lines[0], "{", *lines[2:]]) + "\n")
    with job_store(store).tables.transaction(write=True) as db:
        db.execute(
            "INSERT INTO runs (job, due, attempt, started, status, session) "
            "VALUES ('j', 0, 1, 0, 'answered', ?)",
            (job["session"],),
        )
    went_on = run("ask", "-c", "--json", "Second?")
    assert went_on.json["session"] == ours["session"]
    assert f"{broken['session']} cannot be read" in went_on.err


@pytest.mark.parametrize(
    ("option", "flag"),
    [
        (("--model", "other"), "--model"),
        (("--preset", "workspace"), "--preset"),
        (("--root", "."), "--root"),
        (("--temperature", "1"), "--temperature"),
        (("--timeout", "9"), "--timeout"),
        (("--schema", "schema.json"), "--schema"),
        (("--require-tools", "clock"), "--require-tools"),
    ],
)
def test_an_option_that_would_make_another_session_of_it_is_refused_by_name(
    run: Any, server: ScriptedServer, option: tuple[str, ...], flag: str
) -> None:
    first = asked(run, server)
    refused = run("ask", "-c", *option, "Second?")
    assert refused.code == 2
    assert f"{flag} cannot change a saved session" in refused.error
    assert len(server.prompts) == 1
    assert len(Path(first["transcript"]).read_text().splitlines()) == 4


def test_what_narrows_goes_with_a_session_for_the_question_alone(
    run: Any, server: ScriptedServer, home: Path
) -> None:
    root = home / "root"
    root.mkdir()
    (root / "a.txt").write_text("hello")
    read = call("file_access", operation="read", path="a.txt")
    with ScriptedServer(answer(), read, answer(), read, answer(), read, answer()) as server:
        asked(run, server, "--root", str(root))
        denied = run("ask", "-c", "--tools", "clock", "--json", "Read it.").json
        assert [one["error_code"] for one in denied["calls"]] == ["not_allowed"]
        free = run("ask", "-c", "--url", server.url, "--json", "Read it.").json
        assert [one["status"] for one in free["calls"]] == ["ok"]
        none = run("ask", "-c", "--tool-choice", "none", "--json", "Read it.").json
        assert [one["status"] for one in none["calls"]] != ["ok"]


def test_a_tools_folder_that_is_gone_since_takes_the_tool_and_not_the_session(
    run: Any, home: Path
) -> None:
    make_folder(home / "here", effects=["read"])
    assert run("tools", "add", "echo", "--yes").code == 0
    echo = call("echo", text="ho")
    with ScriptedServer(echo, answer("echoed"), echo, answer("gone")) as server:
        first = asked(run, server, "--tools", "echo")
        assert [one["status"] for one in first["calls"]] == ["ok"]
        assert run("tools", "remove", "echo", "--yes").code == 0
        after = run("ask", "-c", "--json", "Again.")
        assert (after.code, after.json["answer"]) == (0, "gone"), after.err
        assert [one["status"] for one in after.json["calls"]] != ["ok"]


def test_a_session_that_waits_says_what_must_be_done_first(run: Any, home: Path) -> None:
    root = home / "root"
    root.mkdir()
    with ScriptedServer(MAKE, answer("made"), answer("more")) as server:
        options = ("--root", str(root), "--tools", "create_file")
        first = asked(run, server, *options, code=4)
        refused = run("ask", "-c", "And now?")
        assert refused.code == 2
        assert "waits for an approval" in refused.err
        assert f"mlx-tools sessions resume {first['session']}" in refused.err
        assert run("sessions", "resume", first["session"], "--approve-all").code == 0
        assert run("ask", "-c", "--json", "And now?").json["answer"] == "more"
    assert (root / "note.txt").read_text() == "hello\n"


def test_a_session_in_another_terminal_is_told_and_no_other_one_taken(
    run: Any, server: ScriptedServer
) -> None:
    first = asked(run, server)
    holder = TranscriptFile(Path(first["transcript"]))
    told = run("ask", "-c", "Second?")
    assert (told.code, "in use by another process" in told.err) == (2, True)
    holder.close()
    assert run("ask", "-c", "Second?").code == 0


# --- chat -----------------------------------------------------------------------------------------


def test_chat_goes_on_with_a_session_question_after_question(
    run: Any, server: ScriptedServer
) -> None:
    first = asked(run, server)
    for option in (("--continue",), ("--session", first["session"])):
        talked = run("chat", *option, stdin="More?\nAnd more?\n")
        assert talked.code == 0, talked.err
    assert talked.out.splitlines() == ["answer 4", "answer 5"]
    again = run("ask", "-c", "--json", "Still there?").json
    assert (again["session"], again["answer"]) == (first["session"], "answer 6")
    for before, after in zip(server.prompts, server.prompts[1:], strict=False):
        assert after.startswith(before)


def test_an_option_that_says_what_the_session_was_begun_with_says_nothing_new(
    run: Any, server: ScriptedServer
) -> None:
    begun = ("--root", ".", "--system", "Be brief.")
    first = asked(run, server, *begun)
    again = run("ask", "-c", "--json", *begun, "Second?")
    assert again.code == 0, again.err
    assert again.json["session"] == first["session"]
    other = run("ask", "-c", "--root", ".:rw", "Third?")
    assert "--root cannot change a saved session" in other.error


def test_chat_refuses_what_ask_refuses(run: Any, server: ScriptedServer) -> None:
    asked(run, server)
    for option in (("--preset", "workspace"), ("--tool-choice", "none")):
        refused = run("chat", "-c", *option, stdin="More?\n")
        assert (refused.code, f"{option[0]} cannot change a saved session" in refused.error) == (
            2,
            True,
        )


def test_chat_goes_on_with_another_model_in_a_new_session_as_narrow_as_the_first(
    run: Any, home: Path
) -> None:
    root = home / "root"
    root.mkdir()
    with ScriptedServer(MAKE) as server:
        begun = ("--url", server.url, "--root", f"{root}:rw", "--dry-run", "--json")
        first = run("ask", *begun, "--tools", "create_file", "First?").json
        assert first["calls"]
    with ScriptedServer(MAKE, answer("Made."), answer("Told.")) as server:
        chat = ("chat", "-c", "--model", "other", "--url", server.url)
        talked = run(*chat, stdin="More?\nAnd more?\n")
    assert talked.out.splitlines() == ["Made.", "Told."], talked.err
    assert {body["model"] for body in server.bodies} == {"other"}
    assert all(one in server.prompts[0] for one in ("First?", "create_file", "More?"))
    assert not (root / "note.txt").exists()  # a dry run stays one
    rows = [json.loads(line) for line in run("sessions", "list", "--json").out.splitlines()]
    assert [row["session"] == first["session"] for row in rows] == [False, True]


def test_a_new_beginning_in_a_talk_that_went_on_has_all_that_was_said(
    run: Any, server: ScriptedServer
) -> None:
    first = asked(run, server)
    talked = run("chat", "-c", stdin="More?\n/deny calculator\nAnd more?\n/retry\n")
    assert talked.out.splitlines()[-1] == "answer 4", talked.err
    assert all(one in server.prompts[-1] for one in ("First?", "answer 1", "More?", "answer 2"))
    assert "answer 3" not in server.prompts[-1]
    assert first["session"] not in run("ask", "-c", "--json", "And?").json["session"]


def test_resuming_a_session_that_has_ended_goes_on_in_chat_at_a_terminal(
    run: Any, terminal: Any, server: ScriptedServer
) -> None:
    first = asked(run, server)
    for more in ((), ("--json",), ("--approve-all",)):
        told = run("sessions", "resume", first["session"], *more)
        assert told.code == 2
        assert f"mlx-tools chat --session {first['session']}" in told.error
    screen = terminal("sessions", "resume", first["session"])
    screen.see("going on with")
    screen.see("> First[?]")
    screen.see("answer 1 ^>$")
    screen.type("More?\r")
    screen.see("answer 2 ^>$")
    screen.type("\x04")
    assert screen.end() == 0
    assert server.prompts[1].startswith(server.prompts[0])


def test_chat_has_decided_what_waits_before_it_listens(run: Any, terminal: Any, home: Path) -> None:
    root = home / "root"
    root.mkdir()
    script = (MAKE, answer("made"), answer("more"))
    with ScriptedServer(*script, context=16_000) as server:
        asked(run, server, "--root", str(root), "--tools", "create_file", code=4)
        screen = terminal("chat", "-c")
        screen.see("16,000 tokens of context")
        screen.see("note.txt")
        screen.type("y")
        screen.see("made ^>$")
        screen.type("And now?\r")
        screen.see("more ^>$")
        screen.type("\x04")
        assert screen.end() == 0
    assert (root / "note.txt").read_text() == "hello\n"
