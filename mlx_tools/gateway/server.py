"""The gateway as an ASGI application: its routes, errors and process."""

from __future__ import annotations

import asyncio
import json
import re
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from socket import socket
from types import FrameType
from typing import Any, Final

import anyio
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Mount, Route, Router

from mlx_tools.app import (
    WAITING,
    AccessRules,
    Configuration,
    Guard,
    Plugins,
    Refusal,
    RunOptions,
    ServerConfig,
    config,
    listen,
    plugins,
    read_headers,
    tolerate,
    tolerate_async,
)
from mlx_tools.errors import MlxToolsError, StorageError, UsageError, describe_error
from mlx_tools.gateway.admission import Admission
from mlx_tools.gateway.anthropic_messages import (
    anthropic_messages_error,
    read_anthropic_messages,
    read_count_tokens,
)
from mlx_tools.gateway.body import MAX_PARTS
from mlx_tools.gateway.chat_completions import read_chat_completion, read_completion
from mlx_tools.gateway.exchange import (
    SEND_SECONDS,
    Sender,
    left_out_headers,
    read_body,
    read_json,
)
from mlx_tools.gateway.message_memory import MessageMemory
from mlx_tools.gateway.meters import Meters
from mlx_tools.gateway.openapi import OPERATIONS, SCHEMAS, Operation, openapi_document
from mlx_tools.gateway.request import (
    ApiError,
    Emit,
    JsonObject,
    Reply,
    TurnDone,
    TurnRequest,
    as_api_error,
    invalid,
    openai_error,
)
from mlx_tools.gateway.responses import read_responses, responses_error
from mlx_tools.gateway.served_models import DEFAULT, Note, ServedModels
from mlx_tools.gateway.turn import TurnRunner
from mlx_tools.gateway.turn_stream import Clock, TurnStream
from mlx_tools.messages import replace

ReadBody = Callable[[JsonObject], tuple[TurnRequest, Reply]]
ErrorBody = Callable[[ApiError], JsonObject]


_ADDITIONS: Final = (
    *("on_startup", "on_listening", "on_shutdown", "on_cleanup"),
    *("gauges", "operations", "schemas", "shared", "page_path"),
)
"""The attributes of a gateway that plugins add to."""


@dataclass
class Gateway:
    """The parts that the routes of a gateway share.

    Plugins get it in the hook ``routes``, and may add to its lists there.

    Attributes:
        configuration: The settings.
        models: The models that are served.
        admission: How many turns are taken at once.
        meters: The counters.
        note: Tells the person at the terminal a line.
        temperature: The temperature of requests that do not name one.
        now: The wall clock.
        new_id: Gives ids.
        patience: Seconds that a client may take to take in what is sent.
        clock: The clock by which streams that are silent say that they live.
        on_startup: Are called and awaited before it serves.
        on_listening: Are called with the gateway's address, which ends with ``/``, once it listens.
        on_shutdown: Are called as soon as it is told to end: what streams without end ends then.
        on_cleanup: Are called and awaited at the end, before the models are closed.
        gauges: For ``/metrics``, by what is counted: returns a number for each gauge. They are
            called in a thread.
        operations: The operations in ``/openapi.json``.
        schemas: The schemas that these name.
        shared: What plugins keep for this gateway, by the plugin's name.
        page_path: The path of the page (`set_page_path`), empty without one.
    """

    configuration: Configuration
    models: ServedModels
    admission: Admission
    meters: Meters
    note: Note
    temperature: float = 0.0
    now: Callable[[], float] = time.time
    new_id: Callable[[], str] = lambda: secrets.token_hex(12)
    patience: float = SEND_SECONDS
    clock: Clock = field(default_factory=Clock)
    on_startup: list[Callable[[], Awaitable[None]]] = field(default_factory=list)
    on_listening: list[Callable[[str], None]] = field(default_factory=list)
    on_shutdown: list[Callable[[], None]] = field(default_factory=list)
    on_cleanup: list[Callable[[], Awaitable[None]]] = field(default_factory=list)
    gauges: dict[str, Callable[[], Mapping[str, int]]] = field(default_factory=dict)
    operations: list[Operation] = field(default_factory=lambda: [*OPERATIONS])
    schemas: dict[str, Any] = field(default_factory=lambda: dict(SCHEMAS))
    shared: dict[str, Any] = field(default_factory=dict)
    page_path: str = ""

    def set_page_path(self, path: str) -> None:
        """Serve ``/`` and all below ``path`` without the gateway's key.

        A browser sends that key with no link. The routes there must check a key of their own.

        Raises:
            UsageError: it is no ``/NAME/``, it is the gateway's own, or there is a page already.
        """
        if not re.fullmatch(r"/[a-z][a-z0-9_-]*/", path) or path == "/v1/":
            raise UsageError(f"{path!r:.80} is no path for a page", hint="/NAME/, but not /v1/")
        if self.page_path:
            raise UsageError(f"there is a page at {self.page_path} already")
        self.page_path = path

    def additions(self) -> dict[str, Any]:
        """Return a copy of what plugins have added."""
        return {name: copy(getattr(self, name)) for name in _ADDITIONS}

    def restore(self, additions: Mapping[str, Any]) -> None:
        """Restore such a copy: nothing stays of a plugin that fails."""
        for name, value in additions.items():
            setattr(self, name, value)

    def shut_down(self) -> None:
        """Notify plugins that the gateway ends."""
        for tell in self.on_shutdown:
            tell()


