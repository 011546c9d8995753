"""The models of a gateway, of which one may take long to be looked at."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from mlx_tools.backends import TokenCounter
from mlx_tools.gateway.served_models import ServedModels
from mlx_tools.gateway.turn import STEP
from mlx_tools.messages import replace
from tests.gateway.conftest import speaker_of

pytestmark = pytest.mark.anyio


class Looking(ServedModels):
    """Models of which ``slow`` is looked at without end."""

    async def _open(self, name: str | None, *, first: bool = False) -> Any:
        if name == "slow":
            await anyio.sleep_forever()

        async def models() -> tuple[str, ...]:
            return "quick", "slow"

        backend = SimpleNamespace(kind="completions", models=models)
        return SimpleNamespace(backend=backend, manner=SimpleNamespace(model="quick"))


async def test_a_model_that_is_being_looked_at_holds_up_no_other() -> None:
    served = Looking(SimpleNamespace(model_name=None), lambda line: None)  # type: ignore[arg-type]
    await served.open()
    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(served.speaker, "slow")
            await anyio.wait_all_tasks_blocked()
            assert (await served.speaker("quick")).manner.model == "quick"
            tasks.cancel_scope.cancel()


class Counted(TokenCounter):
    """Counts, and keeps how long the texts were."""

    def count(self, text: str) -> int:
        sizes.append(len(text) - self.known(text))
        return super().count(text)


sizes: list[int] = []


async def test_while_a_long_prompt_is_counted_others_are_served() -> None:
    text = "Some words, and then some more. " * 10_000
    speaker = replace(speaker_of(None), counter=Counted())
    served: list[int] = []

    async def others() -> None:
        while True:
            served.append(len(sizes))
            await anyio.sleep(0)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(others)
        whole = await speaker.measure(text)
        assert abs(whole - TokenCounter().count(text)) <= len(sizes)
        assert len(sizes) > 5 and max(sizes) <= STEP
        assert set(served) >= set(range(1, len(sizes)))
        sizes.clear()
        assert await speaker.measure(f"{text} More.") > whole
        assert sizes == [len(" More.")]
        tasks.cancel_scope.cancel()
