"""A command on a real pseudo-terminal, somebody who types, and what that person sees.

terminal = Terminal("chat", "--url", server.url, columns=40)
terminal.see("mlx-tools")                # waits for it
terminal.type("What is 6*7?")
terminal.press("enter")
assert "42" in terminal.see("It is 42")  # the screen, once it shows that
terminal.close()
"""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import re
import select
import struct
import termios
import time
from pathlib import Path
from typing import Any, Final

import pyte

from tests.forked import forks
from tests.waiting import HANG

BRACKETED_PASTE: Final = 2004 << 5
"""The name in pyte of the mode in which a program is told what was pasted."""

KEYS: Final = {
    "enter": "\r",
    "backspace": "\x7f",
    "up": "\x1b[A",
    **{f"ctrl-{letter}": chr(ord(letter) - 96) for letter in "abcdefghijklmnopqrstuvwxyz"},
}


class Terminal:
    """A command on a pseudo-terminal of its own, as its controlling terminal.

    ``screen`` is what a person sees, ``paper`` that and what has scrolled away above it; ``text``
    what was written and not yet asked for by `until`, control sequences and all.
    """

    def __init__(
        self,
        *arguments: str,
        environ: dict[str, str] | None = None,
        program: str = "",
        columns: int = 100,
        rows: int = 30,
        folder: Path | None = None,
    ) -> None:
        """Starts ``mlx-tools`` with these arguments, or the text of a Python program, in the folder
        or the current one."""
        self._master, slave = pty.openpty()
        resize(self._master, columns, rows)
        self.drawn = Screen(columns, rows, self._master)
        self._stream = pyte.Stream(self.drawn)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        outside = {name: os.environ[name] for name in os.environ.keys() - {"COLUMNS", "LINES"}}
        self.process = forks().start(
            *arguments,
            code=program,
            files=(slave, slave, slave),
            terminal=True,
            folder=folder,
            environ=outside | {"TERM": "xterm-256color"} | (environ or {}),
        )
        self._slave = slave  # so that the terminal can be looked at when the command has ended
        self.text = ""

    # --- what is seen ---------------------------------------------------------------------------

    @property
    def screen(self) -> str:
        """The rows of the screen, without what is blank at their ends and below them."""
        return "\n".join(row.rstrip() for row in self.drawn.display).rstrip()

    @property
    def paper(self) -> str:
        """The rows that have scrolled away, and those of the screen."""
        return "\n".join([*self.drawn.above, self.screen])

    def see(self, pattern: str, timeout: float = HANG) -> str:
        """The screen, once it shows the pattern. Spaces in it are any white space: words that were
        folded are found as well."""
        self._wait(lambda: self.shows(pattern), f"{pattern!r} did not come", timeout)
        return self.screen

    def gone(self, pattern: str, timeout: float = HANG) -> str:
        """The screen, once it does not show the pattern any more."""
        self._wait(lambda: not self.shows(pattern), f"{pattern!r} did not go", timeout)
        return self.screen

    def shows(self, pattern: str) -> bool:
        """Return True if the screen shows the pattern now; see `see`."""
        spaced = re.sub(r" +(?![ *+?{])", r"\\s+", pattern)
        return bool(re.search(spaced, self.screen, re.MULTILINE))

    def until(self, pattern: str, timeout: float = HANG) -> str:
        """The output up to and with the pattern; that much is then forgotten."""
        self._wait(lambda: re.search(pattern, self.text), f"{pattern!r} did not come", timeout)
        found = re.search(pattern, self.text)
        assert found is not None
        before, self.text = self.text[: found.end()], self.text[found.end() :]
        return before

    def echoes(self) -> bool:
        """Return True if the terminal shows what is typed, line by line, as it does at first."""
        modes = termios.tcgetattr(self._slave)[3]
        return bool(modes & termios.ECHO and modes & termios.ICANON)

    # --- what is done ---------------------------------------------------------------------------

    def type(self, text: str) -> None:
        """Type a text."""
        data = text.encode()
        while data:  # a terminal takes only so much before it is read
            self._read(0)
            if select.select([], [self._master], [], 0.1)[1]:
                data = data[os.write(self._master, data[:1024]) :]

    def press(self, *keys: str) -> None:
        """Press keys by their names in `KEYS`."""
        for key in keys:
            self.type(KEYS[key])

    def paste(self, text: str) -> None:
        """Paste a text, as terminals do: told as one where the program asked for that."""
        text = text.replace("\n", "\r")
        bracketed = BRACKETED_PASTE in self.drawn.mode
        self.type(f"\x1b[200~{text}\x1b[201~" if bracketed else text)

    def resize(self, columns: int, rows: int) -> None:
        """Change the size."""
        self.drawn.resize(rows, columns)
        resize(self._master, columns, rows)

    def end(self, timeout: float = HANG) -> int:
        """Wait for the command's end; its exit code."""
        end = time.monotonic() + timeout
        while self.process.poll() is None and time.monotonic() < end:
            self._read(0.02)
        self.read_rest()
        return self.process.wait(HANG)

    def read_rest(self) -> None:
        """Take in what was written so far."""
        while self._read(0):
            pass

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

    def _wait(self, come: Any, complaint: str, timeout: float) -> None:
        end = time.monotonic() + timeout
        while not come():
            assert time.monotonic() < end, f"{complaint}: {self.text[-2000:]!r}\n{self.paper}"
            if not self._read(0.1) and self.process.poll() is not None and not self._read(0):
                assert come(), f"{complaint}, and the command has ended:\n{self.paper}"

    def _read(self, timeout: float) -> bool:
        """Take in what was written; False where nothing was within so many seconds."""
        if not select.select([self._master], [], [], timeout)[0]:
            return False
        text = self._decoder.decode(os.read(self._master, 65536))
        self.text += text
        self._stream.feed(text)
        return True


class Screen(pyte.Screen):
    """A terminal's screen, which keeps what scrolls away and answers what it is asked."""

    def __init__(self, columns: int, rows: int, keyboard: int) -> None:
        self.above: list[str] = []
        self._keyboard = keyboard
        super().__init__(columns, rows)

    def index(self) -> None:
        """Move down a row; the uppermost is kept where that moves all."""
        if self.cursor.y == self.lines - 1 and self.margins is None:
            self.above.append("".join(self.buffer[0][x].data for x in range(self.columns)).rstrip())
        super().index()

    def select_graphic_rendition(self, *attributes: int, private: bool = False) -> None:
        """Colours, faint text as grey; what xterm has of the same form is none."""
        if not private:
            plain = not {38, 48} & {*attributes}
            super().select_graphic_rendition(
                *(90 if plain and number == 2 else number for number in attributes)
            )

    def write_process_input(self, data: str) -> None:
        """Answer where the cursor stands, and what terminal this is."""
        os.write(self._keyboard, data.encode())


def resize(file: int, columns: int, rows: int) -> None:
    """Give the terminal behind an open file a size."""
    fcntl.ioctl(file, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
