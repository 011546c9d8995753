"""A web server on loopback that answers as a test wants, and a fetcher that may ask it."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from mlx_tools.plugins.web.web_tools import fetch_url
from mlx_tools.toolbox.urls import Address
from mlx_tools.toolbox.web_fetch import Fetcher
from mlx_tools.tools import ToolResult
from tests.backends.loopback import Connection, Server
from tests.tools.file_calls import execute_call
from tests.waiting import HANG

HTML = "text/html; charset=utf-8"


class Asked:
    """One request: its path and its fields, names in lower case; and how to answer it."""

    def __init__(self, connection: Connection) -> None:
        self.path = connection.path
        self.fields = connection.headers
        self.send = connection.send
        self.wait = connection.wait

    def answer(
        self,
        body: bytes | str,
        kind: str = HTML,
        status: str = "200 OK",
        fields: Mapping[str, str] | None = None,
    ) -> None:
        """Sends a whole answer."""
        data = body.encode() if isinstance(body, str) else body
        lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(data)}", "Connection: close"]
        lines += [
            f"{key}: {value}" for key, value in {"Content-Type": kind, **(fields or {})}.items()
        ]
        self.send("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + data)

    def lead_to(self, place: str, status: str = "302 Found") -> None:
        """Sends a redirect."""
        self.answer("", status=status, fields={"Location": place})


Handle = Callable[[Asked], None]


class Site:
    """``port`` is where it listens, ``asked`` what it was asked, ``connected`` how often."""

    def __init__(self, handle: Handle, context: ssl.SSLContext | None) -> None:
        self.asked: list[Asked] = []

        def serve(connection: Connection) -> None:
            self.asked.append(Asked(connection))
            handle(self.asked[-1])

        self.server = Server(serve, context)
        self.port = int(self.server.url.rpartition(":")[2])

    @property
    def connected(self) -> int:
        return self.server.connections

    def url(self, path: str = "/", host: str = "site.test", scheme: str = "http") -> str:
        """A URL that means this server where a fetcher of `fetching` asks."""
        return f"{scheme}://{host}:{self.port}{path}"


@contextmanager
def site(handle: Handle, context: ssl.SSLContext | None = None) -> Iterator[Site]:
    """A server that does ``handle`` with every request."""
    made = Site(handle, context)
    try:
        yield made
    finally:
        made.server.stop()


def make_handler(body: bytes | str, kind: str = HTML) -> Handle:
    """Return a handler that answers with a body."""
    return lambda asked: asked.answer(body, kind)


class Names:
    """Resolves names as a test says, and remembers what it was asked."""

    def __init__(self, table: Mapping[str, Sequence[str]] | None = None) -> None:
        self.table = dict(table or {"site.test": ["127.0.0.1"]})
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked.append(host)
        if host not in self.table:
            raise socket.gaierror("no such name")
        return self.table[host]


def is_allowed(address: Address) -> bool:
    """Return whether an address is 127.0.0.1, the only one that tests may use."""
    return str(address) == "127.0.0.1"


def make_fetcher(
    server: Site,
    *,
    names: Names | None = None,
    may_ask: Callable[[Address], bool] = is_allowed,
    max_bytes: int = 3_000_000,
    idle: float = HANG,
    context: ssl.SSLContext | None = None,
) -> Fetcher:
    """Return a fetcher that may only use this server."""
    return Fetcher(
        ports=frozenset((server.port,)),
        may_ask=may_ask,
        resolve=names or Names(),
        idle=idle,
        context=context,
        max_bytes=max_bytes,
    )


def fetch(fetcher: Fetcher | None, url: str, seconds: float = HANG) -> ToolResult:
    """Return the tool's result for a URL."""
    return execute_call(fetch_url(fetcher, seconds), timeout=2 * HANG, url=url)


def read_text(result: ToolResult) -> str:
    """Return the text of a fetched page."""
    assert result.error is None, result.error
    assert result.sources is not None
    return result.sources.items[0].text


def read_refusal(result: ToolResult) -> tuple[str, str]:
    """Return the code and the message of a refused fetch."""
    assert result.error is not None, result.content
    return result.error.code, result.error.message


def certificate(folder: Path, name: str) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """A server's context with a certificate for a name, and a client's that trusts it."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl to make a certificate with")
    key, cert = folder / "key.pem", folder / "cert.pem"
    subprocess.run(
        [
            *(openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-keyout", str(key), "-out", str(cert), "-subj", f"/CN={name}"),
            *("-addext", f"subjectAltName=DNS:{name}"),
        ],
        check=True,
        capture_output=True,
    )
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(cert, key)
    return server, ssl.create_default_context(cafile=str(cert))
