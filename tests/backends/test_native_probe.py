"""The trial of a server's own function calling: what is asked, what passes, what is kept; and the
path that follows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from mlx_tools.backends import (
    CompletionsBackend,
    NativeVerdict,
    Route,
    VerdictStore,
    find_route,
    probe_native,
)
from mlx_tools.errors import BackendError, UsageError
from mlx_tools.messages import replace
from mlx_tools.plugins.local import LocalBackend
from mlx_tools.testing import ChatCall, Completion, ScriptedServer
from tests.backends.asking import AT_ONCE

OSLO = ChatCall("get_weather", '{"city": "Oslo"}')
NOTE = ChatCall("save_note", '{"title":"Dentist","tags":["health","friday"],"urgent":true}')


def calls(*made: ChatCall, text: str = "") -> Completion:
    return Completion(text, calls=made, finish_reason="tool_calls")


GOOD = (calls(OSLO), Completion("4 degrees and rain."), calls(NOTE), Completion("Hello, Anna!"))


def probe(*script: Any, chat: bool = True) -> NativeVerdict:
    with ScriptedServer(*script, chat=chat) as server:

        async def asked() -> NativeVerdict:
            backend = CompletionsBackend(server.url, retry=AT_ONCE)
            return await probe_native(
                backend, server=server.url, model="m", measured_at="2026-11-23"
            )

        return anyio.run(asked)


def test_calls_that_are_right_pass_and_a_tool_choice_that_is_obeyed_is_known() -> None:
    found = probe(*GOOD, calls(OSLO), calls(OSLO), "3")
    assert (found.passed, found.obeys, found.completes) == (True, True, True)


def test_a_tool_choice_that_nobody_heeds_does_not_fail_it() -> None:
    found = probe(*GOOD, Completion("Hello!"), Completion("x", status=404))
    assert (found.passed, found.obeys, found.completes) == (True, False, False)


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ([Completion("It is sunny.")], "no call came back"),
        ([calls(ChatCall("get_weather", '{"city": ["Oslo", "Rome"]}'))], "does not fit"),
        ([calls(ChatCall("get_weather", '{"city": "Bergen"}'))], "the wrong call"),
        ([calls(NOTE)], "the wrong call"),
        ([calls()], "gives none"),
        ([Completion('<tool_call>{"name":"get_weather","arguments":{"city":"Oslo"}}')], "text"),
        ([GOOD[0], Completion("I cannot say.")], "from a call's result"),
        ([*GOOD[:3], calls(OSLO)], "where none is of use"),
        ([Completion("no tools here", status=400)], "its server does not take tools"),
    ],
)
def test_what_goes_wrong_fails_it_and_is_told(script: list[Completion], why: str) -> None:
    found = probe(*script)
    assert not found.passed and why in found.reason


def test_a_server_without_a_chat_interface_fails_it() -> None:
    assert not probe(chat=False).passed


def test_a_server_that_fails_gives_no_verdict() -> None:
    with pytest.raises(BackendError):
        probe(*[Completion("out of memory", status=500)] * 9)


# --- what is kept, and what follows -------------------------------------------------------------

PASSED = NativeVerdict(
    server="http://127.0.0.1:1", model="m", passed=True, obeys=True, completes=True, reason="right"
)
BACKEND = CompletionsBackend("http://127.0.0.1:1")


def route(store: VerdictStore, wanted: Any = "auto", **options: Any) -> Route:
    backend = options.pop("backend", BACKEND)
    options = {"model": "m", "store": store} | options

    async def found() -> Route:
        return await find_route(backend, wanted, **options)

    return anyio.run(found)


def test_a_verdict_is_kept_by_server_and_model(tmp_path: Path) -> None:
    store = VerdictStore(tmp_path)
    place = store.save_native(PASSED)
    assert store.native(PASSED.server, "m") == PASSED
    assert store.native("http://127.0.0.1:2", "m") is None
    assert store.native(PASSED.server, "n") is None
    assert store.natives("m") == (PASSED,)
    assert store.get("m").verdict is None  # another kind of verdict
    place.write_text("{")
    assert store.native(PASSED.server, "m") is None and store.natives("m") == ()


def test_auto_is_native_only_where_that_was_tried_and_works(tmp_path: Path) -> None:
    store = VerdictStore(tmp_path)
    assert route(store).path == "prompted"
    told = route(store, template="{% if tools %}...{% endif %}")
    assert told.path == "prompted" and "tells of tools" in told.reason
    assert "does not tell" in route(store, template="{{ messages }}").reason
    store.save_native(PASSED)
    assert route(store) == Route(path="native", reason="right", completes=True, obeys=True)
    assert route(store, model="n").path == "prompted"
    assert route(store, model=None).path == "prompted"
    failed = NativeVerdict(server=PASSED.server, model="m", passed=False, reason="no call")
    store.save_native(failed)
    assert (route(store).path, route(store).reason) == ("prompted", "no call")


def test_what_is_wanted_holds(tmp_path: Path) -> None:
    store = VerdictStore(tmp_path)
    store.save_native(PASSED)
    assert route(store, "prompted").path == "prompted"
    assert route(store, "native") == Route(
        path="native", reason="as asked", completes=True, obeys=True
    )


def test_without_prompts_only_the_native_path_is_left(tmp_path: Path) -> None:
    store = VerdictStore(tmp_path)
    found = route(store, prompts=False)
    assert (found.path, found.completes) == ("native", False)
    with pytest.raises(UsageError, match=r"routing\.local_enabled"):
        route(store, "prompted", prompts=False)
    local = LocalBackend(tmp_path)
    assert route(store, backend=local).path == "prompted"
    for wanted, prompts in (("native", True), ("auto", False)):
        with pytest.raises(UsageError, match="no native path"):
            route(store, wanted, prompts=prompts, backend=local)


def test_several_servers_are_native_only_where_all_of_them_are(tmp_path: Path) -> None:
    from mlx_tools.backends.pool import Upstream, UpstreamPool

    store = VerdictStore(tmp_path)
    urls = ("http://127.0.0.1:1", "http://127.0.0.1:2")
    pool = UpstreamPool([Upstream(CompletionsBackend(u)) for u in urls])
    store.save_native(PASSED)
    assert route(store, backend=pool).path == "prompted"
    store.save_native(replace(PASSED, server=urls[1], obeys=False))
    found = route(store, backend=pool)
    assert (found.path, found.obeys) == ("native", False)
    store.save_native(replace(PASSED, server=urls[1], passed=False, reason="no call"))
    assert (route(store, backend=pool).path, route(store, backend=pool).reason) == (
        "prompted",
        "no call",
    )
