"""A server on loopback that behaves as a test wants, byte by byte."""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

SSE = b"HTTP/1.0 200 OK\r\nServer: test\r\nContent-Type: text/event-stream\r\n\r\n"
TLS = b"\x16"
"""The first byte of a client that speaks TLS."""


class Connection:
    """One request and its answer. ``keep`` makes the connection serve a further request."""

    def __init__(self, connection: socket.socket, server: Server) -> None:
        self.keep = False
        self._socket = connection
        self._server = server
        head = self._until(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        self.method, self.path = lines[0].split(" ")[:2] if " " in lines[0] else ("", "")
        self.headers = {
            key.lower(): value.strip()
            for key, _, value in (line.partition(":") for line in lines[1:] if line)
        }
        size = int(self.headers.get("content-length", "0"))
        self.raw = self._exactly(size)
        self.body: dict[str, Any] = json.loads(self.raw) if self.raw else {}

    def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        self._socket.sendall(data)

    def event(self, value: Any) -> None:
        """Send one event with ``value`` as JSON."""
        self.send(b"data: " + json.dumps(value).encode() + b"\n\n")

    def text(self, text: str, finish: str | None = None, **more: Any) -> None:
        """Send a piece of a completion."""
        self.event({"choices": [{"index": 0, "text": text, "finish_reason": finish}], **more})

    def done(self) -> None:
        """Send the end of the stream."""
        self.send(b"data: [DONE]\n\n")

    def answer(
        self, status: int, value: Any, kind: str = "application/json", head: str = ""
    ) -> None:
        """Send a whole answer that is no stream."""
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send(f"HTTP/1.0 {status} X\r\nContent-Type: {kind}\r\n{head}\r\n".encode() + body)

    def wait(self, seconds: float) -> bool:
        """Wait; True as soon as the test is over."""
        return self._server.over.wait(seconds)

    def until_gone(self) -> None:
        """Wait until the client has closed its end, or the test is over."""
        self._socket.settimeout(0.05)
        while not self._server.over.is_set():
            try:
                if not self._socket.recv(1):
                    break
            except TimeoutError:
                continue
            except OSError:
                break
        self._server.closed_by_client.set()

    def _until(self, mark: bytes) -> bytes:
        data = b""
        while not data.endswith(mark):
            byte = self._socket.recv(1)
            if not byte:
                break
            data += byte
        return data

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self._socket.recv(size - len(data))
            if not piece:
                break
            data += piece
        return data


class Server:
    """``url`` is where it listens, ``requests`` what it was asked, in order. ``connections`` counts
    those that were opened, ``ended`` is raised for each that has ended."""

    def __init__(
        self, handle: Callable[[Connection], None], context: ssl.SSLContext | None = None
    ) -> None:
        self.requests: list[Connection] = []
        self.connections = 0
        self.ended = threading.Semaphore(0)
        self.over = threading.Event()
        self.closed_by_client = threading.Event()
        self._handle = handle
        self._context = context
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    @property
    def bodies(self) -> list[dict[str, Any]]:
        """The bodies of the completions that were asked for."""
        return [r.body for r in self.requests if r.path.endswith("/completions")]

    def stop(self) -> None:
        """Close the port and end the threads."""
        self.over.set()
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        for thread in self._threads:
            thread.join(120)

    def _accept(self) -> None:
        while not self.over.is_set():
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self.connections += 1
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        with suppress(OSError), self._wrapped(connection) as connection:
            while (request := Connection(connection, self)).path:
                self.requests.append(request)
                self._handle(request)
                if not request.keep:
                    break
        self.ended.release()

    def _wrapped(self, connection: socket.socket) -> socket.socket:
        if self._context is None:
            if connection.recv(1, socket.MSG_PEEK) == TLS:
                connection.sendall(b"HTTP/1.0 400 X\r\n\r\n")
            return connection
        return self._context.wrap_socket(connection, server_side=True)


@contextmanager
def serving(
    complete: Callable[[Connection], None],
    *,
    health: Callable[[Connection], None] | None = None,
    models: Callable[[Connection], None] | None = None,
    props: Callable[[Connection], None] | None = None,
    chat: Callable[[Connection], None] | None = None,
    context: ssl.SSLContext | None = None,
) -> Iterator[Server]:
    """A server whose ``/v1/completions`` does ``complete``; the rest is not found, or as given.
    With ``context`` it speaks TLS."""
    routes = {"/v1/completions": complete, "/health": health, "/v1/models": models, "/props": props}
    routes["/v1/chat/completions"] = chat

    def handle(request: Connection) -> None:
        route = routes.get(request.path)
        if route is None:
            request.answer(404, b"Not Found", "text/plain")
        else:
            route(request)

    server = Server(handle, context)
    try:
        yield server
    finally:
        server.stop()


def says(*pieces: str, finish: str | None = "stop", **more: Any) -> Callable[[Connection], None]:
    """A well-behaved completion."""

    def complete(request: Connection) -> None:
        request.send(SSE)
        for piece in pieces:
            request.text(piece)
        request.text("", finish)
        if more:
            request.event({"choices": [], **more})
        request.done()

    return complete


def answers(
    status: int, value: Any, kind: str = "application/json", head: str = ""
) -> Callable[[Connection], None]:
    """A route that gives one fixed answer."""
    return lambda request: request.answer(status, value, kind, head)


def keep_alive(route: Callable[[Connection], None]) -> Callable[[Connection], None]:
    """Return the route of a server that keeps its connections open."""

    def answer(request: Connection) -> None:
        sent, send = bytearray(), request.send
        request.send = sent.extend  # type: ignore[method-assign]
        route(request)
        head, _, body = bytes(sent).partition(b"\r\n\r\n")
        head = head.replace(b"HTTP/1.0", b"HTTP/1.1", 1)
        request.keep = True
        send(head + b"\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

    return answer


def answer_in_turn(*routes: Callable[[Connection], None]) -> Callable[[Connection], None]:
    """Return a route that uses each route once, and the last one for ever."""
    left = list(routes)

    def answer(request: Connection) -> None:
        (left.pop(0) if len(left) > 1 else left[0])(request)

    return answer


def drop_connection(request: Connection) -> None:
    """Read the request, and close the connection."""


def make_likelihoods(text: str, *rows: dict[str, float]) -> Callable[[Connection], None]:
    """Return a completion of mlx-lm's server with the alternatives of each token."""
    content = [
        {"top_logprobs": [{"token": token, "logprob": p, "id": 9} for token, p in row.items()]}
        for row in rows
    ]
    choice = {"text": text, "finish_reason": "length", "logprobs": {"content": content}}
    return answers(200, {"choices": [choice], "usage": {"completion_tokens": len(rows)}})
