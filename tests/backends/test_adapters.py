"""Backends of others: a plain function, and somebody's backend that does wrong."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest

from mlx_tools import Chunk, CompletionRequest, Controller, tool
from mlx_tools.backends import ErrorMappingBackend, FunctionBackend, GrammarText, as_backend
from mlx_tools.controller import RunSettings
from mlx_tools.errors import BackendBroken, BackendError, BackendRefused, BackendTimeout, UsageError
from mlx_tools.transcript.outcome import Answered
from tests.backends.asking import ask, collect

REQUEST = CompletionRequest(prompt="Say hi.")
ANSWER = '{"type":"final_answer","content":"3"}'


@tool(effects={"read"})
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


class Writes:
    """Writes the texts; raises what is no text."""

    def __init__(self, *script: Any) -> None:
        self._script = list(script)
        self.closed = 0

    async def complete(self, request: CompletionRequest) -> AsyncIterator[Chunk]:
        try:
            what = self._script.pop(0)
            if not isinstance(what, str):
                raise what
            yield Chunk(what, "stop")
        finally:
            self.closed += 1


class Weird(Exception):
    """Not one of ours."""


def collected(backend: Any) -> list[Chunk]:
    async def main() -> list[Chunk]:
        async with aclosing(ErrorMappingBackend(backend).complete(REQUEST)) as chunks:
            return [chunk async for chunk in chunks]

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (Weird("the cable"), BackendBroken, "the backend Writes raised Weird: the cable"),
        (KeyError(), BackendBroken, "the backend Writes raised KeyError"),
        (TimeoutError("30 s"), BackendTimeout, "raised TimeoutError: 30 s"),
        (BackendRefused("no"), BackendRefused, "no"),
        (UsageError("an empty prompt"), UsageError, "an empty prompt"),
        (ExceptionGroup("two", [Weird("x"), BackendRefused("no")]), BackendRefused, "no"),
        (ExceptionGroup("one", [Weird("x")]), BackendBroken, "ExceptionGroup"),
    ],
)
def test_an_error_of_any_kind_becomes_one_of_ours(
    error: Exception, kind: type[Exception], said: str
) -> None:
    with pytest.raises(kind) as caught:
        collected(Writes(error))
    assert type(caught.value) is kind and said in str(caught.value)
    assert caught.value is error or caught.value.__cause__ is error


class Own(BaseException):
    """An exception of the backend's own, and no `Exception`."""


@pytest.mark.parametrize("error", [Own("x"), asyncio.CancelledError("as of a future")])
def test_no_exception_of_a_backend_ends_the_program(error: Any) -> None:
    with pytest.raises(BackendBroken, match=f"the backend Writes raised {type(error).__name__}"):
        collected(Writes(error))


def test_a_cancellation_of_the_task_passes() -> None:
    async def main() -> None:
        has_begun = asyncio.Event()

        class Waits:
            async def complete(self, request: CompletionRequest) -> Any:
                has_begun.set()
                await asyncio.Event().wait()
                yield Chunk("never")

        async def first() -> None:
            async with aclosing(ErrorMappingBackend(Waits()).complete(REQUEST)) as chunks:
                await anext(chunks)

        task = asyncio.create_task(first())
        await has_begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_what_is_no_error_passes(error: type[BaseException]) -> None:
    async def main() -> None:
        async with aclosing(ErrorMappingBackend(Writes(error())).complete(REQUEST)) as chunks:  # type: ignore[arg-type]
            with pytest.raises(error):
                await anext(chunks)

    asyncio.run(main())


class Returns:
    """Is no generator: gives what it was told to."""

    def __init__(self, value: Any) -> None:
        self.complete = lambda request: value


class Coroutine:
    async def complete(self, request: CompletionRequest) -> str:
        return "Hi."


class Items:
    """A plain asynchronous iterator, without a way to close it."""

    def __init__(self, *items: Any) -> None:
        self._items = list(items)

    def complete(self, request: CompletionRequest) -> Items:
        return self

    def __aiter__(self) -> Items:
        return self

    async def __anext__(self) -> Any:
        if not self._items:
            raise StopAsyncIteration
        return self._items.pop(0)


@pytest.mark.parametrize(
    ("backend", "said"),
    [
        (Coroutine(), "gave coroutine, no async iterator"),
        (Returns(["Hi."]), "gave list, no async iterator"),
        (Items("Hi."), "yielded str, not Chunk"),
        (Items(None), "yielded NoneType, not Chunk"),
    ],
)
def test_what_is_no_stream_of_chunks_is_told(backend: Any, said: str) -> None:
    with pytest.raises(BackendBroken, match=said):
        collected(backend)


class FailsToClose:
    async def complete(self, request: CompletionRequest) -> AsyncIterator[Chunk]:
        try:
            yield Chunk(ANSWER)
            yield Chunk("more")
        finally:
            raise Weird("cannot let go")


def test_how_a_backend_takes_its_closing_is_of_no_matter() -> None:
    outcome = Controller(FailsToClose(), settings=RunSettings(strategy="free")).run_sync("Hi?")
    assert isinstance(outcome, Answered) and outcome.answer == "3"


@pytest.mark.parametrize("strategy", ["auto", "free", "guided"])
def test_a_backend_that_raises_at_first_is_a_backend_error(strategy: str) -> None:
    backend = Writes(*[Weird("the cable")] * 3)
    controller = Controller(backend, [add], settings=RunSettings(strategy=strategy))
    with pytest.raises(BackendError, match="Writes raised Weird: the cable"):
        controller.run_sync("Add 1 and 2.")
    assert backend.closed >= 1


# --- a plain function ---------------------------------------------------------------------------


async def echo(prompt: str) -> str:
    return f"You said: {prompt}"


def test_a_function_completes_as_if_the_model_had_ended_by_itself() -> None:
    assert asyncio.run(collect(FunctionBackend(echo), "Hi")) == [
        Chunk("You said: Hi"),
        Chunk("", "stop"),
    ]


def test_what_is_a_backend_stays_one_and_what_is_neither_is_refused() -> None:
    backend = FunctionBackend(echo)
    assert as_backend(backend) is backend
    assert isinstance(as_backend(echo), FunctionBackend)
    with pytest.raises(UsageError):
        as_backend(3)  # type: ignore[arg-type]


def gives(what: Any) -> Any:
    """A function that raises what can be raised, and returns anything else, but for ``late``."""

    async def function(prompt: str) -> Any:
        if isinstance(what, Exception):
            raise what
        if what == "late":
            await asyncio.Event().wait()
        return what

    return function


GRAMMAR = GrammarText('root ::= "a"', 'start: "a"')


@pytest.mark.parametrize(
    ("what", "options", "kind", "said"),
    [
        (ValueError("no"), {}, BackendBroken, "ValueError: no"),
        (BackendRefused("no"), {}, BackendRefused, "no"),
        *((value, {}, BackendBroken, type(value).__name__) for value in (None, b"bytes", 3)),
        ("late", {"timeout": 0.1}, BackendTimeout, "0.1 s"),
        # these do not reach the function
        ("late", {"prompt": ""}, UsageError, "the prompt is empty"),
        ("late", {"grammar": GRAMMAR}, UsageError, "no grammar"),
    ],
)
def test_what_goes_wrong_with_a_function_is_told(
    what: Any, options: dict[str, Any], kind: type[Exception], said: str
) -> None:
    with pytest.raises(kind, match=said):
        ask(FunctionBackend(gives(what)), **options)
