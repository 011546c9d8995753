"""A gateway in this process, on a model that says what it is told to."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from mlx_tools.app import Door
from mlx_tools.backends import TokenCounter
from mlx_tools.gateway.admission import Admission
from mlx_tools.gateway.conversation import Manner
from mlx_tools.gateway.request import ApiError
from mlx_tools.gateway.server import Gateway, application
from mlx_tools.gateway.turn import Speaker
from mlx_tools.policy import Limits
from mlx_tools.prompt import NAMED_FORMATS
from mlx_tools.store import load_words
from mlx_tools.testing import ScriptedBackend

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
}


def speaker_of(backend: Any, *, context: int | None = None, **manner: Any) -> Speaker:
    """A model that is spoken to in the usual way."""
    values = {"chat_format": NAMED_FORMATS["chatml"], "style": "jsonl", "strategy": "auto"}
    made = Manner(**{**values, "words": load_words(), **manner})
    return Speaker(backend, made, Limits(), context, TokenCounter())


class OneModel:
    """What a gateway asks of its models, with one that is called ``scripted``."""

    def __init__(self, speaker: Speaker) -> None:
        self.one = speaker

    async def speaker(self, name: str) -> Speaker:
        if name not in ("", "default", "scripted"):
            raise ApiError(404, "model_not_found", f"{name}: there is scripted", param="model")
        return self.one

    def rows(self) -> list[dict[str, Any]]:
        return [{"id": "scripted", "object": "model", "created": 0, "owned_by": "mlx-tools"}]

    async def aclose(self) -> None:
        return


@pytest.fixture
def serving() -> Callable[..., Any]:
    """Give the client of a gateway whose model writes these completions; ``backend`` is that."""

    def serve(*scripts: Any, door: Door | None = None, **more: Any) -> Any:
        backend = more.pop("backend", None) or ScriptedBackend(*scripts)
        numbers = count(1)
        gateway = Gateway(
            OneModel(speaker_of(backend, **more)),  # type: ignore[arg-type]
            Admission(4, 8, lambda: 0.0),
            now=lambda: 1_700_000_000.0,
            new_id=lambda: f"{next(numbers):08x}",
        )
        transport = httpx.ASGITransport(application(gateway, door or Door()))
        client = httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1")
        return SimpleNamespace(client=client, backend=backend, gateway=gateway, transport=transport)

    return serve
