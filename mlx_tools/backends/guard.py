"""A foreign backend's failures, translated where they enter."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import suppress
from typing import Any, NoReturn

from mlx_tools.backends.interface import Backend, Chunk, CompletionRequest
from mlx_tools.errors import BackendBroken, BackendError, BackendTimeout, MlxToolsError


class Guarded:
    """A backend of anybody's, of which nothing but our own errors comes.

    Its errors of the `MlxToolsError` tree pass as they are, and so does what is no `Exception`
    (cancellation, Ctrl-C). Everything else that it raises, and everything that is no `Chunk`,
    becomes a `BackendError` that names the backend. Once a completion is closed, how the backend
    takes that is of no matter. ``heard`` is set once any text, or any likelihood, has come.
    """

    def __init__(self, backend: Backend) -> None:
        self.heard = False
        self._backend = backend

    async def complete(self, request: CompletionRequest) -> AsyncGenerator[Chunk]:
        """Completes as the backend does.

        Raises:
            BackendError: whatever the backend raised besides.
        """
        name = type(self._backend).__name__
        try:
            chunks = _iterator(self._backend.complete(request), name)
        except Exception as error:
            _raise(error, name)
        try:
            while True:
                try:
                    chunk = await anext(chunks)
                except StopAsyncIteration:
                    return
                except Exception as error:
                    _raise(error, name)
                if not isinstance(chunk, Chunk):
                    raise BackendBroken(
                        f"the backend {name} yielded {type(chunk).__name__}, not Chunk",
                        hint="yield mlx_tools.Chunk(text), the last with a finish_reason",
                    )
                self.heard = self.heard or bool(chunk.text or chunk.scores)
                yield chunk
        finally:
            close = getattr(chunks, "aclose", None)
            if close is not None:
                with suppress(Exception):
                    await close()


def _iterator(chunks: Any, name: str) -> AsyncIterator[object]:
    """What ``complete`` gave, as an iterator."""
    if hasattr(chunks, "__aiter__"):
        iterator: AsyncIterator[object] = aiter(chunks)
        return iterator
    if inspect.iscoroutine(chunks):
        chunks.close()
    raise BackendBroken(
        f"complete() of the backend {name} gave {type(chunks).__name__}, no async iterator",
        hint="write it as an async generator: async def complete(self, request), with yield in it",
    )


def _raise(error: Exception, name: str) -> NoReturn:
    """Raises ``error``, or the error of our tree that stands for it."""
    own = _own(error)
    if own is error:
        raise own
    if own is not None:
        raise own from error
    said = f"the backend {name} raised {type(error).__name__}"
    text = f"{said}: {error}" if str(error) else said
    kind: type[BackendError] = BackendTimeout if isinstance(error, TimeoutError) else BackendBroken
    raise kind(text, hint="its traceback is this error's cause") from error


def _own(error: BaseException) -> MlxToolsError | None:
    """The error of our tree that ``error`` is, or that a group of errors holds."""
    if isinstance(error, MlxToolsError):
        return error
    if isinstance(error, BaseExceptionGroup):
        return next((own for one in error.exceptions if (own := _own(one)) is not None), None)
    return None
