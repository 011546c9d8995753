"""The official client of OpenAI, plain, asynchronous, and by the responses interface."""

from __future__ import annotations

from typing import Any

import checks
from checks import CALCULATOR, COUNT, HELLO, JOKE, MODEL, MOST, PICTURE, SUM, SUMS, URL, WEATHER
from openai import AsyncOpenAI, BadRequestError, NotFoundError, OpenAI
from pydantic import BaseModel

client = OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0)
TOOLS: Any = [{"type": "function", "function": CALCULATOR}]
BOTH: Any = [*TOOLS, {"type": "function", "function": WEATHER}]


class Joke(BaseModel):
    setup: str
    punchline: str


def asked(question: str) -> list[Any]:
    return [{"role": "user", "content": question}]


def said(**more: Any) -> Any:
    return client.chat.completions.create(**{"model": MODEL, "max_tokens": MOST, **more}).choices[0]


def results(calls: Any, called: list[str]) -> list[Any]:
    """Run calls of the calculator; the messages with their results."""
    made = []
    for call in calls or ():
        called.append(checks.json.loads(call.function.arguments)["expression"])
        content = checks.calculate(called[-1])
        made.append({"role": "tool", "tool_call_id": call.id, "content": content})
    return made


def talk(question: str) -> tuple[list[str], str]:
    messages, called = asked(question), list[str]()
    for _ in range(4):
        message = said(messages=messages, tools=TOOLS).message
        if not message.tool_calls:
            return called, message.content
        messages += [message, *results(message.tool_calls, called)]
    raise AssertionError("it calls and calls")


# --- plain ----------------------------------------------------------------------------------------


def answer() -> None:
    checks.check_answer(said(messages=asked(HELLO)).message.content)


def conversation() -> None:
    messages: list[Any] = [
        {"role": "system", "content": "Be brief."},
        *asked("My name is Ada."),
        {"role": "assistant", "content": "Good to know."},
        {"role": "developer", "content": "And kind."},
        {"role": "user", "content": [{"type": "text", "text": "What is my name?"}]},
    ]
    assert said(messages=messages).message.content == "Your name is Ada."


def required() -> None:
    choice = said(messages=asked(HELLO), tools=TOOLS, tool_choice="required")
    assert choice.finish_reason == "tool_calls", choice
    assert choice.message.tool_calls[0].function.name == "calculator"


def named() -> None:
    chosen = {"type": "function", "function": {"name": "get_weather"}}
    choice = said(messages=asked(SUM), tools=BOTH, tool_choice=chosen)
    assert [one.function.name for one in choice.message.tool_calls] == ["get_weather"]


def none() -> None:
    choice = said(messages=asked(HELLO), tools=TOOLS, tool_choice="none")
    checks.check_answer(choice.message.content)


def one_at_a_time() -> None:
    choice = said(messages=asked(SUMS), tools=TOOLS, parallel_tool_calls=False)
    assert len(choice.message.tool_calls) == 1, choice


def schema() -> None:
    parsed = client.chat.completions.parse(model=MODEL, messages=asked(JOKE), response_format=Joke)
    assert isinstance(parsed.choices[0].message.parsed, Joke)


def json_object() -> None:
    kind: Any = {"type": "json_object"}
    choice = said(messages=asked(f"{JOKE} Return JSON."), response_format=kind)
    checks.check_joke(checks.json.loads(choice.message.content))


def stop() -> None:
    choice = said(messages=asked(COUNT), stop=["5"])
    assert (choice.message.content, choice.finish_reason) == ("1 2 3 4 ", "stop"), choice


def limit() -> None:
    choice = said(messages=asked(COUNT), max_tokens=3)
    assert choice.finish_reason == "length" and choice.message.content.startswith("1 2"), choice


def usage() -> None:
    completion = client.chat.completions.create(model=MODEL, messages=asked(HELLO))
    assert completion.usage is not None and completion.usage.prompt_tokens_details is not None
    assert completion.usage.prompt_tokens >= 1 <= completion.usage.completion_tokens


def models() -> None:
    assert MODEL in [one.id for one in client.models.list()]
    assert client.models.retrieve(MODEL).id == MODEL


def unknown_model() -> None:
    try:
        client.chat.completions.create(model="nobody", messages=asked(HELLO))
    except NotFoundError as error:
        assert error.code == "model_not_found", error
    else:
        raise AssertionError("a model that is not there answered")


def refused_field() -> None:
    try:
        said(messages=asked(HELLO), n=2)
    except BadRequestError as error:
        assert error.param == "n", error
    else:
        raise AssertionError("n=2 was taken")


def text_completion() -> None:
    made = client.completions.create(model=MODEL, prompt="Hello", max_tokens=5)
    assert made.choices[0].text


def picture() -> None:
    shown: list[Any] = [
        {"type": "text", "text": "What is this?"},
        {"type": "image_url", "image_url": {"url": PICTURE}},
    ]
    said(messages=[{"role": "user", "content": shown}])


def logprobs() -> None:
    said(messages=asked(HELLO), logprobs=True)


