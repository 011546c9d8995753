"""What all interfaces have in common, over the whole of the gateway."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from mlx_tools.app import Door
from mlx_tools.backends import Chunk, CompletionRequest
from mlx_tools.errors import BackendBroken
from tests.gateway.conftest import chat, respond, send, write_message


def test_errors_have_the_shape_of_their_interface(serving: Any) -> None:
    one = serving(context=10)
    long = write_message(one, messages=[{"role": "user", "content": "a " * 400}])
    assert (long.status_code, long.json()["error"]["type"]) == (400, "invalid_request_error")
    assert long.json()["error"]["message"].startswith("prompt is too long: ")
    told = respond(one, input="a " * 400).json()["error"]
    assert (told["code"], told["param"]) == ("context_length_exceeded", "input")
    missing = send(one, "GET", "/v1/responses/resp_none")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "not_found")


def test_a_key_is_taken_from_either_header(serving: Any) -> None:
    one = serving("Rain.", "Rain.", door=Door(key="secret"))
    body = {"model": "scripted", "input": "Rome?"}
    assert send(one, "POST", "/v1/responses", body).status_code == 401
    for header in ({"x-api-key": "secret"}, {"authorization": "Bearer secret"}):
        assert send(one, "POST", "/v1/responses", body, **header).status_code == 200


class BreaksOff:
    """A server that begins to answer."""

    async def complete(self, request: CompletionRequest) -> AsyncIterator[Chunk]:
        yield Chunk("Rain and ")
        raise BackendBroken("it broke off")


@pytest.mark.parametrize("ask", [respond, write_message, chat])
def test_a_server_that_breaks_off_in_the_middle_is_told_behind_what_came(
    serving: Any, ask: Any
) -> None:
    response = ask(serving(backend=BreaksOff()), stream=True)
    *before, last = [line for line in response.text.split("\n") if line.startswith("data: {")]
    assert "Rain and " in "".join(before)
    told = json.loads(last.removeprefix("data: "))
    assert (told.get("response") or told)["error"]["message"] == "it broke off"


@pytest.mark.parametrize("name", ["a\r\nset-cookie: b", "名前", "\x00", "é", ""])
def test_a_field_of_any_name_is_named_in_a_header_that_can_be_sent(serving: Any, name: str) -> None:
    one = serving("Rain.", "Rain.")
    for stream in (False, True):
        response = respond(one, **{name: 1}, stream=stream)
        assert response.status_code == 200
        assert "set-cookie" not in response.headers
        left_out = response.headers["x-mlx-tools-left-out"]
        assert left_out.isascii() and left_out.isprintable()
