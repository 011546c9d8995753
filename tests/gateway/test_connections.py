"""Connections of strangers: how many there may be, how long they last, and what they may send."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import asynccontextmanager, nullcontext, suppress
from types import SimpleNamespace
from typing import Any

import anyio
import httpx
import pytest
import uvicorn
from uvicorn.server import ServerState

from mlx_tools.app import AccessRules, Guard, OpenConnections, Refusal, ServerConfig, admit, listen
from mlx_tools.app.http_server import HEAD_SECONDS, BoundedConnection, PeerErrors

pytestmark = pytest.mark.anyio

HEAD = b"GET / HTTP/1.1\r\nHost: localhost\r\n"
KEYED = HEAD + b"X-Api-Key: secret\r\n\r\n"


def refused(refusal: Refusal) -> dict[str, str]:
    return {"code": refusal.code}


async def say_ok(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"ok"})


def config_of(app: Any, files: int = 64, key: str = "secret") -> ServerConfig:
    return ServerConfig(Guard(app, AccessRules(key=key), refused), 0, files)


# --- deadlines ------------------------------------------------------------------------------------


class Transport(asyncio.Transport):
    """A connection from this address, whose ends are noted down."""

    def __init__(self, host: str = "192.0.2.7") -> None:
        super().__init__({"peername": (host, 4000), "sockname": ("192.0.2.1", 80)})
        self.sent, self.is_open = b"", True

    def write(self, data: Any) -> None:
        self.sent += bytes(data)

    def abort(self) -> None:
        self.is_open = False

    close = abort

    def is_closing(self) -> bool:
        return not self.is_open

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...


class Clock:
    """The timers of a loop, which go off when the test says so."""

    def __init__(self) -> None:
        self.now, self._timers = 0.0, list[SimpleNamespace]()
        self.create_task = asyncio.get_running_loop().create_task

    def call_later(self, seconds: float, act: Callable[[], None]) -> Any:
        timer = SimpleNamespace(at=self.now + seconds, act=act)
        timer.cancel = lambda: self._timers.remove(timer) if timer in self._timers else None
        self._timers.append(timer)
        return timer

    def advance(self, seconds: float) -> None:
        self.now += seconds
        for timer in [one for one in self._timers if one.at <= self.now]:
            timer.cancel()
            timer.act()


class Line:
    """A connection to a server, and its clock."""

    def __init__(self, app: Any = say_ok, key: str = "secret") -> None:
        self.clock, self.transport = Clock(), Transport()
        loop: Any = self.clock
        config = config_of(app, key=key)
        config.load()
        self.connection = BoundedConnection(config, ServerState(), {}, loop)
        self.connection.connection_made(self.transport)

    async def send(self, data: bytes) -> None:
        """Send these bytes, and wait until what they ask for was done."""
        self.connection.data_received(data)
        await asyncio.gather(*self.connection.tasks)


@pytest.mark.parametrize("sent", [b"", HEAD, HEAD + b"X-Api-Key: secret\r\n"])
async def test_an_idle_or_half_sent_connection_is_closed_at_the_deadline(sent: bytes) -> None:
    line = Line()
    for data in (sent, b"X-More: 1\r\n") if sent else ():
        line.clock.advance(HEAD_SECONDS / 4)  # bytes that drip in do not put it off
        await line.send(data)
    line.clock.advance(HEAD_SECONDS - 1 - line.clock.now)
    assert line.transport.is_open
    line.clock.advance(1)
    assert not line.transport.is_open


async def test_requests_without_the_key_do_not_put_off_the_deadline() -> None:
    line = Line()
    await line.send(HEAD + b"\r\n")
    line.clock.advance(HEAD_SECONDS - 1)
    await line.send(HEAD + b"\r\n")
    assert line.transport.is_open
    assert line.transport.sent.count(b"401") == 2
    line.clock.advance(1)
    assert not line.transport.is_open


async def test_a_stranger_that_does_not_read_its_answer_is_closed_at_the_deadline() -> None:
    ended = anyio.Event()

    async def never(scope: Any, receive: Any, send: Any) -> None:
        await ended.wait()

    line = Line(never)
    line.connection.data_received(HEAD.replace(b" / ", b" /health ") + b"\r\n")
    await anyio.lowlevel.checkpoint()
    line.clock.advance(HEAD_SECONDS)
    assert not line.transport.is_open
    ended.set()
    await asyncio.gather(*line.connection.tasks, return_exceptions=True)


async def test_an_answer_to_a_request_with_the_key_may_take_any_time() -> None:
    ended = anyio.Event()

    async def stream(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await ended.wait()
        await send({"type": "http.response.body", "body": b"the end"})

    line = Line(stream)
    line.connection.data_received(KEYED)
    await anyio.lowlevel.checkpoint()
    line.clock.advance(86_400)
    assert line.transport.is_open
    ended.set()
    await asyncio.gather(*line.connection.tasks)
    assert b"the end" in line.transport.sent


async def test_the_head_of_a_later_request_has_the_deadline_too() -> None:
    line = Line()
    await line.send(KEYED)
    line.clock.advance(HEAD_SECONDS + 1)
    assert line.transport.is_open  # idle between two requests
    await line.send(HEAD)
    line.clock.advance(HEAD_SECONDS - 1)
    assert line.transport.is_open
    await line.send(b"X-Api-Key: secret\r\n\r\n")
    line.clock.advance(HEAD_SECONDS)
    assert line.transport.is_open
    await line.send(HEAD)
    line.clock.advance(HEAD_SECONDS)
    assert not line.transport.is_open


async def test_without_a_key_a_whole_head_is_enough() -> None:
    line = Line(key="")
    await line.send(HEAD + b"\r\n")
    line.clock.advance(HEAD_SECONDS)
    assert line.transport.is_open


async def test_an_application_can_admit_by_a_key_of_its_own() -> None:
    async def page(scope: Any, receive: Any, send: Any) -> None:
        admit(scope)
        await say_ok(scope, receive, send)

    line = Line(page)
    await line.send(HEAD.replace(b" / ", b" /health ") + b"\r\n")
    line.clock.advance(HEAD_SECONDS)
    assert line.transport.is_open


# --- how many -------------------------------------------------------------------------------------


class Peer:
    """A connection that can be dropped."""

    def __init__(self, host: str, peers: Peers) -> None:
        self.address, self.is_local, self.is_idle = host, host == "127.0.0.1", True
        self._peers = peers

    def drop(self) -> None:
        connection: Any = self
        self._peers.all.remove(connection)
        self._peers.dropped.append(self)


class Peers:
    """Connections, counted for 80 open files: 20 without a key, 10 from one address, 50 in all."""

    def __init__(self) -> None:
        self.all, self.dropped = OpenConnections(80), list[Any]()

    def come(self, host: str, times: int = 1, *, is_admitted: bool = False) -> list[Any]:
        made: list[Any] = []
        for _ in range(times):
            made.append(Peer(host, self))
            self.all.add(made[-1])
            if is_admitted:
                self.all.admit(made[-1])
        return made


def test_the_oldest_of_an_address_makes_room() -> None:
    peers = Peers()
    other = peers.come("192.0.2.9")
    first = peers.come("192.0.2.7", 12)[:2]
    assert peers.dropped == first
    assert other[0] not in peers.dropped
    assert len(peers.all) == 11


def test_the_oldest_of_all_strangers_makes_room_and_none_of_this_machine() -> None:
    peers = Peers()
    own = peers.come("127.0.0.1", 15)
    strangers = [peers.come(f"192.0.2.{n}")[0] for n in range(23)]
    assert peers.dropped == strangers[:3]
    assert len(peers.all) == len(own) + 20
    peers.come("127.0.0.1", 6)
    assert peers.dropped[3:] == own[:1]


def test_with_the_key_no_address_has_a_bound_but_all_together() -> None:
    peers = Peers()
    first, *_ = peers.come("192.0.2.7", 50, is_admitted=True)
    assert peers.dropped == []
    peers.come("192.0.2.8", is_admitted=True)
    assert peers.dropped == [first]


def test_a_connection_at_work_is_not_dropped_for_a_new_one() -> None:
    peers = Peers()
    for one in peers.come("192.0.2.7", 50, is_admitted=True):
        one.is_idle = False
    new = peers.come("192.0.2.8")
    assert peers.dropped == new


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
        ("fe80::1%eth0", "fe80::"),
        ("::1", "::1"),
        ("", ""),
    ],
)
async def test_a_peer_is_counted_by_what_it_cannot_change(host: str, address: str) -> None:
    line = Line()
    line.connection.connection_made(Transport(host))
    assert line.connection.address == address


@asynccontextmanager
async def served(config: ServerConfig) -> Any:
    """A server on a free port of this machine; gives the port."""
    server = uvicorn.Server(config)
    server.capture_signals = nullcontext  # type: ignore[method-assign, assignment]
    with listen("127.0.0.1", 0) as listening:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.serve, [listening])
            yield listening.getsockname()[1]
            server.should_exit = True


async def test_more_idle_connections_than_files_leave_the_server_answering() -> None:
    async with served(config_of(say_ok)) as port:
        lines = [await asyncio.open_connection("127.0.0.1", port) for _ in range(70)]
        for number, (_, writer) in enumerate(lines):
            writer.write(HEAD if number % 2 else b"")
        for reader, _ in lines[:50]:
            with suppress(ConnectionResetError):
                assert await reader.read() == b""
        async with httpx.AsyncClient(headers={"x-api-key": "secret"}) as client:
            got = await client.get(f"http://127.0.0.1:{port}/")
        assert got.text == "ok"
        for _, writer in lines:
            writer.close()


# --- bodies ---------------------------------------------------------------------------------------


async def test_all_bodies_together_have_a_bound_until_they_are_answered() -> None:
    taken, answered = anyio.Event(), anyio.Event()

    async def keep(scope: Any, receive: Any, send: Any) -> None:
        while (message := await receive()).get("more_body"):
            pass
        if message["type"] == "http.disconnect":
            raise ConnectionError("as Starlette does")
        if scope["path"] == "/held":
            taken.set()
            await answered.wait()
        await say_ok(scope, receive, send)

    transport = httpx.ASGITransport(Guard(keep, AccessRules(), refused, max_bodies=10))

    async def parts() -> Any:
        for part in (b"123", b"456", b"78"):
            yield part

    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: client.post("/held", content=b"1234"))
            await taken.wait()
            full = await client.post("/", content=parts())
            fits = await client.post("/", content=b"123456")
            answered.set()
        later = await client.post("/", content=parts())
    assert (full.status_code, full.json()) == (503, {"code": "overloaded"})
    assert full.headers["retry-after"] == "1"
    assert (fits.status_code, later.status_code) == (200, 200)


# --- what is logged -------------------------------------------------------------------------------


def test_bytes_that_are_no_text_are_not_logged() -> None:
    def record(error: Exception) -> logging.LogRecord:
        return logging.LogRecord("", logging.ERROR, "", 0, "", (), (type(error), error, None))

    def errors() -> Iterator[bool]:
        for error in (UnicodeDecodeError("utf-8", b"\xff", 0, 1, ""), KeyError("a")):
            yield PeerErrors().filter(record(error))

    assert list(errors()) == [False, True]
