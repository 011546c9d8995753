"""A model in this process, by mlx-lm: the same seam as to a server, and grammars."""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Literal, Self

from mlx_tools.backends.deadlines import Deadlines
from mlx_tools.backends.interface import Chunk, CompletionRequest
from mlx_tools.backends.server_process import find_openblas
from mlx_tools.backends.wire import check_request
from mlx_tools.errors import BackendTimeout, BackendUnreachable

if TYPE_CHECKING:
    from mlx_tools.backends.local_engine import Engine
    from mlx_tools.backends.local_worker import Work, Worker

NAME: Final = "the model in this process"
HINT: Final = "ask again; the machine may be short of memory or busy"
PATIENCE: Final = 10.0
"""Seconds that `LocalBackend.aclose` waits for the thread, which ends after its forward pass."""


class LocalBackend:
    """Completions by the model in the folder ``model``, in a thread of this process.

    It is loaded at the first completion, or by `start`, and then kept; so is what it has read, so
    that a prompt that begins like the one before is read from where they differ. Completions are
    made one at a time, in the order in which they are asked.

    ``fast_forward`` off chooses every token by itself, also those that a grammar leaves no choice
    about. ``note`` is told, in one line each, what a person should know. ``openblas`` finds the
    library that is loaded on Linux before MLX. ``load_timeout`` is in seconds.
    """

    kind: Literal["local"] = "local"
    forbidden_tokens: tuple[int, ...] = ()  # none needs to be: nothing cuts text out here

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        fast_forward: bool = True,
        load_timeout: float = 300.0,
        note: Callable[[str], None] | None = None,
        openblas: Callable[[], str | None] = find_openblas,
    ) -> None:
        self.model = Path(model)
        self.notes: tuple[str, ...] = ()
        self._fast_forward = fast_forward
        self._load_timeout = load_timeout
        self._note = note
        self._openblas = openblas
        self._gate = threading.Lock()
        self._worker: Worker | None = None
        self._jobs: set[Work] = set()
        self._told = 0
        self._closed = False

    def __repr__(self) -> str:
        return f"LocalBackend({str(self.model)!r})"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    @property
    def forward_passes(self) -> int:
        """How often the model has been run since it was loaded; 0 before."""
        engine = self._worker.engine if self._worker is not None else None
        return 0 if engine is None else engine.passes

    async def start(self) -> None:
        """Load the model; does nothing where it is there.

        Raises:
            MissingDependency: mlx-lm is not installed.
            ModelError: there is no model in the folder, or it cannot be loaded.
            BackendTimeout: it took longer than ``load_timeout``.
            BackendUnreachable: the backend was closed.
        """
        import anyio

        from mlx_tools.backends.local_worker import WorkEnded

        if self._worker is not None and self._worker.engine is not None and not self._closed:
            return
        with anyio.move_on_after(self._load_timeout) as scope, self._submitted(None) as job:
            while not isinstance(item := await job.next(), WorkEnded):
                pass
            if item.error is not None:
                raise item.error
        if scope.cancelled_caught:
            raise BackendTimeout(
                f"{self.model} was not loaded within {self._load_timeout:g} s",
                hint="use a smaller model, or a server that keeps it loaded",
            )
        for line in self.notes[self._told :]:
            self._told += 1
            if self._note is not None:
                self._note(line)

    async def complete(self, request: CompletionRequest) -> AsyncGenerator[Chunk, None]:
        """Complete ``request.prompt``; close the generator to end it after the token under way.

        Tokens that a grammar leaves no choice about count as generated; they have no scores.

        Raises:
            UsageError: the prompt or the grammar cannot be used.
            MissingDependency: a grammar was given, and llguidance is not installed.
            BackendError: the class says which way it failed; the text so far never counts.
        """
        from mlx_tools.backends.local_worker import WorkEnded

        check_request(request)
        await self.start()
        limits = Deadlines(request, NAME, HINT)
        with self._submitted(request) as job:
            waiting = True
            while True:
                with limits.step(silent=waiting):
                    item = await job.next()
                waiting = False
                if isinstance(item, Chunk):
                    yield item
                elif isinstance(item, WorkEnded):
                    if item.error is not None:
                        raise item.error
                    return

    async def models(self, timeout: float = 5.0) -> tuple[str, ...]:
        """The one model it was made with."""
        return (str(self.model),)

    async def aclose(self) -> None:
        """End what is under way and let go of the model. A closed backend does not start again."""
        import anyio

        self._closed = True
        worker, self._worker = self._worker, None
        for job in tuple(self._jobs):
            job.cancelled = True
        if worker is not None:
            worker.stop()
            with anyio.move_on_after(PATIENCE, shield=True):
                while worker.is_alive():
                    await anyio.sleep(0.01)

    @contextmanager
    def _submitted(self, request: CompletionRequest | None) -> Iterator[Work]:
        """A job that is cancelled at the end, where it has not ended."""
        from mlx_tools.backends.local_worker import Worker

        with self._gate:
            if self._closed:
                raise BackendUnreachable(f"{NAME} was closed", hint="make a new LocalBackend")
            if self._worker is None:
                self._worker = Worker(self._loaded)
                self._worker.start()
            job = self._worker.submit(request)
            self._jobs.add(job)
        try:
            yield job
        finally:
            job.cancelled = True
            self._jobs.discard(job)

    def _loaded(self) -> Engine:
        """The model, loaded in the worker's thread."""
        from mlx_tools.backends.local_engine import Engine
        from mlx_tools.backends.local_load import load_openblas

        line = load_openblas(self._openblas)
        if line and line not in self.notes:
            self.notes = (*self.notes, line)
        return Engine(self.model, fast_forward=self._fast_forward)
