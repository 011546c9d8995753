"""Runs a confined command to its end, or ends it: in time, when its output floods, when nobody
waits any more. Reading is capped while it runs, so what it prints never grows here without bound.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from mlx_tools.toolbox.command import bwrap
from mlx_tools.toolbox.command.sandbox import PROCESSES, Confined

MAX_OUTPUT_BYTES: Final = 200_000
"""Of standard output and standard error together."""

TICK: Final = 0.05
"""Seconds between two looks at whether to go on."""
_COUNT: Final = 0.01
"""Seconds between two counts of its processes."""
_NICER: Final = 5
"""How much lower its priority is than ours."""
_GRACE: Final = 0.5
"""Seconds between the polite and the final signal, and that the ends of pipes are waited for."""

Ending = Literal["finished", "flood", "timeout", "cancelled", "processes"]


@dataclass(frozen=True, slots=True)
class Ran:
    """How a program ended, and what it printed. ``code`` is its exit code, negative where a signal
    ended it; ``started`` is whether the sandbox got as far as starting it."""

    ending: Ending
    code: int
    output: bytes
    errors: bytes
    started: bool


def run(
    confined: Confined,
    environment: Mapping[str, str],
    seconds: float | None,
    cancelled: Callable[[], bool] = lambda: False,
    most: int = MAX_OUTPUT_BYTES,
) -> Ran:
    """Runs the command, without input, until it ends or ``seconds`` are over, or ``cancelled``, or
    it has printed ``most`` bytes. Whatever it started is ended with it. Raises OSError where it
    cannot be started."""
    child = subprocess.Popen(  # noqa: S603 - absolute paths, no shell
        confined.argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=dict(environment),
        cwd="/",
        close_fds=True,
        pass_fds=confined.inherited,
        start_new_session=True,
    )
    reader = _OutputReader(child, confined.told, most)
    ending: Ending = "cancelled"
    try:
        with contextlib.suppress(OSError):  # whatever it does, who watches it comes first
            os.setpriority(os.PRIO_PROCESS, child.pid, os.getpriority(os.PRIO_PROCESS, 0) + _NICER)
        ending = _watch(child, reader, seconds, cancelled)
    finally:
        _end(child, politely=ending != "processes")
    if ending == "finished":
        reader.drain()
        ending = "flood" if reader.flooded else ending
    reader.close()
    started = confined.told is None or any("exit-code" in s for s in bwrap.states(reader.told))
    return Ran(
        ending,
        child.returncode,
        bytes(reader.output),
        bytes(reader.errors),
        started or ending != "finished",
    )


class _OutputReader:
    """Reads what a child prints, and what the sandbox tells of it, as it comes."""

    def __init__(self, child: subprocess.Popen[bytes], told: int | None, most: int) -> None:
        assert child.stdout is not None and child.stderr is not None
        self.output, self.errors, self.told = bytearray(), bytearray(), b""
        self._pipes = (child.stdout, child.stderr)
        self._most = most
        self._told = told
        self._selector = selectors.DefaultSelector()
        for pipe, into in zip(self._pipes, (self.output, self.errors), strict=True):
            os.set_blocking(pipe.fileno(), False)
            self._selector.register(pipe, selectors.EVENT_READ, into)
        if told is not None:
            os.set_blocking(told, False)

    @property
    def flooded(self) -> bool:
        """Whether there was more than is kept."""
        return len(self.output) + len(self.errors) > self._most

    @property
    def open(self) -> bool:
        """Whether more may come."""
        return bool(self._selector.get_map())

    def read(self, seconds: float) -> None:
        """Waits so long for something, and reads what is there."""
        for key, _ in self._selector.select(seconds):
            left = self._most + 1 - len(self.output) - len(self.errors)
            if left <= 0:
                return
            try:
                piece = os.read(key.fd, min(left, 65_536))
            except BlockingIOError:
                continue
            key.data.extend(piece)
            if not piece:
                self._selector.unregister(key.fileobj)
        if self._told is not None and len(self.told) < 65_536:
            with contextlib.suppress(BlockingIOError):
                self.told += os.read(self._told, 4_096)

    def drain(self) -> None:
        """Reads what is left in the pipes of a child that has ended; not for long, since a program
        that got away might hold them open."""
        until = time.monotonic() + _GRACE
        while self.open and not self.flooded and time.monotonic() < until:
            self.read(TICK)
        self.read(0)

    def close(self) -> None:
        """Closes the pipes."""
        self._selector.close()
        for pipe in self._pipes:
            pipe.close()


def _watch(
    child: subprocess.Popen[bytes],
    reader: _OutputReader,
    seconds: float | None,
    cancelled: Callable[[], bool],
) -> Ending:
    until = None if seconds is None else time.monotonic() + seconds
    looked = time.monotonic()
    while True:
        wait = _COUNT if until is None else min(_COUNT, max(until - time.monotonic(), 0))
        if reader.open:
            reader.read(wait)
        else:
            time.sleep(wait)
        if reader.flooded:
            return "flood"
        if child.poll() is not None:
            return "finished"
        if cancelled():
            return "cancelled"
        if until is not None and time.monotonic() >= until:
            return "timeout"
        if time.monotonic() - looked >= _COUNT:
            looked = time.monotonic()
            if _processes(reader.told) > PROCESSES:
                return "processes"


def _processes(told: bytes) -> int:
    """How many processes the program has come to, itself included; 0 where it cannot be seen.

    The system's own limit does not hold for its superuser, and does not count by program.
    """
    mine = bwrap.namespace(told, "pid")
    if mine is None:
        return 0
    count = 0
    for name in os.listdir("/proc"):  # noqa: PTH208 - there may be very many
        if name.isdecimal():
            with contextlib.suppress(OSError):
                count += os.stat(f"/proc/{name}/ns/pid").st_ino == mine  # noqa: PTH116
    return count


def _end(child: subprocess.Popen[bytes], *, politely: bool) -> None:
    """Ends the child and its group, politely and then finally; waits until it is gone. One that
    multiplies is given no time for it."""
    for kind in (signal.SIGTERM, signal.SIGKILL) if politely else (signal.SIGKILL,):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, kind)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(_GRACE)
    child.wait()
