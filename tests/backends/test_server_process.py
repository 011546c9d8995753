"""A server of our own: started, watched, started again, and gone when we are."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from mlx_tools.backends import ServerBackend
from mlx_tools.backends.server import make_environment, make_log_path
from mlx_tools.backends.server_options import (
    MIN_CACHE_BYTES,
    check_options,
    find_memory_options,
    with_options,
)
from mlx_tools.errors import (
    BackendBroken,
    BackendDead,
    BackendError,
    BackendTimeout,
    BackendUnreachable,
    UsageError,
)
from tests.backends.asking import ask, collect
from tests.forked import forks
from tests.processes import is_alive
from tests.tables import table
from tests.waiting import EXPIRES, HANG, until, wait_until

FAKE = Path(__file__).with_name("fake_mlx_server.py")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return folder


@contextmanager
def backend(
    model: Path, fault: str = "", *, once: bool = True, **options: Any
) -> Iterator[ServerBackend]:
    environ = dict(os.environ) | {"FAKE_FAULT": fault}
    if once:
        environ["FAKE_ONCE"] = str(model / "shown")
    made = ServerBackend(
        model,
        program=[str(FAKE)],
        log_folder=model.parent / "logs",
        environ=environ,
        **{"start_timeout": HANG, **options},
    )
    try:
        yield made
    finally:
        asyncio.run(made.aclose())


def wait_until_gone(pid: int) -> bool:
    return bool(wait_until(lambda: not is_alive(pid)))


def test_it_starts_with_the_first_completion_and_ends_for_ever_with_aclose(model: Path) -> None:
    with backend(model) as server:
        assert server.url is None
        text, last = ask(server)
        pid = server.pid
        assert pid is not None
        assert (text, last.finish_reason) == (f"pid {pid}.", "stop")
        assert is_alive(pid)
        health = asyncio.run(server.health())
        assert health.ok
        assert asyncio.run(server.models()) == (str(model),)
        # it listens on loopback, for an origin that nobody has
        assert str(server.url).startswith("http://127.0.0.1:")
        assert health.allowed_origin.endswith(".invalid") and len(health.allowed_origin) > 30
    assert wait_until_gone(pid)
    assert list((model.parent / "logs").iterdir()) == []
    with pytest.raises(BackendUnreachable):
        ask(server)


def test_a_server_that_ends_early_is_told_with_its_last_words(model: Path) -> None:
    with backend(model, "ends") as server, pytest.raises(BackendUnreachable) as caught:
        ask(server)
    assert "safetensors" in caught.value.message
    assert str(caught.value).isprintable()
    logs = list((model.parent / "logs").iterdir())
    assert [str(log) in (caught.value.hint or "") for log in logs] == [True]
    assert logs[0].stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("fault", "options", "kind", "words"),
    [
        ("refuse", {}, BackendDead, "cannot be served"),
        ("silent", {"start_timeout": 0.5}, BackendTimeout, "not ready within 0.5 s"),
        ("stranger", {"once": False}, BackendUnreachable, "another program answers"),
        ("taken", {"once": False}, BackendUnreachable, "was taken by another program"),
        ("die", {"once": False}, BackendDead, "has died"),  # started again once for a request
    ],
)
def test_a_server_that_cannot_be_had_is_told(
    model: Path, fault: str, options: dict[str, Any], kind: type[BackendError], words: str
) -> None:
    with backend(model, fault, **options) as server, pytest.raises(kind, match=words):
        ask(server)


def test_a_port_that_was_taken_in_between_is_tried_again(model: Path) -> None:
    with backend(model, "taken") as server:
        assert ask(server)[0].startswith("pid")


def test_a_server_whose_thread_had_died_is_started_again_and_asked_again(model: Path) -> None:
    said: list[str] = []
    with backend(model, "die", note=said.append) as server:
        asyncio.run(server.start())
        first = server.pid
        text, last = ask(server)
        assert last.finish_reason == "stop"
        assert text == f"pid {server.pid}."
        assert server.pid != first
    assert any("started again" in line for line in said)
    assert tuple(said) == server.notes


@pytest.mark.parametrize(
    ("fault", "how", "remedy"),
    [
        ("exit", "by SIGKILL", "a shorter context or a smaller model"),
        ("crash", "exit code 7", "the next request starts it again"),
        ("memory", "exit code 1", "a shorter context or a smaller model"),
    ],
)
@pytest.mark.heavy
def test_a_request_that_ended_the_server_is_told_and_not_repeated(
    model: Path, fault: str, how: str, remedy: str
) -> None:
    with backend(model, fault) as server:
        asyncio.run(server.start())
        first = server.pid
        with pytest.raises(BackendBroken, match=how) as caught:
            ask(server)
        hint = caught.value.hint or ""
        log = next((model.parent / "logs").iterdir())
        assert remedy in hint and str(log) in hint
        if fault == "memory":
            assert "Insufficient Memory" in caught.value.message
        assert ask(server)[0].startswith("pid") and server.pid != first  # the next one has one
    assert log.exists()  # of the server that did not end as it should
    assert list((model.parent / "logs").iterdir()) == [log]


@pytest.mark.heavy
def test_a_thread_that_dies_behind_a_live_server_is_told_while_the_request_waits(
    model: Path,
) -> None:
    with backend(model, "hangs") as server:
        asyncio.run(server.start())
        first = server.pid
        with pytest.raises(BackendDead, match="its model's thread died"):
            ask(server, timeout=HANG)
        assert ask(server)[0].startswith("pid") and server.pid != first


@pytest.mark.heavy
def test_a_server_of_ours_that_is_too_slow_keeps_its_log_and_the_error_names_it(
    model: Path,
) -> None:
    with backend(model, "slow") as server:
        asyncio.run(server.start())
        first = server.pid
        with pytest.raises(BackendTimeout) as caught:
            ask(server, timeout=EXPIRES)
        assert server.pid == first
    (log,) = (model.parent / "logs").iterdir()  # though the server ended as it should
    assert str(log) in str(caught.value.hint) and "ask again" in str(caught.value.hint)


def test_options_of_the_user_take_the_place_of_those_from_memory_and_weights(model: Path) -> None:
    options = ["--kv-bits", "8", "--prompt-cache-bytes=77"]
    made = find_memory_options(model, 16 * 10**9)
    assert made[0::2] == ["--prompt-cache-bytes", "--decode-concurrency", "--prompt-concurrency"]
    merged = with_options(made, options)
    assert merged == [*made[2:], *options]
    with backend(model, "arguments", options=options) as server:
        said = ask(server)[0]
    assert "--kv-bits 8" in said and "--prompt-cache-bytes=77" in said
    assert "--decode-concurrency" in said


@table(
    "memory, weights, cache, at_once",
    [
        # GB of memory and weights; GB for kept prompts, requests at once
        (8, 4.3, MIN_CACHE_BYTES / 1e9, 1),
        (16, 4.3, 2.68, 1),
        (32, 8, 6.17, 3),
        (64, 17, 12.33, 6),
        (192, 17, 55, 8),
    ],
)
def test_memory_bounds_the_servers_caches(
    memory: float, weights: float, cache: float, at_once: int
) -> None:
    with TemporaryDirectory() as folder:
        with Path(folder, "model.safetensors").open("wb") as file:
            file.truncate(int(weights * 1e9))
        _, size, _, decode, _, prompts = find_memory_options(Path(folder), int(memory * 1e9))
    assert int(size) / 1e9 == pytest.approx(cache, abs=0.01)
    assert (int(decode), int(prompts)) == (at_once, max(1, at_once // 2))


@table(
    "words",
    [
        ("--host", "0.0.0.0"),
        ("--port=1",),
        ("--model", "x"),
        ("--trust-remote-code",),
        ("--allowed-origins", "*"),
        ("--kv-bits",),
        ("--kv-bits", "--draft-model"),
        ("8",),
    ],
)
def test_options_that_open_the_server_or_lack_a_value_are_refused(words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError):
        check_options(words)


@pytest.mark.parametrize("fault", ["fails", "drops"])
@pytest.mark.heavy
def test_a_server_that_failed_in_passing_is_asked_again_and_kept(model: Path, fault: str) -> None:
    with backend(model, fault) as server:
        asyncio.run(server.start())
        first = server.pid
        assert ask(server)[0] == f"pid {first}."
        assert server.notes == () or "started again" not in " ".join(server.notes)


def test_a_completion_whose_text_had_begun_is_not_asked_again(model: Path) -> None:
    with backend(model, "midway") as server:
        with pytest.raises(BackendBroken):
            ask(server)
        assert ask(server)[0].startswith("pid")  # the next one has a server again


def test_a_cancelled_start_leaves_no_process(model: Path) -> None:
    async def cancelled(server: ServerBackend) -> None:
        task = asyncio.create_task(server.start())
        await until(lambda: processes_with(str(model)))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with backend(model, "silent") as server:
        asyncio.run(cancelled(server))
        assert processes_with(str(model)) == []


def processes_with(argument: str) -> list[str]:
    # -ww: else a line ends after 80 columns, before what is looked for.
    command = ["ps", "-axww", "-o", "pid,args"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True)
    return [
        line for line in listed.stdout.splitlines() if argument in line and "ps -axww" not in line
    ]


PARENT = """
import asyncio, os, sys
from mlx_tools.backends import ServerBackend

