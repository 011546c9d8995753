"""A model in this process, through mlx-lm, with the interface of a server.

Unlike most servers it takes grammars.

MLX's streams belong to threads. So one thread loads the model and does all the work with it: one
completion at a time, in the order of the requests.
"""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, ClassVar, Final, Literal, Self

from mlx_tools.backends import (
    MODEL_FOLDER,
    BackendTraits,
    Chunk,
    CompletionRequest,
    Deadlines,
    RequestCancelled,
    check_request,
    find_openblas,
    load_openblas,
)
from mlx_tools.errors import (
    BackendBroken,
    BackendTimeout,
    BackendUnreachable,
    MlxToolsError,
    require_path,
)
from mlx_tools.process import clean

if TYPE_CHECKING:
    import asyncio

    from mlx_tools.plugins.local.local_engine import Engine

NAME: Final = "the model in this process"
HINT: Final = "ask again; the machine may be short of memory or busy"
END_SECONDS: Final = 10.0
"""Seconds that `LocalBackend.aclose` waits for the thread, which ends after its forward pass.

A choice: a pass over 512 tokens of a large model can take seconds.
"""


class LocalRequest:
    """One completion, or the loading of the model (if ``request`` is None).

    A result is a chunk, None at the end, or an error. An empty chunk is only a sign of progress:
    the request has begun, the model is loaded, or a part of the prompt was read.
    """

    def __init__(self, request: CompletionRequest | None) -> None:
        import asyncio

        self.request = request
        self.cancelled = False
        self._loop = asyncio.get_running_loop()
        self._items: asyncio.Queue[Chunk | MlxToolsError | None] = asyncio.Queue()

    async def next(self) -> Chunk | None:
        """Return the next chunk, None at the end. Raises the error if there was one."""
        item = await self._items.get()
        if isinstance(item, MlxToolsError):
            raise item
        return item

    def send(self, item: Chunk | MlxToolsError | None) -> None:
        """Send a result to the waiting task; called in the worker's thread."""
        try:
            # asyncio's queue is not thread-safe, so the event loop itself adds the item.
            self._loop.call_soon_threadsafe(self._items.put_nowait, item)
        except RuntimeError:  # the event loop of the waiting task is closed
            self.cancelled = True

    def report_progress(self) -> None:
        """Send a sign of progress between forward passes.

        Raises:
            RequestCancelled: the request was cancelled.
        """
        if self.cancelled:
            raise RequestCancelled
        self.send(Chunk())


class InferenceThread(threading.Thread):
    """Does the work in its queue, up to an item None.

    ``load`` loads the model in this thread.
    """

    def __init__(self, load: Callable[[], Engine]) -> None:
        super().__init__(name="mlx-tools-model", daemon=True)
        self.engine: Engine | None = None
        self.queue: SimpleQueue[LocalRequest | None] = SimpleQueue()
        self._load = load

    def run(self) -> None:
        while (work := self.queue.get()) is not None:
            if not work.cancelled:
                work.send(self._perform(work))
        # Released here, because this thread owns the model's arrays.
        self.engine = None

    def _perform(self, work: LocalRequest) -> MlxToolsError | None:
        try:
            self.engine = self.engine or self._load()
            work.send(Chunk())
            if work.request is not None:
                with closing(self.engine.complete(work.request, work.report_progress)) as chunks:
                    for chunk in chunks:
                        work.send(chunk)
                        if work.cancelled:
                            break
        except RequestCancelled:
            pass
        except MlxToolsError as error:
            return error
        except Exception as error:  # MLX raises RuntimeError for every kind of failure
            message = clean(str(error)) or type(error).__name__
            return BackendBroken(
                f"{NAME} failed: {message}",
                hint="where memory is short, use a smaller model or a shorter prompt",
            )
        return None


