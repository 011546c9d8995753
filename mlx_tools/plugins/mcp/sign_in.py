"""Sign-in to an MCP server over HTTP (OAuth 2.1), by the official SDK.

A person opens a page, and the tokens are kept in a private file. A run opens no page; it says what
to do.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs, urlsplit

from mlx_tools.paths import locked, read_private, state_dir, write_whole
from mlx_tools.process import clean
from mlx_tools.tools import ToolError

if TYPE_CHECKING:
    from mcp.client.auth import OAuthClientProvider
    from mcp.shared.auth import OAuthClientInformationFull, OAuthToken

PORT: Final = 28_418
"""The port on loopback to which the page leads back. It is fixed, since servers hold a client to
the address that it registered. Linux from 32,768 and macOS from 49,152 on give ports to other
connections, which could have this one at the moment."""
_REDIRECT: Final = f"http://127.0.0.1:{PORT}/callback"
_MAX_BYTES: Final = 100_000
_SECONDS: Final = 300.0
"""Seconds that a person has to sign in."""
_DONE: Final = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n"
    b"Back in mlx-tools. This page can be closed.\n"
)


def tokens_path(name: str) -> Path:
    """Return the file with the tokens of a server."""
    return state_dir() / "mcp" / f"{name}.json"


def sign_in_hint(name: str) -> str:
    """Return the message of a run in which nobody can sign in."""
    return f"it wants you to sign in: mlx-tools mcp test {name}"


def sign_in(url: str, name: str, show: Callable[[str], None] | None = None) -> OAuthClientProvider:
    """Return the object that signs requests to a server.

    Args:
        url: the address of the server.
        name: the name of the source.
        show: shows a person the page to open. Without it, a server that wants a sign-in is a
            ToolError.
    """
    from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider
    from mcp.shared.auth import OAuthClientMetadata
    from pydantic import AnyUrl

    redirect_server = _RedirectServer()

    async def open_page(page: str) -> None:
        if show is None:
            raise ToolError(sign_in_hint(name))
        await redirect_server.open()  # before there is a page that can lead there
        await asyncio.to_thread(show, page)  # some browsers are done when they are closed

    async def await_code() -> AuthorizationCodeResult:
        query = await redirect_server.query()
        if "code" not in query:
            why = clean(query.get("error_description") or query["error"], 200)
            raise ToolError(f"signing in was refused: {why}")
        return AuthorizationCodeResult(
            code=query["code"], state=query.get("state"), iss=query.get("iss")
        )

    metadata = OAuthClientMetadata(
        client_name="mlx-tools",
        redirect_uris=[AnyUrl(_REDIRECT)],
        token_endpoint_auth_method="none",  # noqa: S106
    )
    return OAuthClientProvider(url, metadata, _Tokens(tokens_path(name)), open_page, await_code)


class _Tokens:
    """The tokens of a server, in a file that only its owner can read."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def get_tokens(self) -> OAuthToken | None:
        from mcp.shared.auth import OAuthToken

        tokens = self._read().get("tokens")
        return OAuthToken.model_validate(tokens) if tokens else None

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self._write(tokens=tokens.model_dump(mode="json", exclude_none=True))

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        from mcp.shared.auth import OAuthClientInformationFull

        client = self._read().get("client")
        return OAuthClientInformationFull.model_validate(client) if client else None

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self._write(client=client_info.model_dump(mode="json", exclude_none=True))

    def _read(self) -> dict[str, Any]:
        with contextlib.suppress(OSError, ValueError, RecursionError):
            value = json.loads(read_private(self._path, _MAX_BYTES))
            return value if isinstance(value, dict) else {}
        return {}

    def _write(self, **values: Any) -> None:
        with locked(self._path):
            write_whole(self._path, json.dumps(self._read() | values).encode())


class _RedirectServer:
    """The address on loopback to which the page leads back."""

    def __init__(self) -> None:
        self._callback: asyncio.Future[dict[str, str]] | None = None
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        """Start to listen.

        Raises:
            ToolError: something else uses the port.
        """
        self._callback = asyncio.get_running_loop().create_future()
        try:
            self._server = await asyncio.start_server(self._answer, "127.0.0.1", PORT)
        except OSError as error:
            raise ToolError(f"port {PORT} is needed for signing in: {error.strerror}") from None

    async def query(self) -> dict[str, str]:
        """Return the query of the redirect, with a code or an error.

        Raises:
            ToolError: nobody signed in in time.
        """
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
