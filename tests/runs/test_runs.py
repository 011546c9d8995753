"""Runs of the gateway's own: who may ask for them, see them and decide; nothing of them is lost."""

from __future__ import annotations

import json
import shutil
from contextlib import aclosing, nullcontext
from pathlib import Path
from typing import Any

import anyio
import pytest

from mlx_tools import Tool
from mlx_tools.controller import ApprovalAnswer
from mlx_tools.gateway.request import ApiError
from mlx_tools.messages import ToolSpec, json_line
from mlx_tools.plugins.runs.execution import RunExecution
from mlx_tools.testing import ScriptedBackend, answer, call
from mlx_tools.tools import Preview
from mlx_tools.tools.host_tools import read_artifact
from tests.cli.test_cli_plugin_tools import LEFT_OUT, install_moon
from tests.runs.conftest import (
    KEY,
    answer_after,
    ask,
    begin_with_client_approvals,
    copy_as_killed,
    create_run,
    find_transcript,
    wait_for_end,
    wait_for_rest,
)
from tests.waiting import HANG, until

pytestmark = pytest.mark.anyio

LOOKUP = {
    "name": "lookup",
    "description": "Looks a word up.",
    "parameters": {"type": "object", "properties": {"word": {"type": "string"}}},
}


async def events(one: Any, run: str, last: int = 0) -> list[tuple[int | None, dict[str, Any]]]:
    """The events of a run that has ended, behind an event."""
    response = await one.client.get(f"/v1/runs/{run}/events", headers={"last-event-id": str(last)})
    found = []
    for block in response.text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.split("\n") if ": " in line)
        if "data" in fields:
            data = json.loads(fields["data"])
            assert fields["event"] == data["type"]
            found.append((int(fields["id"]) if "id" in fields else None, data))
    return found


AREA = call("area", width=2, height=3)
KEEP = call("keep", text="a")


async def test_a_run_calls_the_servers_tools_and_answers(begin: Any) -> None:
    one = begin(AREA, answer("6"))
    made = await ask(one)
    assert (made["status"], made["answer"]) == ("answered", "6")
    assert made["calls"][0]["status"] == "ok"
    kinds = [event["type"] for _, event in await events(one, made["id"])]
    assert kinds == [
        "turn_ended",
        "call_read",
        "call_decided",
        "tool_started",
        "tool_ended",
        "turn_ended",
        "finished",
    ]


async def test_what_the_tools_of_a_run_keep_open_is_ended_with_it(begin: Any) -> None:
    one = begin(AREA, answer("6"), KEEP)
    await ask(one)
    assert one.tools.closed == 1
    paused = await ask(one)
    assert paused["status"] == "paused"
    assert one.tools.closed == 3  # that of the run, and that of a look at what waits
    await one.client.post(f"/v1/runs/{paused['id']}/cancel")
    assert one.tools.closed == 4


async def test_a_client_that_comes_back_at_any_record_is_told_the_same_whole(begin: Any) -> None:
    broken = AREA.replace('"height": 3}', '"height": 3,}')
    one = begin(broken, AREA, answer("6"), answer("7"))
    made = await ask(one)
    again = await one.client.post(f"/v1/runs/{made['id']}/continue", json={"question": "Sure?"})
    assert again.status_code == 200
    await wait_for_rest(one, made["id"])
    whole = await events(one, made["id"])
    assert [event["type"] for _, event in whole].count("finished") == 2
    for seen in range(40):
        assert await events(one, made["id"], seen) == [e for e in whole if (e[0] or 0) > seen]


@pytest.mark.heavy
async def test_who_names_an_event_beyond_the_end_is_told_what_comes_from_now_on(begin: Any) -> None:
    one = begin(answer("6"), answer("7"))
    made, told = await ask(one), []
    follow = one.runs.follow(await one.runs.find(None, made["id"]), 9_999, ends=())
    with anyio.fail_after(HANG):
        async with aclosing(follow) as follows:
            assert await anext(follows) is None
            await one.client.post(f"/v1/runs/{made['id']}/continue", json={"question": "Sure?"})
            async for event in follows:
                told += [event[1]] if event is not None and event[0] is not None else []
                if told and told[-1]["type"] == "finished":
                    break
    assert [event["type"] for event in told] == ["turn_ended", "finished"]
    assert told[-1]["outcome"]["answer"] == "7"


OTHER = {"authorization": "Bearer two"}


