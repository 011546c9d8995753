"""An event loop whose time a test moves on, so that no limit of time depends on the machine."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import anyio


class SkippingLoop(asyncio.SelectorEventLoop):
    """Its time is the machine's, and what was skipped."""

    skipped = 0.0

    def time(self) -> float:
        return super().time() + self.skipped


def run(function: Callable[..., Awaitable[Any]], *arguments: Any) -> Any:
    """What an asynchronous function returns, on a loop on which time can be skipped."""
    return anyio.run(function, *arguments, backend_options={"loop_factory": SkippingLoop})


async def skip(seconds: float) -> None:
    """Have so much time gone by at once."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SkippingLoop)
    loop.skipped += seconds
    for _ in range(3):  # what that ends, ends now
        await anyio.sleep(0)