async def main():
    server = ServerBackend(sys.argv[1], program=[sys.argv[2]], environ=os.environ)
    await server.start()
    print(server.pid, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


@pytest.mark.parametrize(
    "name",
    ["SIGKILL", *(pytest.param(f"SIG{n}", marks=pytest.mark.slow) for n in ("TERM", "INT", "HUP"))],
)
def test_the_server_is_gone_when_its_parent_is_killed(model: Path, name: str) -> None:
    environ = dict(os.environ) | {"MLX_TOOLS_STATE_DIR": str(model.parent / "state")}
    process = forks().start(str(model), str(FAKE), code=PARENT, environ=environ)
    try:
        pid = int(process.stdout.readline())
        assert is_alive(pid)
        process.send_signal(getattr(signal, name))
        process.wait(HANG)
        assert wait_until_gone(pid)
    finally:
        process.kill()
        process.communicate()


def test_logs_do_not_pile_up(tmp_path: Path) -> None:
    for _ in range(15):
        make_log_path(tmp_path).touch()
    assert len(list(tmp_path.iterdir())) == 10


def test_the_environment_preloads_openblas_and_asks_no_network() -> None:
    environment = make_environment({"LD_PRELOAD": "libx.so", "A": "b"}, "libopenblas.so.0")
    assert environment["LD_PRELOAD"] == "libx.so libopenblas.so.0"
    assert environment["HF_HUB_OFFLINE"] == "1"
    assert environment["A"] == "b"
    again = make_environment(environment, "libopenblas.so.0")
    assert again["LD_PRELOAD"] == environment["LD_PRELOAD"]
    assert "LD_PRELOAD" not in make_environment({}, None)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="OpenBLAS is for Linux")
