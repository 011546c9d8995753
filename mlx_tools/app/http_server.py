"""An HTTP server with limited connections, for the gateway and the MCP server.

An attacker can easily open many idle connections. Each uses a file of this process, and when the
system allows no more files, no client is answered. So a connection must send the key soon after it
was opened. Connections without the key are limited, in all and for each address. A new connection
replaces the oldest one, so a client that sends its request at once is served even during an attack.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import resource
from copy import deepcopy
from typing import Any, Final, cast

import uvicorn
from uvicorn.config import LOGGING_CONFIG
from uvicorn.protocols.http.h11_impl import H11Protocol

from mlx_tools.app.guard import ADMIT, is_loopback

HEAD_SECONDS: Final = 15.0
"""Seconds for a request's head, and for a connection without the key.

Apache allows 20, nginx 60; a head is one packet or two.
"""

IDLE_SECONDS: Final = 75
"""Seconds for which an idle connection stays open.

Clients close theirs earlier. Otherwise a client could write into a connection that is just being
closed here.
"""

_BACKLOG: Final = 128
"""Connections that the system queues for us, and that are accepted at the same time.

They are fewer than the files that `OpenConnections` leaves free, and the maximum of macOS.
"""

_FILES: Final = (1024, 16_384)
"""The minimum and the maximum of open files from which the limits are computed.

The minimum is the usual limit of Linux, to which the 256 of macOS are raised. The maximum is a
choice: it limits the memory of connections.
"""


class BoundedConnection(H11Protocol):
    """A connection with a deadline for the heads of its requests.

    Its ``config`` is a `ServerConfig`.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: Any,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state | {ADMIT: self.admit}, _loop)
        self.open_connections = cast(ServerConfig, config).open_connections
        """All open connections of the server."""
        self.address, self.is_local = "", False
        self._deadline: asyncio.TimerHandle | None = None

    @property
    def is_idle(self) -> bool:
        """True if no request of the connection is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def admit(self) -> None:
        """Count the connection as one with the key; its request has a complete head."""
        self.open_connections.admit(self)
        self._set_deadline(None)

    def drop(self) -> None:
        """Close the connection at once; unsent data is lost."""
        self.open_connections.remove(self)
        self._set_deadline(None)
        self.transport.abort()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.address = _find_peer(self.client[0] if self.client else "")
        self.is_local = is_loopback(self.address)
        self._set_deadline(HEAD_SECONDS)
        self.open_connections.add(self)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self.open_connections.is_admitted(self):
            return
        if not self.is_idle:
            self._set_deadline(None)
        elif self._deadline is None:
            self._set_deadline(HEAD_SECONDS)

    def handle_websocket_upgrade(self, event: Any) -> None:
        super().handle_websocket_upgrade(event)
        # the head is complete, and a request without the key is refused at once
        self._leave()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._leave()

    def _leave(self) -> None:
        self.open_connections.remove(self)
        self._set_deadline(None)

    def _set_deadline(self, seconds: float | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None if seconds is None else self.loop.call_later(seconds, self.drop)


class OpenConnections:
    """The open connections of a server, limited by the files that it may open.

    Connections without the key may use a quarter of ``files`` from this machine and another quarter
    from elsewhere, but only half of that from one address. All connections together may use five
    eighths.
    """

    def __init__(self, files: int) -> None:
        self.max_without_key, self.max_per_address = files // 4, files // 8
        self.max_connections = files * 5 // 8
        # both dicts have the connections in the order of their opening
        self._without_key: dict[BoundedConnection, None] = {}
        self._admitted: dict[BoundedConnection, None] = {}

    def __len__(self) -> int:
        return len(self._without_key) + len(self._admitted)

    def is_admitted(self, connection: BoundedConnection) -> bool:
        """Return True if the connection has sent the key."""
        return connection in self._admitted

    def add(self, connection: BoundedConnection) -> None:
        """Count a new connection, and drop the oldest of a group that is too large."""
        self._without_key[connection] = None
        group = [other for other in self._without_key if other.is_local == connection.is_local]
        if len(group) > self.max_without_key:
            group.pop(0).drop()
        # This machine's own connections all have the same address, so the limit by address is only
        # for others.
        same_address = [other for other in group if other.address == connection.address]
        if len(same_address) > self.max_per_address and not connection.is_local:
            same_address[0].drop()
        if len(self) > self.max_connections:
            idle = (other for other in self._admitted if other.is_idle)
            next(idle, connection).drop()

    def admit(self, connection: BoundedConnection) -> None:
        """Count an open connection as one with the key."""
        if connection in self._without_key:
            del self._without_key[connection]
            self._admitted[connection] = None

    def remove(self, connection: BoundedConnection) -> None:
        """Stop counting a connection."""
        self._without_key.pop(connection, None)
        self._admitted.pop(connection, None)


class ServerConfig(uvicorn.Config):
    """The settings of uvicorn for our servers.

    Args:
        app: the application.
        grace_seconds: seconds that requests have to end once the server is stopped.
        files: the number of files that this process may open, None to ask the system.
    """

    def __init__(self, app: Any, grace_seconds: int, files: int | None = None) -> None:
        logs = deepcopy(LOGGING_CONFIG)
        logs["filters"] = {"peers": {"()": PeerErrors}}
        logs["loggers"]["uvicorn.error"]["filters"] = ["peers"]
        super().__init__(
            app,
            http=BoundedConnection,
            log_config=logs,
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_keep_alive=IDLE_SECONDS,
            timeout_graceful_shutdown=grace_seconds,
            backlog=_BACKLOG,
        )
        self.open_connections = OpenConnections(raise_file_limit() if files is None else files)


class PeerErrors(logging.Filter):
    """Keeps errors that a peer caused out of the log.

    For example, a text frame that is not UTF-8 ends its WebSocket. Its traceback helps nobody.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Return True if the record is logged."""
        error = record.exc_info[1] if record.exc_info else None
        return not isinstance(error, UnicodeDecodeError)


def raise_file_limit() -> int:
    """Return the limit of open files of this process, after raising a very low one."""
    least, most = _FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    if soft != unlimited and soft < least:
        soft = least if hard == unlimited else min(hard, least)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return most if soft == unlimited else min(soft, most)


def _find_peer(host: str) -> str:
    """Return the part of an address that identifies a peer.

    It is the whole of an IPv4 address, or the 64 bits that a provider gives to an IPv6 customer.
    """
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address) or address.is_loopback:
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, 64), strict=False).network_address)
