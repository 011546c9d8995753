"""A gateway in this process, on a model that says what it is told to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import httpx
import httpx2
import pytest

from mlx_tools import Tool, tool
from mlx_tools.app import AccessRules, Plugins, RunOptions, config
from mlx_tools.backends import TokenCounter
from mlx_tools.controller import RunSettings
from mlx_tools.gateway.admission import Admission
from mlx_tools.gateway.conversation import PromptProfile
from mlx_tools.gateway.meters import Meters
from mlx_tools.gateway.run_worker import RunWorker
from mlx_tools.gateway.runs import open_runs
from mlx_tools.gateway.served_models import ServedModels
from mlx_tools.gateway.server import Gateway, application
from mlx_tools.gateway.turn import TurnRunner
from mlx_tools.policy import Limits
from mlx_tools.prompt import NAMED_FORMATS, ChatFormat
from mlx_tools.store import TranscriptStore, load_words
from mlx_tools.testing import ScriptedBackend
from mlx_tools.tools import Registry
from tests.waiting import HANG


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


def speaker_of(
    backend: Any,
    *,
    chat_format: ChatFormat = NAMED_FORMATS["chatml"],
    style: Any = "jsonl",
    strategy: Any = "auto",
    **settings: Any,
) -> TurnRunner:
    """A model that is spoken to in the usual way."""
    made = RunSettings(chat_format=chat_format, style=style, model="scripted", **settings)
    manner = PromptProfile(
        settings=made, chat_format=chat_format, style=style, strategy=strategy, words=load_words()
    )
    return TurnRunner(backend, manner, Limits(), TokenCounter())


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


# --- runs ----

KEY = {"authorization": "Bearer one"}


class Tools:
    """A tool that reads and one that writes; ``written`` is what was, ``hold`` has the latter wait
    before it is done. ``closed`` counts what was ended of what they keep open."""

    def __init__(self) -> None:
        self.written: list[str] = []
        self.closed = 0
        self.hold: Callable[[], Any] | None = None

    def registry(self) -> Registry:
        """The tools, which count how often they are closed."""
        registry = Registry(self.made())
        registry.closers.append(self._close)
        return registry

    async def _close(self) -> None:
        self.closed += 1

    def made(self) -> list[Tool]:
        @tool(effects={"read"})
        def area(width: float, height: float) -> float:
            """Area of a rectangle."""
            return width * height

        @tool(effects={"write"})
        async def keep(text: str) -> str:
            """Keeps a text."""
            self.written.append(text)
            if self.hold is not None:
                await self.hold()
            return "kept"

        return [area, keep]


@pytest.fixture
def begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
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
        monkeypatch.setattr("mlx_tools.gateway.runs.LOOK", 0.05)
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
        backend, tools, numbers = backend or ScriptedBackend(*scripts), Tools(), count(1)
        speaker = speaker_of(backend, **(manner or {}))
        models: Any = ServedModels(
            RunOptions(configuration=loaded),
            [].append,
            _speakers={"scripted": speaker},
            _names=("scripted", "unasked"),
        )
        meters, places = Meters(), Admission(2, most, lambda: 0.0)
        registry = lambda header: tools.registry()  # noqa: E731
        runs = open_runs(loaded, models, [].append, places, meters, registry)
        gateway = Gateway(
            loaded,
            models,
            Admission(4, 8, lambda: 0.0),
            runs,
            meters,
            [].append,
            now=lambda: 1_700_000_000.0,
            new_id=lambda: f"{next(numbers):08x}",
        )
        app = application(gateway, door or AccessRules(), hooks)
        transport = httpx.ASGITransport(app)
        client = httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", headers=KEY)

        async def nothing() -> None:
            return

        def worker() -> RunWorker:
            """Return a worker for runs that are left to a queue."""
            queue, served = runs.execution.queue, ("scripted", "default")
            assert queue is not None
            return RunWorker(runs.execution, queue, 2, served, nothing, [].append)

        shared = {
            "runs": runs,
            "speaker": speaker,
            "meters": meters,
            "backend": backend,
            "tools": tools,
            "worker": worker,
            "gateway": gateway,
            "transport": transport,
        }
        return SimpleNamespace(client=client, app=app, **shared)

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


async def ask(one: Any, **body: Any) -> dict[str, Any]:
    """A run that was made, at rest."""
    made = await one.client.post("/v1/runs", json={"question": "How large?", **body})
    assert made.status_code == 201, made.text
    return await rested(one, made.json()["id"])


async def queued(one: Any) -> dict[str, Any]:
    """A run that was just made."""
    made: dict[str, Any] = (await one.client.post("/v1/runs", json={"question": "x"})).json()
    return made


async def ended(one: Any, run: str) -> None:
    """Wait until a run is no longer at work here."""
    if (live := one.runs.workers.live_run(run)) is not None:
        with anyio.fail_after(HANG):
            await live.has_ended.wait()


async def rested(one: Any, run: str) -> dict[str, Any]:
    await ended(one, run)
    return (await one.client.get(f"/v1/runs/{run}")).json()


def deciding(begin: Any, *scripts: Any) -> Any:
    return begin(*scripts, file='[gateway]\napprovals = "client"\n')


def transcript_of(one: Any, run: str) -> Path:
    """The file of a run's transcript."""
    assert isinstance(one.runs.sessions, TranscriptStore)
    return one.runs.sessions.path(run)


def waiting(event: anyio.Event, text: str) -> Any:
    """A completion that comes when something has happened."""

    class Slow(ScriptedBackend):
        async def complete(self, request: Any) -> Any:
            await event.wait()
            async for chunk in super().complete(request):
                yield chunk

    return Slow(text)
