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
from typing import Final, Self, TextIO

from mlx_tools.cli.inputs import handle_signal
from mlx_tools.cli.output import stdout, steerable

_CHUNK: Final = 4096

_REST: Final = 0.02
"""Seconds within which a terminal hands over the rest of a text that is pasted."""

_MARK_PASTES: Final = "\x1b[?2004h"
_MARK_NONE: Final = "\x1b[?2004l"


_PASTE: Final = b"\x1b[200~"
_PASTED: Final = b"\x1b[201~"
_QUOTES: Final = b'"""'


class TypeAhead:
    """The keyboard of a program that is busy, and the screen that it writes to.

    A terminal of its own accord keeps 4096 bytes, and then obeys no Ctrl-C: so they are read.
    """

    def __init__(self, keyboard: TextIO, screen: TextIO) -> None:
        self.screen = screen
        self._file = keyboard.fileno()
        self._input = [b""]  # texts, all but the last sent with Enter
        self._modes: list[int | list[bytes | int]] | None = None  # the terminal's own, while quiet
        self._reader: tuple[threading.Thread, int] | None = None  # and what ends it

    @classmethod
    def for_process(cls) -> Self | None:
        """That of this process; None where it has no keyboard, or no screen that obeys."""
        screens = [s for s in (sys.stderr, stdout()) if s is not None and steerable(s)]
        return cls(sys.stdin, screens[0]) if screens and sys.stdin.isatty() else None

    @contextmanager
    def silence(self) -> Iterator[None]:
        """Inside, what is typed is not shown, but by whoever reads it; Ctrl-C and Ctrl-Z are obeyed
        as ever. So nothing is seen, or taken for another key, between one reader and the next."""

        def stop(*_: object) -> None:
            holds = self._reader is not None
            if holds:
                self._release()
                self._restore()
            signal.signal(signal.SIGTSTP, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTSTP)
            signal.signal(signal.SIGTSTP, stop)  # here it goes on
            if holds:
                self._hold()

        with handle_signal(signal.SIGTSTP, stop):
            self._silence()
            try:
                yield
            finally:
                self._restore()

    @contextmanager
    def buffer_input(self) -> Iterator[None]:
        """Within `silence`: inside, what is typed is kept."""
        try:
            self._hold()
            yield
        except KeyboardInterrupt:
            self._release()
            # it stands in the next line, and is not sent
            self._input = [b"".join(self._input).rstrip(b"\r")]
            raise
        finally:
            self._release()

    @contextmanager
    def lend_terminal(self) -> Iterator[None]:
        """Within `buffer_input`: inside, the terminal is as it was, and what was typed answers
        nothing."""
        self._release()
        self._restore()
        try:
            yield
        finally:
            self._hold()

    def take(self) -> str:
        """What was typed and is not read yet, up to an Enter; it is kept no longer."""
        self._take_pending()
        typed = self._input.pop(0)
        self._input = self._input or [b""]
        return typed.decode("utf-8", "replace")

    def _take_pending(self) -> None:
        """Take what is there to be read: a terminal that is not quiet says Enter with a newline."""
        pending = self._pending()
        self._input[-1] += pending.replace(b"\n", b"\r") if self._modes is None else pending

    def _silence(self) -> None:
        with suppress(OSError, ValueError, termios.error):  # the terminal is gone
            self._take_pending()
            quiet = termios.tcgetattr(self._file)
            self._modes = termios.tcgetattr(self._file)
            quiet[0] &= ~termios.ICRNL  # Enter and Ctrl-J are told apart
            quiet[3] &= ~(termios.ECHO | termios.ICANON)
            quiet[3] |= termios.NOFLSH  # Ctrl-C forgets nothing
            termios.tcsetattr(self._file, termios.TCSANOW, quiet)

    def _restore(self) -> None:
        modes, self._modes = self._modes, None
        with suppress(OSError, ValueError, termios.error):
            if modes is not None:
                termios.tcsetattr(self._file, termios.TCSANOW, modes)

    def _hold(self) -> None:
        if self._modes is None:
            self._silence()
        with suppress(OSError, ValueError):
            self.screen.write(_MARK_PASTES)
            self.screen.flush()
            ended, end = os.pipe()
            thread = threading.Thread(target=self._read_on, args=(ended,), daemon=True)
            self._reader = thread, end
            thread.start()

    def _release(self) -> None:
        reader, self._reader = self._reader, None
        if reader is None:
            return
        thread, end = reader
        os.close(end)
        thread.join()
        with suppress(OSError, ValueError):
            self._take_pending()
            self.screen.write(_MARK_NONE)
            self.screen.flush()

    def _read_on(self, deadline: int) -> None:
        rest = None
        with suppress(OSError):
            while deadline not in (ready := select.select([self._file, deadline], [], [], rest)[0]):
                if not ready:
                    rest = None
                    self._end_text()
                elif data := os.read(self._file, _CHUNK):
                    rest = _REST
                    self._input[-1] += data
                else:
                    break
        os.close(deadline)

    def _end_text(self) -> None:
        """Begin another text where the last one was sent: with an Enter that was typed, not pasted,
        and after which a line editor reads no more of it."""
        text = self._input[-1]
        whole = text.count(_PASTE) == text.count(_PASTED) and _QUOTES not in text
        if whole and text.endswith(b"\r") and not text.endswith(b"\x1b\r"):
            self._input.append(b"")

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
