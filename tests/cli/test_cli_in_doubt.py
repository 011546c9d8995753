"""A call that changes things is ended in the middle, and the session gone on with, as a person
does: it is decided about first, and never made again unasked."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from mlx_tools.plugins.schedule.job_store import RunEnd
from mlx_tools.testing import ScriptedServer, answer, call
from mlx_tools.transcript import (
    CallRecord,
    ExecutionRecord,
    StoppedRecord,
    UserRecord,
    make_outcome,
)
from tests.controller.sessions import header
from tests.folders.tool_folders import make_folder
from tests.forked import forks

SEND = call("send", text="hi")
CODE = """
import signal
def execute(arguments):
    first = not open({mark!r}, "a+").tell()
    with open({mark!r}, "a") as out:
        out.write(arguments["text"] + "\\n")
    if first:
        open({begun!r}, "w").close()
        signal.pause()
    return {{"sent": 1}}
"""


SKIPPING = """
import asyncio, signal, sys
from mlx_tools.cli import main
from mlx_tools.testing import SkippingLoop

loops = []

class Policy(asyncio.DefaultEventLoopPolicy):
    def new_event_loop(self):
        loops.append(SkippingLoop())
        return loops[-1]

def skip(*_):
    for loop in loops:
        loop.call_soon_threadsafe(setattr, loop, "skipped", 30.0)

asyncio.set_event_loop_policy(Policy())
signal.signal(signal.SIGUSR1, skip)
sys.exit(main(sys.argv[1:]))
"""
"""The command, for which half a minute goes by at a signal."""


class Desk:
    """A tool that writes a line, and the first time does not come to an end."""

    def __init__(self, run: Any, folder: Path) -> None:
        self._mark, self._begun = folder / "mark", folder / "begun"
        os.mkfifo(self._begun)
        code = CODE.format(mark=str(self._mark), begun=str(self._begun))
        parameters = {"type": "object", "properties": {"text": {"type": "string"}}}
        tool = make_folder(folder / "made", "send", code, parameters, effects=["write"])
        assert run("tools", "add", str(tool), "--yes").code == 0

    @property
    def sent(self) -> list[str]:
        return self._mark.read_text().splitlines()

    def wait(self) -> None:
        """Wait until the tool has written its line."""
        self._begun.read_text()


@pytest.fixture
def desk(run: Any, home: Path) -> Desk:
    return Desk(run, home)


def ended(desk: Desk, server: ScriptedServer, end: str) -> Any:
    """The outcome of a run that was ended in the middle of the call, None where it has none."""
    is_late = end == "timeout"
    process = forks().start(
        *("ask", "Send it.", "--url", server.url, "--json", "--tools", "send"),
        *("--approve", "always", "--timeout", "30"),
        code=SKIPPING if is_late else "",
    )
    desk.wait()
    process.send_signal(signal.SIGUSR1 if is_late else getattr(signal, end))
    out = process.communicate()[0]
    return json.loads(out) if out else None


@pytest.mark.parametrize("end", ["SIGINT", "SIGTERM", "SIGKILL", "timeout"])
def test_a_call_that_was_ended_in_the_middle_is_decided_about_first(
    run: Any, desk: Desk, end: str
) -> None:
    script = (SEND, answer("Well."), SEND, answer("Here."))
    with ScriptedServer(*script) as server:
        outcome = ended(desk, server, end)
        if end in ("SIGINT", "timeout"):
            assert [one["status"] for one in outcome["calls"]] == ["in_doubt"]
        for _ in range(2):
            refused = run("ask", "-c", "Go on.", "--approve", "always", "--json")
            assert (refused.code, refused.json["reason"]) == (2, "usage_error")
            assert "decide first: mlx-tools sessions resume" in refused.err
        paused = run("sessions", "resume", "last", "--approve-all", "--json")
        assert (paused.code, paused.json["pending"][0]["in_doubt"]) == (4, True)
        told = run("sessions", "resume", "last", "--deny", "c1", "--json")
        assert (told.code, told.json["answer"]) == (0, "Well.")
        assert "Nobody knows whether send finished" in server.prompts[1]
        repeats = run("ask", "-c", "Go on.", "--approve", "always", "--json")
        assert (repeats.code, repeats.json["pending"][0]["in_doubt"]) == (4, True)
        assert desk.sent == ["hi"]
        (waits,) = repeats.json["pending"]
        approved = f"{waits['call_id']}={waits['digest']}"
        made = run("sessions", "resume", "last", "--approve", approved, "--json")
    assert (made.code, made.json["answer"], desk.sent) == (0, "Here.", ["hi", "hi"])


def test_chat_asks_about_the_call_before_the_next_question_and_about_its_repetition(
    desk: Desk, terminal: Any
) -> None:
    with ScriptedServer(SEND, SEND, answer("I left it.")) as server:
        screen = terminal("chat", "--url", server.url, "--tools", "send")
        screen.see("^>$")
        screen.type("Send it.\r")
        screen.see("for the session")
        screen.type("s")
        desk.wait()
        screen.press("ctrl-c")
        screen.see("stopped: by Ctrl-C")
        screen.type("Go on.\r")
        for place in ("Go on", "Nobody knows"):
            screen.see(rf"{place}[\s\S]*n give it up")
            screen.type("n")
            screen.see(rf"{place}[\s\S]*Why not")
            screen.press("enter")
        screen.see("I left it. ^>$")
        screen.press("ctrl-d")
        assert screen.end() == 0
        assert desk.sent == ["hi"]
        told = server.prompts[1]
    assert told.index("Nobody knows whether send finished") < told.index("Go on.")


def test_chat_on_a_pipe_pauses_and_asks_nothing_before_it_is_decided(run: Any, desk: Desk) -> None:
    with ScriptedServer(SEND, answer("never")) as server:
        ended(desk, server, "SIGINT")
        talked = run("chat", "-c", stdin="Go on.\nAnd now?\n")
        assert (talked.code, talked.out) == (4, ""), talked.err
        assert len(server.prompts) == 1
    assert desk.sent == ["hi"]


def test_a_job_whose_run_stopped_in_a_call_is_in_doubt() -> None:
    records = [
        header(),
        UserRecord(content="Send it."),
        CallRecord(turn=1, call="c1", name="send", arguments={}),
        ExecutionRecord(call="c1", mutates=True),
        StoppedRecord(reason="total_timeout"),
    ]
    end = RunEnd.from_outcome(make_outcome(records))
    assert (end.status, end.reason) == ("in_doubt", "total_timeout")
