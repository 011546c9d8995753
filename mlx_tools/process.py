"""Programs that this process runs and that end with it, however it ends.

And cleaning of their text.

This file is also the program in between (`SUPERVISED`, `RELAYED`). Its standard input is a pipe
that the parent holds open. When the parent closes it, ends, or is killed by a signal that cannot be
caught, the pipe ends, and the started program is killed. This works on Linux and on macOS, and no
further process is left over. As that program it imports nothing of mlx_tools.
"""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final


def _own_file() -> str:
    """Return the path of this file, which Python runs."""
    if os.path.isfile(__file__):  # noqa: PTH113 - every start asks
        return __file__
    from mlx_tools.paths import package_file  # never reached if this file is the program

    return str(package_file("process.py"))


_FILE: Final = _own_file()

SUPERVISED: Final = (sys.executable, "-P", _FILE, "supervise")
"""The words before a module's name or a script's path: Python runs it, and it ends with this
process.

Its standard input must be a pipe that is held open here.
"""

RELAYED: Final = (sys.executable, "-I", _FILE, "relay")
"""The words before a command that exchanges lines with us.

The next words are the most bytes of a line, the most bytes of standard error, and the command. It
runs until its standard input ends, or it writes a longer line.
"""


def run(
    command: Sequence[str],
    log: Path,
    environ: Mapping[str, str],
    watch: Callable[[], None],
    interval: float = 0.1,
) -> int:
    """Run ``command`` to its end, and return its exit code.

    An exception, Ctrl-C's too, ends it at once, with all that it started.

    Args:
        command: the command.
        log: gets all that it prints.
        environ: its environment.
        watch: called every ``interval`` seconds, and once at the end.
        interval: seconds between two calls of ``watch``.
    """
    with log.open("wb") as output:
        child = subprocess.Popen(  # noqa: S603 - an argument list, no shell
            command,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            env=dict(environ),
            start_new_session=True,
        )
    try:
        while child.poll() is None:
            watch()
            time.sleep(interval)
    except BaseException:
        end(child)
        raise
    finally:
        if child.stdin is not None:
            child.stdin.close()
    watch()
    return child.returncode


def end(child: subprocess.Popen[bytes], patience: float = 0.0) -> None:
    """End a child that leads a process group, and all of the group.

    Wait until it has ended.

    Args:
        child: the child.
        patience: seconds to end by itself. It is asked first: its standard input is closed if that
            is a
            pipe (its lifeline), else it gets SIGTERM. With 0 it is killed at once.
    """
    if patience and child.stdin is not None:
        with contextlib.suppress(OSError):
            child.stdin.close()
    elif patience:
        kill_group(child.pid, signal.SIGTERM)
    if patience:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(patience)
    kill_group(child.pid)
    child.wait()


def kill_group(group: int, kind: signal.Signals = signal.SIGKILL) -> None:
    """Send a signal to all processes of a group, if there are any."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, kind)


class Pipes:
    """Reads the pipes of a child.

    Args:
        takers: for each reading end a function. It gets each piece, an empty one at the end, and
            returns
            True if it wants more.
    """

    def __init__(self, takers: Mapping[int, Callable[[bytes], bool]]) -> None:
        self._selector = selectors.DefaultSelector()
        for file, take in takers.items():
            os.set_blocking(file, False)
            self._selector.register(file, selectors.EVENT_READ, take)

    def __contains__(self, file: object) -> bool:
        """Return True while a pipe is still read."""
        return file in self._selector.get_map()

    def read(self, seconds: float) -> None:
        """Wait up to ``seconds`` for data, and read it."""
        for key, _ in self._selector.select(seconds):
            with contextlib.suppress(BlockingIOError):
                piece = os.read(key.fd, _CHUNK)
                if not key.data(piece) or not piece:
                    self._selector.unregister(key.fd)

    def close(self) -> None:
        """Stop reading. The ends stay open."""
        self._selector.close()


# --- a Mac that stays awake ----------------------------------------------------------------------


class Awake:
    """Keeps an idle Mac awake while something works; does nothing elsewhere.

    Args:
        platform: as `sys.platform` names it.
        start: starts a program.
    """

    def __init__(
        self,
        platform: str = sys.platform,
        start: Callable[[Sequence[str]], subprocess.Popen[bytes]] | None = None,
    ) -> None:
        self.users = 0
        self._platform, self._start = platform, start or _start_quietly
        self._child: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def __enter__(self) -> Awake:
        with self._lock:
            self.users += 1
            if self.users == 1 and self._platform == "darwin":
                with contextlib.suppress(OSError):
                    # -w ends caffeinate with this process, however that ends.
                    command = ["/usr/bin/caffeinate", "-i", "-w", str(os.getpid())]
                    self._child = self._start(command)
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self.users -= 1
            child, self._child = (self._child, None) if not self.users else (None, self._child)
        if child is not None:
            child.terminate()
            child.wait()


def _start_quietly(command: Sequence[str]) -> subprocess.Popen[bytes]:
    nothing = subprocess.DEVNULL
    return subprocess.Popen(command, stdin=nothing, stdout=nothing, stderr=nothing)  # noqa: S603


AWAKE: Final = Awake()
"""This process's: any number of runs share it."""


