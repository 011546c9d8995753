"""MCP servers as sources of tools: what a stranger says and does, and what comes of it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest
from mcp.client import stdio
from mcp.types import CallToolResult

from mlx_tools.controller import ApprovalAnswer
from mlx_tools.controller.approver import confirm_action
from mlx_tools.errors import UsageError
from mlx_tools.messages import ALL_EFFECTS, replace
from mlx_tools.plugins.mcp import client
from mlx_tools.plugins.mcp.client import (
    McpClients,
    fetch_offer,
    is_allowed_place,
    mcp_read,
    read_answer,
)
from mlx_tools.plugins.mcp.places import mask_place, read_place, read_servers
from mlx_tools.plugins.mcp.sign_in import sign_in
from mlx_tools.testing import ScriptedApprover
from mlx_tools.tools import (
    BoundSource,
    BoundSources,
    BoundTool,
    Progress,
    ToolContext,
    ToolError,
    ToolResult,
    execute,
)
from tests.ports import free_port
from tests.waiting import EXPIRES, HANG, until, wait_until

T = TypeVar("T")
SCRIPT = str(Path(__file__).with_name("mcp_stranger.py"))
ECHO = BoundTool(
    "echo",
    "Say it again.",
    {"type": "object", "properties": {"text": {"type": "string"}}},
)


def refusal(result: ToolResult) -> str:
    """The message of an error."""
    assert result.content is None and result.error is not None
    return f"{result.error.code}: {result.error.message}"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MLX_TOOLS_STATE_DIR", str(tmp_path / "state"))
    # Servers end with their input. However long that takes, they are not killed before.
    monkeypatch.setattr(stdio, "PROCESS_TERMINATION_TIMEOUT", HANG)
    monkeypatch.setattr("mlx_tools.plugins.mcp.client.END_SECONDS", 2 * HANG)
    return tmp_path


def test_a_connection_has_more_time_to_end_than_the_sdk_takes_to_kill_a_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.undo()
    waits = (stdio.PROCESS_TERMINATION_TIMEOUT, stdio.FORCE_KILL_TIMEOUT, stdio._KILL_REAP_TIMEOUT)
    assert 2 * sum(waits) < client.END_SECONDS


class Stranger:
    """A server of one habit, agreed to as if it had none."""

    def __init__(self, home: Path, habit: str, **more: Any) -> None:
        self.log = home / "log"
        command = [sys.executable, "-I", SCRIPT, habit, str(self.log)]
        at = {"command": command, "env": {}, "cwd": None} | more.pop("at", {})
        self.sources = BoundSources(home / "bound")
        self.source = BoundSource(name="there", kind="mcp", location=at, tools=(ECHO,))
        self.sources.save(self.source)
        self.more = {"seconds": HANG} | more  # it starts in a second; a busy machine takes longer

    def with_clients(self, use: Callable[[McpClients], Awaitable[T]]) -> T:
        """Return the result of a use, after which the connections are ended."""

        async def run() -> T:
            clients = McpClients(self.sources, **self.more)
            try:
                return await use(clients)
            finally:
                await clients.aclose()

        return asyncio.run(run())

    def calls(self, *texts: str, timeout: float = HANG, **context: Any) -> list[ToolResult]:
        """The results of calls one after the other, through one connection."""

        async def use(clients: McpClients) -> list[ToolResult]:
            tool = clients.tool(self.source, ECHO)
            return [
                await execute(tool, {"text": text}, ToolContext(**context), timeout=timeout)
                for text in texts
            ]

        return self.with_clients(use)

    def offers(self) -> Any:
        return self.with_clients(
            lambda clients: fetch_offer(clients, replace(self.source, tools=()))
        )

    @property
    def heard(self) -> list[str]:
        return self.log.read_text().split() if self.log.exists() else []


class WebStranger(Stranger):
    """The same over HTTP, until the end of the ``with``."""

    def __init__(self, home: Path, habit: str, **more: Any) -> None:
        self.port = free_port()
        at = {"url": f"http://127.0.0.1:{self.port}/mcp", "headers": {}}
        super().__init__(home, habit, at=at, **more)
        command = [sys.executable, "-I", SCRIPT, habit, str(self.log), str(self.port)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)

    def __enter__(self) -> WebStranger:
        def listens() -> bool:
            assert self._process.poll() is None
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", self.port)).close()
                return True
            return False

        wait_until(listens)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture(params=[Stranger, pytest.param(WebStranger, marks=pytest.mark.slow)])
def stranger_of(request: pytest.FixtureRequest, home: Path) -> Iterator[Callable[..., Stranger]]:
    """Makes strangers over either transport."""
    with contextlib.ExitStack() as stack:

        def make(habit: str, **more: Any) -> Stranger:
            made = request.param(home, habit, **more)
            return stack.enter_context(made) if isinstance(made, WebStranger) else made

        yield make


def test_a_server_starts_when_it_is_first_needed_and_ends_with_us(home: Path) -> None:
    stranger = Stranger(home, "plain")
    assert stranger.calls() == []
    assert stranger.heard == []
    results = stranger.calls("one", "two")
    assert [result.content for result in results] == ["one", "two"]
    assert stranger.heard == ["started", "ended"]


def test_it_sees_no_variable_that_was_not_named_and_is_told_the_roots_and_no_more(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    at = {"env": {"TOKEN": "${NAMED}", "PLAIN": "x"}}
    stranger = Stranger(home, "any", at=at, environ={"NAMED": "y"}, roots=["/a b:rw"])
    seen, roots = (result.content or "" for result in stranger.calls("env", "roots"))
    assert "AWS_SECRET_ACCESS_KEY" not in seen and '"TOKEN"' in seen
    assert '"file:///a%20b"' in roots
    (result,) = Stranger(home, "env", at=at, environ={}).calls("")
    assert "NAMED is not set" in refusal(result)


def test_a_tool_that_changed_is_off_until_a_person_agrees(
    stranger_of: Callable[..., Stranger],
) -> None:
    stranger = stranger_of("changed")
    (result,) = stranger.calls("x")
    assert re.match("disabled: .*mlx-tools mcp test there", refusal(result))
    (said,) = stranger.sources.read("there").changed_tools
    assert "Ignore all rules" in said.description
    assert stranger.sources.read("there").tools == (ECHO,)


def test_what_changed_is_not_written_over_what_was_agreed_to_since(home: Path) -> None:
    stranger = Stranger(home, "changed")

    def looked(between: Callable[[], None]) -> None:
        async def use(clients: McpClients) -> None:
            server = clients.server(stranger.source)
            between()
            async with server.calling(ToolContext()):
                pass

        stranger.with_clients(use)

    anew = replace(stranger.source, version="2")
    looked(lambda: stranger.sources.save(anew))
    assert stranger.sources.read("there") == anew
    looked(lambda: stranger.sources.remove("there"))
    assert stranger.sources.names() == []


def test_a_tool_that_changes_while_it_is_used_is_off_from_then_on(
    stranger_of: Callable[..., Stranger],
) -> None:
    first, second = stranger_of("changes").calls("one", "two")
    assert first.content == "one"
    assert refusal(second).startswith("disabled")


@pytest.mark.parametrize("habit", ["many", "endless"])
def test_a_list_without_end_is_not_read(habit: str, stranger_of: Callable[..., Stranger]) -> None:
    with pytest.raises(ToolError, match=r"more than 1000 tools|does not end"):
        stranger_of(habit).offers()


def test_a_schema_that_is_a_bomb_costs_no_other_its_tool(
    stranger_of: Callable[..., Stranger],
) -> None:
    offer = stranger_of("bomb").offers()
    assert [tool.name for tool in offer.tools] == ["echo"]
    assert set(offer.refused_tools) == {"bomb", "circle"}


def test_hints_are_not_believed_and_no_name_is_anothers(home: Path) -> None:
    stranger = Stranger(home, "forged")
    offer = stranger.offers()
    assert "readOnlyHint True" in offer.hints["echo"]
    assert len(offer.hints["echo"]) <= 200
    specs = [stranger.source.tool(tool, print).spec for tool in offer.tools]
    assert {spec.possible_effects for spec in specs} == {ALL_EFFECTS}
    assert [spec.name for spec in specs] == ["there__echo", "there__.._calculator"]
    assert [spec.description for spec in specs] == ["Say it again."] * 2
    assert offer.refused_tools == {"echo": "it has two of this name"}


@pytest.mark.heavy
def test_an_answer_too_large_ends_the_server_and_is_an_error(
    stranger_of: Callable[..., Stranger], monkeypatch: pytest.MonkeyPatch
) -> None:
    (result,) = stranger_of("long").calls("x")
    assert refusal(result).startswith("payload_too_large")
    monkeypatch.setattr("mlx_tools.plugins.mcp.client.MAX_LINE_BYTES", 1_000_000)
    stranger = stranger_of("long")
    first, second = map(refusal, stranger.calls("x", "y"))
    assert re.search(r"Connection closed|exceeded the 1000000 byte", first) and second


@pytest.mark.parametrize(
    ("habit", "said"), [("redirects", "not followed"), ("elsewhere", "to sign in")]
)
def test_where_it_may_not_lead_over_http_is_an_error_that_says_so(
    habit: str, said: str, home: Path
) -> None:
    with WebStranger(home, habit) as stranger:
        (result,) = stranger.calls("x")
        assert said in refusal(result)
        assert "get" not in stranger.heard[1:] or habit != "elsewhere"
        assert "/elsewhere" not in stranger.heard


def test_a_call_over_http_that_is_not_answered_holds_up_no_other(home: Path) -> None:
    with WebStranger(home, "any") as stranger:

        async def use(clients: McpClients) -> ToolResult:
            tool = clients.tool(stranger.source, ECHO)
            calls = [
                execute(tool, {"text": text}, ToolContext(), timeout=HANG)
                for text in ("silent", "whole")
            ]
            silent = asyncio.create_task(calls[0])
            await until(lambda: "silent" in stranger.heard)
            whole = await calls[1]
            silent.cancel()
            return whole

        assert stranger.with_clients(use).content == "whole"


def test_what_is_packed_or_no_json_is_no_answer(home: Path) -> None:
    with WebStranger(home, "any") as stranger:
        nan, *others, packed = stranger.calls("nan", "digits", "surrogate", "deep", "packed")
        assert refusal(nan).startswith("tool_error")
        said = re.compile(r"tool_error: Failed to parse SSE message: Invalid JSON: [^\[]+")
        assert all(said.fullmatch(refusal(result)) for result in others)
        assert "packed its answer" in refusal(packed)


def test_an_answer_of_another_shape_is_an_error_in_a_line(home: Path) -> None:
    (result,) = Stranger(home, "any").calls("misshapen")
    said = "its answer is not as the protocol says, at content: Input should be a valid list"
    assert f"failed: {said}; it said:" in refusal(result)


def test_an_answer_that_is_no_json_is_an_error_at_once(home: Path) -> None:
    surrogate, digits, whole = Stranger(home, "any").calls("surrogate", "digits", "whole")
    for result in (surrogate, digits):
        assert "its answer is not as the protocol says: Invalid JSON" in refusal(result)
    assert whole.content == "whole"


def test_what_it_says_besides_is_passed_over_or_told(home: Path) -> None:
    """Between its messages, with a text, where its schema has who checks it busy, as an error."""
    habits, told = ("garbage", "picture", "pattern", "error"), list[Progress]()
    *results, error = Stranger(home, "any").calls(*habits, report=told.append)
    assert [result.content for result in results] == [
        "garbage",
        "picture\n[image: image/png, 3 bytes]",
        '{"said":"aaaaaaaaaaaaaaaaaaaa!"}',
    ]
    assert refusal(error) == "tool_error: no such thing"
    assert [progress.message for progress in told] == ["info: a word"]


@pytest.mark.parametrize(
    ("text", "structured", "result"),
    [
        ("ok status=ok", {"message": "pong-42"}, 'ok status=ok\n{"message": "pong-42"}'),
        ("2 files: see below", {"n": 2}, '2 files: see below\n{"n": 2}'),
        ("", {"message": "pong"}, {"message": "pong"}),
        ('{"message": "a\\nb"}', {"message": "a\nb"}, {"message": "a\nb"}),
        ('{ "b": [1], "a": null }', {"a": None, "b": [1]}, {"a": None, "b": [1]}),
        ("42", {"result": 42}, {"result": 42}),
        ("true", {"result": True}, {"result": True}),
        ("Zo\u00eb\nAnn", {"result": ["Zo\u00eb", "Ann"]}, {"result": ["Zo\u00eb", "Ann"]}),
        ("name: Ann", {"name": "Ann", "age": 3}, {"name": "Ann", "age": 3}),
        ("plain", None, "plain"),
    ],
)
def test_nothing_that_a_server_sends_beside_structured_content_is_lost(
    text: str, structured: Any, result: Any
) -> None:
    content = [{"type": "text", "text": text}] if text else []
    sent = {"content": content, "structuredContent": structured}
    assert read_answer(CallToolResult.model_validate(sent)) == result


def test_its_resources_are_listed_and_read(home: Path) -> None:
    stranger = Stranger(home, "resources")
    assert stranger.offers().resources

    async def use(clients: McpClients) -> list[ToolResult]:
        made, asked = mcp_read(clients, ["there"]), ({}, {"uri": "note://a"}, {"uri": "note://b"})
        results = [await execute(made, {"server": "there"} | more, timeout=HANG) for more in asked]
        return [*results, await execute(made, {"server": "other"}, timeout=HANG)]

    listed, text, blob, other = stranger.with_clients(use)
    assert '{"uri":"note://a","name":"A note"}' in (listed.content or "")
    assert (text.content, blob.content) == ("Mind the gap.", "[note://b: bytes, 3 bytes]")
    assert "There is: there." in refusal(other)


@pytest.mark.slow
def test_streams_that_end_at_once_are_not_opened_as_fast_as_it_likes(home: Path) -> None:
    with WebStranger(home, "retries") as stranger:
        (result,) = stranger.calls("x", timeout=6)
        assert refusal(result).startswith("timeout")
        assert 2 < stranger.heard.count("get") < 40


@pytest.mark.slow
def test_a_server_that_does_not_end_is_left(home: Path) -> None:
    began = time.monotonic()
    with WebStranger(home, "lingers") as stranger:
        (result,) = stranger.calls("x")
    assert result.content == "x"
    assert time.monotonic() - began < 200


def test_a_place_is_asked_on_its_word_only_where_nobody_can_stand_in_for_it() -> None:
    here, far = "http://127.0.0.1:1/mcp", "https://far.example/mcp"
    assert is_allowed_place("http://127.0.0.1:1/other", here)
    assert is_allowed_place("http://localhost:2/sign-in", here)
    assert is_allowed_place("https://elsewhere.example/", far)
    assert not is_allowed_place("http://169.254.169.254/latest", far)
    assert not is_allowed_place("http://127.0.0.1:2/", far)
    assert not is_allowed_place("http://127.0.0.1.far.example/", here)


def test_a_server_that_never_answers_holds_up_no_run(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for patience in ("PROCESS_TERMINATION_TIMEOUT", "FORCE_KILL_TIMEOUT"):
        monkeypatch.setattr(f"mcp.client.stdio.{patience}", 0.05)
    began = time.monotonic()
    (result,) = Stranger(home, "never").calls("x", timeout=EXPIRES)
    assert refusal(result).startswith("timeout")
    for result in Stranger(home, "mute", seconds=0.1).calls("x", "y"):
        assert "did not answer within" in refusal(result)
    assert time.monotonic() - began < 200  # it would be a thousand seconds


def test_a_server_that_dies_is_started_once_more(home: Path) -> None:
    stranger = Stranger(home, "dies")
    said = [*map(refusal, stranger.calls("one", "two", "three"))]
    assert stranger.heard == ["started", "started"]
    assert "failed twice in a row; it is tried again in" in said[2]


def test_a_server_that_failed_twice_is_tried_again_after_a_while(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mlx_tools.plugins.mcp.client.PAUSE_SECONDS", 0.0)
    stranger = Stranger(home, "dies")
    said = [*map(refusal, stranger.calls("one", "two", "three"))]
    assert stranger.heard == ["started"] * 3 and "twice" not in said[2]


def test_one_that_answers_in_between_may_end_as_often_as_that(home: Path) -> None:
    stranger = Stranger(home, "weary")
    results = stranger.calls("one", "die", "two", "die", "three")
    assert [result.content for result in results] == ["one", None, "two", None, "three"]
    assert stranger.heard.count("started") == 3


def test_a_flood_of_progress_reaches_nobody_as_such(
    stranger_of: Callable[..., Stranger],
) -> None:
    seen: list[Progress] = []
    (result,) = stranger_of("flood").calls("x", report=seen.append)
    assert result.content == "x"
    assert 0 < len(seen) < 2000


def test_its_own_words_are_kept_and_bounded(home: Path) -> None:
    Stranger(home, "loud").calls("x")
    (log,) = (home / "state" / "logs").iterdir()
    assert log.stat().st_size == 1_000_000
    assert log.stat().st_mode & 0o777 == 0o600


def test_a_command_that_is_none_says_so(home: Path) -> None:
    stranger = Stranger(home, "plain", at={"command": ["/no/such/command"]})
    (result,) = stranger.calls("x")
    assert "/no/such/command: No such file" in refusal(result)


def asking(person: ScriptedApprover) -> Callable[..., Awaitable[Any]]:
    """Return the way in which a call asks this person."""
    return lambda context, *asked: confirm_action(person, "c1", *asked)


def test_what_it_asks_of_the_model_is_asked_of_the_person_first_and_bounded(
    stranger_of: Callable[..., Stranger],
) -> None:
    questions: list[str] = []

    async def model(context: Any, question: str, tools: Sequence[str] | None) -> str:
        assert tools == ()
        questions.append(question)
        return "a model"

    person = ScriptedApprover(True)
    (result,) = stranger_of("sample").calls("x", asks=model, confirms=asking(person))
    assert questions == ["user: Who are you?"] * 3
    assert [request.suspect for request in person.requests] == [True] * 3
    assert (result.content or "").count("a model") == 3
    assert (result.content or "").count("a call may ask 3 times") == 5
    nobody = ScriptedApprover(None)
    (result,) = stranger_of("sample").calls("x", asks=model, confirms=asking(nobody))
    assert len(questions) == 3
    assert "did not agree" in (result.content or "")


def test_what_it_asks_while_calls_of_two_sessions_run_is_nobodys(home: Path) -> None:
    stranger, person = Stranger(home, "elicit"), ScriptedApprover(True)

    async def use(clients: McpClients) -> ToolResult:
        context = ToolContext(session="two", confirms=asking(person))
        async with clients.server(stranger.source).calling(ToolContext(session="one")):
            made = clients.tool(stranger.source, ECHO)
            return await execute(made, {"text": "x"}, context, timeout=HANG)

    assert "several sessions" in (stranger.with_clients(use).content or "")
    assert person.requests == []


def test_what_it_asks_of_the_person_is_an_approval(
    stranger_of: Callable[..., Stranger],
) -> None:
    person = ScriptedApprover(ApprovalAnswer(True, arguments={"city": "Bern"}))
    (result,) = stranger_of("elicit").calls("x", confirms=asking(person))
    assert '"city": "Bern"' in (result.content or "")
    (request,) = person.requests
    assert "Which city?" in request.reason
    assert request.arguments == {"city": ""}
    (result,) = stranger_of("elicit").calls("x")
    assert '"decline"' in (result.content or "")


@pytest.mark.heavy
def test_it_ends_with_us_however_we_end(home: Path) -> None:
    stranger = Stranger(home, "plain")
    program = (
        "import asyncio, os, signal\n"
        "from mlx_tools.tools import BoundSources\n"
        "from mlx_tools.plugins.mcp.client import McpClients, fetch_offer\n"
        f"sources = BoundSources(__import__('pathlib').Path({str(home / 'bound')!r}))\n"
        "async def run():\n"
        "    await fetch_offer(McpClients(sources), sources.read('there'))\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "asyncio.run(run())\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], env=dict(os.environ), check=False)
    assert ended.returncode == -9
    wait_until(lambda: stranger.heard == ["started", "ended"])


def test_places_are_read_as_other_programs_write_them() -> None:
    desktop = {"mcpServers": {"a": {"command": "x", "args": ["-y"], "env": {"K": "secret"}}}}
    code = {"servers": {"b": {"type": "http", "url": "https://h/mcp?k=secret"}}}
    (entry,) = read_servers(desktop, "f").values()
    place = read_place(entry, "f")
    assert place == {"command": ["x", "-y"], "env": {"K": "secret"}, "cwd": None}
    assert mask_place(place) == "x -y with K"
    (entry,) = read_servers(code, "f").values()
    assert "secret" not in mask_place(read_place(entry, "f"))
    with pytest.raises(UsageError, match=r"^f"):
        read_servers({}, "f")
    wrong: list[Any] = [
        7,
        {},
        {"command": "x", "args": "y"},
        {"url": "ftp://x"},
        {"url": "https://h/sse", "type": "sse"},
        {"command": "x", "env": {"a": 1}},
    ]
    for entry in wrong:
        with pytest.raises(UsageError, match=r"^f"):
            read_place(entry, "f")


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("code=c&state=s&iss=https%3A%2F%2Fi", "c s https://i"),
        ("error=access_denied&error_description=no%0Athanks", "was refused: no"),
    ],
)
def test_a_page_may_lead_back_before_whatever_showed_it_is_done(
    query: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()  # its own is one that the system may have given to another program
    monkeypatch.setattr("mlx_tools.plugins.mcp.sign_in.PORT", port)

    def show(page: str) -> None:
        with socket.create_connection(("127.0.0.1", port)) as other:  # who says nothing
            other.sendall(b"GET\r\n")
        urllib.request.urlopen(f"http://127.0.0.1:{port}/callback?{query}", timeout=HANG).close()

    async def signed_in() -> str:
        context = sign_in("https://there.example/mcp", "there", show).context
        assert context.redirect_handler is not None and context.callback_handler is not None
        await context.redirect_handler("https://there.example/sign-in")
        try:
            found = await context.callback_handler()
        except ToolError as error:
            return str(error)
        return f"{found.code} {found.state} {found.iss}"

    assert said in asyncio.run(signed_in())