def application(gateway: Gateway, door: AccessRules, hooks: Plugins | None = None) -> Starlette:
    """Return the application.

    Its models are opened when it starts, and closed when it ends.

    Args:
        gateway: The parts that its routes share.
        door: Who may send requests.
        hooks: The plugins, None for those of this process.
    """
    plugin_routes = _plugin_routes(gateway, hooks or plugins())
    door = replace(door, page=gateway.page_path)

    middleware = [Middleware(Guard, door=door, error_body=_refusal_body)]
    if door.origins:  # the guard refuses pages of others
        middleware.append(
            Middleware(
                CORSMiddleware,
                allow_origins=list(door.origins),
                allow_private_network=True,  # only of these origins
                allow_methods=["GET", "POST"],
                allow_headers=["*"],
            )
        )
    return _make_application(gateway, plugin_routes, middleware)


def _make_application(
    gateway: Gateway, plugin_routes: Sequence[BaseRoute], middleware: Sequence[Middleware]
) -> Starlette:
    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            stack.push_async_callback(gateway.models.aclose)
            for close in gateway.on_cleanup:
                stack.push_async_callback(close)
            for start in gateway.on_startup:
                await start()
            yield

    app = Starlette(
        routes=[
            *_turn_routes(gateway),
            Route("/v1/messages/count_tokens", _count_tokens, methods=["POST"]),
            Route("/v1/models", _models),
            Route("/v1/models/{name:path}", _model),
            Route("/health", _health),
            Route("/openapi.json", _openapi_response),
            Route("/metrics", _metrics),
            *plugin_routes,
        ],
        middleware=middleware,
        exception_handlers=dict.fromkeys(
            (ApiError, StorageError, ClientDisconnect, 404, 405, 500), _error_response
        ),
        lifespan=lifespan,
    )
    app.state.gateway = gateway
    return app


def _plugin_routes(gateway: Gateway, hooks: Plugins) -> list[BaseRoute]:
    """Return the routes of plugins, those of the page first."""
    page: list[BaseRoute] = []
    others: list[BaseRoute] = []
    names = [(name, True) for name in hooks.built_in("routes")]
    names += [(name, False) for name in hooks.installed("routes")]
    for name, built_in in names:
        before = gateway.additions()
        results = [*hooks.call_one(name, "routes", built_in=built_in, gateway=gateway)]
        if results and not built_in and (fault := _addition_fault(gateway, before)):
            hooks.refuse(name, f"routes: {fault}")
            results = []
        if not results:
            gateway.restore(before)
        else:
            refuse = partial(hooks.refuse, name)
            _guard_additions(gateway, before, refuse, built_in=built_in)
        has_page = gateway.page_path != before["page_path"]
        (page if has_page else others).extend(route for _, routes in results for route in routes)
    if gateway.page_path:
        # The gateway asks for no key below these paths, so no other plugin may serve anything
        # there.
        nothing = Router(redirect_slashes=False)
        paths = ("/", gateway.page_path.rstrip("/"))
        page += [*(Route(path, nothing) for path in paths), Mount(gateway.page_path, nothing)]
    return [*page, *others]


def _addition_fault(gateway: Gateway, old_additions: Mapping[str, Any]) -> str | None:
    """Return why the additions of a plugin cannot be used, None if they can.

    Args:
        gateway: the gateway.
        old_additions: its additions without the plugin.
    """
    for name, old in old_additions.items():
        if not isinstance(value := getattr(gateway, name), type(old)):
            return f"{name} is {type(value).__name__} now, and was {type(old).__name__}"
    try:
        json.dumps(openapi_document(gateway.operations, gateway.schemas))
    except Exception as error:  # somebody else's values: they may be anything
        return f"its operations or schemas cannot be described: {describe_error(error)}"
    return None


