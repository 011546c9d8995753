"""Findings of the doctor about a machine; a Mac is played by its programs' output."""

from __future__ import annotations

import resource
import socket
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mlx_tools.app import Autostart, machine_checks
from mlx_tools.app.machine_checks import (
    GB,
    check_autostart,
    check_machine,
    check_memory,
    check_open_files,
    check_port,
    check_system,
)
from tests.tables import table

Output = Callable[[Sequence[str]], str | None]


def mac(**printed: str | None) -> Output:
    """The programs of a Mac: by the last part of their names, what they print."""

    def output(words: Sequence[str]) -> str | None:
        return printed.get(Path(words[0]).name.replace("-", "_"))

    return output


TOOLS = {"xcode_select": "/Library/Developer/CommandLineTools\n"}


@table(
    ("version", "processor", "translated", "status", "words"),
    [
        ("15.6.1", "arm64", "0", "ok", "macOS 15.6.1 on Apple silicon"),
        ("26.1", "arm64", "0", "ok", "macOS 26.1"),
        ("13.7", "arm64", "0", "warn", "MLX needs 14"),
        ("", "arm64", "0", "warn", "MLX needs 14"),
        ("15.6", "x86_64", "1", "warn", "Rosetta"),
        ("12.7", "x86_64", None, "warn", "Intel processor"),
    ],
)
def test_a_mac_is_told_whether_mlx_runs_on_it(
    version: str, processor: str, translated: str | None, status: str, words: str
) -> None:
    output = mac(sysctl=translated, **TOOLS)
    system, tools = check_system("darwin", version=version, processor=processor, output=output)
    assert (system.status, bool(system.hint)) == (status, status != "ok")
    assert words in system.detail
    assert tools.status == "ok"


def test_missing_command_line_tools_are_told_and_other_systems_asked_nothing() -> None:
    _, tools = check_system("darwin", version="15", processor="arm64", output=mac())
    assert (tools.status, tools.hint) == ("warn", "xcode-select --install")
    assert check_system("linux", version="", processor="x86_64", output=mac()) == []


@table(
    ("memory", "weights", "platform", "raised", "status", "words"),
    [
        (16, 2.3, "darwin", "0", "ok", "16 GB of memory, 11 GB of it for Metal; .* 2.3 GB"),
        (16, 12, "darwin", "0", "warn", "no room"),
        (16, 12, "darwin", "14000", "ok", "14 GB of it for Metal"),
        (16, 12, "darwin", None, "warn", "no room"),
        (8, 5.0, "darwin", "0", "warn", "no room"),
        (16, 12, "linux", "0", "ok", "16 GB of memory; .* 12.0 GB"),
        (16, 16.5, "linux", "0", "warn", "no room"),
        (16, None, "darwin", "0", "ok", "not on this machine"),
        (None, 2.3, "darwin", "0", "skip", "not known"),
    ],
)
def test_weights_are_compared_with_the_memory_that_they_must_fit_into(
    memory: int | None,
    weights: float | None,
    platform: str,
    raised: str | None,
    status: str,
    words: str,
) -> None:
    check = check_memory(
        None if weights is None else Path("model"),
        None if memory is None else memory * 2**30,
        platform,
        size=lambda folder: int((weights or 0) * GB),
        output=mac(sysctl=raised),
    )
    assert check.status == status
    assert bool(check.hint) == (status == "warn")
    with pytest.raises(AssertionError, match=words):
        raise AssertionError(check.detail)


def limits(soft: int, hard: int) -> Any:
    names = {"RLIMIT_NOFILE": 7, "RLIM_INFINITY": resource.RLIM_INFINITY}
    return SimpleNamespace(getrlimit=lambda which: (soft, hard), **names)


def test_few_open_files_are_told_with_the_way_to_more() -> None:
    few = check_open_files(limits(256, 256))
    assert few.status == "warn" and "256" in few.detail and "ulimit" in few.hint
    assert check_open_files(limits(4096, 10240)).status == "ok"
    assert "any number" in check_open_files(limits(resource.RLIM_INFINITY, 0)).detail


def test_the_gateways_port_is_free_or_it_is_said_who_listens_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        for command, status, words in (
            ("/opt/homebrew/bin/python3 /x/bin/mlx-tools serve --port 1", "ok", "mlx-tools serve"),
            ("python -m mlx_tools serve", "ok", "mlx-tools serve"),
            ("/Applications/Other.app/other --port 8321", "warn", "other listens"),
            (None, "warn", "another program listens"),
        ):
            check = check_port(port, command_on=lambda number, command=command: command)
            assert check.status == status and words in check.detail, command
    assert check_port(port, command_on=lambda number: None).status == "ok"


@table(
    ("printed", "status", "words"),
    [
        ("state = running\n\tlast exit code = (never exited)\n", "ok", "installed"),
        ("state = not running\n\tlast exit code = 0\n", "ok", "installed"),
        ("state = not running\n\tlast exit code = 4\n", "ok", "installed"),
        ("state = not running\n\tlast exit code = 2\n", "warn", "exit code 2"),
        (None, "warn", "launchd does not know it"),
    ],
)
def test_an_agent_is_asked_after_by_launchd(
    tmp_path: Path, printed: str | None, status: str, words: str
) -> None:
    home = Path(tempfile.mkdtemp(dir=tmp_path))
    environ = {"HOME": str(home), "MLX_TOOLS_STATE_DIR": str(home / "state")}
    agent = Autostart(
        name="serve",
        platform="darwin",
        home=home,
        environ=environ,
        run=lambda command: True,
        sleep=lambda seconds: None,
    )
    asked: list[Sequence[str]] = []

    def output(words: Sequence[str]) -> str | None:
        asked.append(words)
        return printed

    assert check_autostart(agent, output=output) == [] and asked == []
    agent.install(["mlx-tools", "serve"])
    (check,) = check_autostart(agent, output=output)
    assert (check.status, check.name) == (status, "serve at log-in")
    assert words in check.detail
    assert asked[0][-1].endswith("/org.mlx-tools.serve")


def test_this_machine_is_checked_and_nothing_raises() -> None:
    found = {check.name: check.status for check in check_machine(port=0)}
    assert {"memory", "open files", "port"} <= found.keys()
    assert "fail" not in found.values()


def test_a_program_of_the_system_that_fails_or_is_not_there_prints_nothing() -> None:
    assert machine_checks.run_program(["/no/such/program"]) is None
    assert machine_checks.run_program(["false"]) is None
    assert machine_checks.run_program(["echo", "yes"]) == "yes\n"
