"""LiteLLM's library, by chat completions."""

from __future__ import annotations

from typing import Any

import checks
import litellm
from checks import CALCULATOR, HELLO, JOKE, MODEL, PICTURE, SUM, SUMS, URL
from pydantic import BaseModel

GATEWAY: Any = {
    "model": f"openai/{MODEL}",
    "api_base": f"{URL}/v1",
    "api_key": "none",
    "max_tokens": checks.MOST,
}
TOOLS: Any = [{"type": "function", "function": CALCULATOR}]


class Joke(BaseModel):
    setup: str
    punchline: str


def asked(question: Any) -> list[Any]:
    return [{"role": "user", "content": question}]


def said(**more: Any) -> Any:
    return litellm.completion(**GATEWAY, **more)


def talk(question: str, *, streamed: bool = False) -> tuple[list[str], str]:
    messages, called = asked(question), list[str]()
    for _ in range(4):
        made = said(messages=messages, tools=TOOLS, stream=streamed)
        if streamed:
            made = litellm.stream_chunk_builder(list(made))
        message = made.choices[0].message
        if not message.tool_calls:
            return called, message.content
        messages.append(message)
        for call in message.tool_calls:
            called.append(checks.json.loads(call.function.arguments)["expression"])
            content = checks.calculate(called[-1])
            messages.append({"role": "tool", "tool_call_id": call.id, "content": content})
    raise AssertionError("it calls and calls")


def answer() -> None:
    checks.check_answer(said(messages=asked(HELLO)).choices[0].message.content)


def streamed_answer() -> None:
    chunks = said(messages=asked(HELLO), stream=True)
    checks.check_answer("".join(chunk.choices[0].delta.content or "" for chunk in chunks))


async def async_call() -> None:
    made: Any = await litellm.acompletion(**GATEWAY, messages=asked(SUM), tools=TOOLS)
    assert made.choices[0].finish_reason == "tool_calls", made


def required() -> None:
    made = said(messages=asked(HELLO), tools=TOOLS, tool_choice="required")
    assert made.choices[0].message.tool_calls, made


def schema() -> None:
    made = said(messages=asked(JOKE), response_format=Joke)
    Joke.model_validate_json(made.choices[0].message.content)


def responses() -> None:
    made: Any = litellm.responses(
        **{k: v for k, v in GATEWAY.items() if k != "max_tokens"}, input=HELLO
    )
    texts = [part.text for item in made.output for part in getattr(item, "content", None) or ()]
    checks.check_answer("".join(texts))


def unknown_model() -> None:
    try:
        litellm.completion(**GATEWAY | {"model": "openai/nobody"}, messages=asked(HELLO))
    except litellm.NotFoundError:
        return
    raise AssertionError("a model that is not there answered")


def picture() -> None:
    said(messages=asked([{"type": "image_url", "image_url": {"url": PICTURE}}]))


if __name__ == "__main__":
    litellm.suppress_debug_info = True
    checks.run(
        "litellm",
        {
            "answer": answer,
            "call": lambda: checks.check_sum(*talk(SUM)),
            "two calls": lambda: checks.check_sums(*talk(SUMS)),
            "streamed answer": streamed_answer,
            "streamed call": lambda: checks.check_sum(*talk(SUM, streamed=True)),
            "asynchronous call": async_call,
            "a call required": required,
            "schema": schema,
            "responses": responses,
            "unknown model": unknown_model,
            "picture": picture,
        },
    )
