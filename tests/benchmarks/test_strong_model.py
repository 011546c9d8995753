"""The scripted strong model says what it wants, whatever its turn begins with and whoever began."""

from __future__ import annotations

import json
from typing import Any

import anyio
import httpx
import pytest
from strong_model import Serving, StrongModel, StrongServer, Wish
from strong_text import DIALECTS

from mlx_tools import CompletionsBackend
from mlx_tools.backends import Chunk, CompletionRequest
from mlx_tools.messages import ToolCall
from tests.tables import table

CALLS = (
    ToolCall(
        "weather.get", {"city": "Los Angeles, CA", "days": 3, "x": {"a": [1, 2.5], "b": True}}
    ),
    ToolCall("note", {"text": 'Zürich "q"\\n\n🐝', "deep": [{"k": "v"}, {"k": None}]}),
)
ASSISTANT = "<|im_start|>assistant\n"
PROMPT = f"weather.get(city: string)\n<|im_start|>user\nIn Los Angeles?<|im_end|>\n{ASSISTANT}"


def complete(model: Any, prompt: str = PROMPT, **more: Any) -> list[Chunk]:
    async def main() -> list[Chunk]:
        return [chunk async for chunk in model.complete(CompletionRequest(prompt=prompt, **more))]

    return anyio.run(main)


def text_of(chunks: list[Chunk]) -> str:
    return "".join(chunk.text for chunk in chunks)


@table("dialect", DIALECTS)
@table("spacing", ["compact", "blank", "pretty"])
def test_it_goes_on_with_its_own_text_from_every_place_in_it(dialect: str, spacing: Any) -> None:
    for calls in (CALLS, CALLS[:1], ()):
        for escapes in (False, True):
            wish = Wish(calls, "It is fine,\nreally.")
            model = StrongModel(wish, dialect=dialect, spacing=spacing, escapes=escapes)
            own = model.rest(PROMPT)
            for place in range(len(own), -1, -3):
                assert model.rest(PROMPT + own[:place]) == own[place:]


@table("dialect", DIALECTS)
@table(
    "begun",
    [
        '{"type":"',
        '{"type":"tool_call","name":"',
        '```json\n{"type":"',
        '<tool_call>{"name":"',
        '{"type": "tool_call", "name":"note","arguments":{"text":"another","de',
    ],
)
@pytest.mark.heavy
def test_it_goes_on_with_what_the_host_began_and_then_in_its_own_form(
    dialect: str, begun: str
) -> None:
    model = StrongModel(Wish(CALLS), dialect=dialect, spacing="blank")
    turn = begun + model.rest(PROMPT + begun)
    for place in range(len(begun), len(turn) + 1, 3):
        assert turn[:place] + model.rest(PROMPT + turn[:place]) == turn
    begins = turn.index("{")
    first, end = json.JSONDecoder().raw_decode(turn[begins:])
    wanted = [call.arguments for call in CALLS]
    wanted.append(CALLS[1].arguments | {"text": "another"})
    assert first["arguments"] in wanted
    # the other call follows in the form that it would write it in
    other = CALLS[1 if first["name"] == CALLS[0].name else 0]
    alone = StrongModel(Wish((other,)), dialect=dialect, spacing="blank").rest(PROMPT)
    assert turn[begins + end :].endswith(f"\n{alone}")


@pytest.mark.parametrize("whole", [False, True])
def test_over_http_it_is_the_same_model(whole: bool) -> None:
    calls = Wish(CALLS)
    waited: list[float] = []
    served = StrongModel(calls, dialect="xml", serving=Serving(whole=whole, latency=0.3))
    with StrongServer(served, sleep=waited.append) as server:
        backend = CompletionsBackend(server.url)
        chunks = complete(backend)
        scored = complete(backend, top_logprobs=11, max_tokens=3, seed=0)
        asking = {"prompt": PROMPT, "stream": True}
        events = httpx.post(f"{server.url}/v1/completions", json=asking).text.count("data: {")
        assert anyio.run(backend.models) == ("strong",)
        assert anyio.run(backend.health).status == "ok"
    assert text_of(chunks) == served.rest(PROMPT)
    assert events == 2 if whole else events > 20
    assert chunks[-1].usage == served.serving.usage(served.asked[0])
    here = complete(StrongModel(calls, dialect="xml"), top_logprobs=11, max_tokens=3, seed=0)
    assert scored[0].scores == here[0].scores and len(scored[0].scores[0]) == 11
    assert waited == [0.3, 0.3, 0.3]


def test_a_prompt_that_would_kill_a_stock_server_is_marked() -> None:
    model = StrongModel(Wish(CALLS))
    first = text_of(complete(model, max_tokens=3))
    complete(model, PROMPT + first)
    complete(model, PROMPT + first + " ")
    assert [asked.deadly for asked in model.asked] == [False, True, False]
    assert model.asked[1].cached == len(PROMPT + first)
