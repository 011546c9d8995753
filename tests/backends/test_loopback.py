"""HTTP to this machine: connections that are kept, bodies of any size, servers that break off."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest
from anyio.lowlevel import checkpoint

from mlx_tools.backends.loopback import (
    MAX_EVENTS,
    MAX_HEADS,
    MAX_IDLE,
    MAX_UNREAD,
    LoopbackClient,
)
from tests.backends.loopback import Connection, Server
from tests.waiting import HANG, until

LARGE = 8 * MAX_UNREAD


def run(
    handle: Callable[[Connection], None],
    work: Callable[[LoopbackClient, Server], Awaitable[Any]],
    keepalive_seconds: float = HANG,
) -> Any:
    """Return what ``work`` returns, with a client and a server that handles requests so."""

    async def worked() -> Any:
        async with LoopbackClient(httpx.Timeout(None, connect=HANG), keepalive_seconds) as client:
            return await work(client, server)

    server = Server(handle)
    try:
        return asyncio.run(worked())
    finally:
        server.stop()


def chunked(*pieces: bytes, end: bytes = b"0\r\n\r\n") -> Callable[[Connection], None]:
    """Answer in chunks, all in one write."""
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces)

    def handle(request: Connection) -> None:
        request.keep = True
        request.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks + end)

    return handle


async def pieces_of(client: LoopbackClient, server: Server) -> list[bytes]:
    async with client.stream("POST", server.url, content=b"{}") as response:
        return [piece async for piece in response.aiter_raw()]


def test_chunks_that_have_come_are_one_piece() -> None:
    assert run(chunked(b"a", b"b", b"c"), pieces_of) == [b"abc"]


def test_what_came_before_a_fault_counts() -> None:
    async def read(client: LoopbackClient, server: Server) -> bytes:
        body = b""
        async with client.stream("POST", server.url, content=b"{}") as response:
            with pytest.raises(httpx.RemoteProtocolError):
                async for piece in response.aiter_raw():
                    body += piece
        return body

    assert run(chunked(b"a", b"b", end=b"no chunk\r\n"), read) == b"ab"


def test_bodies_of_any_size_go_both_ways() -> None:
    def echo(request: Connection) -> None:
        request.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(request.raw))
        request.send(request.raw)

    async def sent(client: LoopbackClient, server: Server) -> bool:
        body = json.dumps({"text": "x" * LARGE}).encode()
        response = await client.post(server.url, content=body)
        return response.content == body

    assert run(echo, sent)


def test_a_client_that_does_not_read_makes_the_server_wait() -> None:
    def endless(request: Connection) -> None:
        request.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n")
        while not request.wait(0):
            request.send(b"x" * 65536)

    async def unread(client: LoopbackClient, server: Server) -> bool:
        async with client.stream("POST", server.url, content=b"{}") as response:
            stream: Any = response.stream
            await until(lambda: stream.unread_bytes > MAX_UNREAD)
            for _ in range(100):  # the loop could take in more
                await checkpoint()
            return bool(MAX_UNREAD < stream.unread_bytes <= 2 * MAX_UNREAD)

    assert run(endless, unread)


def test_others_are_served_between_many_tiny_chunks() -> None:
    tiny = chunked(*[b"x"] * MAX_UNREAD)

    async def read(client: LoopbackClient, server: Server) -> int:
        """Return the most chunks that were read between two turns of the event loop."""
        size = most = unserved = 0

        def serve() -> None:
            nonlocal unserved
            unserved = 0

        async with client.stream("POST", server.url, content=b"{}") as response:
            stream: Any = response.stream
            await until(lambda: stream.unread_bytes > MAX_UNREAD)
            pieces = aiter(response.aiter_raw())
            while size < 20 * MAX_EVENTS:
                asyncio.get_running_loop().call_soon(serve)
                piece = await anext(pieces)
                size, unserved = size + len(piece), unserved + len(piece)
                most = max(most, unserved)
        return most

    # One turn may come late: what came with the head ends anywhere.
    assert run(tiny, read) <= 2 * MAX_EVENTS


def test_any_number_of_informational_responses_may_come_first() -> None:
    def inform(request: Connection) -> None:
        request.send(b"HTTP/1.1 100 Continue\r\n\r\n" * 10 * MAX_EVENTS)
        request.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nHi")

    async def read(client: LoopbackClient, server: Server) -> bytes:
        return (await client.post(server.url, content=b"{}")).content

    assert run(inform, read) == b"Hi"


@pytest.mark.parametrize(
    ("handle", "error"),
    [
        (lambda request: None, httpx.RemoteProtocolError),
        (lambda request: request.send(b"hello\r\n\r\n"), httpx.RemoteProtocolError),
        (lambda request: request.send(b"HTTP/1.1 101 X\r\n\r\n"), httpx.RemoteProtocolError),
        (lambda request: request.send(b"HTTP/1.1 200 OK\r\n"), httpx.RemoteProtocolError),
        (chunked(b"a", end=b""), None),
    ],
    ids=["nothing", "no HTTP", "switch", "half a head", "half a body"],
)
def test_servers_that_break_off_are_errors_of_httpx(handle: Any, error: Any) -> None:
    def once(request: Connection) -> None:
        handle(request)
        request.keep = False

    async def asked(client: LoopbackClient, server: Server) -> None:
        with pytest.raises(error or httpx.RemoteProtocolError):
            await client.post(server.url, content=b"{}")

    run(once, asked)


def test_a_request_that_cannot_be_sent_is_an_error_of_httpx() -> None:
    async def asked(client: LoopbackClient, server: Server) -> None:
        for headers in ({"A": "x\n"}, {"A B": "x"}, {"Content-Length": "1"}):
            with pytest.raises(httpx.LocalProtocolError):
                await client.post(server.url, content=b"{}", headers=headers)

    run(chunked(), asked)


def test_requests_whose_head_is_known_are_as_httpx_builds_them() -> None:
    def parts(request: httpx.Request) -> object:
        headers = sorted((name.lower(), value) for name, value in request.headers.raw)
        return request.method, request.url, headers, request.extensions, b"".join(request.stream)  # type: ignore[arg-type]

    async def compare() -> None:
        timeout = httpx.Timeout(None, connect=HANG)
        async with (
            LoopbackClient(timeout, HANG) as client,
            httpx.AsyncClient(timeout=timeout, trust_env=False) as other,
        ):
            for number in (0, 1, *range(MAX_HEADS + 1), 0, 1):
                url, headers = f"http://127.0.0.1:80/v1/{number}?a=%20", {"X-Key": f"k{number}"}
                for content in (b"{}", b"", b"x" * LARGE):
                    built = [
                        one.build_request("POST", url, content=content, headers=headers)
                        for one in (client, other)
                    ]
                    assert parts(built[0]) == parts(built[1])

    asyncio.run(compare())


def test_an_answer_to_the_head_alone_is_read_before_the_body_is_sent() -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\n\r\nbig")
        opened.append(writer)  # and reads no more

    async def asked() -> None:
        server = await asyncio.start_server(refuse, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with (
            server,
            asyncio.timeout(HANG),
            LoopbackClient(httpx.Timeout(HANG), HANG) as client,
        ):
            for _ in range(2):
                response = await client.post(url, content=bytes(16 << 20))
                assert (response.status_code, response.content) == (413, b"big")
            for writer in opened:
                writer.close()

    opened: list[asyncio.StreamWriter] = []
    asyncio.run(asked())
    assert len(opened) == 2


def test_a_server_that_is_not_there_is_an_error_of_httpx() -> None:
    async def asked(client: LoopbackClient, server: Server) -> None:
        server.stop()
        for name in ("127.0.0.1", "localhost"):
            with pytest.raises(httpx.ConnectError):
                await client.get(server.url.replace("127.0.0.1", name))

    run(chunked(), asked)


def test_a_server_is_found_by_its_name_too() -> None:
    async def asked(client: LoopbackClient, server: Server) -> bytes:
        return (await client.get(server.url.replace("127.0.0.1", "localhost"))).content

    assert run(chunked(b"Hi"), asked) == b"Hi"


def test_an_address_in_numbers_is_not_looked_up_in_a_thread() -> None:
    async def asked(client: LoopbackClient, server: Server) -> set[threading.Thread]:
        before = set(threading.enumerate())
        assert (await client.get(server.url)).content == b"Hi"
        after = set(threading.enumerate()) - before
        return {thread for thread in after if thread.name.startswith("asyncio_")}

    assert run(chunked(b"Hi"), asked) == set()


@pytest.mark.parametrize(
    ("handle", "connections"),
    [
        (chunked(b"Hi"), 1),
        (chunked(b"Hi", end=b"0\r\n\r\nHTTP/1.1 200 OK\r\n\r\n"), 2),
    ],
    ids=["quiet", "one that says more than was asked"],
)
def test_a_connection_is_kept_if_nothing_more_came_on_it(handle: Any, connections: int) -> None:
    async def twice(client: LoopbackClient, server: Server) -> int:
        for _ in range(2):
            assert (await client.post(server.url, content=b"{}")).content == b"Hi"
        return server.connections

    assert run(handle, twice) == connections


def test_an_answer_that_is_not_read_to_its_end_ends_the_connection() -> None:
    async def left(client: LoopbackClient, server: Server) -> int:
        for _ in range(2):
            async with client.stream("POST", server.url, content=b"{}"):
                pass
            assert await asyncio.to_thread(server.ended.acquire, timeout=HANG)
        return server.connections

    assert run(chunked(b"x" * 100, end=b""), left) == 2


def test_an_unused_connection_is_kept_for_so_long_only() -> None:
    async def twice(client: LoopbackClient, server: Server) -> int:
        for _ in range(2):
            await client.post(server.url, content=b"{}")
        return server.connections

    assert run(chunked(b"Hi"), twice, keepalive_seconds=0) == 2


def test_so_many_connections_are_kept_and_no_more() -> None:
    async def crowd(client: LoopbackClient, server: Server) -> None:
        count = MAX_IDLE + 3
        responses = [
            await client.send(client.build_request("POST", server.url, content=b"{}"), stream=True)
            for _ in range(count)
        ]
        for response in responses:
            await response.aread()
            await response.aclose()
        for _ in range(count - MAX_IDLE):
            assert await asyncio.to_thread(server.ended.acquire, timeout=HANG)
        assert server.connections == count

    run(chunked(b"Hi"), crowd)
