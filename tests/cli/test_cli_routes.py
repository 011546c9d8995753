"""Native or prompted, on the command line: what is tried, shown, recorded and used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mlx_tools.backends import NativeVerdict, VerdictStore
from mlx_tools.testing import ChatCall, Completion, ScriptedServer, answer, call
from tests.backends.vendor_servers import VENDORS, serve_turns

SUM = ChatCall("calculator", '{"expression": "6*7"}')


def calls(*made: ChatCall) -> Completion:
    return Completion("", calls=made, finish_reason="tool_calls")


def header(result: Any) -> Any:
    return json.loads(Path(result.json["transcript"]).read_text().splitlines()[0])


def told(asked: str) -> Completion:
    """Answers as the trial wants them, and text to whatever else the doctor asks."""
    if '"role": "tool"' in asked:
        return Completion("4 degrees and rain.")
    if "weather in Oslo" in asked:
        return calls(ChatCall("get_weather", '{"city": "Oslo"}'))
    if "Dentist" in asked:
        given = '{"title": "Dentist", "tags": ["health", "friday"], "urgent": true}'
        return calls(ChatCall("save_note", given))
    return Completion("Hello.", size=99)


def test_a_server_with_a_chat_interface_alone_is_tried_and_then_asked_by_it(run: Any) -> None:
    with ScriptedServer(*[told] * 99, model="oracle", chat=True) as server:
        server.posts = ("/v1/chat/completions",)
        refused = run("ask", "Hi", "--url", server.url)
        assert (refused.code, "--backend native" in refused.err) == (3, True)
        done = run("doctor", "--url", server.url, "--json")
        shown = {one["name"]: one for one in done.json["checks"]}
        assert (done.code, shown["native calls"]["status"]) == (0, "ok")
        assert shown["completion"]["status"] == "warn"
        assert done.json["route"]["path"] == "native"
        result = run("ask", "Hi", "--url", server.url, "--json")
        assert (result.code, result.json["answer"]) == (0, "Hello."), result.err


def test_doctor_tries_a_servers_own_calling_and_later_runs_go_by_it(run: Any) -> None:
    with ScriptedServer(*[told] * 99, model="oracle", chat=True) as server:
        shown = run("doctor", "--url", server.url, "--json").json
        url = server.url
        assert shown["route"]["path"] == "native" and not shown["route"]["obeys"]
        (check,) = [one for one in shown["checks"] if one["name"] == "native calls"]
        assert check["status"] == "ok"
        chats = len(server.chats)
        assert "native" in run("doctor", "--url", url).out
        assert len(server.chats) == chats  # it is known now
        result = run("ask", "Hi", "--url", url, "--json")
        assert result.json["answer"] == "Hello." and len(server.chats) == chats + 1
    assert header(result)["route"]["path"] == "native"
    assert "came back right" in header(result)["route"]["reason"]


def test_a_model_that_was_never_tried_is_prompted_and_the_header_says_why(run: Any) -> None:
    with ScriptedServer(answer("Hi."), chat=True) as server:
        result = run("ask", "Hi", "--url", server.url, "--json")
        assert (server.chats, len(server.prompts)) == ([], 1)
    assert header(result)["route"]["path"] == "prompted"
    assert "not tried" in header(result)["route"]["reason"]


def test_models_list_shows_where_a_model_was_tried(run: Any, home: Path) -> None:
    verdict = NativeVerdict(
        server="http://127.0.0.1:1", model="smollm2-135m", passed=False, reason="no call came back"
    )
    VerdictStore(home / "state" / "verdicts").save_native(verdict)
    lines = run("models", "list", "--json").out.splitlines()
    (row,) = [one for one in map(json.loads, lines) if one["name"] == "smollm2-135m"]
    assert row["routes"] == [
        {"server": verdict.server, "path": "prompted", "reason": "no call came back"}
    ]
    assert "prompted on http://127.0.0.1:1: no call" in " ".join(run("models", "list").out.split())


@pytest.mark.parametrize("vendor", VENDORS)
@pytest.mark.heavy
def test_a_vendors_own_interface_is_named_by_the_address(run: Any, vendor: str) -> None:
    pytest.importorskip(vendor)
    says = VENDORS[vendor][1]
    turns = says("", ("calculator", {"expression": "6*7"})), says("It is 42.")
    with serve_turns(*turns) as server:
        url = f"{vendor}:{server.url}"
        result = run("ask", "6 times 7?", "--url", url, "--model", "m", "--json")
        assert result.code == 0, result.err
        assert run("doctor", "--url", url, "--model", "m").code == 0
    assert result.json["answer"] == "It is 42."
    assert header(result)["route"]["path"] == "native" and header(result)["backend"]["url"] == url


def test_a_native_run_is_kept_and_replayed_without_a_model(run: Any, home: Path) -> None:
    wrong = calls(ChatCall("calculator", '{"expression": 42}'))
    for name, script in (
        ("plain", [calls(SUM), Completion("It is 42.")]),
        ("mended", [wrong, '"6*7"}}', Completion("It is 42.")]),
        ("corrected", [Completion("calculator(6*7)"), call("calculator", expression="6*7"), "42."]),
    ):
        script = [Completion("x"), *script]  # first: does it complete text too?
        script[-1] = Completion("It is 42.")
        with ScriptedServer(*script, chat=True) as server:
            told = ("golden", "record", name, "6 times 7?", "--url", server.url)
            result = run(*told, BACKEND_KIND="native")
        assert result.code == 0, result.err
    result = run("golden", "run", "golden_transcripts")
    assert result.code == 0, result.out + result.err


def test_a_native_session_that_waits_goes_on_natively(run: Any, home: Path) -> None:
    make = ChatCall("create_file", '{"path": "a.txt", "content": "hi"}')
    script = Completion("x"), calls(make), Completion("Done.")
    with ScriptedServer(*script, chat=True) as server:
        options = ("--url", server.url, "--root", ".:rw", "--tools", "create_file")
        paused = run("ask", "Make a file", *options, "--backend", "native", "--json")
        assert paused.code == 4 and len(server.chats) == 1
        result = run("sessions", "resume", paused.json["session"], "--approve-all", "--json")
        assert result.code == 0, result.err
        assert server.chats[1][-1]["role"] == "tool"
    assert result.json["answer"] == "Done." and Path("a.txt").read_text() == "hi"