def test_where_openblas_is_missing_that_is_said_in_one_line(model: Path) -> None:
    for found, said in (("libopenblas.so.0", 0), (None, 1)):
        with backend(model, openblas=lambda found=found: found) as server:
            ask(server)
            assert len([note for note in server.notes if "OpenBLAS" in note]) == said
            assert "\n" not in "".join(server.notes)


def test_without_mlx_lm_it_is_said_what_to_install(model: Path) -> None:
    code = (
        "import asyncio, sys\nsys.modules['mlx_lm'] = None\n"
        "from mlx_tools.backends import ServerBackend\n"
        "from mlx_tools.errors import MissingDependency\n"
        f"try: asyncio.run(ServerBackend({str(model)!r}).start())\n"
        "except MissingDependency as error: print(error)"
    )
    said, _ = forks().start(code=code).communicate()
    assert b"[mlx]'" in said


def test_a_killed_server_is_started_again_for_all_who_wait(model: Path) -> None:
    async def killed(server: ServerBackend) -> list[str]:
        await server.start()
        pid = server.pid or 0
        os.kill(pid, signal.SIGKILL)
        await until(lambda: not is_alive(pid))
        found = await asyncio.gather(*(collect(server) for _ in range(4)))
        return ["".join(chunk.text for chunk in chunks) for chunks in found]

    with backend(model) as server:
        assert asyncio.run(killed(server)) == [f"pid {server.pid}."] * 4


def test_a_server_that_has_ended_is_not_asked(model: Path) -> None:
    """Another program may have its port, and a request that breaks off could be what ended it."""

    async def killed(server: ServerBackend) -> str:
        await server.start()
        pid, port = server.pid or 0, int((server.url or "").rpartition(":")[2])
        os.kill(pid, signal.SIGKILL)
        await until(lambda: not is_alive(pid))
        with socket.create_server(("127.0.0.1", port)):
            return "".join(chunk.text for chunk in await collect(server))

    with backend(model) as server:
        assert asyncio.run(killed(server)) == f"pid {server.pid}."
