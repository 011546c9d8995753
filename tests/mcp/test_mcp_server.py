"""`mlx-tools mcp serve`, asked by the SDK's own client, in both generations of the protocol."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shlex
from collections.abc import Callable, Iterator
from contextlib import aclosing, closing
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError
from mcp.types import CallToolResult, ElicitResult, InputRequiredResult

from mlx_tools.app import AccessRules, RunOptions, config, session_store
from mlx_tools.cli.call_text import escape_line, format_call_message
from mlx_tools.controller import ApprovalRequest, ApproveAlways
from mlx_tools.errors import UsageError
from mlx_tools.messages import replace
from mlx_tools.plugins.mcp.delegation import DelegatedRun, Delegation
from mlx_tools.plugins.mcp.elicitation import ApprovalText, build_form, read_answer
from mlx_tools.plugins.mcp.mcp_server import McpServer, http_application, replace_halves
from mlx_tools.testing import Completion, ScriptedApprover, ScriptedServer, answer, call
from mlx_tools.tools import tool
from mlx_tools.transcript import StoppedRecord
from tests.command_line import Run
from tests.forked import forks
from tests.waiting import until, wait_until

YES = ElicitResult(action="accept", content={"approve": True})
NO = ElicitResult(action="accept", content={"approve": False, "reason": "not \x1b[2J there"})
GONE = ElicitResult(action="cancel")
MODES = pytest.mark.parametrize("mode", ["legacy", "auto"])
WRITE = call("create_file", path="b.txt", content="two\n")

Serving = Callable[..., McpServer]


@pytest.fixture
def serving(home: Path) -> Iterator[Serving]:
    """Gives a server whose model writes these completions, started with these options."""
    servers: list[ScriptedServer] = []

    def serve(*script: Any, by_person: bool = True, **options: str) -> McpServer:
        servers.append(ScriptedServer(*script).__enter__())
        given = {
            "backend.url": servers[-1].url,
            "model.chat_format": "chatml",
            "tools.roots": [str(home / "here:rw")],
            **{key.replace("__", "."): value for key, value in options.items()},
        }
        run = RunOptions(configuration=config.load(options=given))

        def load(profile: str) -> config.Configuration:
            return config.load(options=given | {"profile": profile})

        return McpServer(
            Delegation(run, load, lambda text: None),
            ApprovalText(format_call_message, escape_line),
            by_person,
        )

    yield serve
    for one in servers:
        one.__exit__(None, None, None)


class Person:
    """Sits at a client, and answers each form with the same; ``forms`` are those that were shown,
    ``told`` is what was told of the progress."""

    def __init__(self, result: ElicitResult) -> None:
        self.result = result
        self.forms: list[Any] = []
        self.told: list[str | None] = []

    async def asked(self, context: Any, params: Any) -> ElicitResult:
        self.forms.append(params)
        return self.result

    async def hear(self, step: float, total: float | None, message: str | None) -> None:
        assert step == len(self.told) + 1
        self.told.append(message)


def asked(
    served: McpServer, *calls: tuple[str, dict[str, Any]], mode: str = "auto", at: Any = None
) -> list[CallToolResult]:
    """The results of calls that one client makes, one after the other."""

    async def ask() -> list[CallToolResult]:
        async with aclosing(served.delegation):
            more: dict[str, Any] = {} if at is None else {"elicitation_callback": at.asked}
            async with Client(served.server(), mode=mode, **more) as client:
                await client.list_tools()  # by which it checks what is structured
                hear = None if at is None else at.hear
                return [
                    await client.call_tool(name, arguments, progress_callback=hear)
                    for name, arguments in calls
                ]

    return anyio.run(ask)


def text_of(result: CallToolResult) -> str:
    (block,) = result.content
    assert block.type == "text"
    return block.text


# --- what is offered ------------------------------------------------------------------------------


def test_the_permitted_tools_are_offered_and_no_others(serving: Serving) -> None:
    served = serving(policy__preset="workspace")

    async def listed() -> dict[str, Any]:
        async with Client(served.server()) as client:
            return {one.name: one for one in (await client.list_tools()).tools}

    found = anyio.run(listed)
    assert set(found) == {
        *("llm_with_tools", "resume_run", "calculator", "clock", "create_file"),
        *("edit_file", "file_access", "format_xml", "search_files"),
    }
    hints = {name: one.annotations for name, one in found.items()}
    assert hints["calculator"].read_only_hint
    assert not hints["calculator"].destructive_hint
    assert hints["llm_with_tools"].destructive_hint
    assert not hints["llm_with_tools"].open_world_hint
    named = found["llm_with_tools"].input_schema["properties"]["require_tools"]["items"]["enum"]
    assert set(named) == set(found) - {"llm_with_tools", "resume_run"}


def test_no_tool_takes_the_name_of_our_own(serving: Serving) -> None:
    @tool(effects=["read"])
    def resume_run() -> str:
        """Goes on."""
        return ""

    delegation = serving(policy__allow="*").delegation
    delegation.registry.add(resume_run)
    with pytest.raises(UsageError, match="a tool is called resume_run"):
        McpServer(delegation, ApprovalText(format_call_message, escape_line), True)


# --- runs -----------------------------------------------------------------------------------------


@MODES
def test_work_is_handed_over_and_answered_as_the_command_line_prints_it(
    serving: Serving, mode: str
) -> None:
    served, person = serving(call("calculator", expression="6*7"), answer("It is 42.")), Person(YES)
    work = {"user": "6*7?", "system": "Be brief.", "require_tools": ["calculator"]}
    (result,) = asked(served, ("llm_with_tools", work), mode=mode, at=person)
    assert text_of(result) == "It is 42."
    assert not result.is_error
    found = result.structured_content
    assert (found["status"], found["answer"], found["turns"]) == ("answered", "It is 42.", 2)
    assert found["calls"][0]["arguments"] == {"expression": "6*7"}
    assert person.told == ["turn 1", 'calculator {"expression":"6*7"}', "calculator: ok", "turn 2"]
    header = session_store(served.delegation.configuration).read(found["session"]).transcript[0]
    assert header.backend["asked"] == "mcp"  # type: ignore[union-attr]
    assert "Be brief." in header.system  # type: ignore[union-attr]


def test_an_answer_fits_the_schema_that_is_asked_for(serving: Serving) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    served = serving(
        json.dumps({"type": "tool_call", "name": "final_result", "arguments": {"n": 4}})
    )
    (result,) = asked(served, ("llm_with_tools", {"user": "2+2?", "output_schema": schema}))
    assert json.loads(text_of(result)) == {"n": 4}


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ({}, "user: required"),
        ({"user": ""}, "user: at least 1"),
        ({"user": " "}, "the question is no text"),
        ({"user": "x", "approve": True}, "approve: no such key"),
        ({"user": "x", "preset": "everything"}, "preset: one of"),
        ({"user": "x", "require_tools": ["run_command"]}, "require_tools[0]: one of"),
        ({"user": "x", "output_schema": {"type": 3}}, "output_schema"),
        ({"user": "x", "preset": "notes", "require_tools": ["calculator"]}, "lacks the required"),
    ],
)
def test_work_that_cannot_be_is_an_error_that_says_why(
    serving: Serving, arguments: dict[str, Any], fault: str
) -> None:
    (result,) = asked(serving(), ("llm_with_tools", arguments))
    assert result.is_error
    assert fault in text_of(result)


@pytest.mark.heavy
def test_a_model_that_fails_is_an_error_and_asked_once(serving: Serving) -> None:
    served = serving(Completion("out of memory", status=500))
    (result,) = asked(served, ("llm_with_tools", {"user": "x"}))
    assert result.is_error
    assert "500" in text_of(result)


def test_a_run_that_stops_gives_a_client_no_advice_for_a_terminal(serving: Serving) -> None:
    served = serving(*[call("calculator", expression="1 + 1")] * 8)
    (result,) = asked(served, ("llm_with_tools", {"user": "x"}))
    assert result.is_error
    assert re.fullmatch(r"stopped: .+ same call three times \(session \S+\)", text_of(result))


@pytest.mark.heavy
def test_a_profile_narrows_what_the_server_was_started_with(serving: Serving, home: Path) -> None:
    (home / "config").mkdir()
    (home / "config" / "config.toml").write_text(
        '[profiles.wide]\npolicy.preset = "workspace"\npolicy.approve = "always"\n'
        "limits.max_iterations = 900\n"
        '[profiles.narrow]\npolicy.allow = ["clock"]\nlimits.max_iterations = 1\n'
    )
    script = (WRITE, answer(), call("calculator", expression="1"))
    served = serving(*script, policy__preset="readonly_basic", model__strategy="free")
    wide, narrow = asked(
        served,
        ("llm_with_tools", {"user": "x", "profile": "wide"}),
        ("llm_with_tools", {"user": "x", "profile": "narrow"}),
    )
    assert wide.structured_content["calls"][0]["status"] == "denied"
    for result, iterations in ((wide, 24), (narrow, 1)):
        session = result.structured_content["session"]
        records = session_store(served.delegation.configuration).read(session).transcript
        assert records[0].limits["max_iterations"] == iterations  # type: ignore[union-attr]
    assert not (home / "here" / "b.txt").exists()


# --- approvals ------------------------------------------------------------------------------------


@MODES
def test_a_person_at_the_client_approves_what_the_form_shows(
    serving: Serving, home: Path, mode: str
) -> None:
    served, person = serving(WRITE, answer(), policy__preset="workspace"), Person(YES)
    (result,) = asked(served, ("llm_with_tools", {"user": "x"}), mode=mode, at=person)
    (form,) = person.forms
    first, *rest = form.message.split("\n")
    assert first == r'Run create_file? path: "b.txt", content: "two\n"'
    assert "| +two" in rest
    assert form.requested_schema["required"] == ["approve"]
    assert result.structured_content["status"] == "answered"
    assert (home / "here" / "b.txt").read_text() == "two\n"


@MODES
def test_the_model_is_told_why_a_person_said_no(serving: Serving, home: Path, mode: str) -> None:
    prompts: list[str] = []

    def ended(prompt: str) -> str:
        prompts.append(prompt)
        return answer()

    served = serving(WRITE, ended, policy__preset="workspace")
    (result,) = asked(served, ("llm_with_tools", {"user": "x"}), mode=mode, at=Person(NO))
    assert result.structured_content["calls"][0]["status"] == "denied"
    assert "not [2J there" in prompts[0]
    assert not (home / "here" / "b.txt").exists()


@MODES
def test_a_form_that_is_put_away_leaves_the_run_paused_for_a_person(
    serving: Serving, run: Run, home: Path, mode: str
) -> None:
    served = serving(WRITE, answer("Written."), policy__preset="workspace")
    (paused,) = asked(served, ("llm_with_tools", {"user": "x"}), mode=mode, at=Person(GONE))
    assert paused.structured_content["status"] == "paused"
    *_, command = text_of(paused).partition("mlx-tools ")
    session = paused.structured_content["session"]
    again = ("resume_run", {"session": session})
    still, _ = asked(served, again, again, mode=mode, at=Person(YES))
    assert still.structured_content == paused.structured_content
    assert not (home / "here" / "b.txt").exists()
    assert run(*shlex.split(command), "--approve-all").code == 0
    (ended,) = asked(served, again, mode=mode)
    assert text_of(ended) == "Written."
    assert (home / "here" / "b.txt").exists()


@pytest.mark.parametrize(
    ("settings", "by_person", "forms"),
    [
        ({}, True, 1),
        ({}, False, 0),  # whoever may have connected would answer for itself
        ({"gateway__approvals": "client"}, False, 1),  # which the user has agreed to
        ({"policy__approve": "never"}, True, 0),
        ({"policy__approve": "always"}, False, 0),
    ],
)
def test_who_is_asked_is_for_the_users_own_settings_to_say(
    serving: Serving, home: Path, settings: dict[str, str], by_person: bool, forms: int
) -> None:
    settings = {"policy__preset": "workspace", **settings}
    served, person = serving(WRITE, answer(), by_person=by_person, **settings), Person(YES)
    (result,) = asked(served, ("llm_with_tools", {"user": "x"}), at=person)
    assert len(person.forms) == forms
    approve = settings.get("policy__approve")
    expected = "answered" if forms or approve == "always" else "paused"
    assert result.structured_content["status"] == expected
    assert (home / "here" / "b.txt").exists() == (expected == "answered")


@pytest.mark.parametrize(
    "said",
    [
        None,
        {"approve": True},
        ElicitResult(action="accept"),
        ElicitResult(action="accept", content={"approve": "yes"}),
        ElicitResult(action="accept", content={"approve": 1}),
        ElicitResult(action="cancel", content={"approve": True}),
    ],
)
def test_what_is_no_clear_answer_decides_nothing(said: Any) -> None:
    assert read_answer(said, "d").approved is None


def test_a_change_that_is_not_shown_whole_is_approved_by_a_yes_that_is_typed_out() -> None:
    def said(**content: Any) -> ElicitResult:
        return ElicitResult(action="accept", content={"approve": True, **content})

    assert read_answer(said(), "d").approved
    assert read_answer(said(typed="yes"), "d", is_typed=True).approved
    for no in (said(), said(typed=""), said(typed="y"), said(typed=True)):
        assert read_answer(no, "d", is_typed=True).approved is None
    request = ApprovalRequest(
        call="c1", name="t", arguments={}, reason="", suspect=False, digest=""
    )
    assert "typed" not in build_form(request)["properties"]
    assert "typed" in build_form(replace(request, omitted="80000 lines"))["properties"]


def test_only_runs_that_a_client_began_are_gone_on_with(
    serving: Serving, run: Run, home: Path
) -> None:
    served = serving(WRITE, answer(), policy__preset="workspace")
    (url,) = served.delegation.configuration.settings.backend.url or ()
    asked_ = ("ask", "--url", url, "--chat-format", "chatml", "--preset", "workspace", "x")
    assert run(*asked_, "--root", str(home / "here:rw")).code == 4
    (own,) = (home / "state" / "sessions").glob("*-*")
    path = str(own / "transcript.jsonl")
    for session in (own.name, path, "../" + own.name, "nothing"):
        (result,) = asked(served, ("resume_run", {"session": session}))
        assert result.is_error
        assert "no client has begun a session" in text_of(result)


# --- a client that leaves -------------------------------------------------------------------------


def test_nothing_is_called_once_the_client_has_left(serving: Serving, home: Path) -> None:
    """It leaves while the model writes a call that nobody need approve."""

    async def leave() -> None:
        left, loop = anyio.Event(), asyncio.get_running_loop()

        def gone(prompt: str) -> str:
            loop.call_soon_threadsafe(left.set)
            return WRITE

        served = serving(gone, answer(), policy__preset="workspace", policy__approve="always")
        seen: list[Any] = []

        async def see(event: Any) -> None:
            seen.append(event.type)

        async with aclosing(served.delegation):
            with pytest.raises(UsageError, match="the client has left"):
                run = DelegatedRun(user="x")
                await served.delegation.run(run, ScriptedApprover(True), see, left)
        assert "tool_started" not in seen
        (folder,) = (home / "state" / "sessions").glob("*-*")
        assert not (folder / "access.json").exists()
        with closing(session_store(served.delegation.configuration).open(folder.name).transcript):
            pass  # nobody holds it

    anyio.run(leave)
    assert not (home / "here" / "b.txt").exists()


def test_a_client_that_cancels_ends_its_run(serving: Serving, home: Path) -> None:
    async def cancel() -> None:
        begun, loop = anyio.Event(), asyncio.get_running_loop()

        def slow(prompt: str) -> Completion:
            loop.call_soon_threadsafe(begun.set)
            return Completion(answer("word " * 500), delay=0.05)

        served = serving(slow)
        async with aclosing(served.delegation), Client(served.server(), mode="legacy") as client:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(client.call_tool, "llm_with_tools", {"user": "x"})
                await begun.wait()
                tasks.cancel_scope.cancel()
            (folder,) = (home / "state" / "sessions").glob("*-*")
            store = session_store(served.delegation.configuration)

            def stopped() -> Any:
                last = store.read(folder.name).transcript[-1]
                return last if isinstance(last, StoppedRecord) else None

            last = await until(stopped)
            assert last.reason == "interrupted"

    anyio.run(cancel)


def test_a_call_that_a_client_left_is_decided_about_when_its_run_is_resumed(
    serving: Serving, home: Path
) -> None:
    """Its client cancels, and goes on with the session: nothing is made again unasked."""
    written: list[str] = []

    async def leave() -> tuple[str, Any, Any]:
        left, begun = anyio.Event(), anyio.Event()

        @tool(effects={"write"})
        async def keep(text: str) -> str:
            """Keeps a text."""
            written.append(text)
            begun.set()
            await anyio.sleep_forever()
            return ""

        served = serving(
            call("keep", text="a"), answer("Well."), policy__allow="*", policy__approve="always"
        )
        delegation = served.delegation
        delegation.registry.add(keep)

        async def see(event: Any) -> None: ...

        async def start() -> None:
            with pytest.raises(UsageError, match="the client has left"):
                run = DelegatedRun(user="x")
                await delegation.run(run, ApproveAlways(), see, left)

        async with aclosing(delegation):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(start)
                await begun.wait()
                left.set()
            (folder,) = (home / "state" / "sessions").glob("*-*")
            again = [folder.name, ApproveAlways(), see, anyio.Event()]
            paused = await delegation.resume(*again)
            person = ScriptedApprover(False)
            ended = await delegation.resume(folder.name, person, see, anyio.Event(), {})
            return folder.name, paused, (ended, person.requests)

    _, paused, (ended, asked) = anyio.run(leave)
    assert [one.in_doubt for one in paused.pending] == [True]
    assert [one.in_doubt for one in asked] == [True]
    assert (ended.status, ended.answer, written) == ("answered", "Well.", ["a"])


# --- tools ----------------------------------------------------------------------------------------


def test_a_tool_is_called_under_the_same_policy_and_leaves_a_session(
    serving: Serving, run: Run, home: Path
) -> None:
    served = serving(policy__allow="calculator,list_corpora,create_file", policy__approve="never")
    calls = [
        ("calculator", {"expression": "6*7"}),
        ("calculator", {"expression": 5, "more": 1}),
        ("create_file", {"path": "it's.txt", "content": "x"}),
    ]
    number, wrong, waits = asked(served, *calls)
    assert (text_of(number), number.structured_content, number.is_error) == ("42", None, False)
    assert wrong.is_error
    assert text_of(wrong).startswith("invalid_arguments: ")
    assert waits.is_error
    *_, command = text_of(waits).partition("mlx-tools ")
    allowed = ("--approve", "always", "--tools", "create_file", "--root", str(home / "here:rw"))
    assert run(*shlex.split(command), *allowed).code == 0
    assert (home / "here" / "it's.txt").exists()
    sessions = sorted((home / "state" / "sessions").glob("*-*"))
    store = session_store(served.delegation.configuration)
    headers = [store.read(one.name).transcript[0] for one in sessions]
    how = sorted(one.backend["how"] for one in headers)  # type: ignore[union-attr]
    assert how == ["mcp", "mcp", "mcp", "tools call"]


def test_a_result_that_is_a_json_object_is_structured(serving: Serving, home: Path) -> None:
    (home / "here" / "a.json").write_text('{"a": [1]}')
    served = serving(policy__preset="readonly_files")
    read = ("file_access", {"operation": "read", "path": "a.json"})
    (result,) = asked(served, read)
    assert result.structured_content == {"a": [1]}
    assert json.loads(text_of(result)) == {"a": [1]}


def test_a_tool_that_is_not_permitted_is_unknown(serving: Serving) -> None:
    served = serving(policy__preset="readonly_basic")

    async def ask() -> None:
        async with Client(served.server()) as client:
            with pytest.raises(MCPError, match="Unknown tool: create_file"):
                await client.call_tool("create_file", {"path": "b.txt", "content": ""})

    anyio.run(ask)


def test_an_answer_holds_once_and_for_what_was_shown(serving: Serving, home: Path) -> None:
    """The request of a client that makes the call again, with the same answer."""
    served, person = serving(policy__preset="workspace"), Person(YES)
    target = home / "here" / "b.txt"
    arguments = {"operation": "write", "path": "b.txt", "content": "two\n"}

    async def replay() -> list[Any]:
        async with Client(served.server(), elicitation_callback=person.asked) as client:

            async def send(**more: Any) -> Any:
                return await client.session.call_tool(
                    "file_access", arguments, allow_input_required=True, **more
                )

            first = await send()
            assert isinstance(first, InputRequiredResult)
            said = {"input_responses": {"call": YES}, "request_state": first.request_state}
            target.write_text("another's")  # since it was shown
            found = [await send(**said)]
            target.unlink()
            second = await send()
            said["request_state"] = second.request_state
            found += [await send(**said), await send(**said)]
            with pytest.raises(MCPError, match="Invalid or expired"):
                await send(**said | {"request_state": "v1.forged"})
            return found

    changed, done, replayed = anyio.run(replay)
    assert isinstance(changed, InputRequiredResult)
    assert isinstance(done, CallToolResult)
    assert not done.is_error
    assert isinstance(replayed, InputRequiredResult)


# --- transports -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "evil.example"}, 403),
        ({"origin": "http://evil.example"}, 403),
        ({}, 401),
        ({"authorization": "Bearer wrong"}, 401),
    ],
)
def test_a_stranger_does_not_come_in(
    serving: Serving, headers: dict[str, str], status: int
) -> None:
    app = http_application(serving(), AccessRules(key="right"))

    async def knock() -> int:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return (await client.post("/mcp", json={}, headers=headers)).status_code

    assert anyio.run(knock) == status


def test_standard_output_is_the_protocols_alone(home: Path) -> None:
    """Until standard input ends, which is a file here."""
    hello = {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "a", "version": "1"},
    }
    lines = [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/list"},
    ]
    asked_, told = home / "in", home / "out"
    asked_.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    with asked_.open() as source, told.open("w") as out, (home / "err").open("w") as err:
        files = (source.fileno(), out.fileno(), err.fileno())
        assert forks().start("mcp", "serve", files=files).wait(60) == 0
    first, *_ = [json.loads(line) for line in told.read_text().splitlines()]
    assert first["result"]["serverInfo"]["name"] == "mlx-tools"
    assert (home / "err").read_text() == ""


def test_a_request_with_half_a_surrogate_pair_is_answered(home: Path) -> None:
    hello = {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "a", "version": "1"},
    }
    odd = {"name": "calculator", "arguments": {"expression": "\\ud800 \U0001f600 \ud83d"}}
    lines = [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": odd},
    ]
    source, sink = os.pipe()
    out = home / "out"
    with out.open("w") as told, (home / "err").open("w") as err:
        served = forks().start("mcp", "serve", files=(source, told.fileno(), err.fileno()))
        os.close(source)
        with os.fdopen(sink, "wb", buffering=0) as pipe:
            pipe.write("".join(f"{json.dumps(line)}\n" for line in lines).encode())
            answer = wait_until(lambda: re.search(r'^.*"id":2.*$', out.read_text(), re.MULTILINE))
        assert served.wait(60) == 0
    assert json.loads(answer[0])["result"]["isError"]


def test_halves_of_surrogate_pairs_are_replaced_and_nothing_else() -> None:
    for text in (
        "\ud83d",
        "a\udc00\ud800b",
        "\\ud800",
        "\\\ud83d",
        "\U0001f600\ud83d\\",
        "caf\u00e9",
    ):
        mended = json.loads(replace_halves(json.dumps(text)))
        assert mended == re.sub("[\ud800-\udfff]", "\ufffd", text)


def test_a_message_without_end_ends_the_connection(home: Path) -> None:
    source, sink = os.pipe()
    with (home / "out").open("w") as out, (home / "err").open("w") as err:
        served = forks().start("mcp", "serve", files=(source, out.fileno(), err.fileno()))
        os.close(source)
        with contextlib.suppress(BrokenPipeError), os.fdopen(sink, "wb", buffering=0) as pipe:
            while pipe.write(b"x" * 65_536):
                continue
        assert served.wait(60) == 0
    assert (home / "out").read_text() == ""
    assert "has more than 4194304 bytes, so the connection ends" in (home / "err").read_text()


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (["--transport", "carrier pigeon"], "--transport"),
        (["--transport", "http", "--host", "0.0.0.0"], "there is no key"),
    ],
)
def test_a_server_that_cannot_be_is_refused(run: Run, arguments: list[str], fault: str) -> None:
    refused = run("mcp", "serve", *arguments)
    assert refused.code == 2
    assert fault in refused.error