def streamed_answer() -> None:
    stream = client.chat.completions.create(
        model=MODEL, messages=asked(HELLO), stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    checks.check_answer("".join(c.choices[0].delta.content or "" for c in chunks if c.choices))
    assert chunks[-1].usage is not None


def streamed_talk(question: str) -> tuple[list[str], str]:
    messages, called = asked(question), list[str]()
    for _ in range(4):
        with client.chat.completions.stream(model=MODEL, messages=messages, tools=TOOLS) as stream:
            for _ in stream:
                pass
            message: Any = stream.get_final_completion().choices[0].message
        if not message.tool_calls:
            return called, message.content
        messages += [message, *results(message.tool_calls, called)]
    raise AssertionError("it calls and calls")


def streamed_schema() -> None:
    with client.chat.completions.stream(
        model=MODEL, messages=asked(JOKE), response_format=Joke
    ) as stream:
        for _ in stream:
            pass
        assert isinstance(stream.get_final_completion().choices[0].message.parsed, Joke)


PLAIN = {
    "answer": answer,
    "conversation": conversation,
    "call": lambda: checks.check_sum(*talk(SUM)),
    "two calls": lambda: checks.check_sums(*talk(SUMS)),
    "one call at a time": one_at_a_time,
    "a call required": required,
    "a tool chosen": named,
    "no call": none,
    "schema": schema,
    "JSON": json_object,
    "stop": stop,
    "limit": limit,
    "usage": usage,
    "models": models,
    "unknown model": unknown_model,
    "a field refused": refused_field,
    "text completion": text_completion,
    "streamed answer": streamed_answer,
    "streamed call": lambda: checks.check_sum(*streamed_talk(SUM)),
    "two streamed calls": lambda: checks.check_sums(*streamed_talk(SUMS)),
    "streamed schema": streamed_schema,
    "picture": picture,
    "log probabilities": logprobs,
}


# --- asynchronous ---------------------------------------------------------------------------------


async def async_answer() -> None:
    async with AsyncOpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0) as one:
        completion = await one.chat.completions.create(
            model=MODEL, messages=asked(HELLO), max_completion_tokens=MOST
        )
        checks.check_answer(completion.choices[0].message.content)


async def async_call() -> None:
    messages, called = asked(SUM), list[str]()
    async with AsyncOpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0) as one:
        for _ in range(4):
            async with one.chat.completions.stream(
                model=MODEL, messages=messages, tools=TOOLS, max_completion_tokens=MOST
            ) as stream:
                message: Any = (await stream.get_final_completion()).choices[0].message
            if not message.tool_calls:
                checks.check_sum(called, message.content)
                return
            messages += [message, *results(message.tool_calls, called)]
    raise AssertionError("it calls and calls")


async def async_many() -> None:
    """Ten at once."""
    async with AsyncOpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0) as one:
        many = [one.chat.completions.create(model=MODEL, messages=asked(HELLO)) for _ in range(10)]
        for completion in await checks.asyncio.gather(*many):
            checks.check_answer(completion.choices[0].message.content)


ASYNC = {"answer": async_answer, "call": async_call, "ten at once": async_many}


# --- responses ------------------------------------------------------------------------------------

FLAT: Any = [{"type": "function", **CALCULATOR}]


def outputs(response: Any, called: list[str]) -> list[Any]:
    made = []
    for item in response.output:
        if item.type == "function_call":
            called.append(checks.json.loads(item.arguments)["expression"])
            output = checks.calculate(called[-1])
            kind = "function_call_output"
            made.append({"type": kind, "call_id": item.call_id, "output": output})
    return made


def responded(question: str) -> tuple[list[str], str]:
    called, given = list[str](), asked(question)
    for _ in range(4):
        response = client.responses.create(
            model=MODEL, input=given, tools=FLAT, store=False, max_output_tokens=MOST
        )
        made = outputs(response, called)
        if not made:
            return called, response.output_text
        given = [*given, *response.output, *made]
    raise AssertionError("it calls and calls")


def response_answer() -> None:
    made = client.responses.create(model=MODEL, input=HELLO, max_output_tokens=MOST)
    checks.check_answer(made.output_text)


def response_streamed() -> None:
    with client.responses.stream(model=MODEL, input=HELLO) as stream:
        pieces = [one.delta for one in stream if one.type == "response.output_text.delta"]
        checks.check_answer("".join(pieces))
        checks.check_answer(stream.get_final_response().output_text)


def response_streamed_call() -> None:
    with client.responses.stream(model=MODEL, input=SUM, tools=FLAT) as stream:
        kind = "response.function_call_arguments.delta"
        pieces = "".join(one.delta for one in stream if one.type == kind)
        called = list[str]()
        outputs(stream.get_final_response(), called)
    assert called == [checks.json.loads(pieces)["expression"]] == ["17 * 23"], (called, pieces)


def response_schema() -> None:
    made = client.responses.parse(model=MODEL, input=JOKE, text_format=Joke)
    assert isinstance(made.output_parsed, Joke)


def response_required() -> None:
    made = client.responses.create(model=MODEL, input=HELLO, tools=FLAT, tool_choice="required")
    assert [one.type for one in made.output] == ["function_call"], made.output


def response_limit() -> None:
    made = client.responses.create(model=MODEL, input=COUNT, max_output_tokens=3)
    assert made.status == "incomplete", made.status


def response_picture() -> None:
    shown: list[Any] = [{"type": "input_image", "image_url": PICTURE, "detail": "auto"}]
    client.responses.create(model=MODEL, input=[{"role": "user", "content": shown}])


RESPONSES = {
    "answer": response_answer,
    "call": lambda: checks.check_sum(*responded(SUM)),
    "two calls": lambda: checks.check_sums(*responded(SUMS)),
    "streamed answer": response_streamed,
    "streamed call": response_streamed_call,
    "a call required": response_required,
    "schema": response_schema,
    "limit": response_limit,
    "picture": response_picture,
}

if __name__ == "__main__":
    checks.run("openai", PLAIN)
    checks.run("openai, async", ASYNC)
    checks.run("openai, responses", RESPONSES)
