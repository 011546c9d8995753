"""`--url` given several times."""

from __future__ import annotations

from typing import Any

from mlx_tools.testing import ScriptedServer, answer, call

NOBODY = "http://127.0.0.1:1"


def test_doctor_tells_of_each_server(run: Any) -> None:
    with ScriptedServer("a", "b", "c") as server:
        result = run("doctor", "--url", server.url, "--url", NOBODY, "--json")
    checks = [one for one in result.json["checks"] if one["name"] == "server"]
    assert [one["status"] for one in checks] == ["ok", "warn"]
    assert server.url in checks[0]["detail"] and NOBODY in checks[1]["detail"]


def test_a_session_goes_on_with_the_servers_that_it_was_begun_with(run: Any) -> None:
    write = call("create_file", path="x", content="y")
    with ScriptedServer(write, answer("Done.")) as server:
        urls = ("--url", NOBODY, "--url", server.url)
        paused = run("ask", *urls, "--root", ".:rw", "--tools", "create_file", "Write", "--json")
        assert paused.code == 4
        result = run("sessions", "resume", paused.json["session"], "--approve-all")
    assert (result.code, result.out) == (0, "Done.\n")


def test_every_address_must_be_on_this_machine_where_that_is_asked(run: Any) -> None:
    urls = ("--url", NOBODY, "--url", "http://192.0.2.1")
    result = run("ask", "--local-only", *urls, "Hm?")
    assert result.code == 2 and "http://192.0.2.1 is not on this machine" in result.err
