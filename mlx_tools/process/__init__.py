"""Programs that this one runs, and that end when it does, however it ends; and their words."""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from mlx_tools.process.html_text import read_html

SUPERVISED: Final = (sys.executable, "-P", str(Path(__file__).with_name("supervise.py")))
"""Before a module's name, or a script's path: Python runs it, and it ends with this process. Its
standard input must be a pipe that is held open here."""

RELAYED: Final = (sys.executable, "-I", str(Path(__file__).with_name("relay.py")))
"""Before the most bytes of a line, the most of standard error, and a command that is spoken to in
lines: it runs until its standard input ends (`mlx_tools.process.relay`)."""


def run(
    command: Sequence[str],
    log: Path,
    environ: Mapping[str, str],
    watch: Callable[[], None],
    interval: float = 0.1,
) -> int:
    """Run ``command`` to its end, calling ``watch`` every ``interval`` seconds; give its exit code.

    All that it prints goes to ``log``. An exception, Ctrl-C's too, ends it at once, with whatever
    it started.
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
    """End a child that leads a process group, and all that is in the group; wait until it is so.

    With ``patience`` it is asked first, and has so many seconds: its standard input, where that is
    a pipe, is closed as its lifeline; else it gets SIGTERM.
    """
    if patience and child.stdin is not None:
        with contextlib.suppress(OSError):
            child.stdin.close()
    elif patience:
        _signal(child, signal.SIGTERM)
    if patience:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(patience)
    _signal(child, signal.SIGKILL)
    child.wait()


def _signal(child: subprocess.Popen[bytes], kind: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, kind)


class Pipes:
    """Pipes that a child writes to: for each reading end what takes the pieces that come through
    it, an empty one at its end, and returns whether more of them are wanted."""

    def __init__(self, takers: Mapping[int, Callable[[bytes], bool]]) -> None:
        self._selector = selectors.DefaultSelector()
        for file, take in takers.items():
            os.set_blocking(file, False)
            self._selector.register(file, selectors.EVENT_READ, take)

    def __contains__(self, file: object) -> bool:
        """True while it is read."""
        return file in self._selector.get_map()

    def read(self, seconds: float) -> None:
        """Wait so long for something, and read what is there."""
        for key, _ in self._selector.select(seconds):
            with contextlib.suppress(BlockingIOError):
                piece = os.read(key.fd, 65_536)
                if not key.data(piece) or not piece:
                    self._selector.unregister(key.fd)

    def close(self) -> None:
        """Read no more. The ends stay open."""
        self._selector.close()


_UNSHOWN = re.compile("[\U000e0000-\U000e01ef]")
"""Tags and selectors."""


def clean(text: str, limit: int = 300) -> str:
    """Foreign text on one line, fit to be shown: no control or invisible characters, cut short."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text[: 4 * limit]).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def visible(text: str) -> str:
    """Foreign text without the letters that nothing shows, and that a model reads."""
    return _UNSHOWN.sub("", text)
