"""Chat completions, and plain ones, over the whole of the gateway, on a scripted model."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import anyio
import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_tools.backends import Chunk, CompletionRequest, CompletionsBackend, TokenScore
from mlx_tools.errors import BackendTimeout, BackendUnreachable
from mlx_tools.gateway.chat_completions import read_chat_completion
from mlx_tools.gateway.conversation import TurnMemory
from mlx_tools.gateway.request import ApiError
from mlx_tools.messages import Usage
from mlx_tools.testing import Script, answer, call
from mlx_tools.transcript import CompletionRecord
from tests.gateway.conftest import WEATHER, chat, with_client
from tests.gateway.scripted_turns import json_values

HI = [{"role": "user", "content": "What is the weather in Rome?"}]
ROME = call("get_weather", city="Rome")


def message(response: Any) -> dict[str, Any]:
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]["message"]


def chunks(response: Any) -> list[dict[str, Any]]:
    lines = [line for line in response.text.split("\n\n") if line.startswith("data: {")]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def content_of(response: Any) -> str:
    """The answer's text, of the chunks of a stream."""
    deltas = [c["choices"][0]["delta"] for c in chunks(response) if c.get("choices")]
    return "".join(delta.get("content") or "" for delta in deltas)


def called(*ids: str, arguments: str = "{}") -> dict[str, Any]:
    """The calls of a model in an earlier turn, by these ids."""
    function = {"name": "get_weather", "arguments": arguments}
    calls = [{"id": id_, "type": "function", "function": function} for id_ in ids]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def result(id_: str, content: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id_, "content": content}


def test_a_call_comes_as_a_tool_call_with_an_id_of_its_own(serving: Any) -> None:
    response = chat(serving(ROME), tools=[WEATHER])
    assert message(response)["tool_calls"] == [
        {
            "id": "call_00000002",
            "type": "function",
            "function": {"name": "get_weather", "arguments": '{"city":"Rome"}'},
        }
    ]
    assert message(response)["content"] is None
    assert response.json()["choices"][0]["finish_reason"] == "tool_calls"


def test_without_tools_nothing_of_ours_stands_in_the_prompt(serving: Any) -> None:
    one = serving("Sunny, I guess.")
    assert message(chat(one))["content"] == "Sunny, I guess."
    assert one.backend.prompts == [
        "<|im_start|>user\nWhat is the weather in Rome?<|im_end|>\n<|im_start|>assistant\n"
    ]


def test_without_tools_json_is_text_like_any_other(serving: Any) -> None:
    assert message(chat(serving(ROME)))["content"] == ROME


def test_a_call_in_a_models_own_dialect_is_a_call_and_named_as_one(serving: Any) -> None:
    text = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>'
    response = chat(serving(text), tools=[WEATHER])
    assert message(response)["tool_calls"][0]["function"]["arguments"] == '{"city":"Rome"}'
    assert response.headers["x-mlx-tools-repairs"] == "dialect"


def test_a_turn_that_cannot_be_read_is_corrected_inside_the_request(serving: Any) -> None:
    one = serving("<tool_call>get the weather", ROME)
    assert message(chat(one, tools=[WEATHER]))["tool_calls"]
    assert len(one.backend.prompts) == 2
    assert one.backend.prompts[1].startswith(one.backend.prompts[0])


@pytest.mark.parametrize(
    "texts", [["<tool_call>get the weather"] * 3, [f"<tool_call>weather {n}" for n in range(3)]]
)
def test_call_like_text_is_corrected_once_then_shown_and_named(
    serving: Any, texts: list[str]
) -> None:
    one = serving(*texts)
    response = chat(one, tools=[WEATHER])
    assert message(response)["content"] == texts[1] and not message(response).get("tool_calls")
    assert response.headers["x-mlx-tools-call-like"] == "true"
    assert len(one.backend.prompts) == 2


CUT = '{"type":"final_answer","content":"It is 391.", oops'