async def test_whoever_guesses_an_id_cannot_tell_whether_there_is_such_a_run(begin: Any) -> None:
    one = begin_with_client_approvals(begin, KEEP, answer())
    made = await ask(one)
    (waits,) = made["pending"]
    there, nowhere = made["id"], "20990101-000000-aaaaaaaa"
    decided = {"call_id": "c1", "digest": waits["digest"], "decision": "approve"}
    asked: list[tuple[str, str, Any]] = [
        ("GET", "", None),
        ("GET", "/events?last_event_id=1", None),
        ("POST", "/cancel", None),
        ("POST", "/cancel", {"a": 1}),
        ("POST", "/continue", {"question": ""}),
        ("POST", "/continue", {"question": "x"}),
        ("POST", "/approvals", decided),
        ("POST", "/approvals", decided | {"decision": "edit", "arguments": {"text": "b"}}),
        ("POST", "/approvals", {}),
        ("POST", "/tool_results", {"call_id": "c1", "output": 1}),
        ("POST", "/nothing", {}),
        ("DELETE", "", None),
    ]
    for method, rest, body in asked:
        told = []
        for run in (there, nowhere):
            path = f"/v1/runs/{run}{rest}"
            got = await one.client.request(method, path, json=body, headers=OTHER)
            told.append((got.status_code, got.text.replace(run, "ID"), got.headers.items()))
            assert got.status_code == 405 or got.json()["error"]["code"] == "not_found", rest
        assert [told[0][:2]] == [told[1][:2]], rest
    got = await one.client.get(f"/v1/runs?after={there}", headers=OTHER)
    same = await one.client.get(f"/v1/runs?after={nowhere}", headers=OTHER)
    assert got.text.replace(there, "ID") == same.text.replace(nowhere, "ID")
    assert (await wait_for_rest(one, there)) == made and one.tools.written == []


async def test_the_same_idempotency_key_of_two_clients_makes_a_run_each(begin: Any) -> None:
    one = begin(answer("mine"), answer("theirs"))
    named, found = {"idempotency-key": "k"}, []
    for headers in (named, named | OTHER, named, named | OTHER):
        got = await one.client.post("/v1/runs", json={"question": "x"}, headers=headers)
        found.append((got.json()["id"], got.headers.get("idempotent-replayed")))
        await wait_for_rest(one, found[0][0])
    mine, theirs = found[0][0], found[1][0]
    assert found == [(mine, None), (theirs, None), (mine, "true"), (theirs, "true")]
    other = await one.client.post(
        "/v1/runs", json={"question": "of another body"}, headers=named | OTHER
    )
    assert other.status_code == 422 and mine not in other.text
    listed = await one.client.get("/v1/runs", headers=OTHER)
    assert [run["id"] for run in listed.json()["data"]] == [theirs]
    assert listed.json()["has_more"] is False


async def test_a_list_shows_no_other_clients_runs_on_any_page(begin: Any) -> None:
    one = begin(*[answer(str(number)) for number in range(8)])
    mine: list[str] = []
    for number in range(8):
        headers = OTHER if number % 2 else {}
        got = await one.client.post("/v1/runs", json={"question": "x"}, headers=headers)
        mine += [got.json()["id"]] if headers else []
        await wait_for_end(one, got.json()["id"])
    found: list[str] = []
    after = ""
    while True:
        page = (await one.client.get(f"/v1/runs?limit=1{after}", headers=OTHER)).json()
        found += [run["id"] for run in page["data"]]
        if not page["has_more"]:
            break
        after = f"&after={page['last_id']}"
    assert found == mine[::-1]
    whole = (await one.client.get(f"/v1/runs?limit={len(mine)}", headers=OTHER)).json()
    assert ([run["id"] for run in whole["data"]], whole["has_more"]) == (found, False)
    for query in ("limit=0", "limit=x", "after=none"):
        assert (await one.client.get(f"/v1/runs?{query}")).status_code in (400, 404)


@pytest.mark.parametrize(
    ("first", "second", "one_client"),
    [
        ({"authorization": "Bearer a"}, {"x-api-key": "a"}, True),
        ({"authorization": "bearer a"}, {"authorization": "Bearer a"}, True),
        ({"authorization": "Bearer team a"}, {"authorization": "Bearer my a"}, False),
        ({"x-api-key": "team a"}, {"x-api-key": "a"}, False),
        ({"x-api-key": "a"}, {"x-api-key": "A"}, False),
        ({"x-api-key": "a"}, {"authorization": "Bearer "}, False),
    ],
)
async def test_a_client_is_known_by_its_whole_key(
    begin: Any, first: Any, second: Any, one_client: bool
) -> None:
    one = begin(answer())
    del one.client.headers["authorization"]
    made = await one.client.post("/v1/runs", json={"question": "x"}, headers=first)
    got = await one.client.get(f"/v1/runs/{made.json()['id']}", headers=second)
    assert got.status_code == (200 if one_client else 404)


