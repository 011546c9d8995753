"""Reports of progress: taken from any thread, passed on in the event loop, as fast as people read.

A tool may report as often as it likes. What it says in the beginning is passed on whole, then a
report twenty times a second, and the last one in any case: what stands in an event or on a screen
does not grow with how busy a tool is.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable
from time import monotonic
from types import TracebackType
from typing import Final, Self

from mlx_tools.tools.context import Progress

OnProgress = Callable[[Progress], None]

BURST: Final = 20
"""So many reports are passed on however fast they come."""

EVERY: Final = 0.05
"""Seconds between two of those that come after them."""


class Reports:
    """The reports of one call, on their way to ``listener``, which is called in the event loop.

    To be made in the loop, and used inside ``with``: at its end what is held back is passed on, but
    where the call was cancelled, and later reports go nowhere. ``clock`` gives seconds.
    """

    def __init__(self, listener: OnProgress | None, clock: Callable[[], float] = monotonic) -> None:
        self._listener, self._clock = listener, clock
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._due: deque[Progress] = deque()
        self._held: Progress | None = None
        self._room, self._at = float(BURST), clock()
        self._over = False

    def take(self, progress: Progress) -> None:
        """Takes a report, from any thread."""
        with self._lock:
            if self._over:
                return
            now = self._clock()
            self._room = min(float(BURST), self._room + (now - self._at) / EVERY)
            self._at = now
            call: Callable[[], object] | None = None
            if self._room >= 1:
                self._room -= 1
                self._due.append(progress)
                self._held, call = None, self._pass_on
            else:
                if self._held is None:
                    call = self._wait
                self._held = progress
        if call is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens any more
                self._loop.call_soon_threadsafe(call)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._lock:
            self._over = True
            if error is not None:
                self._due.clear()
                self._held = None
        self._pass_on_held()

    def _wait(self) -> None:
        self._loop.call_later(EVERY, self._pass_on_held)

    def _pass_on_held(self) -> None:
        with self._lock:
            if self._held is not None:
                self._room -= 1
                self._due.append(self._held)
                self._held = None
        self._pass_on()

    def _pass_on(self) -> None:
        while True:
            with self._lock:
                progress = self._due.popleft() if self._due else None
            if progress is None or self._listener is None:
                return
            try:
                self._listener(progress)
            except Exception as error:  # a listener's fault costs no call its result
                self._loop.call_exception_handler(
                    {"message": "a listener to progress failed", "exception": error}
                )
