"""Tests' knowledge of processes: by either way the same, so that they hold on a Mac."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from tests.processes import HAS_PROC, children, is_alive, processes

WAYS = [
    *([True] if HAS_PROC else []),
    *([False] if shutil.which("ps") is not None else []),
]


@pytest.mark.parametrize("has_proc", WAYS)
def test_a_process_is_alive_until_it_was_killed_even_if_nobody_waited_for_it(
    has_proc: bool,
) -> None:
    words = (sys.executable, "-c", "import sys; sys.stdin.read()", "a-mark-of-ours")
    with subprocess.Popen(words, stdin=subprocess.PIPE) as child:
        assert is_alive(child.pid, has_proc=has_proc)
        assert child.pid in children(os.getpid(), has_proc=has_proc)
        (known,) = (p for p in processes(has_proc=has_proc) if p.pid == child.pid)
        assert known.parent == os.getpid() and known.command.endswith("a-mark-of-ours")
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert not is_alive(child.pid, has_proc=has_proc)
    assert not is_alive(child.pid, has_proc=has_proc)
