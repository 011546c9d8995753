"""A gateway in front of several servers."""

from __future__ import annotations

from pathlib import Path

import anyio

from mlx_tools.app import RunOptions, config
from mlx_tools.backends import CompletionRequest, UpstreamPool
from mlx_tools.gateway.served_models import ServedModels
from mlx_tools.testing import ScriptedServer


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
