"""Access to the gateway, its places, and clients that go away."""

from __future__ import annotations

import json
from typing import Any

import anyio
import httpx
import pytest

from mlx_tools.app import AccessRules
from mlx_tools.gateway.admission import Admission
from mlx_tools.gateway.request import ApiError
from tests.waiting import HANG

pytestmark = pytest.mark.anyio

BODY = {"model": "scripted", "messages": [{"role": "user", "content": "Hi"}]}


def ask(one: Any, path: str = "/v1/models", base: str = "http://127.0.0.1", **more: Any) -> Any:
    async def get() -> Any:
        async with httpx.AsyncClient(transport=one.transport, base_url=base) as client:
            return await client.request(more.pop("method", "GET"), path, **more)

    return anyio.run(get)


@pytest.mark.parametrize(
    ("base", "status"),
    [
        ("http://127.0.0.1:8321", 200),
        ("http://localhost:99", 200),
        ("http://LOCALHOST.", 200),
        ("http://[::1]:8321", 200),
        ("http://mac.local", 200),
        ("http://evil.example", 403),
        ("http://127.0.0.1.evil.example", 403),
        ("http://localhost.evil.example:8321", 403),
    ],
)
def test_a_name_that_is_not_ours_is_not_served(serving: Any, base: str, status: int) -> None:
    one = serving(door=AccessRules(hosts=("mac.local",)))
    assert ask(one, base=base).status_code == status


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("[::1]", 200),
        ("[::1]:8321", 200),
        ("localhost:", 200),
        ("localhost.:80", 200),
        ("mac.local:80", 200),
        ("[::1]evil.com", 403),
        ("[::1].evil.com:80", 403),
        ("[::1", 403),
        ("::1", 403),
        ("[127.0.0.1].evil.com", 403),
        ("[localhost]", 403),
        ("localhost..", 403),
        ("localhost:80@evil.com", 403),
        ("localhost:evil.com", 403),
        ("localhost:80:evil.com", 403),
        ("localhost/evil.com", 403),
        ("localhost evil.com", 403),
        ("localhost, evil.com", 403),
        ("", 403),
    ],
)
def test_a_host_header_is_a_name_and_a_port_and_nothing_else(
    serving: Any, host: str, status: int
) -> None:
    one = serving(door=AccessRules(hosts=("mac.local",)))
    assert ask(one, headers={"host": host}).status_code == status


def test_if_no_page_may_ask_a_page_that_asks_first_is_refused(serving: Any) -> None:
    asks = {"access-control-request-method": "POST"}
    for origin, status in (("http://evil.example", 403), ("http://127.0.0.1", 405)):
        response = ask(serving(), method="OPTIONS", headers={"origin": origin, **asks})
        assert response.status_code == status
        assert not [name for name in response.headers if name.startswith("access-control")]


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://evil.example", 403),
        ("null", 403),
        ("file://127.0.0.1", 403),
        ("x://127.0.0.1", 403),
        ("http://127.0.0.1@evil.example", 403),
        ("http://127.0.0.1/", 403),
        ("://127.0.0.1", 403),
        ("http://127.0.0.1:4000", 403),
        ("http://127.0.0.1", 200),
        ("http://pages.example", 200),
    ],
)
def test_a_page_asks_only_where_it_is_allowed(serving: Any, origin: str, status: int) -> None:
    one = serving(door=AccessRules(origins=("http://pages.example",)))
    assert ask(one, headers={"origin": origin}).status_code == status


def test_an_allowed_page_may_read_the_answer_and_another_one_may_not_even_ask(serving: Any) -> None:
    one = serving(door=AccessRules(origins=("http://pages.example",)))
    asks = {"access-control-request-method": "POST", "access-control-request-headers": "x-a"}
    asks["access-control-request-private-network"] = "true"  # as Chrome asks
    for origin, status in (("http://pages.example", 200), ("http://evil.example", 403)):
        response = ask(one, method="OPTIONS", headers={"origin": origin, **asks})
        assert response.status_code == status
        allowed = response.headers.get("access-control-allow-origin")
        assert allowed == (origin if status == 200 else None)


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_a_body_that_a_page_can_send_unasked_is_refused(serving: Any, kind: str) -> None:
    one = serving("never")
    more: Any = {"headers": {"content-type": kind} if kind else {}, "content": b"{}"}
    assert ask(one, "/v1/chat/completions", method="POST", **more).status_code == 415
    assert one.backend.prompts == []


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"authorization": "Bearer wrong"}, 401),
        ({"authorization": "Bearer "}, 401),
        ({"authorization": "Bearer secret"}, 200),
        ({"x-api-key": "secret"}, 200),
        ({"x-api-key": "sécret"}, 401),
    ],
)
def test_with_a_key_only_who_bears_it_is_served(
    serving: Any, headers: dict[str, str], status: int
) -> None:
    one = serving(door=AccessRules(key="secret"))
    sent = {name: value.encode() for name, value in headers.items()}
    for path in ("/v1/models", "/metrics"):
        assert ask(one, path, headers=sent).status_code == status
    assert ask(one, "/health").status_code == 200