def _guard_additions(
    gateway: Gateway,
    old_additions: Mapping[str, Any],
    refuse: Callable[[str], None],
    *,
    built_in: bool,
) -> None:
    """Report what a plugin has added if it fails; the gateway goes on.

    Args:
        gateway: the gateway.
        old_additions: its additions without the plugin.
        refuse: reports a failure.
        built_in: True for a plugin of our own: the gateway does not serve if its start fails.
    """
    guards: dict[str, Callable[..., Any]] = {
        **({} if built_in else {"on_startup": tolerate_async}),
        "on_cleanup": tolerate_async,
        "on_listening": tolerate,
        "on_shutdown": tolerate,
    }
    for place, guard in guards.items():
        functions, size = getattr(gateway, place), len(old_additions[place])
        functions[size:] = [guard(function, refuse, place) for function in functions[size:]]
    for what, load in gateway.gauges.items():
        if old_additions["gauges"].get(what) is not load:
            gateway.gauges[what] = tolerate(partial(_counts, load), refuse, "gauges", {})


def _counts(load: Callable[[], Mapping[str, int]]) -> dict[str, int]:
    """Return the numbers of a plugin's gauges, by their names."""
    return {str(name): int(count) for name, count in load().items()}


def _turn_routes(gateway: Gateway) -> list[Route]:
    made: dict[str, Any] = {"new_id": gateway.new_id, "now": gateway.now}
    chat, plain = partial(read_chat_completion, **made), partial(read_completion, **made)
    responses = partial(read_responses, **made, temperature=gateway.temperature)
    messages = partial(read_anthropic_messages, new_id=gateway.new_id)
    turns = {
        "/v1/chat/completions": _ChatEndpoint(gateway, chat, openai_error),
        "/v1/completions": _TurnEndpoint(gateway, plain, openai_error),
        "/v1/responses": _TurnEndpoint(gateway, responses, responses_error),
        "/v1/messages": _TurnEndpoint(gateway, messages, anthropic_messages_error),
    }
    return [Route(path, endpoint, methods=["POST"]) for path, endpoint in turns.items()]


# --- turns ----------------------------------------------------------------------------------------


class _TurnEndpoint:
    """The endpoint of one interface, as an ASGI application."""

    def __init__(self, gateway: Gateway, read: ReadBody, error_body: ErrorBody) -> None:
        self._gateway, self._read, self._error_body = gateway, read, error_body

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        gateway, request = self._gateway, Request(scope, receive)
        sender = Sender(send, gateway.patience)
        gateway.meters.count("requests_total", path=scope["path"])
        error: ApiError | None = None
        try:
            turn, reply = await self._read_turn(await read_body(request, "application/json"))
            async with sender.with_client(receive):
                try:
                    speaker = await gateway.models.speaker(turn.model)
                    async with gateway.admission.slot(_identify_client(request)):
                        await self._answer(speaker, turn, reply, sender)
                except ApiError as wrong:  # tasks would wrap it
                    error = wrong
        except ClientDisconnect:
            return
        except ApiError as wrong:
            error = wrong
        if error is not None:
            gateway.meters.count("errors_total", code=error.code)
            await sender.whole(error.status, self._error_body(error), error.headers)

    async def _read_turn(self, body: bytes) -> tuple[TurnRequest, Reply]:
        """Read a body. Raises `ApiError` for one that is wrong."""
        turn, reply = await read_json(body, self._read)
        return _check_turn(turn, body, reply), reply

    async def _answer(
        self, speaker: TurnRunner, turn: TurnRequest, reply: Reply, sender: Sender
    ) -> None:
        gateway = self._gateway
        turn = await speaker.prepare(turn)
        headers = left_out_headers(turn.left_out)
        if turn.catalog_note:
            headers["x-mlx-tools-shortened"] = turn.catalog_note

        async def take(emit: Emit) -> TurnDone:
            began = anyio.current_time()
            done = await speaker.run(turn, emit, lambda: f"call_{gateway.new_id()}")
            seconds, model = anyio.current_time() - began, speaker.profile.settings.model or DEFAULT
            gateway.meters.turn(model, done.usage, seconds, done.repairs)
            return done

        if reply.streamed:
            await TurnStream(reply, sender, headers, gateway.clock).send(take)
            return
        done = await take(lambda event: None)
        await sender.whole(200, reply.whole(done), headers | _done_headers(done))