async def test_what_one_clients_run_kept_no_other_clients_run_reads(begin: Any) -> None:
    one = begin(call("area"), answer("6"), policy__allow="area,read_artifact")
    spec = ToolSpec("area", "", {"type": "object"}, frozenset(("read",)))
    one.tools.made = lambda: [Tool(spec, lambda given: "secret " * 5000), read_artifact()]
    made = await ask(one)
    read = call("read_artifact", id=made["calls"][0]["artifact"])
    scripts = ScriptedBackend(read, answer("yes"), read, answer("no"))
    one.speaker.backend = scripts
    path = f"/v1/runs/{made['id']}/continue"
    assert (await one.client.post(path, json={"question": "y"})).status_code == 200
    assert (await wait_for_rest(one, made["id"]))["answer"] == "yes"
    assert scripts.prompts[1].count("secret") > scripts.prompts[0].count("secret") + 100
    got = await one.client.post("/v1/runs", json={"question": "x"}, headers=OTHER)
    await wait_for_end(one, got.json()["id"])
    theirs = await one.client.get(f"/v1/runs/{got.json()['id']}", headers=OTHER)
    assert theirs.json()["answer"] == "no" and "secret" not in theirs.text
    assert not any("secret" in prompt for prompt in scripts.prompts[2:])


async def test_a_call_that_writes_waits_and_its_client_does_not_decide_about_it(begin: Any) -> None:
    one = begin(KEEP, answer())
    made = await ask(one)
    assert made["status"] == "paused"
    (waits,) = made["pending"]
    for decision in ("approve", "deny"):
        said = {"call_id": "c1", "digest": waits["digest"], "decision": decision}
        got = await one.client.post(f"/v1/runs/{made['id']}/approvals", json=said)
        assert (got.status_code, got.json()["error"]["code"]) == (403, "approval_needs_a_person")
    assert one.tools.written == []
    assert (await wait_for_rest(one, made["id"]))["status"] == "paused"


async def decide(one: Any, run: dict[str, Any], decision: str, **more: Any) -> Any:
    said = {"call_id": "c1", "digest": run["pending"][0]["digest"], "decision": decision, **more}
    return await one.client.post(f"/v1/runs/{run['id']}/approvals", json=said)


@pytest.mark.parametrize(
    ("decision", "more", "written"),
    [
        ("approve", {}, ["a"]),
        ("deny", {"reason": "no"}, []),
        ("edit", {"arguments": {"text": "b"}}, ["b"]),
    ],
)
async def test_where_the_users_file_says_so_a_client_decides(
    begin: Any, decision: str, more: Any, written: list[str]
) -> None:
    one = begin_with_client_approvals(begin, KEEP, answer("done"))
    made = await ask(one)
    got = await decide(one, made, decision, **more)
    assert got.status_code == 200, got.text
    ended = await wait_for_rest(one, made["id"])
    assert (ended["status"], one.tools.written) == ("answered", written)
    kinds = [event["type"] for _, event in await events(one, made["id"])]
    assert kinds.count("finished") == 2


async def test_a_person_sees_calls_as_they_would_run_and_an_edit_holds_for_what_was_seen(
    begin: Any,
) -> None:
    one = begin(KEEP, answer("done"))
    made = await ask(one)
    row = await one.runs.find(None, made["id"])
    ((request, same),) = await one.runs.waiting(row)
    assert same and request.digest == made["pending"][0]["digest"]
    for arguments in ({"text": "c"}, {"text": "b"}):
        ((edited, _),) = await one.runs.waiting(row, {"c1": {"text": "b"}})
        said = ApprovalAnswer(True, "", arguments, digest=edited.digest)
        other = arguments != edited.arguments
        with pytest.raises(ApiError) if other else nullcontext():
            await one.runs.decide(row, "c1", said, by_person=True)
        await wait_for_rest(one, made["id"])
    assert (await wait_for_rest(one, made["id"]))["status"] == "answered"
    assert one.tools.written == ["b"]


@pytest.mark.parametrize(
    ("decision", "more"), [("approve", {"digest": "0" * 64}), ("approve", {"call_id": "c9"})]
)
async def test_a_decision_that_does_not_hold_is_a_conflict_and_the_run_still_waits(
    begin: Any, decision: str, more: Any
) -> None:
    one = begin_with_client_approvals(begin, KEEP, answer("done"))
    made = await ask(one)
    got = await decide(one, made, decision, **more)
    assert (got.status_code, got.json()["error"]["code"]) == (409, "conflict")
    waits = await wait_for_rest(one, made["id"])
    assert (waits["status"], one.tools.written) == ("paused", [])
    assert (await decide(one, waits, "approve")).status_code == 200
    assert (await wait_for_rest(one, made["id"]))["status"] == "answered"


async def test_who_approves_names_the_digest_of_what_was_shown(begin: Any) -> None:
    one = begin_with_client_approvals(begin, KEEP, answer("done"))
    made = await ask(one)
    got = await decide(one, made, "approve", digest="")
    assert (got.status_code, got.json()["error"]["param"]) == (400, "digest")
    assert ((await wait_for_rest(one, made["id"]))["status"], one.tools.written) == ("paused", [])


