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
    b"Signed in. This page can be closed.\n"
)


def tokens_file(name: str) -> Path:
    """Where what a server gave for signing in is kept."""
    return state_dir() / "mcp" / f"{name}.json"


def sign_in(url: str, name: str, show: Callable[[str], None] | None = None) -> OAuthClientProvider:
    """What signs requests to a server. ``show`` shows a person the page to open; without it nobody
    is there to open one, and a server that wants one is a ToolError."""
    from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider
    from mcp.shared.auth import OAuthClientMetadata
    from pydantic import AnyUrl

    async def opened(page: str) -> None:
        if show is None:
            raise ToolError(f"it wants you to sign in: mlx-tools mcp test {name}")
        show(page)

    async def came_back() -> AuthorizationCodeResult:
        found = await _callback()
        return AuthorizationCodeResult(code=found.get("code", ""), state=found.get("state"))

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


async def _callback() -> dict[str, str]:
    """The query that the page leads back with. Raises ToolError where nobody comes back."""
    came: asyncio.Future[dict[str, str]] = asyncio.get_running_loop().create_future()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, ValueError, asyncio.IncompleteReadError):
            line = (await reader.readuntil(b"\r\n")).decode("ascii", "replace").split(" ")
            query = {key: values[0] for key, values in parse_qs(urlsplit(line[1]).query).items()}
            writer.write(_DONE)
            await writer.drain()
            if "code" in query and not came.done():
                came.set_result(query)
        writer.close()

    try:
        server = await asyncio.start_server(answer, "127.0.0.1", PORT)
    except OSError as error:
        raise ToolError(f"port {PORT} is needed for signing in: {error.strerror}") from None
    async with server:
        try:
            async with asyncio.timeout(_SECONDS):
                return await came
        except TimeoutError:
            raise ToolError("nobody signed in in time") from None
