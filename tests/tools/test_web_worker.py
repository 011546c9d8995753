"""Pages are read by a process that cannot take this one along."""

from __future__ import annotations

import asyncio
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from mlx_tools.process import kill_group
from mlx_tools.toolbox.urls import read_url
from mlx_tools.toolbox.web_fetch import FetchedPage, Media, extract_text
from mlx_tools.toolbox.worker import Bounds, WorkerFailed, run_in_worker, start_worker
from mlx_tools.tools import ToolError
from tests.waiting import until, wait_until

SLOW = "<" * 5_000_000
"""Takes the reader minutes: what does not end it hangs."""

ROOM = Bounds(seconds=600, cpu_seconds=3600, memory_mb=1000)


READ = "toolbox.html_text.read_html"


def asked(html: str, bounds: Bounds = ROOM, script: str = READ) -> dict[str, Any]:
    question = {"html": html, "url": "https://example.org/", "max_chars": 100_000}
    return asyncio.run(run_in_worker(script, "justhtml", question, bounds))


def no_child_is_left() -> bool:
    listed = subprocess.run(
        ["ps", "-A", "-ww", "-o", "ppid=,args="], capture_output=True, text=True
    )
    rows = (line.split(None, 1) for line in listed.stdout.splitlines())
    return not any(int(row[0]) == os.getpid() and "isolated.py" in row[-1] for row in rows)


def test_a_page_is_read_and_the_process_is_gone() -> None:
    assert asked("<title>T</title>x") == {"title": "T", "text": "x", "cut": False}
    assert no_child_is_left()


@pytest.mark.slow
@pytest.mark.parametrize(
    "bounds",
    [
        Bounds(seconds=0.5, cpu_seconds=3600, memory_mb=1000),
        Bounds(seconds=600, cpu_seconds=1, memory_mb=1000),
        Bounds(seconds=30, cpu_seconds=20, memory_mb=60),
        Bounds(seconds=30, cpu_seconds=20, memory_mb=1000, max_output_bytes=10),
    ],
    ids=["time", "processor", "memory", "output"],
)
def test_a_process_that_goes_beyond_its_bounds_is_ended(bounds: Bounds) -> None:
    page = SLOW if bounds.max_output_bytes > 10 and bounds.memory_mb > 60 else "<p>x" * 100_000
    with pytest.raises(WorkerFailed) as caught:
        asked(page, bounds)
    assert caught.value.over_limit
    assert no_child_is_left()


def test_a_process_nobody_waits_for_is_ended() -> None:
    async def run() -> None:
        task = asyncio.ensure_future(
            run_in_worker(READ, "justhtml", {"html": SLOW, "max_chars": 1}, ROOM)
        )
        await until(lambda: not no_child_is_left())
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    assert no_child_is_left()


def test_a_process_that_breaks_is_told_from_one_that_is_ended() -> None:
    with pytest.raises(WorkerFailed) as caught:
        asked("x", script="toolbox.isolated.no_such_work")
    assert not caught.value.over_limit


@pytest.mark.heavy
def test_what_a_page_is_made_of_cannot_be_more_than_the_answer_may_be() -> None:
    found = asked("<p>" + "😀\x01" * 60_000)
    assert found["cut"] and len(found["text"]) == 100_000


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="no /proc")
def test_the_process_sees_no_variable_but_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy that is named there would be asked by a library that looks for it."""
    for name in ("HTTPS_PROXY", "ALL_PROXY", "DDGS_PROXY", "NETRC", "SECRET"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")

    question = {"html": SLOW, "url": "", "max_chars": 1}
    child = start_worker(READ, "justhtml", question, ROOM)
    environ = Path(f"/proc/{child.pid}/environ")
    known = wait_until(lambda: environ.read_bytes())  # empty for a moment while it starts
    held = known.strip(b"\0").split(b"\0")
    kill_group(child.pid)
    child.communicate()
    assert {one.partition(b"=")[0] for one in held} == {b"PATH", b"LC_ALL"}


def test_a_missing_package_is_said() -> None:
    with pytest.raises(ToolError, match="no_such_package is not installed"):
        asyncio.run(run_in_worker(READ, "no_such_package", {}, ROOM))


def test_a_page_that_cannot_be_read_in_its_time_is_an_error_in_words() -> None:
    page = FetchedPage(read_url("https://example.org/"), Media("html"), SLOW.encode())
    with pytest.raises(ToolError, match="too much time or memory: https://example"):
        asyncio.run(extract_text(page, 0.5))