class LocalBackend:
    """Completions by the model in the folder ``model``, in a thread of this process.

    The model is loaded at the first completion, or by `start`, and then stays in memory. The state
    after its last prompt stays too. If the next prompt has the same beginning, only the rest of it
    is read.

    Args:
        model: the model's folder.
        fast_forward: False to sample every token, even if a grammar allows only one.
        load_timeout: the time limit for loading the model, in seconds.
        note: gets each line that a person should read.
        openblas: finds the library that is loaded before MLX on Linux.
    """

    kind: Literal["local"] = "local"
    traits: ClassVar = BackendTraits(own_model=True, takes_grammar=True)
    forbidden_tokens: tuple[int, ...] = ()  # no text is cut out here, so all tokens are allowed

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        fast_forward: bool = True,
        load_timeout: float = 300.0,
        note: Callable[[str], None] | None = None,
        openblas: Callable[[], str | None] = find_openblas,
    ) -> None:
        self.model = Path(require_path("model", model, MODEL_FOLDER))
        self.notes: tuple[str, ...] = ()
        self._fast_forward = fast_forward
        self._load_timeout = load_timeout
        self._note = note
        self._openblas = openblas
        self._gate = threading.Lock()
        self._worker: InferenceThread | None = None
        self._work: set[LocalRequest] = set()
        self._notified = 0
        self._closed = False

    def __repr__(self) -> str:
        return f"LocalBackend({str(self.model)!r})"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    @property
    def forward_passes(self) -> int:
        """The number of forward passes since the model was loaded; 0 before."""
        engine = self._worker.engine if self._worker is not None else None
        return 0 if engine is None else engine.passes

    async def start(self) -> None:
        """Load the model, unless it is loaded already.

        Raises:
            MissingDependency: mlx-lm is not installed.
            ModelError: there is no model in the folder, or the model cannot be loaded.
            BackendTimeout: the load took longer than ``load_timeout``.
            BackendUnreachable: the backend was closed.
        """
        import anyio

        if self._worker is not None and self._worker.engine is not None and not self._closed:
            return
        with anyio.move_on_after(self._load_timeout) as scope, self._submitted(None) as work:
            while await work.next() is not None:
                pass
        if scope.cancelled_caught:
            raise BackendTimeout(
                f"{self.model} was not loaded within {self._load_timeout:g} s",
                hint="use a smaller model, or a server that keeps it loaded",
            )
        lines, self._notified = self.notes[self._notified :], len(self.notes)
        if self._note is not None:
            for line in lines:
                self._note(line)

    async def complete(self, request: CompletionRequest) -> AsyncGenerator[Chunk, None]:
        """Complete ``request.prompt``.

        Close the generator to end it after the current token.

        Tokens that a grammar leaves no choice about count as generated; they have no scores.

        Raises:
            UsageError: the prompt or the grammar cannot be used.
            MissingDependency: a grammar was given, and llguidance is not installed.
            BackendError: the class says how it failed; the text so far never counts.
        """
        check_request(request)
        await self.start()
        limits, waiting = Deadlines(request, NAME, HINT), True
        with self._submitted(request) as work:
            while True:
                # While other requests run, this one sends no signs of progress. So this wait is
                # limited only by the whole time.
                with limits.step(silent=waiting):
                    chunk = await work.next()
                waiting = False
                if chunk is None:
                    return
                if chunk != Chunk():
                    yield chunk

    async def models(self, timeout: float = 5.0) -> tuple[str, ...]:
        """Return the one model that the backend was made with."""
        return (str(self.model),)

    async def aclose(self) -> None:
        """Cancel all requests and release the model.

        A closed backend does not start again.
        """
        import anyio

        self._closed = True
        worker, self._worker = self._worker, None
        for work in tuple(self._work):
            work.cancelled = True
        if worker is not None:
            worker.queue.put(None)
            # Shielded: even a cancelled caller must wait, otherwise the model stays in memory.
            with anyio.move_on_after(END_SECONDS, shield=True):
                while worker.is_alive():
                    await anyio.sleep(0.01)

    @contextmanager
    def _submitted(self, request: CompletionRequest | None) -> Iterator[LocalRequest]:
        """Put a request into the queue, and cancel it at the end if it has not ended."""
        # Event loops in several threads share a backend, so only one of them may start the worker.
        with self._gate:
            if self._closed:
                raise BackendUnreachable(f"{NAME} was closed", hint="make a new LocalBackend")
            if self._worker is None:
                self._worker = InferenceThread(self._load_engine)
                self._worker.start()
            work = LocalRequest(request)
            self._work.add(work)
            self._worker.queue.put(work)
        try:
            yield work
        finally:
            work.cancelled = True
            self._work.discard(work)

    def _load_engine(self) -> Engine:
        from mlx_tools.plugins.local.local_engine import Engine

        line = load_openblas(self._openblas)
        if line and line not in self.notes:
            self.notes = (*self.notes, line)
        return Engine(self.model, fast_forward=self._fast_forward)
