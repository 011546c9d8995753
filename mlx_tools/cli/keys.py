"""One key, without Enter. However the wait for it ends, the terminal is as it was before."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import termios
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Final, TextIO

_REST: Final = 0.05
"""Seconds within which the rest of what an arrow or a function key sends has come."""

_CHUNK: Final = 4096
_CONTROL_D: Final = "\x04"
_ESCAPE: Final = b"\x1b"
_ENDING: Final = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def have_keys(keyboard: TextIO, screen: TextIO) -> bool:
    """Whether single keys can be read: both are terminals."""
    try:
        if not (keyboard.isatty() and screen.isatty()):
            return False
        termios.tcgetattr(keyboard.fileno())
    except (OSError, ValueError, termios.error):
        return False
    return True


def read_key(keyboard: TextIO, ask: Callable[[], None]) -> str | None:
    """The next key: a character, ``""`` for any that is none, None at the end of the input.

    Whatever was typed before is forgotten, then ``ask`` writes the question; it is written again
    where the program was stopped (Ctrl-Z) and goes on. What comes in one piece and is more than a
    character, such as an arrow key or a text that is pasted, is no character: none of its letters
    answers. Ctrl-D ends the input. Raises KeyboardInterrupt for Ctrl-C.
    """
    file = keyboard.fileno()
    try:
        with _single_keys(file, ask):
            ask()
            data = os.read(file, _CHUNK)
            if data[:1] == _ESCAPE:
                while select.select([file], [], [], _REST)[0] and os.read(file, _CHUNK):
                    continue
    except (OSError, termios.error):  # the terminal is gone
        return None
    if not data:
        return None
    text = data.decode("utf-8", "replace").rstrip("\r\n")
    if text == _CONTROL_D:
        return None
    return text if len(text) == 1 and text.isprintable() else ""


def forget_typed(keyboard: TextIO) -> None:
    """Forgets what was typed so far: it answers no question that was not seen yet."""
    with contextlib.suppress(OSError, ValueError, termios.error):
        termios.tcflush(keyboard.fileno(), termios.TCIFLUSH)


def read_line(keyboard: TextIO) -> str | None:
    """The next line that is typed, without its end; None at the end of the input."""
    data = b""
    with contextlib.suppress(OSError):
        while not data.endswith(b"\n"):
            chunk = os.read(keyboard.fileno(), _CHUNK)
            if not chunk:
                break
            data += chunk
    if not data:
        return None
    return data.decode("utf-8", "replace").rstrip("\r\n")


@contextlib.contextmanager
def terminal_kept(keyboard: TextIO) -> Iterator[None]:
    """Afterwards the terminal is as it was, whatever another program did to it.

    Raises OSError where it is gone.
    """
    file = keyboard.fileno()
    try:
        before = termios.tcgetattr(file)
    except termios.error as error:
        raise OSError(*error.args) from None
    try:
        yield
    finally:
        _set(file, before)


@contextlib.contextmanager
def _single_keys(file: int, ask: Callable[[], None]) -> Iterator[None]:
    before = termios.tcgetattr(file)
    single = termios.tcgetattr(file)
    single[3] &= ~(termios.ICANON | termios.ECHO)
    single[6][termios.VMIN], single[6][termios.VTIME] = 1, 0

    def begin() -> None:
        termios.tcsetattr(file, termios.TCSAFLUSH, single)

    def stop(number: int, _: FrameType | None) -> None:
        _set(file, before)
        ours = signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)  # here it stops, and from here it goes on
        signal.signal(number, ours)
        begin()
        ask()

    def end(number: int, _: FrameType | None) -> None:
        _set(file, before)
        signal.signal(number, old[number])
        signal.raise_signal(number)

    wanted: dict[int, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGTSTP: stop}
    wanted |= dict.fromkeys(_ENDING, end)
    old = _handled(wanted)
    try:
        begin()
        yield
    finally:
        _set(file, before)
        for number, handler in old.items():
            signal.signal(number, handler)


def _handled(wanted: dict[int, Any]) -> dict[int, Any]:
    """Has the signals handled as wanted, but those that are ignored; gives what was before.

    Only the main thread can do that: in another one nothing is changed.
    """
    old: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for number, handler in wanted.items():
            before = signal.getsignal(number)
            if before not in (signal.SIG_IGN, None):
                old[number] = before
                signal.signal(number, handler)
    return old


def _set(file: int, attributes: list[Any]) -> None:
    with contextlib.suppress(termios.error):  # the terminal is gone
        termios.tcsetattr(file, termios.TCSADRAIN, attributes)
