"""What is typed while nobody reads: kept for the next line, unseen, and no answer to anything."""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final, NamedTuple, Self, TextIO

from mlx_tools.cli.inputs import handled
from mlx_tools.cli.output import ours, steerable

_CHUNK: Final = 4096

_REST: Final = 0.02
"""Seconds within which a terminal hands over the rest of a text that is pasted."""

_MARK_PASTES: Final = "\x1b[?2004h"
_MARK_NONE: Final = "\x1b[?2004l"


class _Held(NamedTuple):
    """The terminal's modes as they were, the thread that reads, and what ends it."""

    modes: list[int | list[bytes | int]]
    reader: threading.Thread
    end: int


class TypeAhead:
    """The keyboard of a program that is busy, and the screen that it writes to.

    A terminal of its own accord keeps 4096 bytes, and then obeys no Ctrl-C: so they are read.
    """

    def __init__(self, keyboard: TextIO, screen: TextIO) -> None:
        self.screen = screen
        self._file = keyboard.fileno()
        self._typed = b""
        self._held: _Held | None = None

    @classmethod
    def here(cls) -> Self | None:
        """That of this process; None where it has no keyboard, or no screen that obeys."""
        screens = [s for s in (sys.stderr, ours()) if s is not None and steerable(s)]
        return cls(sys.stdin, screens[0]) if screens and sys.stdin.isatty() else None

    @contextmanager
    def held(self) -> Iterator[None]:
        """Inside, what is typed is kept and not shown; Ctrl-C and Ctrl-Z are obeyed as ever."""

        def stop(*_: object) -> None:
            lent = self._held is None
            self._release()
            signal.signal(signal.SIGTSTP, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTSTP)
            signal.signal(signal.SIGTSTP, stop)  # here it goes on
            if not lent:
                self._hold()

        try:
            with handled(signal.SIGTSTP, stop):
                self._hold()
                yield
        except KeyboardInterrupt:
            self._release()
            self._typed = self._typed.rstrip(b"\r")  # it stands in the next line, and is not sent
            raise
        finally:
            self._release()

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Within `held`: inside, the terminal is as it was, and what was typed answers nothing."""
        self._release()
        try:
            yield
        finally:
            self._hold()

    def take(self) -> str:
        """What was typed and is not read yet; it is kept no longer."""
        self._take_lines()
        typed, self._typed = self._typed, b""
        return typed.decode("utf-8", "replace")

    def _take_lines(self) -> None:
        """Take what was typed while nothing was held: a terminal says Enter with a newline then."""
        self._typed += self._pending().replace(b"\n", b"\r")

    def _hold(self) -> None:
        with suppress(OSError, ValueError, termios.error):  # the terminal is gone
            self._take_lines()
            modes = termios.tcgetattr(self._file)
            quiet = termios.tcgetattr(self._file)
            quiet[0] &= ~termios.ICRNL  # Enter and Ctrl-J are told apart
            quiet[3] &= ~(termios.ECHO | termios.ICANON)
            quiet[3] |= termios.NOFLSH  # Ctrl-C forgets nothing
            termios.tcsetattr(self._file, termios.TCSANOW, quiet)
            self.screen.write(_MARK_PASTES)
            self.screen.flush()
            ended, end = os.pipe()
            reader = threading.Thread(target=self._read_on, args=(ended,), daemon=True)
            self._held = _Held(modes, reader, end)
            reader.start()

    def _release(self) -> None:
        held, self._held = self._held, None
        if held is None:
            return
        os.close(held.end)
        held.reader.join()
        with suppress(OSError, ValueError, termios.error):
            self._typed += self._pending()
            self.screen.write(_MARK_NONE)
            self.screen.flush()
            termios.tcsetattr(self._file, termios.TCSANOW, held.modes)

    def _read_on(self, ended: int) -> None:
        with suppress(OSError):
            while ended not in select.select([self._file, ended], [], [])[0]:
                data = os.read(self._file, _CHUNK)
                if not data:
                    break
                self._typed += data
        os.close(ended)

    def _pending(self) -> bytes:
        """What is there to be read at once; Ctrl-D where that is the end of the input."""
        data = b""
        with suppress(OSError):
            while select.select([self._file], [], [], _REST if data else 0)[0]:
                chunk = os.read(self._file, _CHUNK)
                if not chunk:
                    return data + b"\x04"
                data += chunk
        return data