class _ChatEndpoint(_TurnEndpoint):
    """The endpoint of chat completions: of a long conversation it reads what is new."""

    def __init__(self, gateway: Gateway, read: ReadBody, error_body: ErrorBody) -> None:
        super().__init__(gateway, read, error_body)
        self._memory = MessageMemory()

    async def _read_turn(self, body: bytes) -> tuple[TurnRequest, Reply]:
        turn, reply = await self._memory.read(body, partial(read_json, read=self._read_with_tools))
        return _check_turn(turn, body, reply), reply

    def _read_with_tools(self, body: JsonObject) -> tuple[TurnRequest, Reply, Any]:
        return *self._read(body), body.get("tools")


def _check_turn(turn: TurnRequest, body: bytes, reply: Reply) -> TurnRequest:
    """Return a turn with the size of its body.

    Raises `ApiError` if it has too many messages.
    """
    return replace(_check_bounds(turn), size=len(body), streamed=reply.streamed)


def _check_bounds(turn: TurnRequest) -> TurnRequest:
    """Return a turn. Raises `ApiError` if it has too many messages or calls."""
    if turn.messages_count > MAX_PARTS:
        raise invalid("messages", f"more than {MAX_PARTS} messages and calls")
    return turn


def _identify_client(request: Request) -> str:
    """Return the client of a request, by which waiting requests take turns."""
    host = request.client.host if request.client is not None else ""
    return f"{host} {request.headers.get('user-agent', '')}"


def _done_headers(done: TurnDone) -> dict[str, str]:
    """Return the headers with notes on a turn's calls and its answer."""
    headers: dict[str, str] = {}
    for name, value in done.notes.items():
        header = f"x-mlx-tools-{name.replace('_', '-')}"
        headers[header] = ", ".join(value) if isinstance(value, list) else "true"
    return headers


# --- the rest -------------------------------------------------------------------------------------


async def _models(request: Request) -> Response:
    rows = request.app.state.gateway.models.rows()
    ids = [row["id"] for row in rows]
    # in Anthropic's form of the list
    pages = {"has_more": False, "first_id": ids[0], "last_id": ids[-1]}
    return JSONResponse({"object": "list", "data": rows, **pages})


async def _model(request: Request) -> Response:
    models, name = request.app.state.gateway.models, request.path_params["name"]
    served = models.served_name(name)
    row = next(row for row in models.rows() if row["id"] == served)
    return JSONResponse({**row, "id": name})


async def _count_tokens(request: Request) -> Response:
    body = await read_body(request, "application/json")
    turn = replace(_check_bounds(await read_json(body, read_count_tokens)), size=len(body))
    speaker = await request.app.state.gateway.models.speaker(turn.model)
    return JSONResponse({"input_tokens": await speaker.count(turn)})


async def _health(request: Request) -> Response:
    return JSONResponse({"status": "ok", "server": "mlx-tools"})


async def _openapi_response(request: Request) -> Response:
    gateway = request.app.state.gateway
    return JSONResponse(openapi_document(gateway.operations, gateway.schemas))


async def _metrics(request: Request) -> Response:
    gateway = request.app.state.gateway
    turns = gateway.admission
    gauges = {"active": {"turns": turns.active}, "waiting": {"turns": turns.waiting}}
    for what, load in gateway.gauges.items():
        for name, count in (await anyio.to_thread.run_sync(load)).items():
            gauges.setdefault(name, {})[what] = count
    return PlainTextResponse(gateway.meters.text(gauges), media_type="text/plain; version=0.0.4")


def _refusal_body(refusal: Refusal) -> JsonObject:
    error = ApiError(refusal.status, refusal.code, refusal.message)
    scope = refusal.scope or {"path": "", "headers": []}
    return _error_body(error, scope["path"], read_headers(scope))


def _error_body(error: ApiError, path: str, headers: Mapping[str, str]) -> JsonObject:
    """Return the body of an error, in the form of the interface that was asked."""
    if path.startswith("/v1/messages") or "anthropic-version" in headers:
        return anthropic_messages_error(error)
    return responses_error(error) if path == "/v1/responses" else openai_error(error)


