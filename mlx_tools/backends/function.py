"""A plain function as a backend."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable

from mlx_tools.backends.deadlines import MORE_TIME_HINT
from mlx_tools.backends.interface import Backend, Chunk, CompletionRequest
from mlx_tools.backends.wire import HINT as GRAMMAR_HINT
from mlx_tools.backends.wire import check_request, without_surrogates
from mlx_tools.errors import BackendBroken, BackendTimeout, MlxToolsError, UsageError

CompleteFunction = Callable[[str], Awaitable[str]]


class FunctionBackend:
    """Completes by calling ``async def complete(prompt: str) -> str``.

    The whole text comes as one piece, as if the model had ended it by itself. ``max_tokens``,
    temperature and seed are the function's own affair; the total time holds.
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
            BackendBroken: the function raised, or gave something other than text.
            BackendTimeout: it took longer than ``request.timeout`` seconds.
        """
        import anyio

        prompt = check_request(request)
        if request.grammar is not None:
            raise UsageError("a completion function takes no grammar", hint=GRAMMAR_HINT)
        text: object = None
        with anyio.move_on_after(request.timeout) as scope:
            text = await self._call(prompt)
        if scope.cancelled_caught:
            raise BackendTimeout(
                f"the completion function did not return within {request.timeout:g} s",
                hint=MORE_TIME_HINT,
            )
        if not isinstance(text, str):
            raise BackendBroken(f"the completion function returned {type(text).__name__}, not str")
        yield Chunk(without_surrogates(text))
        yield Chunk(finish_reason="stop")

    async def _call(self, prompt: str) -> object:
        try:
            result = self._function(prompt)
            return await result if inspect.isawaitable(result) else result
        except MlxToolsError:
            raise
        except Exception as error:
            raise BackendBroken(
                f"the completion function raised {type(error).__name__}: {error}"
            ) from error


def as_backend(backend: Backend | CompleteFunction) -> Backend:
    """``backend`` itself, or the function wrapped as one.

    Raises:
        UsageError: it is neither.
    """
    complete = getattr(backend, "complete", None)
    if isinstance(backend, type):
        raise UsageError(f"{backend.__name__} is a class, no backend", hint="give one of its kind")
    if callable(complete):
        return backend  # type: ignore[return-value]
    return FunctionBackend(backend)  # type: ignore[arg-type]