# --- text from elsewhere --------------------------------------------------------------------------

_UNSHOWN: Final = re.compile("[\U000e0000-\U000e01ef]")
"""Unicode tags and variation selectors, which nothing displays."""


def clean(text: str, limit: int = 300) -> str:
    """Return foreign text on one line, fit to be shown.

    It has no control or invisible characters, and at most ``limit`` characters.
    """
    line = " ".join("".join(c if c.isprintable() else " " for c in text[: 4 * limit]).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def visible(text: str) -> str:
    """Return foreign text without characters that nothing displays but a model reads."""
    return _UNSHOWN.sub("", text)


# --- the program in between -----------------------------------------------------------------------

_CHUNK: Final = 65_536
"""Bytes of one read: the size of a pipe on Linux."""
_END_SECONDS: Final = 2.0
"""Seconds that a relayed program has after its standard input has ended.

A choice: time to write its last lines, and short enough for a command's end.
"""


def _supervise(program: str, *arguments: str) -> None:
    """Run a program in this thread; end it when standard input ends."""
    pipe = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    # The program reads from /dev/null: it must not take bytes from the lifeline.
    os.dup2(nothing, 0)
    os.close(nothing)

    def die_with_parent() -> None:
        while os.read(pipe, _CHUNK):
            pass
        _die()

    threading.Thread(target=die_with_parent, daemon=True).start()
    import runpy  # imported late: the relay does not need it

    sys.argv = [program, *arguments]
    if program.endswith((".py", ".pyc")):
        runpy.run_path(program, run_name="__main__")
    else:
        runpy.run_module(program, run_name="__main__", alter_sys=True)


def _relay(line: str, errors: str, *command: str) -> None:
    """Run a program, and pass on its lines and the beginning of its standard error."""
    try:
        child = subprocess.Popen(  # noqa: S603 - an argument list, no shell
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
        sys.exit(127)
    assert child.stdin is not None and child.stdout is not None and child.stderr is not None
    stdin, stdout, stderr = child.stdin, child.stdout, child.stderr

    def pass_input() -> None:
        with contextlib.suppress(OSError):  # the program reads no more
            while data := os.read(0, _CHUNK):
                _write(stdin.fileno(), data)
        stdin.close()
        time.sleep(_END_SECONDS)
        _die()

    def pass_errors() -> None:
        max_bytes = int(errors)
        while data := os.read(stderr.fileno(), _CHUNK):
            _write(2, data[:max_bytes])
            max_bytes -= len(data[:max_bytes])

    for work in (pass_input, pass_errors):
        threading.Thread(target=work, daemon=True).start()
    if _lines(stdout.fileno(), int(line)):
        sys.exit(child.wait())
    print(f"it wrote a line of more than {line} bytes, and was ended", file=sys.stderr)
    _die()


def _lines(source: int, max_bytes: int) -> bool:
    """Pass on lines until there are no more or nobody reads them.

    False if one is too long.
    """
    length = 0
    while data := os.read(source, _CHUNK):
        head, newline, _ = data.partition(b"\n")
        if length + len(head) > max_bytes:
            return False
        length = len(data) - data.rfind(b"\n") - 1 if newline else length + len(data)
        try:
            _write(1, data)
        except OSError:
            break
    return True


def _write(file: int, data: bytes) -> None:
    while data:
        data = data[os.write(file, data) :]


def _die() -> None:
    if os.getpgrp() == os.getpid():  # true if the parent gave it a session of its own
        os.killpg(os.getpid(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    (_supervise if sys.argv[1] == SUPERVISED[-1] else _relay)(*sys.argv[2:])
