"""Processes that a folder's tool started end with it, on a Mac too, where there is no /proc."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mlx_tools.plugins.folders.folder_tool import CHILD
from tests.processes import is_alive
from tests.waiting import HANG, wait_until

WAYS = ["ps", *(["proc"] if sys.platform.startswith("linux") else [])]

SESSION = """
import os, subprocess, sys, time

def execute(arguments):
    code = "import sys, time; open(sys.argv[1], 'w').write('here'); time.sleep(600)"
    words = [sys.executable, "-c", code, arguments["file"]]
    child = subprocess.Popen(words, start_new_session=True)
    while not os.path.exists(arguments["file"]):
        time.sleep(0.01)
    print(child.pid, flush=True)
    time.sleep(arguments["seconds"])
    return {"pid": child.pid}
"""

ORPHANS = """
import os, sys, time

def execute(arguments):
    middle = os.fork()
    if middle == 0:
        os.setsid()
        files = [f"{arguments['file']}{number}" for number in range(3)]
        for file in files:
            if os.fork() == 0:
                with open(file, "w") as out:
                    out.write(str(os.getpid()))
                time.sleep(600)
        while not all(os.path.exists(file) and os.path.getsize(file) for file in files):
            time.sleep(0.01)
        time.sleep(2)  # for as long as it is looked at
        os._exit(0)
    os.waitpid(middle, 0)
    return {}
"""


@contextlib.contextmanager
def started(
    folder: Path, code: str, way: str, **arguments: Any
) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """The process of a tool, and where its results are read."""
    place = folder / "place" / "tool"
    place.mkdir(parents=True)
    (place / "execute.py").write_text(code, encoding="utf-8")
    results, told = os.pipe()
    words = [sys.executable, "-I", str(CHILD), str(place / "execute.py"), str(told)]
    with subprocess.Popen(
        [*words, *(["ps"] if way == "ps" else [])],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=[told],
        start_new_session=True,
    ) as child:
        os.close(told)
        assert child.stdin is not None
        child.stdin.write(json.dumps(arguments).encode() + b"\n")
        child.stdin.flush()
        try:
            yield child, results
        finally:
            child.kill()
            os.close(results)


@pytest.mark.parametrize("way", WAYS)
def test_a_process_of_its_own_session_ends_with_the_call(tmp_path: Path, way: str) -> None:
    given = {"file": str(tmp_path / "here"), "seconds": 0.1}
    with started(tmp_path, SESSION, way, **given) as (child, _):
        assert child.stdout is not None
        pid = int(child.stdout.readline())
        child.wait(HANG)
    assert wait_until(lambda: not is_alive(pid))


@pytest.mark.parametrize("way", WAYS)
def test_it_ends_when_the_caller_is_gone(tmp_path: Path, way: str) -> None:
    given = {"file": str(tmp_path / "here"), "seconds": 600}
    with started(tmp_path, SESSION, way, **given) as (child, _):
        assert child.stdout is not None and child.stdin is not None
        pid = int(child.stdout.readline())
        assert is_alive(pid)
        child.stdin.close()  # as after kill -9 of the caller
        child.wait(HANG)
    assert wait_until(lambda: not is_alive(pid))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.heavy
def test_those_whose_parent_has_ended_are_known_again(tmp_path: Path, way: str) -> None:
    with started(tmp_path, ORPHANS, way, file=str(tmp_path / "pid")) as (child, _):
        child.wait(HANG)
    pids = [int((tmp_path / f"pid{number}").read_text()) for number in range(3)]
    try:
        assert wait_until(lambda: not any(map(is_alive, pids)))
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
