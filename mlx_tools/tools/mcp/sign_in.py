"""Signing in to an MCP server over HTTP (OAuth 2.1), by the official SDK: a person opens a page,
and what the server gives for that is kept in a private file. A run opens no page; it says what to
do.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs, urlsplit

from mlx_tools.paths import private_dir, read_private, state_dir, write_whole
from mlx_tools.process import clean
from mlx_tools.tools.context import ToolError

if TYPE_CHECKING:
    from mcp.client.auth import OAuthClientProvider
    from mcp.shared.auth import OAuthClientInformationFull, OAuthToken

PORT: Final = 33_418
"""On loopback, where the page leads back to: servers hold a client to the address that it gave."""
_REDIRECT: Final = f"http://127.0.0.1:{PORT}/callback"
_MAX_BYTES: Final = 100_000
_SECONDS: Final = 300.0
_DONE: Final = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n"
    b"Back in mlx-tools. This page can be closed.\n"
)


def tokens_file(name: str) -> Path:
    """Where what a server gave for signing in is kept."""
    return state_dir() / "mcp" / f"{name}.json"


def sign_in_wanted(name: str) -> str:
    """What a run says, in which nobody can sign in."""
    return f"it wants you to sign in: mlx-tools mcp test {name}"


def sign_in(url: str, name: str, show: Callable[[str], None] | None = None) -> OAuthClientProvider:
    """What signs requests to a server. ``show`` shows a person the page to open; without it nobody
    is there to open one, and a server that wants one is a ToolError."""
    from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider
    from mcp.shared.auth import OAuthClientMetadata
    from pydantic import AnyUrl

    back = _RedirectServer()

    async def opened(page: str) -> None:
        if show is None:
            raise ToolError(sign_in_wanted(name))
        await back.open()  # before there is a page that can lead there
        await asyncio.to_thread(show, page)  # some browsers are done when they are closed

    async def came_back() -> AuthorizationCodeResult:
        found = await back.query()
        if "code" not in found:
            why = clean(found.get("error_description") or found["error"], 200)
            raise ToolError(f"signing in was refused: {why}")
        return AuthorizationCodeResult(
            code=found["code"], state=found.get("state"), iss=found.get("iss")
        )

    metadata = OAuthClientMetadata(
        client_name="mlx-tools",
        redirect_uris=[AnyUrl(_REDIRECT)],
        token_endpoint_auth_method="none",  # noqa: S106
    )
    return OAuthClientProvider(url, metadata, _Tokens(tokens_file(name)), opened, came_back)


class _Tokens:
    """What a server gave, in a file of its owner's alone."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def get_tokens(self) -> OAuthToken | None:
        from mcp.shared.auth import OAuthToken

        found = self._read().get("tokens")
        return OAuthToken.model_validate(found) if found else None

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self._write(tokens=tokens.model_dump(mode="json", exclude_none=True))

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        from mcp.shared.auth import OAuthClientInformationFull

        found = self._read().get("client")
        return OAuthClientInformationFull.model_validate(found) if found else None

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self._write(client=client_info.model_dump(mode="json", exclude_none=True))

    def _read(self) -> dict[str, Any]:
        with contextlib.suppress(OSError, ValueError):
            value = json.loads(read_private(self._path, _MAX_BYTES))
            return value if isinstance(value, dict) else {}
        return {}

    def _write(self, **values: Any) -> None:
        private_dir(self._path.parent)
        write_whole(self._path, json.dumps(self._read() | values).encode())


class _RedirectServer:
    """The address on loopback to which the page leads back."""

    def __init__(self) -> None:
        self._callback: asyncio.Future[dict[str, str]] | None = None
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        """Listen there. Raises ToolError where something else does."""
        self._callback = asyncio.get_running_loop().create_future()
        try:
            self._server = await asyncio.start_server(self._answer, "127.0.0.1", PORT)
        except OSError as error:
            raise ToolError(f"port {PORT} is needed for signing in: {error.strerror}") from None

    async def query(self) -> dict[str, str]:
        """The query that the page led back with, with a code or an error. Raises ToolError where
        nobody comes back."""
        assert self._callback is not None and self._server is not None
        async with self._server:
            try:
                async with asyncio.timeout(_SECONDS):
                    return await self._callback
            except TimeoutError:
                raise ToolError("nobody signed in in time") from None

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        broken = (OSError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError)
        with contextlib.suppress(*broken):
            _, target, _ = (await reader.readuntil(b"\r\n")).decode("ascii").split(" ")
            query = {key: values[0] for key, values in parse_qs(urlsplit(target).query).items()}
            writer.write(_DONE)
            await writer.drain()
            if query.keys() & {"code", "error"} and self._callback and not self._callback.done():
                self._callback.set_result(query)
        writer.close()
