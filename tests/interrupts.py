"""Ctrl-C that interrupts no wait of the main thread."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.waiting import HANG, wait_until


@contextmanager
def interrupted_in(function: Any) -> Iterator[None]:
    """Expect that the block ends by Ctrl-C, which comes once the main thread is in a function.

    Another thread takes the signal. So it is for the main thread as one that comes after its last
    look for signals and before the system's wait: the wait goes on.
    """
    main, code = threading.main_thread(), function.__code__
    begun, ended, hung = threading.Event(), threading.Event(), []

    def interrupt() -> None:
        begun.wait()
        wait_until(lambda: sys._current_frames()[main.ident or 0].f_code is code)
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)
        hung.append(not ended.wait(HANG))
        if hung[0]:
            signal.pthread_kill(main.ident or 0, signal.SIGINT)

    other = threading.Thread(target=interrupt)
    with pytest.raises(KeyboardInterrupt):
        try:
            other.start()
            begun.set()
            yield
        finally:
            ended.set()
            other.join()
    assert hung == [False], "Ctrl-C was not noticed"