async def test_an_approval_for_the_session_covers_the_next_call_too(begin: Any) -> None:
    one = begin_with_client_approvals(begin, KEEP, call("keep", text="b"), answer("done"))
    made = await ask(one)
    assert (await decide(one, made, "approve", scope="session")).status_code == 200
    assert (await wait_for_rest(one, made["id"]))["status"] == "answered"
    assert one.tools.written == ["a", "b"]


async def test_two_approvals_at_once_make_one_call(begin: Any) -> None:
    one = begin_with_client_approvals(begin, KEEP, answer("done"))
    made = await ask(one)
    codes: list[int] = []

    async def yes() -> None:
        codes.append((await decide(one, made, "approve")).status_code)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(yes)
        tasks.start_soon(yes)
    await wait_for_rest(one, made["id"])
    assert sorted(codes) == [200, 409]
    assert one.tools.written == ["a"]


async def test_a_call_of_a_clients_tool_waits_for_its_result(begin: Any) -> None:
    one = begin(call("lookup", word="x"), answer("found"))
    made = await ask(one, client_tools=[LOOKUP])
    assert (made["status"], made["pending"][0]["name"]) == ("paused", "lookup")
    path = f"/v1/runs/{made['id']}/tool_results"
    got = await one.client.post(path, json={"call_id": "c1", "output": {"meaning": "y"}})
    assert got.status_code == 200, got.text
    ended = await wait_for_rest(one, made["id"])
    assert (ended["status"], ended["calls"][0]["status"]) == ("answered", "ok")
    assert '{\\"meaning\\": \\"y\\"}' in one.backend.prompts[-1]
    again = await one.client.post(path, json={"call_id": "c1", "output": "z"})
    assert again.status_code == 409


async def test_no_approval_makes_a_call_of_a_clients_tool_here(begin: Any) -> None:
    file = '[gateway]\napprovals = "client"\n'
    one = begin(call("lookup", word="x"), answer("found"), file=file, policy__approve="always")
    made = await ask(one, client_tools=[{"type": "function", "function": LOOKUP}])
    assert made["status"] == "paused"
    assert (await decide(one, made, "approve")).status_code == 409
    path = f"/v1/runs/{made['id']}/tool_results"
    assert (await one.client.post(path, json={"call_id": "c1", "error": "no"})).status_code == 200
    assert (await wait_for_rest(one, made["id"]))["calls"][0]["error_preview"] == "no"


async def test_two_calls_of_a_clients_tools_are_answered_one_after_the_other(begin: Any) -> None:
    both = "\n".join((call("lookup", word="x"), call("lookup", word="y")))
    one = begin(both, answer("found"))
    made = await ask(one, client_tools=[LOOKUP])
    assert [waits["call_id"] for waits in made["pending"]] == ["c1", "c2"]
    path = f"/v1/runs/{made['id']}/tool_results"
    async with anyio.create_task_group() as tasks:
        for key in ("c2", "c1"):
            body = {"call_id": key, "output": key}
            tasks.start_soon(lambda b: one.client.post(path, json=b), body)
    assert (await wait_for_rest(one, made["id"]))["status"] == "answered"


async def test_a_result_of_one_of_the_servers_tools_is_not_taken(begin: Any) -> None:
    one = begin(KEEP, answer())
    made = await ask(one)
    path = f"/v1/runs/{made['id']}/tool_results"
    assert (
        await one.client.post(path, json={"call_id": "c1", "output": "kept"})
    ).status_code == 409


async def test_a_run_is_given_no_tool_that_the_server_was_not_started_with(begin: Any) -> None:
    one = begin(KEEP, answer("no"), policy__allow="area")
    for tools, status in ((["keep"], 400), (["*"], 400), (["nothing"], 400), ([], 201)):
        got = await one.client.post("/v1/runs", json={"question": "x", "tools": tools})
        assert got.status_code == status, tools
    ended = await wait_for_rest(one, got.json()["id"])
    assert ended["calls"][0]["status"] == "denied"
    taken = [{**LOOKUP, "name": "keep"}]
    got = await one.client.post("/v1/runs", json={"question": "x", "client_tools": taken})
    assert got.status_code == 400


async def test_tools_and_limits_narrow_what_the_server_was_started_with(begin: Any) -> None:
    one = begin(answer("no"))
    made = await ask(one, tools=["area"], limits={"max_iterations": 900, "max_tokens": 99})
    header = one.runs.sessions.records(made["id"])[0]
    assert [tool["name"] for tool in header.tools] == ["area"]
    assert (header.limits["max_iterations"], header.limits["max_tokens"]) == (24, 99)


