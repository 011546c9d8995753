"""The models of a gateway, of which one may take long to be looked at."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import anyio

from mlx_tools.gateway.served_models import ServedModels


class Looking(ServedModels):
    """Models of which ``slow`` is looked at without end."""

    async def _open(self, name: str | None, *, first: bool = False) -> Any:
        if name == "slow":
            await anyio.sleep_forever()

        async def models() -> tuple[str, ...]:
            return "quick", "slow"

        backend = SimpleNamespace(kind="completions", models=models)
        return SimpleNamespace(backend=backend, manner=SimpleNamespace(model="quick"))


def test_a_model_that_is_being_looked_at_holds_up_no_other() -> None:
    async def main() -> None:
        served = Looking(SimpleNamespace(model_name=None), lambda line: None)  # type: ignore[arg-type]
        await served.open()
        with anyio.fail_after(30):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(served.speaker, "slow")
                await anyio.wait_all_tasks_blocked()
                assert (await served.speaker("quick")).manner.model == "quick"
                tasks.cancel_scope.cancel()

    anyio.run(main)