@pytest.mark.parametrize("strategy", ["free", "auto"])
def test_what_was_said_before_a_turn_broke_stays_and_the_corrected_turn_stands_behind_it(
    serving: Any, strategy: str
) -> None:
    other = answer("No, 392.")
    whole = chat(serving(CUT, other, other, strategy=strategy), tools=[WEATHER])
    assert message(whole)["content"] == "No, 392."  # nobody has seen the other
    streamed = chat(serving(CUT, other, other, strategy=strategy), tools=[WEATHER], stream=True)
    assert content_of(streamed) == "It is 391.\n\nNo, 392."


def test_the_same_text_again_is_told_once(serving: Any) -> None:
    text = "Sunny.\n\n<|do|>get_weather of Rome"
    response = chat(serving(text, text), tools=[WEATHER], stream=True)
    assert content_of(response) == text
    assert chunks(response)[-1]["mlx_tools"] == {"call_like": True}


def test_a_call_that_the_token_limit_cut_off_is_no_call(serving: Any) -> None:
    cut = Script('{"type":"tool_call","name":"get_weather","arguments":{"ci', "length")
    choice = chat(serving(cut), tools=[WEATHER], max_tokens=9).json()["choices"][0]
    assert choice["finish_reason"] == "length"
    assert "tool_calls" not in choice["message"]


@pytest.mark.parametrize(("times", "finish", "requests"), [(1, "tool_calls", 2), (2, "length", 2)])
def test_a_call_that_repeats_itself_is_corrected_once(
    serving: Any, times: int, finish: str, requests: int
) -> None:
    loop = '{"type":"tool_call","name":"get_weather","arguments":{"city":"' + "Rome, " * 5_000
    one = serving(*[Script(loop, None, pieces=400)] * times, ROME)
    choice = chat(one, tools=[WEATHER]).json()["choices"][0]
    assert choice["finish_reason"] == finish
    assert len(one.backend.prompts) == requests


def test_several_calls_keep_their_order_and_where_one_may_come_the_turn_ends_at_it(
    serving: Any,
) -> None:
    text = f"{ROME}\n{call('get_weather', city='Oslo')}\n"
    calls = message(chat(serving(text), tools=[WEATHER]))["tool_calls"]
    assert [json.loads(one["function"]["arguments"])["city"] for one in calls] == ["Rome", "Oslo"]
    response = chat(serving(text), tools=[WEATHER], parallel_tool_calls=False)
    assert message(response)["tool_calls"][0]["function"] == calls[0]["function"]
    assert len(message(response)["tool_calls"]) == 1


def test_a_required_call_is_asked_for_even_after_a_result(serving: Any) -> None:
    rest = 'get_weather","arguments":{"city":"Oslo"}}'
    one = serving(rest)
    told = [*HI, called("a"), result("a", "rain")]
    response = chat(one, messages=told, tools=[WEATHER], tool_choice="required")
    assert message(response)["tool_calls"]
    assert one.backend.prompts[0].endswith('{"type":"tool_call","name":"')


def test_a_call_with_a_mark_in_place_of_a_secret_is_not_sent(serving: Any) -> None:
    marked = call("get_weather", city="[redacted:jwt]")
    calls = message(chat(serving(f"{marked}\n{ROME}\n"), tools=[WEATHER]))["tool_calls"]
    assert [one["function"]["arguments"] for one in calls] == ['{"city":"Rome"}']


def test_only_allowed_tools_are_called(serving: Any) -> None:
    other = {"type": "function", "function": {"name": "get_time", "parameters": {}}}
    chosen = {"mode": "auto", "tools": [{"type": "function", "function": {"name": "get_time"}}]}
    allowed = {"type": "allowed_tools", "allowed_tools": chosen}
    one = serving(ROME, ROME, call("get_time"))
    calls = message(chat(one, tools=[WEATHER, other], tool_choice=allowed))["tool_calls"]
    assert [one["function"]["name"] for one in calls] == ["get_time"]
    assert '"get_weather"' in one.backend.prompts[0] or "get_weather(" in one.backend.prompts[0]


