"""Access control for every HTTP server of mlx-tools, and limits for requests.

Any web page in this machine's browser can reach a model on a loopback port. So the name in ``Host``
must be one of ours, because an attacker may have bound another name to this address. A page's
``Origin`` must be allowed. A body must be JSON, which a page cannot send without asking first. A
key, if there is one, is compared in constant time.
"""

from __future__ import annotations

import errno
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
"""Requests that may wait while others are served. Further ones are refused.

A choice: each has its body in memory, and a client with 64 others before it should know about it.
"""
OPEN_PATHS: Final = frozenset(("/health",))
"""Paths that need no key, because they only show that the server runs."""
ADMIT: Final = "mlx_tools.admit"
"""The key in a scope's ``state`` for the function that marks its connection as having the key."""
MAX_BODIES: Final = 128 << 20
"""Bytes of the bodies of all requests in progress: four of the largest."""


class Refusal(NamedTuple):
    """The reason why a request is refused: an HTTP status, a code, and a message.

    ``scope`` is that of the request, for the code that writes the body. None before there is one.
    """

    status: int
    code: str
    message: str
    scope: Scope | None = None


_HOST: Final = re.compile(
    r"(?:\[(?P<address>[0-9A-Fa-f:.]+)\]|(?P<name>[^\s:@/?#\[\]]+?)\.?)(?::[0-9]{0,5})?"
)
"""A ``Host`` header (RFC 9110): an IPv6 address or a name, and maybe a port."""
_FULL: Final = Refusal(
    503, "overloaded", "the bodies of other requests fill the memory set aside: try again later"
)


class AccessRules(Struct, frozen=True, kw_only=True):
    """The rules for who may send requests."""

    hosts: Collection[str] = ()
    """Further names of the server, besides those of loopback."""
    origins: Collection[str] = ()
    """Web pages that may send requests."""
    key: str = ""
    """The key that every request must have. Empty for none."""
    page: str = ""
    """The path of a page that checks its own key, below the path and at ``/``. Empty for none.

    This applies to HTTP requests, not to WebSockets.
    """

    def refusal(self, scope: Scope) -> Refusal | None:
        """Return the reason to refuse a request, or None."""
        headers = read_headers(scope)
        name = parse_host(headers.get("host", ""))
        if name not in LOCAL_NAMES and name not in self.hosts:
            return Refusal(403, "host_not_allowed", f"the host {name!r} is not served here")
        origin = headers.get("origin")
        is_own = origin is None or is_own_origin(origin, headers["host"])
        if not is_own and origin not in self.origins:
            return Refusal(403, "origin_not_allowed", f"pages of {origin!r} may not ask here")
        path = scope["path"]
        if path in OPEN_PATHS or scope.get("method") == "OPTIONS" or self.has_key(headers):
            return None
        is_page = self.page and (path == "/" or path.startswith(self.page))
        if is_page and scope["type"] == "http":
            return None
        return Refusal(401, "invalid_api_key", "the key is missing or wrong")

    def has_key(self, headers: Mapping[str, str]) -> bool:
        """Return True if a request with these headers has the key."""
        key = headers.get("x-api-key") or headers.get("authorization", "").partition(" ")[2]
        # compare_digest takes the same time for any key, so an attacker learns nothing from it.
        return not self.key or hmac.compare_digest(key.strip().encode(), self.key.encode())


def read_headers(scope: Scope) -> dict[str, str]:
    """Return a request's headers by lower-case name.

    The value of a header that comes twice is empty. Otherwise two readers could use different
    values.
    """
    headers: dict[str, str] = {}
    for name, value in scope["headers"]:
        key = name.decode("latin-1")
        headers[key] = "" if key in headers else value.decode("latin-1")
    return headers


def parse_host(host: str) -> str:
    """Return the name in a ``Host`` header, without its port.

    Empty if the header is malformed.
    """
    match = _HOST.fullmatch(host)
    return (match["address"] or match["name"]).lower() if match else ""


def is_own_origin(origin: str, host: str) -> bool:
    """Return True if a page of this origin was served by this host.

    The host must not be empty.
    """
    scheme, _, place = origin.partition("://")
    return scheme in ("http", "https") and place == host != ""


def is_loopback(host: str) -> bool:
    """Return True if only this machine can reach a server that listens at ``host``."""
    if host in LOCAL_NAMES:
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens at an address.

    Raises:
        UsageError: the address cannot be used.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # If the protocol is named, asyncio sends pieces at once. Otherwise each piece waits 40 ms for
    # the acknowledgement of the one before.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        # A restart must not wait until the connections of the last run time out.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(2048)
    except (OSError, TypeError) as error:  # a TypeError if the name cannot be one of a host
        listener.close()
        number = getattr(error, "errno", None)
        hint = "name an address of this machine with --host"
        if number in (errno.EADDRINUSE, errno.EACCES):
            hint = "name another port with --port; 0 takes a free one"
        if number == errno.EADDRINUSE:
            hint = f"does it run already? else {hint}"
        message = f"{host}:{port}: {getattr(error, 'strerror', None) or error}"
        raise UsageError(message, hint=hint) from None
    return listener


def admit(scope: Scope) -> None:
    """Mark the connection of this request as having the key."""
    (scope.get("state") or {}).get(ADMIT, lambda: None)()


class Guard:
    """ASGI middleware that applies `AccessRules`, and limits the bytes of all bodies.

    A body counts until its request is answered, because it stays in memory until then.
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
        refusal = self._door.refusal(scope)
        if refusal is not None:
            await self._refuse(scope, send, refusal)
            return
        if self._door.has_key(read_headers(scope)):
            admit(scope)
        if scope["type"] == "websocket":
            await self._app(scope, receive, send)
        else:
            await self._answer(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Any, send: Any) -> None:
        body_bytes, is_full, has_begun = 0, False, False

        async def receive_within_limit() -> Any:
            nonlocal body_bytes, is_full
            message = await receive()
            size = len(message.get("body", b""))
            if is_full or size > self._free_bytes:
                is_full = True
                return {"type": "http.disconnect"}
            body_bytes += size
            self._free_bytes -= size
            return message

        async def send_unless_full(message: Any) -> None:
            nonlocal has_begun
            if has_begun or not is_full:
                has_begun = True
                await send(message)

        try:
            await self._app(scope, receive_within_limit, send_unless_full)
        except Exception:
            if not is_full or has_begun:
                raise
        finally:
            self._free_bytes += body_bytes
        if is_full and not has_begun:
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
