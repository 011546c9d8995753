"""Adapters: a plain function as a backend, and a backend with mapped errors."""

from __future__ import annotations

import inspect
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, NoReturn, cast

from msgspec import ValidationError, convert, to_builtins

from mlx_tools.backends.interface import Backend, Chunk, CompletionRequest
from mlx_tools.errors import (
    BackendBroken,
    BackendError,
    BackendTimeout,
    MlxToolsError,
    UsageError,
    read_attribute,
)
from mlx_tools.packages import must_pass

_log = logging.getLogger(__name__)
CompleteFunction = Callable[[str], Awaitable[str]]
"""Returns the completion of a prompt."""


class FunctionBackend:
    """Completes by calling ``async def complete(prompt: str) -> str``.

    The whole text comes as one piece, with the finish reason ``stop``. The timeout of a request is
    kept. Its ``max_tokens``, temperature and seed are not passed to the function.
    """

    def __init__(self, function: CompleteFunction) -> None:
        if not callable(function):
            raise UsageError(
                f"{type(function).__name__} is no backend",
                hint="give a backend, or async def complete(prompt: str) -> str",
            )
        self._function = function

    async def complete(self, request: CompletionRequest) -> AsyncGenerator[Chunk, None]:
        """Call the function with the prompt.

        Raises:
            UsageError: the request cannot be sent, or has a grammar.
            BackendBroken: the function raised, or returned something other than text.
            BackendTimeout: it took longer than ``request.timeout`` seconds.
        """
        import anyio

        from mlx_tools.backends.deadlines import MORE_TIME_HINT
        from mlx_tools.backends.wire import GRAMMAR_HINT, check_request, without_surrogates

        prompt = check_request(request)
        if request.grammar is not None:
            raise UsageError("a completion function takes no grammar", hint=GRAMMAR_HINT)
        text: object = None
        with anyio.move_on_after(request.timeout) as scope:
            try:
                text = self._function(prompt)
                text = await text if inspect.isawaitable(text) else text
            except BaseException as error:
                raise_mapped(error, "completion function")
        if scope.cancelled_caught:
            raise BackendTimeout(
                f"the completion function did not return within {request.timeout:g} s",
                hint=MORE_TIME_HINT,
            )
        if not isinstance(text, str):
            raise BackendBroken(f"the completion function returned {type(text).__name__}, not str")
        yield Chunk(without_surrogates(text))
        yield Chunk(finish_reason="stop")


def as_backend(backend: Backend | CompleteFunction) -> Backend:
    """Return a backend unchanged, or a function as a backend.

    Raises:
        UsageError: the object is neither.
    """
    if isinstance(backend, type):
        raise UsageError(f"{backend.__name__} is a class, no backend", hint="give one of its kind")
    if callable(read_attribute(backend, "complete")):
        return backend  # type: ignore[return-value]
    return FunctionBackend(backend)  # type: ignore[arg-type]