def test_a_forced_tool_that_the_model_does_not_call_is_told_by_its_name(serving: Any) -> None:
    other = {"type": "function", "function": {"name": "get_time", "parameters": {}}}
    text = call("get_weather", city="Rome")

    def write(prompt: str) -> str:
        begun = prompt.rpartition("<|im_start|>assistant\n")[2]
        return text.removeprefix(begun) or text

    one = serving(*[write] * 30)
    forced = {"type": "function", "function": {"name": "get_time"}}
    failed = chat(one, tools=[WEATHER, other], tool_choice=forced)
    assert failed.status_code == 502
    said = failed.json()["error"]["message"]
    assert "only get_time may be called here. (it wrote " in said and "did you mean" not in said


def test_another_gateway_makes_the_same_prompt_every_time(serving: Any) -> None:
    before = {**called("x1", arguments='{ "city" : "Rome" }'), "content": "Let me look."}
    after = {**result("x1", ""), "content": [{"type": "text", "text": "rain"}]}
    told = [*HI, before, after]
    one, two = serving(answer(), answer()), serving(answer())
    for asked in (one, one, two):
        chat(asked, messages=told, tools=[WEATHER])
    assert len({*one.backend.prompts, *two.backend.prompts}) == 1
    written = '{"type":"tool_call","name":"get_weather","arguments":{"city":"Rome"}}'
    assert written in one.backend.prompts[0]


def test_what_was_written_with_tools_stands_as_an_answer_where_there_are_none(serving: Any) -> None:
    one = serving(answer("It rains."), "Rain")
    told = [*HI, message(chat(one, tools=[WEATHER])), {"role": "user", "content": "A title?"}]
    chat(one, messages=told)
    assert "assistant\nIt rains.<|im_end|>" in one.backend.prompts[1]


@pytest.mark.parametrize(
    ("told", "seen"),
    [
        ([called("a", "a"), result("a", "sun"), result("a", "rain")], "sunrain"),
        ([called("a", "b"), result("b", "rain"), result("a", "sun")], "sunrain"),
        ([called("", ""), result("x", "sun"), result("y", "rain")], "sunrain"),
        ([called("a"), called("b"), result("a", "sun"), result("b", "rain")], "sunrain"),
        ([called("a"), {"role": "assistant", "content": "Hm."}, result("a", "sun")], "sun"),
        ([called("a"), result("a", "sun")] * 1200, "sun" * 1200),
    ],
)
def test_results_find_their_calls_however_these_are_named(
    serving: Any, told: list[Any], seen: str
) -> None:
    one = serving(answer("Fine."))
    message(chat(one, messages=[*HI, *told], tools=[WEATHER]))
    assert "".join(re.findall("sun|rain", one.backend.prompts[0].partition("Rome?")[2])) == seen


@pytest.mark.parametrize(
    ("told", "seen"),
    [
        ([called("a", "a"), result("a", "sun")], ["sun", "no result was sent"]),
        ([called("a"), result("a", "sun"), result("a", "rain")], ["sun", "earlier call]", "rain"]),
        ([called("a"), called("b"), result("b", "sun")], ["no result was sent", "sun"]),
        ([called("a")], ["no result was sent"]),
        ([result("a", "sun")], ["The result of an earlier call]", "sun"]),
    ],
)
def test_calls_without_results_and_results_without_calls_are_told(
    serving: Any, told: list[Any], seen: list[str]
) -> None:
    one = serving(answer("Fine."))
    message(chat(one, messages=[*HI, *told], tools=[WEATHER]))
    prompt = one.backend.prompts[0].rpartition("Rome?")[2]
    assert re.findall("|".join(map(re.escape, seen)), prompt) == seen


