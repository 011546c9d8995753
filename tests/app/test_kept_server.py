"""The server that a person picked of several is kept in the person's file."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from mlx_tools.app import RunOptions, choose, config
from mlx_tools.errors import UsageError
from tests.backends.loopback import answers, says, serving


def test_the_picked_server_is_named_in_the_users_file_from_then_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind in ("config", "cache", "state"):
        monkeypatch.setenv(f"MLX_TOOLS_{kind.upper()}_DIR", str(tmp_path / kind))
    (tmp_path / "config").mkdir()
    file = config.user_path()
    file.write_text("# mine\n[gateway]\nport = 1\n", encoding="utf-8")
    ok = answers(200, {"status": "ok"})
    notes: list[str] = []
    asked: list[Sequence[str]] = []

    async def pick(question: str, addresses: Sequence[str]) -> str:
        asked.append(addresses)
        return addresses[1]

    with (
        serving(says("Hi"), health=ok, models=answers(200, {"data": [{"id": "a"}]})) as one,
        serving(says("Hi"), health=ok, models=answers(200, {"data": [{"id": "b"}]})) as two,
    ):
        usual = (one.url, two.url)
        with pytest.raises(UsageError):
            asyncio.run(choose(RunOptions(configuration=config.load()), notes.append, usual))
        options = RunOptions(configuration=config.load(), pick=pick)
        assert asyncio.run(choose(options, notes.append, usual)).model == "b"
        again = RunOptions(configuration=config.load(), pick=pick)
        assert asyncio.run(choose(again, notes.append, usual)).model == "b"
    assert asked == [usual]
    assert file.read_text(encoding="utf-8").startswith("# mine\n")
    assert config.load().settings.backend.url == two.url
    assert any(str(file) in note for note in notes)
