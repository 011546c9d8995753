"""The thread that a model lives in: one completion at a time, in the order in which they are asked.

MLX's streams belong to threads, so one thread loads the model and does all that is done with it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final

from mlx_tools.backends.interface import Chunk, CompletionRequest
from mlx_tools.backends.local_cache import NobodyWaits
from mlx_tools.errors import BackendBroken, MlxToolsError
from mlx_tools.process import clean

if TYPE_CHECKING:
    from mlx_tools.backends.local_engine import Engine


@dataclass(frozen=True, slots=True)
class Alive:
    """A sign of life: the turn has come, the model is there, or a part of the prompt is read."""


@dataclass(frozen=True, slots=True)
class WorkEnded:
    """Nothing more comes; ``error`` says why where it went wrong."""

    error: MlxToolsError | None = None


Item = Chunk | Alive | WorkEnded
ALIVE: Final = Alive()


class Work:
    """One completion, or without a request the loading of the model, and who waits for it."""

    def __init__(self, request: CompletionRequest | None) -> None:
        self.request = request
        self.cancelled = False
        self._loop = asyncio.get_running_loop()
        self._items: asyncio.Queue[Item] = asyncio.Queue()

    async def next(self) -> Item:
        """What comes next."""
        return await self._items.get()

    def put(self, item: Item) -> None:
        """Tell the one who waits; from the worker's thread."""
        try:
            self._loop.call_soon_threadsafe(self._items.put_nowait, item)
        except RuntimeError:  # its event loop is closed
            self.cancelled = True

    def watch(self) -> None:
        """Between forward passes: a sign of life, or the end where nobody waits."""
        if self.cancelled:
            raise NobodyWaits
        self.put(ALIVE)


class Worker(threading.Thread):
    """Runs jobs until it is told to stop. ``load`` makes the model, in this thread."""

    def __init__(self, load: Callable[[], Engine]) -> None:
        super().__init__(name="mlx-tools-model", daemon=True)
        self.engine: Engine | None = None
        self._load = load
        self._jobs: SimpleQueue[Work | None] = SimpleQueue()

    def submit(self, request: CompletionRequest | None) -> Work:
        """Put a job into the queue; to be called in an event loop."""
        job = Work(request)
        self._jobs.put(job)
        return job

    def stop(self) -> None:
        """End the thread after the jobs that are in the queue."""
        self._jobs.put(None)

    def run(self) -> None:
        """The thread's life."""
        while (job := self._jobs.get()) is not None:
            if not job.cancelled:
                job.put(WorkEnded(self._done(job)))
        self.engine = None

    def _done(self, job: Work) -> MlxToolsError | None:
        try:
            self.engine = self.engine or self._load()
            job.put(ALIVE)
            if job.request is not None:
                self._complete(self.engine, job, job.request)
        except NobodyWaits:
            return None
        except MlxToolsError as error:
            return error
        except Exception as error:  # MLX raises RuntimeError for whatever goes wrong in it
            said = clean(str(error)) or type(error).__name__
            return BackendBroken(
                f"the model in this process failed: {said}",
                hint="where memory is short, use a smaller model or a shorter prompt",
            )
        return None

    def _complete(self, engine: Engine, job: Work, request: CompletionRequest) -> None:
        with closing(engine.complete(request, job.watch)) as chunks:
            for chunk in chunks:
                job.put(chunk)
                if job.cancelled:
                    return
