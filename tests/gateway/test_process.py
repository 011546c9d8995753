"""The gateway as a process: clients and servers that die in mid-stream, and its own end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from pathlib import Path
from typing import Any

import httpx
import pytest

from mlx_tools.app import listen
from mlx_tools.cli.serve import command_flags
from mlx_tools.errors import UsageError
from mlx_tools.testing import Completion, answer
from tests.forked import forks
from tests.gateway.processes import request
from tests.tables import table
from tests.waiting import wait_until

LONG = answer("word " * 2000)


def test_a_client_that_goes_away_frees_its_slot_and_closes_the_servers_stream(house: Any) -> None:
    one = house(Completion(LONG, size=5, delay=0.05))  # takes 100 s
    metrics = one.url.replace("v1", "metrics")
    with one.stream() as response:
        lines = response.iter_lines()
        next(lines)
        assert 'mlx_tools_active{of="turns"} 1\n' in request("GET", metrics).text
    wait_until(lambda: 'mlx_tools_active{of="turns"} 0\n' in request("GET", metrics).text)


def test_a_server_that_dies_in_mid_stream_is_an_error_and_the_next_request_works(
    house: Any,
) -> None:
    one = house(Completion(LONG[:100], finish_reason=None), answer("Next."))
    with one.stream() as response:
        events = [line for line in response.iter_lines() if line.startswith("data: ")]
    assert json.loads(events[-1].removeprefix("data: "))["error"]["code"] == "upstream_error"
    assert one.ask().json()["choices"][0]["message"]["content"] == "Next."


def test_a_gateway_that_is_killed_breaks_the_stream_off(house: Any) -> None:
    one = house(Completion(LONG, size=5, delay=0.05))
    with pytest.raises(httpx.RemoteProtocolError), one.stream() as response:
        for _ in response.iter_lines():
            one.gateway.kill()


def test_told_to_end_it_finishes_what_it_serves(house: Any) -> None:
    one = house(Completion(answer("All of it."), size=4, delay=0.02))
    with one.stream() as response:
        lines = response.iter_lines()
        next(lines)
        os.kill(one.gateway.pid, signal.SIGTERM)
        assert [line for line in lines if line][-1] == "data: [DONE]"
    one.gateway.wait(120)
    with pytest.raises(httpx.ConnectError):
        one.ask()


def test_its_connections_send_pieces_at_once() -> None:
    async def main() -> bool:
        nodelay: list[int] = []

        class Seen(asyncio.Protocol):
            def connection_made(self, transport: Any) -> None:
                own = transport.get_extra_info("socket")
                nodelay.append(own.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

        with listen("127.0.0.1", 0) as listening:
            server = await asyncio.get_running_loop().create_server(Seen, sock=listening)
            _, writer = await asyncio.open_connection(*listening.getsockname())
            while not nodelay:
                await asyncio.sleep(0)
            writer.close()
            server.close()
        return bool(nodelay[0])

    assert asyncio.run(main())


def refusal(*options: str) -> bytes:
    """The message where it does not start."""
    process = forks().start("serve", "--url", "http://127.0.0.1:1", *options)
    said = process.communicate()[1]
    assert process.returncode == 2, said
    return bytes(said)


def test_a_port_that_is_taken_is_told_and_what_to_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        said = refusal("--port", port)
    assert b"does it run already? else name another port with --port" in said


@table("host", ["192.0.2.1", "\u00e9.."])
def test_a_host_that_is_not_this_machine_is_told_and_what_to_do(host: str) -> None:
    with pytest.raises(UsageError) as raised:
        listen(host, 0)
    assert raised.value.hint == "name an address of this machine with --host"


@pytest.mark.parametrize("text", ["", "two words", "two\nlines\n", "umläut"])
def test_a_key_file_that_holds_no_key_is_told(tmp_path: Path, text: str) -> None:
    file = tmp_path / "key"
    file.write_text(text)
    assert b"holds no key" in refusal("--api-key-file", str(file))


def test_without_a_key_it_listens_to_this_machine_alone() -> None:
    assert b"--api-key-file" in refusal("--host", "0.0.0.0")


def test_a_key_from_a_file_is_asked_of_clients(house: Any, tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("s3cret\n")
    one = house(answer("In."), options=("--api-key-file", str(file)))
    assert one.ask().status_code == 401
    assert one.ask(headers={"Authorization": "Bearer s3cret"}).status_code == 200


def test_where_tools_are_turned_off_there_is_no_gateway(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLUGIN_MLX_TOOLS_ENABLED", "false")
    assert b"PLUGIN_MLX_TOOLS_ENABLED" in refusal()


@pytest.mark.heavy
def test_a_run_without_an_address_asks_the_gateway_that_is_there(house: Any) -> None:
    one = house(answer("From the gateway."))
    port = one.environ["MLX_TOOLS_GATEWAY_PORT"] = one.url.split(":")[2].partition("/")[0]
    said, told = one.start("ask", "Hi").communicate()
    assert said.decode().strip() == "From the gateway.", told
    assert b"using the gateway at http://127.0.0.1:" + port.encode() in told


def test_a_gateway_that_is_installed_sees_the_folders_that_were_meant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given = {"tools.roots": ["files:rw", "."], "policy.preset": "workspace"}
    roots = ["--root", f"{tmp_path / 'files'}:rw", "--root", str(tmp_path)]
    assert command_flags(given) == [*roots, "--preset", "workspace"]
