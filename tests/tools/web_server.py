"""A web server on loopback that answers as a test wants, and a fetcher that may ask it."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from mlx_tools.toolbox.urls import Address
from mlx_tools.toolbox.web_fetch import Fetcher
from mlx_tools.toolbox.web_tools import fetch_url
from mlx_tools.tools import ToolResult
from tests.tools.file_calls import executed

HTML = "text/html; charset=utf-8"


class Asked:
    """One request: its path and its fields, names in lower case; and how to answer it."""

    def __init__(self, connection: socket.socket, server: Site) -> None:
        self._socket = connection
        self._server = server
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            byte = connection.recv(1)
            if not byte:
                break
            head += byte
        first, *lines = head.decode("latin-1").split("\r\n")
        self.first = first
        self.path = first.split(" ")[1] if first.count(" ") == 2 else ""
        pairs = (line.partition(":") for line in lines if line)
        self.fields = {name.lower(): value.strip() for name, _, value in pairs}

    def send(self, data: bytes) -> None:
        """Sends bytes as they are."""
        self._socket.sendall(data)

    def answer(
        self,
        body: bytes | str,
        kind: str | None = HTML,
        status: str = "200 OK",
        fields: Mapping[str, str] | None = None,
    ) -> None:
        """Sends a whole answer."""
        data = body.encode() if isinstance(body, str) else body
        lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(data)}", "Connection: close"]
        lines += [f"Content-Type: {kind}"] if kind is not None else []
        lines += [f"{name}: {value}" for name, value in (fields or {}).items()]
        self.send("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + data)

    def lead_to(self, place: str, status: str = "302 Found") -> None:
        """Sends a redirect."""
        self.answer("", status=status, fields={"Location": place})

    def wait(self, seconds: float) -> bool:
        """Waits; True as soon as the test is over."""
        return self._server.over.wait(seconds)


Handle = Callable[[Asked], None]


class Site:
    """``port`` is where it listens, ``asked`` what it was asked, ``connected`` how often."""

    def __init__(self, handle: Handle, context: ssl.SSLContext | None) -> None:
        self.asked: list[Asked] = []
        self.connected = 0
        self.over = threading.Event()
        self._handle = handle
        self._context = context
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def url(self, path: str = "/", host: str = "site.test", scheme: str = "http") -> str:
        """A URL that means this server where a fetcher of `fetching` asks."""
        return f"{scheme}://{host}:{self.port}{path}"

    def stop(self) -> None:
        """Closes the port and ends the threads."""
        self.over.set()
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        for thread in self._threads:
            thread.join(5)

    def _accept(self) -> None:
        while not self.over.is_set():
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self.connected += 1
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError), self._secured(connection) as secured:
            request = Asked(secured, self)
            if request.path:
                self.asked.append(request)
                self._handle(request)

    def _secured(self, connection: socket.socket) -> socket.socket:
        if self._context is None:
            return connection
        return self._context.wrap_socket(connection, server_side=True)


@contextmanager
def site(
    handle: Handle | Mapping[str, Handle], context: ssl.SSLContext | None = None
) -> Iterator[Site]:
    """A server that does ``handle`` with every request, or what its path says."""

    def by_path(asked: Asked) -> None:
        assert not callable(handle)
        handle[asked.path](asked)

    server = Site(handle if callable(handle) else by_path, context)
    try:
        yield server
    finally:
        server.stop()


def says(body: bytes | str, kind: str | None = HTML, **fields: str) -> Handle:
    """Answers with this."""
    named = {name.replace("_", "-"): value for name, value in fields.items()}
    return lambda asked: asked.answer(body, kind, fields=named)


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


def is_own(address: Address) -> bool:
    """Only 127.0.0.1 may be asked here."""
    return str(address) == "127.0.0.1"


def fetching(
    server: Site,
    *,
    names: Names | None = None,
    may_ask: Callable[[Address], bool] = is_own,
    max_bytes: int = 3_000_000,
    idle: float = 10.0,
    context: ssl.SSLContext | None = None,
) -> Fetcher:
    """A fetcher that may ask this server alone."""
    return Fetcher(
        ports=frozenset((server.port,)),
        may_ask=may_ask,
        resolve=names or Names(),
        idle=idle,
        context=context,
        max_bytes=max_bytes,
    )


def fetched(fetcher: Fetcher | None, url: str, seconds: float = 20.0) -> ToolResult:
    """What the tool gives for a URL."""
    return executed(fetch_url(fetcher, seconds), timeout=60, url=url)


def text(result: ToolResult) -> str:
    """The text of what was fetched."""
    assert result.error is None, result.error
    assert result.sources is not None
    return result.sources.found[0].text


def refusal(result: ToolResult) -> tuple[str, str]:
    """Code and words of what was not fetched."""
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
