"""The models of a gateway, which may be on several servers, and take long to be looked at."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from mlx_tools.app import RunOptions, config
from mlx_tools.backends import CompletionRequest, TokenCounter, UpstreamPool
from mlx_tools.backends.interface import BackendTraits
from mlx_tools.controller import RunSettings
from mlx_tools.gateway.served_models import ServedModels
from mlx_tools.gateway.turn import STEP
from mlx_tools.messages import replace
from mlx_tools.testing import ScriptedServer, answer
from tests.gateway.conftest import WEATHER, chat, speaker_of
from tests.waiting import HANG


class Looking(ServedModels):
    """Models of which ``slow`` is looked at without end."""

    async def _open(self, name: str | None, *, first: bool = False) -> Any:
        if name == "slow":
            await anyio.sleep_forever()

        async def models() -> tuple[str, ...]:
            return "quick", "slow"

        backend = SimpleNamespace(traits=BackendTraits(asks_server=True), models=models)
        one = speaker_of(backend)
        return replace(one, profile=replace(one.profile, settings=RunSettings(model="quick")))


@pytest.mark.anyio
async def test_a_model_that_is_being_looked_at_holds_up_no_other() -> None:
    served = Looking(SimpleNamespace(model_name=None), lambda line: None)  # type: ignore[arg-type]
    await served.open()
    with anyio.fail_after(HANG):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(served.speaker, "slow")
            await anyio.wait_all_tasks_blocked()
            assert (await served.speaker("quick")).profile.settings.model == "quick"
            tasks.cancel_scope.cancel()


@pytest.mark.anyio
async def test_what_was_opened_for_a_model_is_closed_with_them() -> None:
    closed: list[str | None] = []

    class Opening(Looking):
        async def _open(self, name: str | None, *, first: bool = False) -> Any:
            self._stack.callback(closed.append, name)
            return await super()._open(name, first=first)

    served = Opening(SimpleNamespace(model_name=None), lambda line: None)  # type: ignore[arg-type]
    await served.open()
    assert closed == []
    await served.aclose()
    assert closed == [None]


class Counted(TokenCounter):
    """Counts, and keeps how long the texts were."""

    def count(self, text: str) -> int:
        sizes.append(len(text) - self.known(text))
        return super().count(text)


sizes: list[int] = []


@pytest.mark.anyio
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


@pytest.mark.parametrize("more", [{}, {"tools": [WEATHER]}, {"stop": "mor"}])
def test_a_prompt_that_its_server_does_not_count_is_counted_in_steps(
    serving: Any, more: dict[str, Any]
) -> None:
    one = serving(answer("Some more."))
    one.speaker.counter = Counted()
    sizes.clear()
    said = [{"role": "user", "content": "Some words, and then some more. " * 5_000}]
    got = chat(one, messages=said, **more)
    assert (got.status_code, got.json()["usage"]["prompt_tokens"] > 20_000) == (200, True)
    assert len(sizes) > 5 and max(sizes) <= STEP


def test_conversations_are_spread_and_every_model_has_its_servers(tmp_path: Path) -> None:
    with ScriptedServer() as one, ScriptedServer() as two, ScriptedServer(model="other") as third:
        urls = f"{one.url},{two.url},{third.url}"
        found = config.load(
            options={"backend.url": urls}, environ={}, cwd=tmp_path, user_file=tmp_path / "none"
        )
        models = ServedModels(RunOptions(configuration=found), lambda _: None)

        async def open_both() -> tuple[UpstreamPool, UpstreamPool]:
            await models.open()
            pools = [(await models.speaker(name)).backend for name in ("default", "other")]
            await models.aclose()
            assert isinstance(pools[0], UpstreamPool) and isinstance(pools[1], UpstreamPool)
            return pools[0], pools[1]

        first, other = anyio.run(open_both)
    assert [row["id"] for row in models.rows()] == ["scripted", "other"]
    assert [upstream.address for upstream in first.upstreams] == [one.url, two.url]
    assert [upstream.address for upstream in other.upstreams] == [third.url]
    asked = [CompletionRequest(prompt="Hi", conversation=str(number)) for number in range(40)]
    homes = {first.order(request)[0].address for request in asked}
    assert homes == {one.url, two.url}