ROBOT = [{"role": "robot", "content": "a"}, {"role": "user", "content": "b"}]
PICTURE = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{'A' * 4000}"}}
IMAGE_BEFORE_MODEL = [
    {"role": "user", "content": [PICTURE]},
    {"role": "assistant", "content": "A cat."},
]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "question"),
        ({"question": " "}, "question"),
        ({"question": "\ud800"}, "question"),
        ({"question": "x", "messages": []}, "messages"),
        ({"question": "x", "messages": [{"role": "user", "content": "x"}]}, "question"),
        ({"question": "x", "tolls": []}, "tolls"),
        ({"messages": [{"role": "assistant", "content": "x"}]}, "messages"),
        ({"messages": [{"role": "user", "content": [1]}]}, "messages[0].content[0]"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
            "messages[0].content[0].text",
        ),
        ({"messages": IMAGE_BEFORE_MODEL}, "messages"),
        ({"messages": ROBOT}, "messages[0].role"),
        ({"question": "x", "limits": {"a": 1}}, "limits"),
        ({"question": "x", "limits": {"max_tokens": "9"}}, "limits"),
        ({"question": "x", "preset": "all"}, "preset"),
        ({"question": "x", "preset": "notes", "tools": []}, "tools"),
        ({"question": "x", "tools": ["nothing"]}, "tools"),
        ({"question": "x", "schema": {"type": 3}}, "schema"),
        ({"question": "x", "profile": "nobody"}, "profile"),
        ({"question": "x", "client_tools": [{"name": "a b"}]}, "client_tools[0].name"),
        ({"question": "x", "client_tools": [{"name": "area"}]}, "client_tools"),
        ({"question": "x", "client_tools": [LOOKUP, LOOKUP]}, "client_tools"),
        ({"question": "x", "model": "other"}, "model"),
        ({"question": "x", "webhook": "http://127.0.0.1:1/"}, "webhook"),
    ],
)
async def test_a_body_that_cannot_be_is_told_by_its_field_and_begins_nothing(
    begin: Any, body: Any, param: str
) -> None:
    one = begin()
    content = json.dumps(body).encode()
    headers = {"content-type": "application/json"}
    got = await one.client.post("/v1/runs", content=content, headers=headers)
    error = got.json()["error"]
    assert (got.status_code, error["param"]) == (404 if param == "model" else 400, param)
    assert set(error) == {"message", "type", "param", "code"}
    assert (await one.client.get("/v1/runs")).json()["data"] == []


async def test_earlier_messages_and_a_schema_are_those_of_the_run(begin: Any) -> None:
    one = begin('{"type": "tool_call", "name": "final_result", "arguments": {"n": 6}}')
    parts = [{"type": "text", "text": "How"}, {"type": "text", "text": "large?"}]
    said = [
        {"role": "user", "content": [{"type": "text", "text": "Two by three."}]},
        {"role": "assistant", "content": "Yes?"},
        {"role": "user", "content": parts},
    ]
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    made = await ask(one, question=None, messages=said, schema=schema)
    prompt = one.backend.prompts[0]
    assert "Two by three." in prompt and "How\nlarge?" in prompt
    assert (made["status"], json.loads(made["answer"])) == ("answered", {"n": 6})


async def test_earlier_messages_of_any_kind_are_told_as_in_a_turn(begin: Any) -> None:
    one = begin(answer("yes"))
    function = {"name": "find", "arguments": '{"word": "cat"'}  # cut off
    calls = [
        {"id": "same", "type": "function", "function": function},
        {"id": "same", "type": "custom", "custom": {"name": "note", "input": "a cat"}},
    ]
    said = [
        {"role": "user", "content": [{"type": "text", "text": "What is this?"}, PICTURE]},
        {"role": "assistant", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "same", "content": [PICTURE]},
        {"role": "tool", "tool_call_id": "same", "content": "noted"},
        {"role": "tool", "tool_call_id": "lost", "content": "a stray"},
        {"role": "user", "content": [{"type": "text", "text": "Sure?"}, PICTURE]},
    ]
    got = await one.client.post("/v1/runs", json={"messages": said})
    assert got.status_code == 201, got.text
    assert got.headers["x-mlx-tools-left-out"] == "image_url"
    assert (await wait_for_rest(one, got.json()["id"]))["status"] == "answered"
    prompt = one.backend.prompts[0]
    assert prompt.count("[a picture of 3 kB was left out: this model reads text]") == 3
    assert all(text in prompt for text in ("a cat", "noted", "a stray", "Sure?"))


@pytest.mark.parametrize(
    ("definition", "arguments"),
    [
        ({"name": "lookup", "input_schema": LOOKUP["parameters"]}, {"word": 5}),
        ({"name": "lookup", "inputSchema": LOOKUP["parameters"]}, {"word": 5}),
        ({"type": "custom", "name": "lookup", "input_schema": LOOKUP["parameters"]}, {"word": 5}),
        ({"type": "custom", "name": "lookup", "format": {"type": "text"}}, {"input": 5}),
        ({"type": "custom", "custom": {"name": "lookup"}}, {"input": 5}),
    ],
)
async def test_a_clients_tool_is_read_in_the_form_of_any_interface(
    begin: Any, definition: Any, arguments: dict[str, Any]
) -> None:
    """Its schema holds: a number becomes the text that is wanted."""
    one = begin(call("lookup", **arguments))
    made = await ask(one, client_tools=[definition])
    expected = {name: str(value) for name, value in arguments.items()}
    assert [waits["arguments"] for waits in made["pending"]] == [expected]


