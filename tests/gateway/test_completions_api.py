"""Plain completions: a backend that asks the gateway gets what the model's server says."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import anyio
import httpx
import pytest

from mlx_tools.backends import Chunk, CompletionRequest, CompletionsBackend, TokenScore
from mlx_tools.messages import Usage

EURO = "€".encode()
SCORES = (
    (TokenScore(" a", -0.25, id=7), TokenScore(" the", -1.5, id=8)),
    (TokenScore("\ufffd", -0.5, EURO[:1], 9), TokenScore("<|im_end|>", -2.0, id=2)),
)


class Scoring:
    """A model that says how likely its tokens are."""

    def __init__(self, **usage: int) -> None:
        self.usage = Usage(**usage)
        self.asked: list[CompletionRequest] = []

    async def complete(self, request: CompletionRequest) -> AsyncIterator[Chunk]:
        self.asked.append(request)
        scores = tuple(row[: request.top_logprobs] for row in SCORES)
        yield Chunk(" a", "length", self.usage, scores=scores if request.top_logprobs else ())


def through(one: Any, request: CompletionRequest) -> Chunk:
    """What a backend makes of the gateway's answer."""

    async def ask() -> Chunk:
        client = httpx.AsyncClient(transport=one.transport)
        backend = CompletionsBackend("http://127.0.0.1", "scripted", client=client)
        async with aclosing(backend.complete(request)) as chunks:
            return [chunk async for chunk in chunks][-1]

    return anyio.run(ask)


def test_likelihoods_come_through_with_their_bytes_and_numbers(serving: Any) -> None:
    one = serving(backend=Scoring(prompt_tokens=5, cached_tokens=4, completion_tokens=2))
    chunk = through(one, CompletionRequest(prompt="It is", max_tokens=2, top_logprobs=2))
    assert chunk.scores == SCORES
    assert (chunk.text, chunk.finish_reason) == (" a", "length")


@pytest.mark.parametrize("cached", [4, None])
def test_how_much_was_cached_is_told_where_it_is_known(serving: Any, cached: int | None) -> None:
    known = {} if cached is None else {"cached_tokens": cached}
    one = serving(backend=Scoring(prompt_tokens=5, completion_tokens=2, **known))
    assert through(one, CompletionRequest(prompt="It is")).usage == Usage(5, cached, 2)
