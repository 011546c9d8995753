"""`ask --json` ends with its object, however it ends; nothing else is on standard output."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from mlx_tools.testing import Completion, ScriptedServer, answer
from tests.cli.test_cli_ask import KEYS
from tests.forked import forks
from tests.waiting import wait_until


def stopped(result: Any, code: int, reason: str, error: str) -> Any:
    value = result.json
    assert (result.code, value["status"], value["reason"]) == (code, "stopped", reason)
    assert list(value) == [*KEYS, "error"]
    assert value["error"]["code"] == error and value["error"]["message"] in result.err
    return value


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("--tools", "calculater", "Hi"), "usage_error"),
        (("--temperature", "hot", "Hi"), "config_error"),
        ((" ",), "usage_error"),
        (("--schema", "nowhere.json", "Hi"), "usage_error"),
        (("--profile", "none", "Hi"), "config_error"),
        (("--url", "http://127.0.0.1:9", "Hi"), "backend_unreachable"),
    ],
)
def test_what_cannot_begin(run: Any, words: tuple[str, ...], error: str) -> None:
    gone = error == "backend_unreachable"
    result = run("ask", "--json", *words)
    value = stopped(result, 3 if gone else 2, "backend_error" if gone else "usage_error", error)
    assert value["session"] is None and value["usage"]["requests"] == 0


def test_a_place_that_nothing_can_be_kept_in(run: Any, home: Path) -> None:
    (home / "state").write_text("a file where a folder should be")
    with ScriptedServer(answer("Hi.")) as server:
        result = run("ask", "--json", "--url", server.url, "Hi")
    assert result.code == 2 and result.json["status"] == "stopped"
    assert result.json["error"]["message"] in result.err


def test_ctrl_c_in_a_run_tells_what_the_transcript_does(home: Path) -> None:
    slow = Completion('{"type":"final_answer","content":"' + "x" * 4000, delay=0.2)
    with ScriptedServer(slow) as server:
        process = forks().start("ask", "--json", "--url", server.url, "Hello?")
        wait_until(lambda: server.bodies)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate()
    value = json.loads(out)
    assert (process.returncode, value["status"], value["reason"]) == (130, "stopped", "interrupted")
    assert value["error"]["code"] == "interrupted" and list(value) == [*KEYS, "error"]
    assert Path(value["transcript"]).parent.name == value["session"]


def test_a_fault_of_the_program_itself(run: Any, home: Path) -> None:
    from mlx_tools.cli.root import fails_as_json, run_guarded
    from tests.command_line import Result, Streams

    def broken(*, as_json: bool) -> None:
        raise KeyError("oops")

    with Streams(b"") as (out, err):
        code = run_guarded(lambda: fails_as_json(broken)(as_json=True))
        sys.stdout.flush()
        sys.stderr.flush()
        result = Result(code, out.getvalue().decode(), err.getvalue().decode())
    stopped(result, 1, "internal_error", "internal_error")
