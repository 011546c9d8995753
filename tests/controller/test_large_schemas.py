"""Schemas that take long to compile: the event loop serves others meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable, ItemsView
from typing import Any

import anyio
import anyio.from_thread
import pytest

from mlx_tools import Answered, Controller, Policy, RunSettings, Tool
from mlx_tools.messages import Strategy, ToolSpec
from mlx_tools.schema.compilable import LARGE
from mlx_tools.testing import ScriptedBackend, answer, call
from tests.waiting import HANG

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    """On what tests run that are coroutines."""
    return "asyncio"


class WatchedSchema(dict[str, Any]):
    """A schema that tells of each time it is written as JSON."""

    written: Callable[[], None]

    def items(self) -> ItemsView[str, Any]:  # type: ignore[override]
        self.written()
        return super().items()


@pytest.mark.parametrize("strategy", ["auto", "guided", "grammar"])
async def test_others_are_served_while_a_large_schema_is_compiled(strategy: Strategy) -> None:
    loop, begun, served = threading.get_ident(), anyio.Event(), threading.Event()

    def written() -> None:
        """Hold the thread up until the event loop has served somebody else."""
        if threading.get_ident() != loop:
            anyio.from_thread.run_sync(begun.set)
            assert served.wait(HANG)

    schema = WatchedSchema(
        type="object",
        properties={"a": {"enum": [f"value {n}" for n in range(LARGE // 10)]}},
    )
    schema.written = written
    tool = Tool(ToolSpec("look", "Looks.", schema, frozenset({"read"})), lambda arguments: "seen")
    backend = ScriptedBackend(call("look", a="value 7"), answer())
    made = Controller(backend, [tool], Policy(allow=["*"]), settings=RunSettings(strategy=strategy))
    with anyio.fail_after(HANG):
        async with anyio.create_task_group() as tasks:

            async def serve() -> None:
                await begun.wait()
                served.set()

            tasks.start_soon(serve)
            assert isinstance(await made.run("Hi"), Answered)
            assert served.is_set()
            tasks.cancel_scope.cancel()
