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
import re
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
ADMIT: Final = "mlx_tools.admit"
"""Where a scope's ``state`` has the function that tells a connection that it bears the key."""
MAX_BODIES: Final = 128 << 20
"""Bytes of the bodies of all requests that are being answered: four of the largest."""


class Refusal(NamedTuple):
    """The reason why a request may not come in: an HTTP status, a code, and words.

    ``scope`` is the request's, for whoever writes the body; None before there is one.
    """

    status: int
    code: str
    message: str
    scope: Scope | None = None


_HOST: Final = re.compile(
    r"(?:\[(?P<address>[0-9A-Fa-f:.]+)\]|(?P<name>[^\s:@/?#\[\]]+?)\.?)(?::[0-9]{0,5})?"
)
"""A ``Host`` header (RFC 9110): an IPv6 address or a name, and a port. Nothing comes between."""
_FULL: Final = Refusal(
    503, "overloaded", "the bodies of other requests fill the memory set aside: try again later"
)


class AccessRules(Struct, frozen=True, kw_only=True):
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
        is_own = origin is None or is_own_origin(origin, headers["host"])
        if not is_own and origin not in self.origins:
            return Refusal(403, "origin_not_allowed", f"pages of {origin!r} may not ask here")
        path = scope["path"]
        if path in OPEN_PATHS or scope.get("method") == "OPTIONS" or self.has_key(headers):
            return None
        if self.page and (path == "/" or path.startswith(self.page)):
            return None
        return Refusal(401, "invalid_api_key", "the key is missing or wrong")

    def has_key(self, headers: Mapping[str, str]) -> bool:
        """Return whether a request with these headers bears the key."""
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
    """The name in a ``Host`` header, without its port; empty if the header is malformed."""
    match = _HOST.fullmatch(host)
    return (match["address"] or match["name"]).lower() if match else ""


def is_own_origin(origin: str, host: str) -> bool:
    """Return whether the page of this origin was served by this very host, which is not empty."""
    scheme, _, place = origin.partition("://")
    return scheme in ("http", "https") and place == host != ""


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


def admit(scope: Scope) -> None:
    """Tell the connection of this request that it bears a key."""
    (scope.get("state") or {}).get(ADMIT, lambda: None)()


class Guard:
    """An ASGI application behind a `AccessRules`, with a bound on the bodies of all requests
    together.

    A body counts until its request is answered: so long it is held, in one form or another.
    """

    def __init__(
        self,
        app: Any,
        door: AccessRules,
        error_body: Callable[[Refusal], Any],
        max_bodies: int = MAX_BODIES,
    ) -> None:
        self._app, self._door, self._error_body = app, door, error_body
        self._free_bytes = max_bodies

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        refused = self._door.refusal(scope)
        if refused is not None:
            await self._refuse(scope, send, refused)
            return
        if self._door.has_key(headers_of(scope)):
            admit(scope)
        if scope["type"] == "websocket":
            await self._app(scope, receive, send)
        else:
            await self._answer(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Any, send: Any) -> None:
        body_bytes, is_full, begun = 0, False, False

        async def received() -> Any:
            nonlocal body_bytes, is_full
            message = await receive()
            size = len(message.get("body", b""))
            if is_full or size > self._free_bytes:
                is_full = True
                return {"type": "http.disconnect"}
            body_bytes += size
            self._free_bytes -= size
            return message

        async def sent(message: Any) -> None:
            nonlocal begun
            if begun or not is_full:
                begun = True
                await send(message)

        try:
            await self._app(scope, received, sent)
        except Exception:
            if not is_full or begun:
                raise
        finally:
            self._free_bytes += body_bytes
        if is_full and not begun:
            await self._refuse(scope, send, _FULL)

    async def _refuse(self, scope: Scope, send: Any, refusal: Refusal) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": refusal.code})
            return
        body = json.dumps(self._error_body(refusal._replace(scope=scope))).encode()
        headers = [(b"content-type", b"application/json")]
        if refusal.status == 401:
            headers.append((b"www-authenticate", b"Bearer"))
        elif refusal.status == 503:
            headers.append((b"retry-after", b"1"))
        headers.append((b"x-should-retry", b"true" if refusal.status == 503 else b"false"))
        await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
        await send({"type": "http.response.body", "body": body})