@pytest.mark.parametrize(
    "told", [[{"role": "assistant", "content": "Hm."}], [*HI, {"role": "tool", "content": "sun"}]]
)
def test_a_conversation_that_cannot_go_on_is_refused(serving: Any, told: list[Any]) -> None:
    assert chat(serving(), messages=told, tools=[WEATHER]).status_code == 400


def test_what_is_said_beside_a_result_stands_in_its_turn(serving: Any) -> None:
    one = serving(answer())
    told = [*HI, called("a"), result("a", "rain"), {"role": "user", "content": "In Celsius."}]
    chat(one, messages=told, tools=[WEATHER])
    turn = one.backend.prompts[0].rpartition("<|im_start|>user\n")[2]
    assert turn.startswith('{"type":"tool_observation","name":"get_weather","content":"rain"}\nIn')


@pytest.mark.parametrize("pieces", [1, 3, 0])
@pytest.mark.parametrize(
    "text",
    [
        ROME,
        answer('A "quoted" answer, with ünïcode 🌍\nand lines.'),
        f"Let me see.\n{ROME}\n",
        "[get_weather(city='Rome'), get_weather(city='Oslo')]",
        "Just prose.",
    ],
)
def test_streamed_equals_whole(serving: Any, text: str, pieces: int) -> None:
    whole = message(chat(serving(text), tools=[WEATHER]))
    events = chunks(chat(serving(Script(text, pieces=pieces)), tools=[WEATHER], stream=True))
    deltas = [event["choices"][0]["delta"] for event in events]
    content = "".join(delta.get("content") or "" for delta in deltas)
    calls: dict[int, dict[str, str]] = {}
    for delta in deltas:
        for one in delta.get("tool_calls", ()):
            call = calls.setdefault(one["index"], {"name": "", "arguments": ""})
            for key in call:
                call[key] += one["function"].get(key, "")
    assert content == (whole["content"] or "")
    assert list(calls.values()) == [one["function"] for one in whole.get("tool_calls", ())]
    finish = "tool_calls" if calls else "stop"
    assert events[-1]["choices"][0]["finish_reason"] == finish


@pytest.mark.parametrize("pieces", [1, 2, 0])
@pytest.mark.parametrize("tools", [[], [WEATHER]])
def test_a_stop_text_ends_the_answer_wherever_it_is_split(
    serving: Any, tools: list[Any], pieces: int
) -> None:
    said = "One, two, STOP three."
    script = Script(answer(said) if tools else said, pieces=pieces)
    response = chat(serving(script), tools=tools, stop=["STOP", "never"])
    assert message(response)["content"] == "One, two, "
    assert response.json()["choices"][0]["finish_reason"] == "stop"


def test_a_thought_is_no_part_of_a_plain_answer(serving: Any) -> None:
    for pieces in (1, 2, 0):
        script = Script("<think>Rome, hm.</think>\n\nSunny.", pieces=pieces)
        assert message(chat(serving(script)))["content"] == "Sunny."


def test_a_prompt_must_fit_the_context_and_an_answer_gets_what_that_leaves(serving: Any) -> None:
    one = serving(context=100)
    error = chat(one, tools=[WEATHER]).json()["error"]
    assert error["code"] == "context_length_exceeded" and "100 tokens" in error["message"]
    assert one.backend.prompts == []
    one = serving("Hello.", context=500)
    chat(one, max_tokens=32_000)
    assert 400 < one.backend.requests[0].max_tokens < 500


def test_a_prompt_that_fills_the_context_exactly_has_no_room_for_an_answer(serving: Any) -> None:
    def asked(context: int) -> tuple[Any, Any]:
        one = serving("Hello.", context=context)
        response = chat(one, max_tokens=50)
        return response, one.backend.requests

    error = asked(1)[0].json()["error"]
    used = int(error["message"].split()[-1].rstrip("."))
    for size in (used - 1, used):
        response, requests = asked(size)
        assert response.json()["error"]["code"] == "context_length_exceeded" and not requests
    for size, left in ((used + 1, 1), (used + 2, 2), (used + 50, 50), (used + 51, 50)):
        response, (request,) = asked(size)
        assert (response.status_code, request.max_tokens) == (200, left)