@dataclass(slots=True)
class ErrorMappingBackend:
    """A wrapper around a backend that raises only errors of mlx-tools.

    An `MlxToolsError` is raised unchanged. So are cancellation and Ctrl-C, which are not of the
    class `Exception`. Any other exception, and a value that is not a `Chunk`, becomes a
    `BackendError` that names the backend. Errors while a completion is closed are ignored.
    """

    backend: Backend
    received_any: bool = False
    """True as soon as any text or likelihood has come."""
    on_text: Callable[[], None] | None = None
    """Called once, when the first text has come."""

    async def complete(self, request: CompletionRequest) -> AsyncGenerator[Chunk]:
        """Complete as the backend does.

        Raises:
            BackendError: the backend raised an error, or did not yield chunks.
        """
        chunks: Any = None
        try:
            chunks = self.backend.complete(request)
            if not hasattr(chunks, "__aiter__"):
                # A plain coroutine would warn that it was never awaited.
                if inspect.iscoroutine(chunks):
                    chunks.close()
                name = _get_name(self.backend)
                raise BackendBroken(
                    f"complete() of the backend {name} gave "
                    f"{type(chunks).__name__}, no async iterator",
                    hint="write it as an async generator: async def complete(self, request), "
                    "with yield in it",
                )
            chunks = aiter(chunks)
            while True:
                try:
                    chunk = await anext(chunks)
                except StopAsyncIteration:
                    return
                if not isinstance(chunk, Chunk):
                    name = _get_name(self.backend)
                    raise BackendBroken(
                        f"the backend {name} yielded {type(chunk).__name__}, not Chunk",
                        hint="yield mlx_tools.Chunk(text), the last with a finish_reason",
                    )
                _check_fields(chunk, self.backend)
                self.received_any = self.received_any or bool(chunk.text or chunk.scores)
                if chunk.text and self.on_text is not None:
                    on_text, self.on_text = self.on_text, None
                    on_text()
                yield chunk
        except BaseException as error:
            raise_mapped(error, f"backend {_get_name(self.backend)}")
        finally:
            try:
                await chunks.aclose()
            except BaseException as error:  # also for an iterator without aclose
                if must_pass(error, awaited=True):
                    raise
                name = _get_name(self.backend)
                _log.debug("the stream of %s was not closed: %s", name, type(error).__name__)


def _check_fields(chunk: Chunk, backend: Backend) -> None:
    """Raise `BackendBroken` if a field of a chunk has a value of another type."""
    if isinstance(chunk.text, str) and chunk == Chunk(chunk.text):
        return  # nearly all chunks are so, and this runs for each token
    try:
        convert(to_builtins(chunk, builtin_types=(bytes,)), Chunk)
    except (ValidationError, TypeError) as error:
        raise BackendBroken(
            f"the backend {_get_name(backend)} yielded a chunk that cannot be read: {error}",
            hint="its fields are those of mlx_tools.Chunk",
        ) from None


def _get_name(backend: Backend) -> str:
    """Return the name of a backend for messages: its own, or that of its class."""
    name = read_attribute(backend, "name_in_errors")
    return name if isinstance(name, str) else type(backend).__name__


async def complete_one(backend: Backend, timeout: float) -> None:
    """Complete one token within ``timeout`` seconds. Raise as the backend does."""
    request = CompletionRequest(prompt="1", max_tokens=1, timeout=timeout, idle_timeout=timeout)
    async with aclosing(cast(Any, backend.complete(request))) as chunks:
        async for _ in chunks:
            pass


async def start_backend(backend: Backend) -> None:
    """Load the backend's model, or start its server, if it has a ``start`` method.

    Raises:
        BackendError: the start failed.
    """
    start = read_attribute(backend, "start")
    if inspect.iscoroutinefunction(start):
        try:
            await start()
        except BaseException as error:
            raise_mapped(error, f"backend {_get_name(backend)}")


def raise_mapped(error: BaseException, name: str) -> NoReturn:
    """Raise ``error`` if it is an `MlxToolsError`, otherwise as a `BackendError`.

    Ctrl-C, a cancellation and ``sys.exit()`` are raised as they are.
    """
    if isinstance(error, SystemExit) or must_pass(error, awaited=True):
        raise error
    mapped = _find_own_error(error)
    if mapped is error:
        raise mapped
    if mapped is not None:
        raise mapped from error
    message = f"the {name} raised {type(error).__name__}"
    text = f"{message}: {error}" if str(error) else message
    kind: type[BackendError] = BackendTimeout if isinstance(error, TimeoutError) else BackendBroken
    raise kind(text, hint="its traceback is this error's cause") from error


def _find_own_error(error: BaseException) -> MlxToolsError | None:
    """Return the first `MlxToolsError` in ``error`` or its group, or None."""
    if isinstance(error, MlxToolsError):
        return error
    if isinstance(error, BaseExceptionGroup):
        return next(
            (
                mapped
                for member in error.exceptions
                if (mapped := _find_own_error(member)) is not None
            ),
            None,
        )
    return None
