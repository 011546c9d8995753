"""Ways to ask a backend from a test that is no coroutine; and what a server might answer."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

from hypothesis import strategies as st

from mlx_tools.backends import Backend, Chunk, CompletionRequest
from mlx_tools.backends.deadlines import Retry


async def _at_once(seconds: float) -> None:
    pass


AT_ONCE = Retry(sleep=_at_once)
"""Sends again what failed in passing without a pause."""


def request(prompt: str = "Say hi.", **options: Any) -> CompletionRequest:
    """A request that does not wait long."""
    return CompletionRequest(**{"prompt": prompt, "timeout": 20.0, "idle_timeout": 20.0, **options})


async def collect(backend: Backend, prompt: str = "Say hi.", **options: Any) -> list[Chunk]:
    """All chunks of one completion."""
    async with aclosing(backend.complete(request(prompt, **options))) as chunks:  # type: ignore[type-var]
        return [chunk async for chunk in chunks]


def ask(backend: Backend, prompt: str = "Say hi.", **options: Any) -> tuple[str, Chunk]:
    """A whole completion: its text and its last chunk."""
    chunks = asyncio.run(collect(backend, prompt, **options))
    return "".join(chunk.text for chunk in chunks), chunks[-1]


def json_values(*keys: str) -> st.SearchStrategy[Any]:
    """Whatever JSON can hold, in objects with these keys."""
    return st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(keys), inner, max_size=5)
        ),
        max_leaves=12,
    )
