"""Text that is typed while nothing reads it.

Held for the next line, unseen, and never an answer.
"""

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

_REST_SECONDS: Final = 0.02
"""Seconds within which a terminal delivers the rest of a pasted text."""

_MARK_PASTES: Final = "\x1b[?2004h"
"""Asks the terminal to mark pasted text."""
_MARK_NONE: Final = "\x1b[?2004l"


_PASTE: Final = b"\x1b[200~"
_PASTED: Final = b"\x1b[201~"
_QUOTES: Final = b'"""'


class TypeAhead:
    """The keyboard of a busy program, and the screen that it writes to.

    A terminal by itself holds 4096 bytes, and obeys no Ctrl-C after that. So they are read here.
    """

    def __init__(self, keyboard: TextIO, screen: TextIO) -> None:
        self.screen = screen
        self._file = keyboard.fileno()
        self._input = [b""]  # texts, all but the last sent with Enter
        self._modes: list[int | list[bytes | int]] | None = None  # the modes before `silence`
        self._reader: tuple[threading.Thread, int] | None = None  # closing the file ends it

    @classmethod
    def for_process(cls) -> Self | None:
        """Return this process's; None without a keyboard, or a screen that obeys."""
        screens = [s for s in (sys.stderr, stdout()) if s is not None and steerable(s)]
        return cls(sys.stdin, screens[0]) if screens and sys.stdin.isatty() else None

    @contextmanager
    def silence(self) -> Iterator[None]:
        """Hide typed text until a reader shows it; Ctrl-C and Ctrl-Z work as usual.

        So nothing is seen, or taken for another key, between one reader and the next.
        """

        def stop(*_: object) -> None:
            holds = self._reader is not None
            if holds:
                self._release()
                self._restore()
            signal.signal(signal.SIGTSTP, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTSTP)
            signal.signal(signal.SIGTSTP, stop)  # the process continues here after SIGCONT
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
        """Hold typed text for later; used within `silence`."""
        try:
            self._hold()
            yield
        except KeyboardInterrupt:
            self._release()
            # the text appears in the next line, and is not sent
            self._input = [b"".join(self._input).rstrip(b"\r")]
            raise
        finally:
            self._release()

    @contextmanager
    def lend_terminal(self) -> Iterator[None]:
        """Give the terminal back, as it was; text typed before answers nothing.

        Used within `buffer_input`.
        """
        self._release()
        self._restore()
        try:
            yield
        finally:
            self._hold()

    def take(self) -> str:
        """Return typed text that is not read yet, up to an Enter, and drop it here."""
        self._take_pending()
        typed = self._input.pop(0)
        self._input = self._input or [b""]
        return typed.decode("utf-8", "replace")

    def _take_pending(self) -> None:
        """Take the bytes that are there.

        A terminal outside of `silence` sends a newline for Enter.
        """
        pending = self._pending()
        self._input[-1] += pending.replace(b"\n", b"\r") if self._modes is None else pending

    def _silence(self) -> None:
        with suppress(OSError, ValueError, termios.error):  # the terminal was closed
            self._take_pending()
            quiet = termios.tcgetattr(self._file)
            self._modes = termios.tcgetattr(self._file)
            quiet[0] &= ~termios.ICRNL  # Enter and Ctrl-J stay different bytes
            quiet[3] &= ~(termios.ECHO | termios.ICANON)
            quiet[3] |= termios.NOFLSH  # Ctrl-C drops no typed text
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
                    rest = _REST_SECONDS
                    self._input[-1] += data
                else:
                    break
        os.close(deadline)

    def _end_text(self) -> None:
        """Begin another text if the last one was sent.

        With a typed Enter, not a pasted one.

        A line editor must read no more of it after that Enter.
        """
        text = self._input[-1]
        whole = text.count(_PASTE) == text.count(_PASTED) and _QUOTES not in text
        if whole and text.endswith(b"\r") and not text.endswith(b"\x1b\r"):
            self._input.append(b"")

    def _pending(self) -> bytes:
        """Return the bytes that can be read at once; Ctrl-D at the end of the input."""
        data = b""
        with suppress(OSError):
            while select.select([self._file], [], [], _REST_SECONDS if data else 0)[0]:
                chunk = os.read(self._file, _CHUNK)
                if not chunk:
                    return data + b"\x04"
                data += chunk
        return data
