"""The scripted strong model says what it wants, whatever its turn begins with and whoever began."""

from __future__ import annotations

import json
import math
from typing import Any

import anyio
import httpx
import pytest
from strong_model import (
    Serving,
    StrongModel,
    StrongServer,
    Wish,
    spelled,
    token_id,
    tokens_of,
)
from strong_text import DIALECTS

from mlx_tools import CompletionsBackend
from mlx_tools.backends import Chunk, CompletionRequest
from mlx_tools.messages import ToolCall

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


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("spacing", ["compact", "blank", "pretty"])
def test_it_goes_on_with_its_own_text_from_every_place_in_it(dialect: str, spacing: Any) -> None:
    for calls in (CALLS, CALLS[:1], ()):
        for escapes in (False, True):
            wish = Wish(calls, "It is fine,\nreally.")
            model = StrongModel(wish, dialect=dialect, spacing=spacing, escapes=escapes)
            own = model.rest(PROMPT)
            for place in range(len(own) + 1):
                assert model.rest(PROMPT + own[:place]) == own[place:]


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(
    "begun",
    [
        '{"type":"',
        '{"type":"tool_call","name":"',
        '```json\n{"type":"',
        '<tool_call>{"name":"',
        '{"type": "tool_call", "name":"note","arguments":{"text":"another","de',
    ],
)
def test_it_goes_on_with_what_the_host_began_and_then_in_its_own_form(
    dialect: str, begun: str
) -> None:
    model = StrongModel(Wish(CALLS), dialect=dialect, spacing="blank")
    turn = begun + model.rest(PROMPT + begun)
    for place in range(len(begun), len(turn) + 1):
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


def test_tokens_are_its_text_and_likelihoods_are_what_was_asked_for() -> None:
    model = StrongModel(Wish(CALLS), dialect="hermes", probability=0.9)
    own = model.rest(PROMPT)
    assert b"".join(tokens_of(own)) == own.encode()
    assert b"<tool_call>" in tokens_of(own) and "🐝".encode()[:2] in tokens_of(own)
    assert text_of(complete(model)) == own
    (whole,) = complete(model, top_logprobs=5, max_tokens=2)
    assert (whole.text, whole.finish_reason) == ("<tool_call>\n", "length")
    assert [len(row) for row in whole.scores] == [5, 5]
    assert whole.scores[0][0].text == "<tool_call>"
    assert math.exp(whole.scores[0][0].logprob) == pytest.approx(0.9)
    assert sum(math.exp(score.logprob) for score in whole.scores[0]) < 1
    assert (
        complete(StrongModel(Wish(), serving=Serving(likelihoods=False)), top_logprobs=5)[0].scores
        == ()
    )
    assert spelled(b" a\xff") == "ĠaÿX"[:3]


def test_a_server_that_cuts_native_calls_out_says_tool_calls_and_its_marker_can_be_forbidden() -> (
    None
):
    model = StrongModel(Wish(CALLS[:1]), dialect="hermes", serving=Serving(cuts=True))
    chunks = complete(model)
    assert text_of(chunks) == "" and chunks[-1].finish_reason == "tool_calls" and chunks[-1].edited
    forbidden = {token_id(b"<tool_call>"): -100.0}
    assert text_of(complete(model, logit_bias=forbidden)) == model.rest(PROMPT)
    with StrongServer(model) as server:
        plain = CompletionsBackend(server.url)
        assert complete(plain)[-1].edited
        ids = [token_id(b"<tool_call>"), token_id(b"</tool_call>")]
        assert text_of(
            complete(CompletionsBackend(server.url, forbidden_tokens=ids))
        ) == model.rest(PROMPT)


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