def test_without_a_key_any_is_accepted(serving: Any) -> None:
    assert ask(serving(), headers={"authorization": "Bearer none"}).status_code == 200


def test_what_is_not_served_is_an_error_in_the_same_form(serving: Any) -> None:
    response = ask(serving(), "/v1/nothing")
    assert (response.status_code, response.json()["error"]["code"]) == (404, "not_found")


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b"[" * 100_000, b'{"a": 1e999}'])
def test_a_body_that_is_no_json_object_is_refused(serving: Any, body: bytes) -> None:
    headers = {"content-type": "application/json"}
    response = ask(serving(), "/v1/chat/completions", method="POST", content=body, headers=headers)
    assert response.status_code == 400


# --- admission ------------------------------------------------------------------------------------


def test_who_waits_is_let_in_by_turns_of_clients() -> None:
    order: list[str] = []

    async def main() -> None:
        admission = Admission(1, 10, lambda: 0.0)
        first = anyio.Event()

        async def come(client: str, name: str) -> None:
            async with admission.slot(client):
                order.append(name)
                await (first.wait() if name == "a1" else anyio.sleep(0))

        async with anyio.create_task_group() as tasks:
            for client, name in (("a", "a1"), ("a", "a2"), ("a", "a3"), ("b", "b1"), ("b", "b2")):
                tasks.start_soon(come, client, name)
                await anyio.sleep(0)
            first.set()
        assert (admission.active, admission.waiting) == (0, 0)

    anyio.run(main)
    assert order == ["a1", "a2", "b1", "a3", "b2"]


@pytest.mark.parametrize("line", [0, 1])
async def test_a_full_line_says_when_to_come_again(line: int) -> None:
    admission = Admission(1, line, lambda: 0.0)
    refusals: list[ApiError] = []

    async def come() -> None:
        try:
            async with admission.slot("b"):
                pass
        except ApiError as error:
            refusals.append(error)

    async with anyio.create_task_group() as tasks, admission.slot("a"):
        for _ in range(line + 1):
            tasks.start_soon(come)
        await anyio.wait_all_tasks_blocked()
        assert (admission.active, admission.waiting) == (1, line)
    assert [(error.status, error.retry_after) for error in refusals] == [(429, 5 * (line + 1))]


async def test_who_goes_away_while_waiting_or_just_when_called_leaves_no_slot_taken() -> None:
    admission = Admission(1, 10, lambda: 0.0)

    async def come(client: str) -> None:
        async with admission.slot(client):
            await anyio.sleep(0)

    for when in range(8):
        async with anyio.create_task_group() as others:
            others.start_soon(come, "a")
            async with anyio.create_task_group() as mine:
                mine.start_soon(come, "b")
                for _ in range(when):
                    await anyio.sleep(0)
                mine.cancel_scope.cancel()
        assert (admission.active, admission.waiting) == (0, 0), when


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_never_reads_frees_its_slot(serving: Any, stream: bool) -> None:
    one = serving("Hello. " * 9)
    one.gateway.patience = 0.01
    body = json.dumps(BODY | {"stream": stream}).encode()
    asked = [{"type": "http.request", "body": body, "more_body": False}]
    headers = [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")]
    path = "/v1/chat/completions"
    scope = {"type": "http", "method": "POST", "path": path, "headers": headers}

    async def receive() -> Any:
        return asked.pop() if asked else await anyio.sleep_forever()

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            await anyio.sleep_forever()

    async def main() -> None:
        with anyio.fail_after(HANG):
            whole = scope | {"query_string": b"", "client": ("127.0.0.1", 9)}
            await one.app(whole, receive, send)

    anyio.run(main)
    assert one.gateway.admission.active == 0
