"""Threads for functions that block, left behind when one never ends.

A thread cannot be stopped from outside. These are daemon threads, so one that hangs holds up
neither its call, whose time is limited elsewhere, nor the end of the program, as the threads of a
pool would.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Callable
from typing import Any, Final

MAX_THREADS: Final = 64
"""Calls at one time, those included that were given up and still run."""

Outcome = tuple[Any, BaseException | None]
"""What a function returned, or what it raised."""


class TooManyThreads(Exception):
    """So many calls were given up and still run that no further one is started."""


_alive: set[threading.Thread] = set()


def submit(work: Callable[[], Any]) -> asyncio.Future[Outcome | None]:
    """Starts ``work`` in a thread, in a copy of the current context.

    The future never holds an exception: it gives what was returned and what was raised. Who waits
    may settle it with None, or cancel it; the function then runs on. Raises TooManyThreads.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Outcome | None] = loop.create_future()
    context = contextvars.copy_context()

    def run() -> None:
        outcome: Outcome
        try:
            outcome = (context.run(work), None)
        except BaseException as error:  # carried over to whoever waits
            outcome = (None, error)
        _alive.discard(threading.current_thread())
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, future, outcome)

    for other in tuple(_alive) if len(_alive) >= MAX_THREADS else ():
        if not other.is_alive():  # a fork has left it behind in its parent
            _alive.discard(other)
    if len(_alive) >= MAX_THREADS:
        raise TooManyThreads(f"{MAX_THREADS} calls are still running")
    thread = threading.Thread(target=run, name="mlx-tools", daemon=True)
    _alive.add(thread)
    try:
        thread.start()
    except RuntimeError as error:  # there are no more threads
        _alive.discard(thread)
        raise TooManyThreads(str(error)) from None
    return future


def settle(future: asyncio.Future[Outcome | None], outcome: Outcome | None) -> None:
    """Gives a future its outcome, unless it has one or was given up."""
    if not future.done():
        future.set_result(outcome)
