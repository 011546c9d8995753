"""Runs with a call in doubt: whatever ended them, it is decided about before they go on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from mlx_tools.store.transcript import load
from mlx_tools.testing import ScriptedBackend, answer, call
from mlx_tools.transcript import ExecutionRecord
from tests.controller.sessions import cut_transcript
from tests.runs.conftest import (
    ask,
    begin_with_client_approvals,
    copy_as_killed,
    find_transcript,
    wait_for_rest,
)

pytestmark = pytest.mark.anyio

KEEP = call("keep", text="a")
DECIDES = '[gateway]\napprovals = "client"\n'
ALWAYS = {"file": DECIDES, "policy__approve": "always"}


async def cancelled(one: Any) -> dict[str, Any]:
    """A run that was cancelled in the middle of a call that writes."""
    begun = anyio.Event()

    async def hold() -> None:
        begun.set()
        await anyio.sleep_forever()

    one.tools.hold = hold
    made = (await one.client.post("/v1/runs", json={"question": "Keep it."})).json()
    await begun.wait()
    run: dict[str, Any] = (await one.client.post(f"/v1/runs/{made['id']}/cancel")).json()
    one.tools.hold = None
    return run


async def go_on(one: Any, run: str, question: str = "Go on.") -> Any:
    return await one.client.post(f"/v1/runs/{run}/continue", json={"question": question})


async def decide(one: Any, run: dict[str, Any], decision: str) -> Any:
    (waits,) = run["pending"]
    said = {"call_id": waits["call_id"], "digest": waits["digest"], "decision": decision}
    return await one.client.post(f"/v1/runs/{run['id']}/approvals", json=said)


@pytest.mark.parametrize("decision", ["approve", "deny"])
async def test_a_run_cancelled_in_a_call_is_gone_on_with_once_that_is_decided(
    begin: Any, decision: str
) -> None:
    one = begin(KEEP, answer("Well."), answer("Here."), **ALWAYS)
    run = await cancelled(one)
    assert (run["status"], run["calls"][0]["status"]) == ("cancelled", "in_doubt")
    refused = await go_on(one, run["id"])
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "conflict")
    assert "nobody knows how c1 ended" in refused.json()["error"]["message"]
    paused = await wait_for_rest(one, run["id"])
    assert (paused["status"], paused["pending"][0]["in_doubt"]) == ("paused", True)
    assert (await decide(one, paused, decision)).status_code == 200
    ended = await wait_for_rest(one, run["id"])
    assert ended["status"] == "answered"
    assert one.tools.written == ["a"] * (1 + (decision == "approve"))
    known = "Nobody knows whether keep finished" if decision == "deny" else '"content":"kept"'
    assert known in one.backend.prompts[1]
    assert (await go_on(one, run["id"])).status_code == 200
    assert (await wait_for_rest(one, run["id"]))["answer"] == "Here."


async def test_a_repetition_waits_for_a_person_whatever_is_approved_always(begin: Any) -> None:
    one = begin(KEEP, answer("Well."), KEEP, answer("Here."), **ALWAYS)
    run = await cancelled(one)
    await go_on(one, run["id"])
    await decide(one, await wait_for_rest(one, run["id"]), "deny")
    await wait_for_rest(one, run["id"])
    await go_on(one, run["id"])
    paused = await wait_for_rest(one, run["id"])
    assert paused["status"] == "paused"
    assert [(p["call_id"], p["in_doubt"]) for p in paused["pending"]] == [("c2", True)]
    assert one.tools.written == ["a"]
    await decide(one, paused, "approve")
    assert (await wait_for_rest(one, run["id"]))["answer"] == "Here."
    assert one.tools.written == ["a", "a"]


async def test_a_call_that_was_approved_when_the_server_was_killed_waits_again(
    begin: Any, tmp_path: Path
) -> None:
    one = begin_with_client_approvals(begin, KEEP, answer("done"))
    made = await ask(one)
    await decide(one, made, "approve")
    await wait_for_rest(one, made["id"])
    path = find_transcript(one, made["id"])
    cut_transcript(
        path, next(n for n, r in enumerate(load(path)) if isinstance(r, ExecutionRecord))
    )
    await copy_as_killed(tmp_path / "state", tmp_path / "killed")
    await one.runs.aclose()
    two = begin(answer("done"), state="killed", file=DECIDES)
    found = await wait_for_rest(two, made["id"])
    assert (found["status"], found["calls"][0]["status"]) == ("paused", "pending")
    assert not found["pending"][0].get("in_doubt")
    assert (await decide(two, found, "approve")).status_code == 200
    ended = await wait_for_rest(two, made["id"])
    assert (ended["status"], two.tools.written) == ("answered", ["a"])
    assert isinstance(two.backend, ScriptedBackend)
