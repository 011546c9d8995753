"""The door of whatever speaks HTTP: who may come in, and with how much.

A model on a loopback port can be reached by any web page that this machine's browser shows. So the
name in ``Host`` must be one of ours (a name that was bound to this address by somebody else is
not), a page's ``Origin`` must be allowed, a body must be JSON, which a page cannot send unasked,
and a key, where there is one, is compared in constant time.
"""

from __future__ import annotations

import hmac
import ipaddress
import json
import socket
from collections.abc import Callable, Collection, Mapping, MutableMapping
from typing import Any, Final, NamedTuple

from msgspec import Struct

from mlx_tools.errors import UsageError

Scope = MutableMapping[str, Any]

LOCAL_NAMES: Final = frozenset(("localhost", "127.0.0.1", "::1"))
WAITING: Final = 64
"""Requests that wait their turn while as many as may be are served; any more are refused."""
OPEN_PATHS: Final = frozenset(("/health",))
"""Paths that need no key: they say nothing but that somebody serves."""


class Refusal(NamedTuple):
    """Why a request may not come in: an HTTP status, a code, and words."""

    status: int
    code: str
    message: str


class Door(Struct, frozen=True, kw_only=True):
    """Who may come in.

    ``hosts`` are the names, besides those of this machine's loopback, by which it may be reached,
    ``origins`` the pages that may ask, ``key`` what every request must bear, empty for none. Below
    the path ``page``, and at ``/``, something asks for a key of its own, where it is not empty.
    """

    hosts: Collection[str] = ()
    origins: Collection[str] = ()
    key: str = ""
    page: str = ""

    def refusal(self, scope: Scope) -> Refusal | None:
        """Why a request may not come in, None where it may."""
        headers = headers_of(scope)
        name = host_name(headers.get("host", ""))
        if name not in LOCAL_NAMES and name not in self.hosts:
            return Refusal(403, "host_not_allowed", f"the host {name!r} is not served here")
        origin = headers.get("origin")
        if origin is not None and origin not in self.origins and not self._own(origin, headers):
            return Refusal(403, "origin_not_allowed", f"pages of {origin!r} may not ask here")
        path = scope["path"]
        if path in OPEN_PATHS or scope.get("method") == "OPTIONS" or self._has_key(headers):
            return None
        if self.page and (path == "/" or path.startswith(self.page)):
            return None
        return Refusal(401, "invalid_api_key", "the key is missing or wrong")

    def _own(self, origin: str, headers: Mapping[str, str]) -> bool:
        return origin.partition("://")[2] == headers.get("host")

    def _has_key(self, headers: Mapping[str, str]) -> bool:
        given = headers.get("x-api-key") or headers.get("authorization", "").partition(" ")[2]
        return not self.key or hmac.compare_digest(given.strip().encode(), self.key.encode())


def headers_of(scope: Scope) -> dict[str, str]:
    """A request's headers by name, in small letters. One that comes twice is empty."""
    found: dict[str, str] = {}
    for name, value in scope["headers"]:
        key = name.decode("latin-1")
        found[key] = "" if key in found else value.decode("latin-1")
    return found


def host_name(host: str) -> str:
    """The name in a ``Host`` header, without its port."""
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    return name.rstrip(".").lower()


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server that listens at ``host``."""
    if host in LOCAL_NAMES:
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens there. Raises `UsageError` where it cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol named asyncio has pieces sent at once; without it each waits for the
    # acknowledgement of the one before, 40 ms.
    one = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.bind((host, port))
        one.listen(2048)
    except OSError as error:
        one.close()
        said = f"{host}:{port}: {error.strerror or error}"
        raise UsageError(said, hint="name another port with --port; 0 takes a free one") from None
    return one


class Guard:
    """An ASGI application behind a `Door`."""

    def __init__(self, app: Any, door: Door, error_body: Callable[[Refusal], Any]) -> None:
        self._app, self._door, self._error_body = app, door, error_body

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        speaks = scope["type"] in ("http", "websocket")
        refused = self._door.refusal(scope) if speaks else None
        if refused is None:
            await self._app(scope, receive, send)
            return
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": refused.code})
            return
        body = json.dumps(self._error_body(refused)).encode()
        headers = [(b"content-type", b"application/json")]
        if refused.status == 401:
            headers.append((b"www-authenticate", b"Bearer"))
        await send({"type": "http.response.start", "status": refused.status, "headers": headers})
        await send({"type": "http.response.body", "body": body})
