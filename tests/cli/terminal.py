"""A command on a real pseudo-terminal, and somebody who types."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import termios
import time

from tests.forked import forks


class Terminal:
    """A command on a pseudo-terminal of its own, as its controlling terminal."""

    def __init__(
        self, *arguments: str, environ: dict[str, str] | None = None, program: str = ""
    ) -> None:
        """Starts ``mlx-tools`` with these arguments, or the text of a Python program."""
        self._master, slave = pty.openpty()
        self.process = forks().start(
            *arguments,
            code=program,
            files=(slave, slave, slave),
            terminal=True,
            environ=os.environ | {"TERM": "xterm", "COLUMNS": "100"} | (environ or {}),
        )
        self._slave = slave  # so that the terminal can be looked at when the command has ended
        self.text = ""

    def until(self, pattern: str, timeout: float = 30.0) -> str:
        """What is shown up to and with the pattern; that much is then forgotten."""
        end = time.monotonic() + timeout
        while not (found := re.search(pattern, self.text)):
            assert time.monotonic() < end, f"{pattern!r} did not come: {self.text!r}"
            self._read(0.1)
        before, self.text = self.text[: found.end()], self.text[found.end() :]
        return before

    def resize(self, columns: int, rows: int) -> None:
        """Have another size."""
        resize(self._master, columns, rows)

    def type(self, text: str) -> None:
        """Type a text."""
        os.write(self._master, text.encode())

    def insist(self, key: str, pattern: str) -> str:
        """Type a key, again and again, until the pattern is shown.

        A signal between readline's prompt and its wait for input is noticed with the next key only:
        no person is that fast, a test is.
        """
        for _ in range(30):
            self.type(key)
            end = time.monotonic() + 1.0
            while time.monotonic() < end:
                if re.search(pattern, self.text):
                    return self.until(pattern)
                self._read(0.1)
        raise AssertionError(f"{pattern!r} did not come: {self.text!r}")

    def end(self, timeout: float = 30.0) -> int:
        """Wait for the command's end; its exit code."""
        end = time.monotonic() + timeout
        while self.process.poll() is None and time.monotonic() < end:
            self._read(0.1)
        self._read(0.1)
        return self.process.wait(1)

    def read_rest(self) -> None:
        """Take in what an ended command has written."""
        while select.select([self._master], [], [], 0)[0]:
            self._read(0)

    def echoes(self) -> bool:
        """Whether the terminal shows what is typed, line by line, as it does at first."""
        modes = termios.tcgetattr(self._slave)[3]
        return bool(modes & termios.ECHO and modes & termios.ICANON)

    def hang_up(self) -> None:
        """Take the terminal away from the command."""
        os.close(self._master)
        os.close(self._slave)
        self._master = -1

    def close(self) -> None:
        """End it, whatever it does."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        if self._master >= 0:
            self.hang_up()

    def _read(self, timeout: float) -> None:
        if select.select([self._master], [], [], timeout)[0]:
            try:
                self.text += os.read(self._master, 65536).decode("utf-8", "replace")
            except OSError:  # the other side is closed
                time.sleep(timeout)


def resize(file: int, columns: int, rows: int) -> None:
    """Give the terminal behind an open file a size."""
    fcntl.ioctl(file, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
