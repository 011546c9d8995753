"""A session whose server has another address now: where the model runs is no part of what was
approved, so `--url`, the environment and the user's own file may name it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mlx_tools.testing import ScriptedServer, answer, call

MAKE = call("create_file", path="note.txt", content="hello\n")


def paused(run: Any, root: Path) -> Any:
    """A run that waits for an approval, and whose server is gone."""
    root.mkdir()
    with ScriptedServer(MAKE) as server:
        told = run(
            *("ask", "Make it.", "--url", server.url, "--root", str(root)),
            *("--tools", "create_file", "--json"),
        )
    assert told.code == 4, told.err
    return told.json


@pytest.mark.parametrize("by", ["--url", "environment", "configuration"])
def test_a_paused_run_is_resumed_at_the_address_that_is_named_now(
    run: Any, home: Path, configure: Callable[[str], Path], by: str
) -> None:
    session = paused(run, home / "root")["session"]
    with ScriptedServer(answer("Made.")) as server:
        if by == "configuration":
            configure(f'[backend]\nurl = "{server.url}"\n')
        environ = {"BACKEND_URL": server.url} if by == "environment" else {}
        more = ("--url", server.url) if by == "--url" else ()
        told = run("sessions", "resume", session, "--approve", "c1", "--json", *more, **environ)
        assert (told.code, told.json["answer"]) == (0, "Made."), told.err
    assert (home / "root" / "note.txt").read_text() == "hello\n"


def test_a_session_keeps_its_server_while_that_answers(
    run: Any, home: Path, configure: Callable[[str], Path]
) -> None:
    here = ScriptedServer(answer("one"), answer("two"))
    with here as server, ScriptedServer(model="another") as other:
        run("ask", "First?", "--url", server.url)
        configure(f'[backend]\nurl = "{other.url}"\n')
        told = run("ask", "-c", "Second?")
        assert (told.code, told.out.strip()) == (0, "two"), told.err
        assert other.prompts == []


def test_without_its_server_a_paused_run_waits_on(run: Any, home: Path) -> None:
    session = paused(run, home / "root")["session"]
    assert run("sessions", "resume", session, "--approve", "c1").code == 3
    with ScriptedServer(answer("Made.")) as server:
        told = run("sessions", "resume", session, "--approve", "c1", "--url", server.url)
        assert (told.code, told.out.strip()) == (0, "Made."), told.err


def test_a_chat_goes_on_at_the_address_that_is_configured_now(
    run: Any, home: Path, configure: Callable[[str], Path]
) -> None:
    with ScriptedServer(answer("one")) as server:
        run("ask", "First?", "--url", server.url)
    gone = run("chat", "-c", stdin="Second?\n")
    assert gone.code == 3 and "no server answers" in gone.err
    with ScriptedServer(answer("two")) as server:
        configure(f'[backend]\nurl = "{server.url}"\n')
        told = run("chat", "-c", stdin="Second?\n")
        assert (told.code, told.out.strip()) == (0, "two"), told.err
        assert f"trying {server.url}" in told.err and "one" in server.prompts[0]


def test_no_other_server_is_tried_where_the_folder_of_a_chat_is_gone(
    run: Any, home: Path, configure: Callable[[str], Path]
) -> None:
    (home / "beds").mkdir()
    with ScriptedServer(answer("one")) as server:
        configure(f'[backend]\nurl = "{server.url}"\n')
        run("ask", "First?", "--root", str(home / "beds"))
        (home / "beds").rmdir()
        gone = run("chat", "-c", stdin="Second?\n")
    assert gone.code == 2 and "beds" in gone.err and "trying" not in gone.err
