"""The server on its two transports: standard input and output, and streamable HTTP at ``/mcp``."""

from __future__ import annotations

import asyncio
import io
import os
import stat
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, BinaryIO, Final, Self, TextIO

import anyio
import uvicorn
from mcp.server.stdio import stdio_server
from mcp.server.transport_security import TransportSecuritySettings
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware

from mlx_tools.app import LOCAL_NAMES, Door, Guard, Refusal, listen
from mlx_tools.mcp.mcp_server import LEFT, McpServer

PATH: Final = "/mcp"

MAX_LINE: Final = 4 << 20
"""Bytes of a message on standard input, as many as the SDK takes over HTTP."""

GRACE_SECONDS: Final = 3
"""How long requests may take to end once the server is told to."""


async def serve_stdio(served: McpServer, out: TextIO) -> None:
    """Serve the program that started this one, until it closes standard input. Nothing else may
    write to ``out``."""
    server = served.server()
    try:
        with _standard_input() as file:
            async with (
                _lines_of(file) as lines,
                stdio_server(lines, anyio.wrap_file(out)) as (read, write),
            ):
                await server.run(read, write, server.create_initialization_options())
    finally:
        await served.delegation.aclose()


@contextmanager
def _standard_input() -> Iterator[BinaryIO]:
    """Standard input, which nothing that is started meanwhile can read from."""
    own, nothing = os.dup(0), os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    try:
        with os.fdopen(own, "rb", closefd=False) as file:
            yield file
    finally:
        os.set_blocking(own, True)
        os.dup2(own, 0)
        os.close(own)


@asynccontextmanager
async def _lines_of(file: BinaryIO) -> AsyncIterator[Any]:
    """The lines of a file as texts."""
    mode = os.fstat(file.fileno()).st_mode
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or file.isatty()):
        yield anyio.wrap_file(io.TextIOWrapper(file, "utf-8", "replace"))  # it never waits
        return
    reader, loop = asyncio.StreamReader(limit=MAX_LINE), asyncio.get_running_loop()
    made = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), file)
    try:
        yield _Lines(reader)
    finally:
        made[0].close()


class _Lines:
    """The lines of a pipe, none longer than `MAX_LINE`: who sends a longer one is heard no more.
    Unlike a thread that reads, it can be stopped."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> str:
        try:
            line = await self._reader.readline()
        except ValueError:
            line = b""
        if not line:
            raise StopAsyncIteration
        return line.decode("utf-8", "replace")


async def serve_http(
    served: McpServer, host: str, port: int, door: Door, note: Callable[[str], None]
) -> None:
    """Serve whoever the door lets in, until stopped. Raises `UsageError` where the port cannot be
    had."""
    config = uvicorn.Config(
        http_application(served, door),
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    try:
        with listen(host, port) as listening:
            own, port = listening.getsockname()[:2]
            note(f"served at http://{f'[{own}]' if ':' in own else own}:{port}{PATH}")
            await uvicorn.Server(config).serve(sockets=[listening])
    finally:
        await served.delegation.aclose()


def http_application(served: McpServer, door: Door) -> Any:
    """The server as an ASGI application behind a door. The SDK is told its names and pages."""
    names = [f"[{name}]" if ":" in name else name for name in {*LOCAL_NAMES, *door.hosts}]
    own = [f"{scheme}://{name}" for scheme in ("http", "https") for name in names]
    security = TransportSecuritySettings(
        allowed_hosts=[*names, *(f"{name}:*" for name in names)],
        allowed_origins=[*own, *(f"{origin}:*" for origin in own), *door.origins],
    )
    app: Starlette = served.server().streamable_http_app(
        streamable_http_path=PATH, transport_security=security
    )
    app.user_middleware = [
        Middleware(Guard, door=door, error_body=_refused),
        Middleware(
            CORSMiddleware,
            allow_origins=list(door.origins),
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"],
            expose_headers=["mcp-session-id"],
        ),
        Middleware(_Leaving),
        *app.user_middleware,
    ]
    return app


def _refused(refusal: Refusal) -> dict[str, Any]:
    error = {"code": -32000, "message": refusal.message}
    return {"jsonrpc": "2.0", "id": None, "error": error}


class _Leaving:
    """Tells a request's work that its client has gone. The SDK keeps the work of a session going
    then, for a client that comes back for the answer; here there is none to come back for."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        scope[LEFT] = left = anyio.Event()

        async def received() -> Any:
            message = await receive()
            if message["type"] == "http.disconnect":
                left.set()
            return message

        await self._app(scope, received, send)
