"""A gateway in this process, on a model that says what it is told to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import httpx
import httpx2
import pytest

from mlx_tools.app import AccessRules, Plugins, config
from mlx_tools.gateway.server import application
from mlx_tools.testing import ScriptedBackend, make_gateway, make_turn_runner


@pytest.fixture
def anyio_backend() -> str:
    """On what tests run that are coroutines."""
    return "asyncio"


WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
}


def send(one: Any, method: str, path: str, body: Any = None, **headers: str) -> Any:
    """The answer to a request."""

    async def ask() -> Any:
        return await one.client.request(method, path, json=body, headers=headers)

    return anyio.run(ask)


def chat(one: Any, **body: Any) -> Any:
    """The answer of chat completions."""
    asked = [{"role": "user", "content": "What is the weather in Rome?"}]
    usual = {"model": "scripted", "messages": asked}
    return send(one, "POST", "/v1/chat/completions", {**usual, **body})


def respond(one: Any, **body: Any) -> Any:
    """The answer of the responses interface."""
    return send(one, "POST", "/v1/responses", {"model": "scripted", "input": "Rome?", **body})


def write_message(one: Any, **body: Any) -> Any:
    """The answer of the messages interface."""
    asked = [{"role": "user", "content": "Rome?"}]
    usual = {"model": "scripted", "max_tokens": 99, "messages": asked}
    return send(one, "POST", "/v1/messages", {**usual, **body})


def with_client(kind: Any, path: str, one: Any, use: Callable[[Any], Any]) -> Any:
    """The result of the use of an official client of this kind, which asks a gateway."""

    async def run() -> Any:
        http = httpx2.AsyncClient(transport=httpx2.ASGITransport(one.transport.app))
        address = f"http://127.0.0.1{path}"
        async with kind(api_key="k", base_url=address, http_client=http, max_retries=0) as client:
            return await use(client)

    return anyio.run(run)


KEY = {"authorization": "Bearer one"}


@pytest.fixture
def prepare() -> Callable[..., dict[str, Any]]:
    """Prepare the parts of a gateway for a plugin's tests; the values become the client's."""
    return lambda gateway, most: {}


@pytest.fixture
def begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prepare: Callable[..., dict[str, Any]]
) -> Callable[..., Any]:
    """Give a gateway whose model writes these completions, and a client of it. ``manner`` is how
    the model is spoken to, ``options`` are settings, with two lines for a point."""

    def made(
        *scripts: Any,
        state: str = "state",
        door: AccessRules | None = None,
        hooks: Plugins | None = None,
        backend: Any = None,
        manner: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Any:
        monkeypatch.setenv("MLX_TOOLS_STATE_DIR", str(tmp_path / state))
        own, most = tmp_path / "config.toml", options.pop("most", 10)
        own.write_text(options.pop("file", ""))
        environ = options.pop("environ", {})
        given = {name.replace("__", "."): value for name, value in options.items()}
        loaded = config.load(
            options={"policy.allow": "area,keep", **given},
            environ=environ,
            cwd=tmp_path,
            user_file=own,
            home=tmp_path,
        )
        backend = backend or ScriptedBackend(*scripts)
        speaker = make_turn_runner(backend, **(manner or {}))
        gateway = make_gateway(speaker, loaded, ("scripted", "unasked"))
        prepared = prepare(gateway, most)
        app = application(gateway, door or AccessRules(), hooks)
        transport = httpx.ASGITransport(app)
        client = httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", headers=KEY)

        shared = {
            "speaker": speaker,
            "meters": gateway.meters,
            "backend": backend,
            "gateway": gateway,
            "transport": transport,
        }
        return SimpleNamespace(client=client, app=app, **shared, **prepared)

    return made


@pytest.fixture
def serving(begin: Any) -> Callable[..., Any]:
    """As `begin`, for a client without a key; what is named besides is how the model is spoken
    to."""

    def serve(
        *scripts: Any, door: AccessRules | None = None, backend: Any = None, **manner: Any
    ) -> Any:
        one = begin(*scripts, door=door, backend=backend, manner=manner)
        del one.client.headers["authorization"]
        return one

    return serve


@pytest.fixture
def house(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Begin a gateway that is a process, whose model writes these completions."""
    from tests.gateway.processes import House

    begun: list[House] = []

    def begin(*scripts: Any, **more: Any) -> House:
        begun.append(House(tmp_path, *scripts, **more))
        return begun[-1]

    yield begin
    for one in begun:
        one.close()
