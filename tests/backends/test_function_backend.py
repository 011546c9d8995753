"""Plain functions as backends."""

from __future__ import annotations

import asyncio
import functools

import pytest

from mlx_tools.backends import Chunk, FunctionBackend, GrammarText, as_backend
from mlx_tools.errors import BackendBroken, BackendRefused, BackendTimeout, UsageError
from tests.backends.asking import ask, collect


async def echo(prompt: str) -> str:
    return f"You said: {prompt}"


def test_a_function_completes_as_if_the_model_had_ended_by_itself() -> None:
    assert asyncio.run(collect(FunctionBackend(echo), "Hi")) == [
        Chunk("You said: Hi"),
        Chunk("", "stop"),
    ]


def test_anything_that_can_be_called_will_do() -> None:
    class Model:
        async def __call__(self, prompt: str) -> str:
            return prompt.upper()

    async def two(head: str, prompt: str) -> str:
        return head + prompt

    assert ask(FunctionBackend(Model()), "hi")[0] == "HI"
    assert ask(FunctionBackend(functools.partial(two, "> ")), "hi")[0] == "> hi"


def test_what_is_a_backend_stays_one_and_what_is_neither_is_refused() -> None:
    backend = FunctionBackend(echo)
    assert as_backend(backend) is backend
    assert isinstance(as_backend(echo), FunctionBackend)
    with pytest.raises(UsageError):
        as_backend(3)  # type: ignore[arg-type]


def test_what_the_function_raises_is_translated_and_our_own_errors_pass() -> None:
    async def broken(prompt: str) -> str:
        raise ValueError("no")

    async def refusing(prompt: str) -> str:
        raise BackendRefused("no")

    with pytest.raises(BackendBroken, match="ValueError: no"):
        ask(FunctionBackend(broken))
    with pytest.raises(BackendRefused):
        ask(FunctionBackend(refusing))


@pytest.mark.parametrize("value", [None, b"bytes", 3])
def test_what_is_no_text_is_broken(value: object) -> None:
    async def odd(prompt: str) -> str:
        return value  # type: ignore[return-value]

    with pytest.raises(BackendBroken, match=type(value).__name__):
        ask(FunctionBackend(odd))


def test_the_total_time_holds() -> None:
    async def slow(prompt: str) -> str:
        await asyncio.sleep(30)
        return ""

    with pytest.raises(BackendTimeout):
        ask(FunctionBackend(slow), timeout=0.1)


def test_a_request_that_cannot_be_completed_does_not_reach_the_function() -> None:
    with pytest.raises(UsageError):
        ask(FunctionBackend(echo), "")
    with pytest.raises(UsageError, match="no grammar"):
        ask(FunctionBackend(echo), "Hi", grammar=GrammarText('root ::= "a"', 'start: "a"'))


def test_lone_surrogates_do_not_come_through() -> None:
    async def odd(prompt: str) -> str:
        return prompt + "\ud800"

    assert ask(FunctionBackend(odd), "\udcff")[0] == "\ufffd\ufffd"
