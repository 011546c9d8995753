"""A Mac does not fall asleep for want of use while a run works."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Sequence

from mlx_tools import Controller, Policy
from mlx_tools.process import AWAKE, Awake


def test_on_a_mac_caffeinate_runs_while_anything_works_and_ends_with_this_process() -> None:
    started: list[Sequence[str]] = []
    children: list[subprocess.Popen[bytes]] = []

    def start(command: Sequence[str]) -> subprocess.Popen[bytes]:
        started.append(command)
        code = "import sys; sys.stdin.read()"
        children.append(subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE))
        return children[-1]

    awake = Awake("darwin", start)
    with awake:
        with awake:
            assert len(started) == 1 and children[0].poll() is None
        assert children[0].poll() is None
    assert children[0].returncode is not None
    assert list(started[0]) == ["/usr/bin/caffeinate", "-i", "-w", str(os.getpid())]
    with awake:
        assert len(started) == 2
    for child in children:
        assert child.stdin is not None
        child.stdin.close()


def test_elsewhere_and_without_caffeinate_nothing_is_started() -> None:
    def missing(command: Sequence[str]) -> subprocess.Popen[bytes]:
        raise FileNotFoundError(command[0])

    with Awake("linux", missing), Awake("darwin", missing) as awake:
        assert awake.users == 1


def test_a_run_keeps_awake_until_it_rests() -> None:
    users: list[int] = []

    async def complete(prompt: str) -> str:
        users.append(AWAKE.users)
        return '{"type": "answer", "text": "Hi."}'

    before = AWAKE.users
    asyncio.run(Controller(complete, [], Policy()).run("Hello"))
    assert users and set(users) == {before + 1}
    assert before == AWAKE.users