async def test_a_faulty_schema_of_a_clients_tool_loses_no_run(begin: Any) -> None:
    parameters = {
        "type": "OBJECT",
        "properties": {"word": {"type": "string", "minLength": "many"}, "n": {"type": 3}},
        "required": None,
    }
    tool = LOOKUP | {"parameters": parameters, "description": 7}
    one = begin(call("lookup", word="cat", n=2), answer("a cat"))
    body = {"question": "x", "client_tools": [tool]}
    got = await one.client.post("/v1/runs", json=body, headers={"idempotency-key": "k"})
    assert got.status_code == 201, got.text
    left_out = "lookup.parameters/properties/n/type, lookup.parameters/properties/word/minLength"
    assert sorted(got.headers["x-mlx-tools-left-out"].split(", ")) == left_out.split(", ")
    paused = await wait_for_rest(one, got.json()["id"])
    assert paused["pending"][0]["arguments"] == {"word": "cat", "n": 2}
    again = await one.client.post("/v1/runs", json=body, headers={"idempotency-key": "k"})
    assert again.headers["x-mlx-tools-left-out"] == got.headers["x-mlx-tools-left-out"]
    result = {"call_id": "c1", "output": "an animal"}
    await one.client.post(f"/v1/runs/{paused['id']}/tool_results", json=result)
    assert (await wait_for_rest(one, paused["id"]))["answer"] == "a cat"


async def test_the_same_key_makes_one_run_also_at_once(begin: Any) -> None:
    one = begin(answer("a"), answer("b"))
    made: list[Any] = []

    async def create(key: str = "k", question: str = "x") -> None:
        headers = {"idempotency-key": key}
        made.append(await one.client.post("/v1/runs", json={"question": question}, headers=headers))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(create)
        tasks.start_soon(create)
    assert [one.status_code for one in made] == [201, 201]
    assert len({one.json()["id"] for one in made}) == 1
    await create(question="y")
    assert (made[-1].status_code, made[-1].json()["error"]["code"]) == (
        422,
        "idempotency_key_reused",
    )
    await create(key="other")
    assert made[-1].json()["id"] != made[0].json()["id"]
    for run in made[0], made[-1]:
        await wait_for_rest(one, run.json()["id"])
    assert len(one.backend.prompts) == 2


async def test_a_run_that_is_cancelled_stops_at_work_in_line_and_while_it_waits(begin: Any) -> None:
    one = begin(KEEP, KEEP, KEEP)
    paused = await ask(one)
    one.tools.hold = anyio.sleep_forever
    slow = answer_after(anyio.Event(), "never")
    one.speaker.backend = slow
    made = [await create_run(one) for _ in range(3)]
    ids = [*(run["id"] for run in reversed(made)), paused["id"]]
    assert made[-1]["status"] == "queued"
    for run in ids:
        assert (await one.client.post(f"/v1/runs/{run}/cancel")).json()["status"] == "cancelled"
    for run in ids:
        assert (await wait_for_rest(one, run))["status"] == "cancelled"
    assert one.runs.workers.runs == {}


async def test_of_more_runs_than_there_is_room_for_the_next_is_refused(begin: Any) -> None:
    one = begin(most=2)
    one.speaker.backend = answer_after(anyio.Event(), "never")
    codes = []
    for _ in range(3):
        codes.append((await one.client.post("/v1/runs", json={"question": "x"})).status_code)
    assert codes == [201, 201, 429]
    await one.runs.aclose()


async def test_a_run_goes_on_when_its_client_leaves(begin: Any) -> None:
    one, come = begin(), anyio.Event()
    one.speaker.backend = answer_after(come, answer("late"))
    run = (await one.client.post("/v1/runs", json={"question": "x"})).json()["id"]
    async with anyio.create_task_group() as client:
        client.start_soon(events, one, run)
        await until(lambda: len(one.runs.workers.followers))
        client.cancel_scope.cancel()
    come.set()
    assert (await wait_for_rest(one, run))["answer"] == "late"
    assert len(one.runs.workers.followers) == 0


async def test_what_was_at_work_when_the_server_was_killed_is_found_and_made_no_second_time(
    begin: Any, tmp_path: Path
) -> None:
    """The state is copied while a call that writes is at work: what a kill would have left."""

    one = begin_with_client_approvals(begin, KEEP, AREA)
    made, begun = await ask(one), anyio.Event()

    async def hold() -> None:
        begun.set()
        await anyio.sleep_forever()

    one.tools.hold = hold
    await decide(one, made, "approve")
    await begun.wait()
    await copy_as_killed(tmp_path / "state", tmp_path / "killed")
    await one.runs.aclose()
    two = begin(answer("done"), state="killed", file='[gateway]\napprovals = "client"\n')
    found = await wait_for_rest(two, made["id"])
    assert (found["status"], found["pending"][0]["in_doubt"]) == ("paused", True)
    assert two.tools.written == []
    assert (await decide(two, found, "deny")).status_code == 200
    ended = await wait_for_rest(two, made["id"])
    assert (ended["status"], two.tools.written) == ("answered", [])
    assert ended["calls"][0]["error_code"] == "in_doubt"


