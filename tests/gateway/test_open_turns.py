"""The gateway's turns in a program's own process."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from mlx_tools.errors import BackendUnreachable
from mlx_tools.gateway import open_turns
from mlx_tools.testing import ScriptedServer, answer, call
from tests.gateway.conftest import WEATHER
from tests.ports import free_port

pytestmark = pytest.mark.anyio


async def test_a_program_answers_with_turns_below_a_path_of_its_own() -> None:
    notes: list[str] = []
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Is it raining in Oslo?"}]
    with ScriptedServer(call("get_weather", city="Oslo"), answer("It rains.")) as server:
        async with open_turns(
            server.url, settings={"gateway.any_model": "true"}, note=notes.append
        ) as turns:
            transport = httpx.ASGITransport(Starlette(routes=[Mount("/local", turns)]))
            base_url = "http://router.example.org/local/v1"  # the program says who may ask
            async with httpx.AsyncClient(transport=transport, base_url=base_url) as client:

                async def ask(**body: Any) -> Any:
                    body = {"model": "small-1", "messages": messages, **body}
                    return (await client.post("/chat/completions", json=body)).json()

                turn = (await ask(tools=[WEATHER]))["choices"][0]["message"]
                (made,) = turn["tool_calls"]
                assert made["function"] == {"name": "get_weather", "arguments": '{"city":"Oslo"}'}
                result = {"role": "tool", "tool_call_id": made["id"], "content": "rain"}
                messages += turn, result
                last = (await ask(tools=[WEATHER]))["choices"][0]["message"]
                assert last["content"] == "It rains."
                # What acts on this machine is not there.
                assert (await client.get("/runs")).status_code == 404
    assert any("is asked by a prompt" in note for note in notes)


async def test_a_server_that_does_not_answer_is_told_at_once() -> None:
    with pytest.raises(BackendUnreachable):
        async with open_turns(f"http://127.0.0.1:{free_port()}"):
            raise AssertionError
