"""The processes of this machine: from ``/proc`` where there is one, else from ``ps``."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")
HAS_PROC = (PROC / "self" / "stat").exists()


class Process(NamedTuple):
    """A process: its number, its parent's, its state as ``ps`` writes it, and its command line."""

    pid: int
    parent: int
    state: str
    command: str


def processes(*, has_proc: bool = HAS_PROC) -> Iterator[Process]:
    """All processes that can be seen."""
    if not has_proc:
        words = ("ps", "-axww", "-o", "pid=,ppid=,stat=,command=")
        lines = subprocess.run(words, capture_output=True, text=True, check=True).stdout
        for row in (line.split(None, 3) for line in lines.splitlines()):
            yield Process(int(row[0]), int(row[1]), row[2], row[3] if len(row) > 3 else "")
        return
    for folder in PROC.iterdir():
        if folder.name.isdecimal():
            with contextlib.suppress(OSError):  # it has ended meanwhile
                state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
                words = (folder / "cmdline").read_text(errors="replace").split("\0")
                yield Process(int(folder.name), int(parent), state, " ".join(words).strip())


def is_alive(pid: int, *, has_proc: bool = HAS_PROC) -> bool:
    """Return whether a process runs: one that was killed and not yet waited for does not.

    While another of its threads is still ending, it holds its ports, and cannot be waited for.
    """
    if has_proc:
        try:
            state = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[0]
            if len([*(PROC / str(pid) / "task").iterdir()]) > 1:
                return True
        except (FileNotFoundError, ProcessLookupError):
            return False
    else:
        words = ("ps", "-o", "stat=", "-p", str(pid))
        state = subprocess.run(words, capture_output=True, text=True).stdout.strip()
    return state != "" and state[0] not in "ZX"


def children(pid: int, *, has_proc: bool = HAS_PROC) -> list[int]:
    """The processes that a process has started."""
    return [process.pid for process in processes(has_proc=has_proc) if process.parent == pid]