async def test_what_was_asked_of_the_model_when_the_server_was_killed_is_found_as_interrupted(
    begin: Any, tmp_path: Path
) -> None:
    one = begin()
    one.speaker.backend = answer_after(anyio.Event(), "never")
    made = [await create_run(one) for _ in range(3)]
    await anyio.wait_all_tasks_blocked()
    await copy_as_killed(tmp_path / "state", tmp_path / "killed")
    await one.runs.aclose()
    two = begin(answer("again"), answer("begun"), state="killed")
    for run in made:
        found = await wait_for_rest(two, run["id"])
        assert (found["status"], found["reason"]) == ("stopped", "interrupted")
    assert two.backend.prompts == []
    for run, said in ((made[0], "again"), (made[2], "begun")):
        path = f"/v1/runs/{run['id']}/continue"
        assert (await two.client.post(path, json={"question": "y"})).status_code == 200
        assert (await wait_for_rest(two, run["id"]))["answer"] == said


async def test_the_description_names_what_is_posted_of_runs(begin: Any) -> None:
    paths = (await begin().client.get("/openapi.json")).json()["paths"]
    assert {"get", "post"} <= paths["/v1/runs"].keys()
    for rest in ("approvals", "tool_results", "cancel", "continue"):
        assert paths[f"/v1/runs/{{id}}/{rest}"]["post"]["parameters"][0]["name"] == "id"


@pytest.mark.parametrize(("damage", "status"), [(None, 404), (b"{}\n{}\n", 500)])
async def test_a_run_whose_session_is_gone_or_damaged_is_told_and_hides_no_other(
    begin: Any, damage: bytes | None, status: int
) -> None:
    one = begin(answer("a"), answer("b"))
    gone, stays = await ask(one), await ask(one)
    path = find_transcript(one, gone["id"])
    if damage is None:
        shutil.rmtree(path.parent)
    else:
        path.write_bytes(damage)
    for method, rest in (("GET", ""), ("GET", "/events"), ("POST", "/cancel")):
        got = await one.client.request(method, f"/v1/runs/{gone['id']}{rest}")
        assert got.status_code == status, rest
    page = (await one.client.get("/v1/runs")).json()
    assert [run["id"] for run in page["data"]] == [stays["id"]]


async def test_of_more_runs_than_are_kept_the_oldest_that_has_ended_goes(begin: Any) -> None:
    one = begin(KEEP, answer("a"), answer("b"))
    one.runs.rows.max_rows = 2
    waits, ended = await ask(one), await ask(one)
    last = await ask(one)
    kept = [run["id"] for run in (await one.client.get("/v1/runs")).json()["data"]]
    assert kept == [last["id"], waits["id"]]
    assert not find_transcript(one, ended["id"]).exists()


def test_a_calls_preview_is_among_what_waits_while_it_is_what_was_asked_about(begin: Any) -> None:
    async def main() -> None:
        one = begin_with_client_approvals(begin, KEEP, answer("done"))
        state, area = ["old"], one.tools.made()[0]

        def keep(arguments: Any) -> str:
            one.tools.written.append(arguments["text"])
            return "kept"

        def preview(arguments: Any) -> Preview:
            return Preview(f"-{state[0]}\n+{arguments['text']}", state[0])

        spec = one.tools.made()[1].spec
        one.tools.made = lambda: [area, Tool(spec, keep, preview=preview)]
        made = await ask(one)
        assert made["pending"][0]["preview"] == "-old\n+a"
        state[0] = "new"
        changed = await wait_for_rest(one, made["id"])
        assert "preview" not in changed["pending"][0]
        listed = (await one.client.get("/v1/runs")).json()["data"][0]["pending"]
        assert listed == changed["pending"]

    anyio.run(main)


async def test_an_edit_that_the_call_cannot_have_is_told_by_its_argument(begin: Any) -> None:
    one = begin_with_client_approvals(begin, KEEP, answer("done"))
    made = await ask(one)
    got = await decide(one, made, "edit", arguments={"text": 1, "txt": "a"})
    error = got.json()["error"]
    assert (got.status_code, error["code"], error["param"]) == (400, "invalid_value", "arguments")
    assert "txt" in error["message"] and (await wait_for_rest(one, made["id"])) == made
    assert (await decide(one, made, "edit", arguments={"text": "b"})).status_code == 200
    await wait_for_rest(one, made["id"])
    assert one.tools.written == ["b"]