async def _error_response(request: Request, error: Exception) -> Response:
    """Return the response for an error, in the form of the interface at its path."""
    path = request.url.path
    match error:
        case MlxToolsError():
            told = as_api_error(error)
        case ClientDisconnect():
            told = ApiError(400, "client_disconnected", "the body did not come to its end")
        case HTTPException():
            problem = f"{request.method} {path} is not served here"
            told = ApiError(error.status_code, "not_found", problem)
        case _:
            problem = f"the gateway failed: {type(error).__name__}"
            told = ApiError(500, "internal_error", problem)
    headers = told.headers | dict(getattr(error, "headers", None) or {})
    body = _error_body(told, path, request.headers)
    return JSONResponse(body, told.status, headers=headers)


# --- serving --------------------------------------------------------------------------------------


GRACE_SECONDS: Final = 30
"""Seconds that requests may take to end once the gateway is asked to end."""


async def serve(options: RunOptions, key: str, note: Note) -> None:
    """Serve as the settings say.

    Args:
        options: The settings, and what the command line says.
        key: The key that clients must bear, empty if none.
        note: Is told what a person at the terminal should know.

    Raises:
        UsageError: its port cannot be had.
    """
    own = options.configuration.settings.gateway
    gateway = _make_gateway(options, note)
    models = gateway.models
    door = AccessRules(hosts={own.host, *own.hosts}, origins=own.origins, key=key)
    app = application(gateway, door)
    server_config = ServerConfig(app, GRACE_SECONDS)
    with listen(own.host, own.port) as listening:
        await models.open()
        host, port = listening.getsockname()[:2]
        address = http_address(host, port)

        def tell_started() -> None:
            note(f"{models.rows()[0]['id']} is served at {address}v1")
            for tell in gateway.on_listening:
                tell(address)

        lifespan = app.router.lifespan_context(app)
        server = GatewayServer(server_config, lifespan, tell_started, gateway.shut_down)
        await server.serve(sockets=[listening])


def _make_gateway(options: RunOptions, note: Note) -> Gateway:
    own = options.configuration.settings.gateway
    return Gateway(
        options.configuration,
        ServedModels(options, note, own.models, own.any_model),
        Admission(own.concurrency, WAITING, time.monotonic),
        Meters(),
        note,
        temperature=options.configuration.settings.model.temperature,
    )


@asynccontextmanager
async def open_turns(
    url: str,
    *,
    settings: Mapping[str, str | bool | Sequence[str]] | None = None,
    note: Note = lambda text: None,
) -> AsyncIterator[Starlette]:
    """Open the gateway's turns as an ASGI application in this process.

    It answers as ``mlx-tools serve`` does, but for runs and the page. It does not check who asks:
    that is for the program that passes requests on to it.

    Args:
        url: The model server's address.
        settings: Further settings by their keys, as ``mlx-tools config set`` takes them, such as
            ``{"model.name": "qwen3-4b"}``. They override those of files and the environment.
        note: Called with a line for each thing that a person should know.

    Raises:
        ConfigErrors: a setting is wrong.
        BackendUnreachable: no server answers at the address.
    """
    given = {"backend.url": url, **(settings or {})}
    options = RunOptions(configuration=config.load(options=given))
    for warning in options.configuration.warnings:
        note(warning)
    gateway = _make_gateway(options, note)
    app = _make_application(gateway, (), ())
    async with app.router.lifespan_context(app):
        await gateway.models.open()
        yield app


def http_address(host: str, port: int) -> str:
    """Return the address of a server that listens there. It ends with ``/``."""
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


class GatewayServer(uvicorn.Server):
    """A server that opens and closes its application itself.

    uvicorn would print an exception at the application's start as a traceback.

    Args:
        config: the settings.
        lifespan: is open while the server serves. Its exceptions are raised by ``serve``.
        on_started: called once it serves.
        on_ending: called as soon as it is told to end: what streams without end ends then.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        lifespan: AbstractAsyncContextManager[Any],
        on_started: Callable[[], None],
        on_ending: Callable[[], None],
    ) -> None:
        config.lifespan = "off"
        super().__init__(config)
        self._loop = asyncio.get_running_loop()
        self._on_started, self._on_ending = on_started, on_ending
        self._lifespan, self._open = lifespan, AsyncExitStack()

    async def startup(self, sockets: list[socket] | None = None) -> None:
        """Open the application, then accept connections."""
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._lifespan)
            await super().startup(sockets)
            self._on_started()
            self._open = stack.pop_all()

    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        """End all connections, then close the application unless it is told twice to end."""
        await super().shutdown(sockets)
        if not self.force_exit:
            await self._open.aclose()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Ask the application to end."""
        self._loop.call_soon_threadsafe(self._on_ending)
        super().handle_exit(sig, frame)