def test_a_corrected_turn_costs_its_last_prompt_and_all_that_was_written(serving: Any) -> None:
    first = Script("<tool_call>weather", usage=Usage(100, 0, 10))
    one = serving(first, Script(ROME, usage=Usage(150, 100, 20)))
    usage = chat(one, tools=[WEATHER]).json()["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (150, 30)
    assert usage["prompt_tokens_details"] == {"cached_tokens": 100}


def test_sampling_goes_to_the_server_as_it_is(serving: Any) -> None:
    one = serving("Hello.")
    chat(one, temperature=0.5, top_p=0.9, seed=7, presence_penalty=0.1, logit_bias={"5": -100})
    asked = one.backend.requests[0]
    assert (asked.temperature, asked.seed, asked.logit_bias) == (0.5, 7, {5: -100})
    assert asked.sampling == {"top_p": 0.9, "presence_penalty": 0.1}


def test_what_has_no_effect_is_accepted_and_what_nobody_knows_is_named(serving: Any) -> None:
    hosted = {"type": "web_search"}
    response = chat(serving("Hi"), user="ann", store=False, shiny=1, tools=[hosted])
    assert response.headers["x-mlx-tools-left-out"] == "tools.web_search, shiny"


def test_a_server_that_cannot_be_reached_is_an_error_that_says_so(serving: Any) -> None:
    response = chat(serving(BackendUnreachable("nobody listens at port 1")))
    assert response.status_code == 502
    assert "nobody listens" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("schema", "arguments", "content"),
    [
        (
            {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
            {"city": "Rome"},
            '{"city":"Rome"}',
        ),
        ({"type": "array", "items": {"type": "string"}}, {"value": ["a", "b"]}, '["a","b"]'),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_is_held_to_its_schema_and_is_no_call(
    serving: Any, schema: Any, arguments: Any, content: str, stream: bool
) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    rest = call("result", **arguments).removeprefix('{"type": "tool_call", "name": "')

    def written(prompt: str) -> Script:
        name = prompt.rpartition('"name":"')[2].partition('"')[0]
        text = f'{name}", {rest.partition(", ")[2]}' if not name else rest.partition("{")[2]
        return Script(text, pieces=3)

    response = chat(serving(written), response_format=wanted, stream=stream)
    if stream:
        deltas = [event["choices"][0]["delta"] for event in chunks(response)]
        assert "".join(delta.get("content") or "" for delta in deltas) == content
        assert not any("tool_calls" in delta for delta in deltas)
    else:
        assert message(response)["content"] == content


class Silent:
    """A server that does not answer in time."""

    async def complete(self, request: CompletionRequest) -> AsyncIterator[Chunk]:
        raise BackendTimeout("it was silent for 60 s", hint="allow more time with --timeout")
        yield Chunk()


def test_a_server_that_is_silent_is_told_without_the_options_of_runs(serving: Any) -> None:
    response = chat(serving(backend=Silent()), tools=[WEATHER])
    assert response.status_code == 504
    assert response.json()["error"]["message"] == "it was silent for 60 s"


def test_the_official_client_reads_what_is_sent(serving: Any) -> None:
    import openai

    async def use(client: openai.AsyncOpenAI) -> tuple[Any, list[Any]]:
        given: Any = {"model": "scripted", "messages": HI, "tools": [WEATHER]}
        made = await client.chat.completions.create(**given)
        streaming: Any = {"stream": True, "stream_options": {"include_usage": True}}
        stream = await client.chat.completions.create(**given, **streaming)
        return made, [event async for event in stream]

    one = serving(ROME, Script(answer("Sunny."), pieces=3))
    made, events = with_client(openai.AsyncOpenAI, "/v1", one, use)
    assert made.choices[0].message.tool_calls[0].function.name == "get_weather"
    assert "".join(e.choices[0].delta.content or "" for e in events if e.choices) == "Sunny."
    assert events[-1].usage.total_tokens > 0


FIELDS = (
    *("messages", "tools", "tool_choice", "stop", "stream", "response_format", "n", "max_tokens"),
)


@given(st.dictionaries(st.sampled_from(FIELDS), json_values))
def test_a_body_of_any_shape_is_read_or_refused(body: dict[str, Any]) -> None:
    try:
        read_chat_completion(body, new_id=lambda: "1", now=lambda: 0.0)
    except ApiError as error:
        assert 400 <= error.status < 500


def test_what_is_remembered_has_a_bound_and_the_oldest_goes_first() -> None:
    turned = ((CompletionRecord(turn=1, text="x" * 1000, prompt="p" * 100_000), None),)
    memory = TurnMemory(max_turns=10_000)
    for number in range(10):
        memory.keep(str(number), turned)
    known = [number for number in range(10) if memory.get(str(number)) is not None]
    assert known == [6, 7, 8, 9]
    assert all(record.prompt is None for record, _ in memory.get("9") or ())


# --- plain completions ----------------------------------------------------------------------------

EURO = "€".encode()
SCORES = (
    (TokenScore(" a", -0.25, id=7), TokenScore(" the", -1.5, id=8)),
    (TokenScore("\ufffd", -0.5, EURO[:1], 9), TokenScore("<|im_end|>", -2.0, id=2)),
)


class Scoring:
    """A model that says how likely its tokens are."""

    def __init__(self, **usage: int) -> None:
        self.usage = Usage(**usage)
        self.asked: list[CompletionRequest] = []

    async def complete(self, request: CompletionRequest) -> AsyncIterator[Chunk]:
        self.asked.append(request)
        scores = tuple(row[: request.top_logprobs] for row in SCORES)
        yield Chunk(" a", "length", self.usage, scores=scores if request.top_logprobs else ())


def through(one: Any, request: CompletionRequest) -> Chunk:
    """The reading of the gateway's answer by a backend."""

    async def ask() -> Chunk:
        client = httpx.AsyncClient(transport=one.transport)
        backend = CompletionsBackend("http://127.0.0.1", "scripted", client=client)
        async with aclosing(backend.complete(request)) as chunks:
            return [chunk async for chunk in chunks][-1]

    return anyio.run(ask)


def test_likelihoods_come_through_with_their_bytes_and_numbers(serving: Any) -> None:
    one = serving(backend=Scoring(prompt_tokens=5, cached_tokens=4, completion_tokens=2))
    chunk = through(one, CompletionRequest(prompt="It is", max_tokens=2, top_logprobs=2))
    assert chunk.scores == SCORES
    assert (chunk.text, chunk.finish_reason) == (" a", "length")


@pytest.mark.parametrize("cached", [4, None])
def test_how_much_was_cached_is_told_where_it_is_known(serving: Any, cached: int | None) -> None:
    known = {} if cached is None else {"cached_tokens": cached}
    one = serving(backend=Scoring(prompt_tokens=5, completion_tokens=2, **known))
    assert through(one, CompletionRequest(prompt="It is")).usage == Usage(5, cached, 2)


@pytest.mark.parametrize(
    ("options", "told"),
    [(None, 0), ({}, 0), ({"include_usage": False}, 0), ({"include_usage": True}, 1)],
)
def test_a_stream_tells_its_usage_if_that_is_asked_for(
    serving: Any, options: Any, told: int
) -> None:
    events = chunks(chat(serving("Hello."), stream=True, stream_options=options))
    assert sum(bool(event.get("usage")) for event in events) == told