async def test_arguments_come_with_an_edit_and_with_no_other_decision(begin: Any) -> None:
    one = begin_with_client_approvals(begin, KEEP, answer("done"))
    made = await ask(one)
    changed = {"arguments": {"text": "b"}}
    for decision, more in (("edit", {}), ("approve", changed), ("deny", changed)):
        got = await decide(one, made, decision, **more)
        assert (got.status_code, got.json()["error"]["param"]) == (400, "arguments"), decision
    assert (await wait_for_rest(one, made["id"])) == made


async def test_what_is_wrong_beside_a_body_is_named_too(begin: Any) -> None:
    one = begin_with_client_approvals(begin, KEEP)
    made = await ask(one)
    named = {"idempotency-key": "k"}
    for body, headers, param in (
        ({"question": "x"}, {"idempotency-key": "k" * 256}, "Idempotency-Key"),
        ({"question": "x"}, named, None),
        ({"question": "y"}, named, "Idempotency-Key"),
    ):
        got = await one.client.post("/v1/runs", json=body, headers=headers)
        assert got.json().get("error", {}).get("param") == param
    got = await one.client.get("/v1/runs?after=x")
    assert (got.status_code, got.json()["error"]["param"]) == (404, "after")
    got = await decide(one, made, "approve", call_id="c9")
    assert (got.status_code, got.json()["error"]["param"]) == (409, "call_id")


PROFILES = """
[profiles.careful.policy]
deny = ["area"]
[profiles.careful.limits]
max_iterations = 1
[profiles.careful.model]
temperature = 0.25
[profiles.wide.policy]
allow = ["area", "keep", "clock"]
approve = "always"
[profiles.wide.limits]
max_iterations = 500
[profiles.other.model]
name = "other"
"""


def limits_of(one: Any, run: dict[str, Any]) -> int:
    """The number of completions that a run may have, by its header."""
    header = json.loads(find_transcript(one, run["id"]).read_text().partition("\n")[0])
    found: int = header["limits"]["max_iterations"]
    return found


async def test_a_profile_takes_power_away_and_gives_none(begin: Any) -> None:
    one = begin(AREA, answer("no"), KEEP, file=PROFILES, policy__deny="clock")
    made = await ask(one, profile="careful")
    assert made["calls"] == [] and '"area"' not in one.backend.prompts[0]
    assert limits_of(one, made) == 1
    assert one.backend.requests[0].temperature == 0.25
    wide = await ask(one, profile="wide", client_tools=[LOOKUP])
    assert (wide["status"], one.tools.written) == ("paused", [])
    assert 1 < limits_of(one, wide) < 500
    got = await one.client.post("/v1/runs", json={"question": "x", "profile": "other"})
    assert (got.status_code, got.json()["error"]["param"]) == (404, "model")


async def test_events_are_told_in_one_form_that_no_reader_of_lines_breaks(begin: Any) -> None:
    hostile = "\N{LATIN SMALL LETTER E WITH ACUTE}\x85\u2028\u2029\N{GRINNING FACE}"

    one = begin(answer(hostile))
    made = await ask(one, question=hostile)
    response = await one.client.get(f"/v1/runs/{made['id']}/events")
    lines = [line for line in response.text.splitlines() if line.startswith("data: ")]
    for line in filter(None, response.text.splitlines()):
        assert line.startswith(("id: ", "event: ", "data: "))
    assert json.loads(lines[-1][6:])["outcome"]["answer"] == hostile
    for line in lines:
        assert json_line(json.loads(line[6:])) == line[6:]
    assert "\N{GRINNING FACE}" in response.text and "\\u2028" in response.text


async def test_a_tool_that_is_left_out_is_noted_once(
    begin: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_moon(tmp_path, monkeypatch)
    one, notes = begin(policy__allow="calculator"), list[str]()
    gateway = one.gateway
    parts = gateway.configuration, gateway.models, notes.append, one.runs.execution.webhooks
    execution = RunExecution(*parts)
    for _ in range(2):
        await execution.make_registry(None).aclose()
    assert notes == [LEFT_OUT]


@pytest.mark.parametrize("path", ["/v1/runs", "/v1/messages/count_tokens", "/v1/responses"])
async def test_a_client_that_leaves_within_its_body_is_no_fault_of_the_gateway(
    begin: Any, path: str
) -> None:
    one = begin(answer("never"))
    parts = [{"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"}]
    statuses: list[int] = []

    async def receive() -> dict[str, Any]:
        return parts.pop(0)

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    names = {"host": "127.0.0.1", "content-type": "application/json", **KEY}
    headers = [(name.lower().encode(), value.encode()) for name, value in names.items()]
    scope = {"type": "http", "method": "POST", "path": path, "raw_path": path.encode()}
    scope |= {"query_string": b"", "headers": headers, "scheme": "http", "http_version": "1.1"}
    await one.app(scope | {"client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2)}, receive, send)
    assert statuses in ([], [400])
