"""Runs over a WebSocket, and what is told to other servers of them."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from starlette.testclient import TestClient, WebSocketDenialResponse
from starlette.websockets import WebSocketDisconnect

from mlx_tools.app import AccessRules
from mlx_tools.errors import StorageError
from mlx_tools.gateway.request import ApiError
from mlx_tools.messages import json_line
from mlx_tools.plugins.runs.rows import Hook
from mlx_tools.plugins.runs.webhooks import SECONDS, Webhooks
from mlx_tools.testing import answer, call, run, skip
from tests.runs.conftest import (
    KEY,
    answer_after,
    ask,
    begin_with_client_approvals,
    copy_as_killed,
    wait_for_end,
    wait_for_rest,
)
from tests.waiting import until as until_true

pytestmark = pytest.mark.anyio

KEEP = call("keep", text="a")


def talking(one: Any) -> TestClient:
    return TestClient(one.app, base_url="http://127.0.0.1", headers=KEY)


def opened(client: TestClient, run: str, query: str = "", **headers: str) -> Any:
    """The socket of a run."""
    sent = {"host": "127.0.0.1", **headers}
    return client.websocket_connect(f"/v1/runs/{run}/socket{query}", headers=sent)


def until(socket: Any, kind: str) -> list[dict[str, Any]]:
    """The messages up to one of this kind."""
    found: list[dict[str, Any]] = []
    while not found or found[-1]["type"] != kind:
        text = socket.receive_text()
        found.append(json.loads(text))
        assert text == json_line(found[-1]) and len(text.splitlines()) == 1
    return found


def test_a_socket_tells_a_run_takes_decisions_and_goes_on(begin: Any) -> None:
    hostile = "\N{LATIN SMALL LETTER E WITH ACUTE}\x85\u2028\u2029\N{GRINNING FACE}"
    one = begin_with_client_approvals(begin, KEEP, answer("done"), answer(hostile))
    with talking(one) as client:
        run = client.post("/v1/runs", json={"question": "x"}).json()["id"]
        with opened(client, run) as socket:
            told = until(socket, "finished")
            (waits,) = told[-1]["outcome"]["pending"]
            said = {"type": "approvals", "call_id": "c1", "digest": "", "decision": "approve"}
            socket.send_json(said)
            assert until(socket, "error")[-1]["error"]["param"] == "digest"
            socket.send_json(said | {"digest": waits["digest"]})
            told += until(socket, "finished")
            assert told[-1]["outcome"]["answer"] == "done"
            socket.send_json({"type": "continue", "question": "y"})
            told += until(socket, "finished")
            assert told[-1]["outcome"]["answer"] == hostile
        numbers = [one["id"] for one in told if "id" in one]
        assert numbers == sorted(set(numbers))
        with opened(client, run, f"?last_event_id={numbers[1]}") as socket:
            again = [socket.receive_json() for _ in numbers[2:]]
        assert again == [event for event in told if event.get("id", 0) > numbers[1]]
        assert any("id" not in event for event in told if event["type"] == "turn_started")


@pytest.mark.parametrize("message", ["no json", "[]", '{"type": "none"}', '{"type": "continue"}'])
def test_a_message_that_cannot_be_is_told_and_the_socket_goes_on(begin: Any, message: str) -> None:
    one = begin(answer("done"))
    with talking(one) as client:
        run = client.post("/v1/runs", json={"question": "x"}).json()["id"]
        with opened(client, run) as socket:
            until(socket, "finished")
            socket.send_text(message)
            assert socket.receive_json()["type"] == "error"
            socket.send_json({"type": "cancel"})
            assert socket.receive_json()["run"]["status"] == "answered"


@pytest.mark.parametrize(
    ("headers", "opens"),
    [
        ({}, True),
        ({"origin": "http://evil.example"}, False),
        ({"host": "evil.example"}, False),
        ({"authorization": "Bearer two"}, False),
        ({"authorization": ""}, False),
    ],
)
def test_a_socket_opens_only_for_whoever_may_ask(begin: Any, headers: Any, opens: bool) -> None:
    one = begin(answer("done"), door=AccessRules(key="one"))
    with talking(one) as client:
        run = client.post("/v1/runs", json={"question": "x"}).json()["id"]
        if opens:
            with opened(client, run, **headers) as socket:
                until(socket, "finished")
            return
        with pytest.raises(WebSocketDisconnect), opened(client, run, **headers):
            pass


def test_a_socket_of_another_keys_run_is_not_found(begin: Any) -> None:
    one = begin(answer("done"))
    with talking(one) as client:
        run = client.post("/v1/runs", json={"question": "x"}).json()["id"]
        with pytest.raises(WebSocketDenialResponse) as seen:
            opened(client, run, authorization="Bearer two").__enter__()
        assert seen.value.status_code == 404


def test_clients_that_come_and_go_leave_nothing_behind(begin: Any) -> None:
    one = begin(answer("done"))
    with talking(one) as client:
        run = client.post("/v1/runs", json={"question": "x"}).json()["id"]
        for number in range(30):
            with opened(client, run, f"?last_event_id={number % 3}") as socket:
                if number % 2:
                    until(socket, "finished")
    assert len(one.runs.workers.followers) == 0 and one.runs.workers.runs == {}


def test_a_socket_tells_that_what_is_kept_cannot_be_read(begin: Any, tmp_path: Path) -> None:
    one = begin(answer("done"))
    with talking(one) as client:
        run = client.post("/v1/runs", json={"question": "x"}).json()["id"]
        with opened(client, run) as socket:
            until(socket, "finished")
            for file in tmp_path.rglob("runs.sqlite*"):
                file.write_bytes(b"no rows " * 9_000)
            socket.send_json({"type": "continue", "question": "y"})
            assert until(socket, "error")[-1]["error"]["code"] == "storage_unavailable"


# --- webhooks -------------------------------------------------------------------------------------


class Hooked:
    """A server that takes what it is told. ``posts`` are headers and bodies; ``statuses`` are what
    it answers, 200 once there are none left."""

    def __init__(self, *statuses: int) -> None:
        self.posts: list[tuple[dict[str, str], bytes]] = []
        self.statuses, self.came = [*statuses], threading.Semaphore(0)
        hooked = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                hooked.posts.append((dict(self.headers.items()), body))
                self.send_response(hooked.statuses.pop(0) if hooked.statuses else 200)
                self.send_header("location", "http://127.0.0.1:1/")
                self.end_headers()
                hooked.came.release()

            def log_message(self, *_: object) -> None:
                return

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.origin = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def bodies(self) -> list[bytes]:
        return [body for _, body in self.posts]

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def hooked() -> Iterator[Hooked]:
    made = Hooked()
    yield made
    made.stop()


SECRET = bytes(range(32))


async def test_who_is_named_is_told_that_a_run_waits_and_is_done_signed(
    begin: Any, hooked: Any
) -> None:
    one = begin_with_client_approvals(begin, KEEP, answer("done"))
    one.runs.execution.webhooks = Webhooks({hooked.origin: SECRET}, lambda: 1_700_000_000.5)
    made = await ask(one, webhook=f"{hooked.origin}/here?x=1")
    await anyio.to_thread.run_sync(hooked.came.acquire, True, 30)
    said = {"call_id": "c1", "digest": made["pending"][0]["digest"], "decision": "approve"}
    await one.client.post(f"/v1/runs/{made['id']}/approvals", json=said)
    await wait_for_rest(one, made["id"])
    await anyio.to_thread.run_sync(hooked.came.acquire, True, 30)
    found = [*map(json.loads, hooked.bodies)]
    assert [(one["type"], one["data"]["status"]) for one in found] == [
        ("run.paused", "paused"),
        ("run.done", "answered"),
    ]
    assert {one["data"]["id"] for one in found} == {made["id"]}
    for headers, body in hooked.posts:
        sent = {name.lower(): value for name, value in headers.items()}
        signed = f"{sent['webhook-id']}.{sent['webhook-timestamp']}.".encode() + body
        wanted = base64.b64encode(hmac.new(SECRET, signed, hashlib.sha256).digest()).decode()
        assert sent["webhook-signature"] == f"v1,{wanted}"
        assert sent["webhook-timestamp"] == "1700000000"
    assert len({headers["webhook-id"] for headers, _ in hooked.posts}) == 2
    await one.runs.aclose()


async def test_what_cannot_be_told_is_tried_three_times_more(hooked: Any) -> None:
    tried: list[tuple[int, float | None]] = []
    rows: Any = SimpleNamespace(mark_sent=lambda hook, again: tried.append((hook.tries, again)))
    hooks = Webhooks({hooked.origin: SECRET}, lambda: 1_000.0)
    for tries in range(4):
        hooked.statuses.append(500)
        await hooks.deliver(rows, Hook("m", f"{hooked.origin}/", "run.done", {}, tries))
    await hooks.deliver(rows, Hook("m", f"{hooked.origin}/", "run.done", {}, 1))
    assert tried == [(0, 1_005.0), (1, 1_030.0), (2, 1_180.0), (3, None), (1, None)]
    await hooks.aclose()


def test_what_could_not_be_marked_as_told_is_told_again_soon(hooked: Any) -> None:
    hook, tries = Hook("m", f"{hooked.origin}/", "run.done", {}), threading.Semaphore(0)
    faults = [StorageError("the disk is full")]

    def mark_sent(hook: Hook, again: float | None) -> None:
        tries.release()
        if faults:
            raise faults.pop()
        owed.clear()

    owed = [hook]

    async def tell() -> None:
        rows: Any = SimpleNamespace(
            next_due=lambda: 0.0 if owed else None,
            owed=lambda now, deadline: [*owed],
            mark_sent=mark_sent,
        )
        hooks = Webhooks({hooked.origin: SECRET}, lambda: 1_000.0)
        hooks.wake(rows)
        await until_true(lambda: tries.acquire(blocking=False))

        async def is_told_again() -> bool:
            await skip(SECONDS + 1)
            return tries.acquire(blocking=False)

        await until_true(is_told_again)
        await hooks.aclose()

    run(tell)


async def test_who_is_named_by_one_client_is_told_of_no_other_clients_run(
    begin: Any, hooked: Any
) -> None:
    one = begin(answer("a"), answer("b"))
    one.runs.execution.webhooks = Webhooks({hooked.origin: SECRET})
    body, other = {"question": "secret"}, {"authorization": "Bearer two"}
    theirs = (await one.client.post("/v1/runs", json=body, headers=other)).json()["id"]
    await wait_for_end(one, theirs)
    made = await ask(one, webhook=f"{hooked.origin}/here")
    await anyio.to_thread.run_sync(hooked.came.acquire, True, 30)
    (told,) = map(json.loads, hooked.bodies)
    assert told["data"] == {"id": made["id"], "status": "answered"}
    assert theirs not in str(hooked.posts) and "secret" not in str(hooked.posts)


async def test_what_is_owed_is_told_by_the_next_gateway_also_of_a_run_that_broke_off(
    begin: Any, hooked: Any, tmp_path: Path
) -> None:
    one = begin_with_client_approvals(begin, KEEP)
    one.runs.execution.webhooks = Webhooks({hooked.origin: SECRET}, lambda: 1_000.0)
    hooked.statuses.append(500)
    waits = await ask(one, webhook=f"{hooked.origin}/")
    await anyio.to_thread.run_sync(hooked.came.acquire, True, 30)
    one.speaker.backend = answer_after(anyio.Event(), "never")
    body = {"question": "y", "webhook": f"{hooked.origin}/"}
    broken = (await one.client.post("/v1/runs", json=body)).json()
    await anyio.wait_all_tasks_blocked()
    await copy_as_killed(tmp_path / "state", tmp_path / "killed")
    await one.runs.aclose()
    two = begin(state="killed")
    two.runs.execution.webhooks = Webhooks({hooked.origin: SECRET}, lambda: 2_000.0)
    await two.runs.open()
    for _ in range(2):
        await anyio.to_thread.run_sync(hooked.came.acquire, True, 30)
    told = {(one["type"], one["data"]["id"]) for one in map(json.loads, hooked.bodies[1:])}
    assert told == {("run.paused", waits["id"]), ("run.done", broken["id"])}
    await two.runs.aclose()


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:9001/",
        "http://127.0.0.2:9000/",
        "https://127.0.0.1:9000/",
        "ftp://x/",
        "http://localhost:9000/",
        "http://a@127.0.0.1:9000/",
        "http://0x7f000001:9000/",
        "x",
        "http://hooks.example.org.evil.example/",
        "http://[::1]:9000/",
        "http://169.254.169.254/",
    ],
)
def test_no_other_address_is_told_anything(url: str) -> None:
    hooks = Webhooks(dict.fromkeys(("http://127.0.0.1:9000", "http://hooks.example.org"), SECRET))
    hooks.check("http://127.0.0.1:9000/any?path=1")
    hooks.check("http://hooks.example.org/")
    with pytest.raises(ApiError):
        hooks.check(url)
    with pytest.raises(ApiError):
        Webhooks().check("http://127.0.0.1:9000/")


@pytest.mark.parametrize(("local", "status"), [(False, 201), (True, 400)])
async def test_where_nothing_leaves_this_machine_nobody_is_told(
    begin: Any, local: bool, status: int
) -> None:
    secret = f"whsec_{base64.b64encode(SECRET).decode()}"
    file = f'[runs.webhooks]\n"http://127.0.0.1:9000" = "{secret}"\n'
    one = begin(KEEP, file=file, policy__local_only=local)
    body = {"question": "x", "webhook": "http://127.0.0.1:9000/"}
    assert (await one.client.post("/v1/runs", json=body)).status_code == status
    await one.runs.aclose()
