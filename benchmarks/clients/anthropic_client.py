"""The official client of Anthropic."""

from __future__ import annotations

from typing import Any

import checks
from anthropic import Anthropic, NotFoundError
from checks import CALCULATOR, COUNT, EXPRESSION, HELLO, JOKE, MODEL, MOST, PICTURE, SUM, SUMS, URL

client = Anthropic(base_url=URL, api_key="none", max_retries=0)
TOOLS: Any = [
    {"name": "calculator", "description": CALCULATOR["description"], "input_schema": EXPRESSION}
]


def asked(question: Any) -> list[Any]:
    return [{"role": "user", "content": question}]


def said(**more: Any) -> Any:
    return client.messages.create(**{"model": MODEL, "max_tokens": MOST, **more})


def text_of(message: Any) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


def results(message: Any, called: list[str]) -> list[Any]:
    made = []
    for block in message.content:
        if block.type == "tool_use":
            called.append(block.input["expression"])
            content = checks.calculate(called[-1])
            made.append({"type": "tool_result", "tool_use_id": block.id, "content": content})
    return made


def talk(question: str, *, streamed: bool = False) -> tuple[list[str], str]:
    messages, called = asked(question), list[str]()
    for _ in range(4):
        if streamed:
            with client.messages.stream(
                model=MODEL, max_tokens=500, messages=messages, tools=TOOLS
            ) as stream:
                message: Any = stream.get_final_message()
        else:
            message = said(messages=messages, tools=TOOLS)
        made = results(message, called)
        if not made:
            return called, text_of(message)
        messages += [{"role": "assistant", "content": message.content}, *asked(made)]
    raise AssertionError("it calls and calls")


def answer() -> None:
    checks.check_answer(text_of(said(messages=asked(HELLO), system="Be brief.")))


def conversation() -> None:
    reply = [{"type": "text", "text": "Good to know."}]
    turns = [*asked("I am Ada."), {"role": "assistant", "content": reply}]
    assert text_of(said(messages=[*turns, *asked("What is my name?")])) == "Your name is Ada."


def streamed_answer() -> None:
    with client.messages.stream(model=MODEL, max_tokens=500, messages=asked(HELLO)) as stream:
        checks.check_answer("".join(stream.text_stream))


def required() -> None:
    message = said(messages=asked(HELLO), tools=TOOLS, tool_choice={"type": "any"})
    assert message.stop_reason == "tool_use", message


def named() -> None:
    choice = {"type": "tool", "name": "calculator"}
    message = said(messages=asked(HELLO), tools=TOOLS, tool_choice=choice)
    assert [b.name for b in message.content if b.type == "tool_use"] == ["calculator"]


def none() -> None:
    message = said(messages=asked(HELLO), tools=TOOLS, tool_choice={"type": "none"})
    checks.check_answer(text_of(message))


def one_at_a_time() -> None:
    choice = {"type": "auto", "disable_parallel_tool_use": True}
    message = said(messages=asked(SUMS), tools=TOOLS, tool_choice=choice)
    assert len([b for b in message.content if b.type == "tool_use"]) == 1, message


def schema() -> None:
    text = {"type": "string"}
    fields = {"setup": text, "punchline": text}
    wanted = {"type": "object", "properties": fields, "required": ["setup", "punchline"]}
    kind = {"format": {"type": "json_schema", "schema": wanted}}
    message = said(messages=asked(JOKE), output_config=kind)
    checks.check_joke(checks.json.loads(text_of(message)))


def stop() -> None:
    message = said(messages=asked(COUNT), stop_sequences=["5"])
    found = (text_of(message), message.stop_reason, message.stop_sequence)
    assert found == ("1 2 3 4 ", "stop_sequence", "5"), found


def limit() -> None:
    assert said(messages=asked(COUNT), max_tokens=3).stop_reason == "max_tokens"


def counted() -> None:
    assert client.messages.count_tokens(model=MODEL, messages=asked(HELLO)).input_tokens > 0


def models() -> None:
    assert MODEL in [one.id for one in client.models.list()]


def unknown_model() -> None:
    try:
        said(model="nobody", messages=asked(HELLO))
    except NotFoundError:
        return
    raise AssertionError("a model that is not there answered")


def beginning() -> None:
    """The answer is what follows the beginning that the client wrote of it."""
    made = said(messages=[*asked(HELLO), {"role": "assistant", "content": "Well, "}])
    checks.check_answer(made.content[0].text)


def picture() -> None:
    data = PICTURE.partition(",")[2]
    source = {"type": "base64", "media_type": "image/png", "data": data}
    said(messages=asked([{"type": "image", "source": source}]))


if __name__ == "__main__":
    checks.run(
        "anthropic",
        {
            "answer": answer,
            "conversation": conversation,
            "call": lambda: checks.check_sum(*talk(SUM)),
            "two calls": lambda: checks.check_sums(*talk(SUMS)),
            "streamed answer": streamed_answer,
            "streamed call": lambda: checks.check_sum(*talk(SUM, streamed=True)),
            "one call at a time": one_at_a_time,
            "a call required": required,
            "a tool chosen": named,
            "no call": none,
            "schema": schema,
            "stop": stop,
            "limit": limit,
            "tokens counted": counted,
            "models": models,
            "unknown model": unknown_model,
            "a beginning": beginning,
            "picture": picture,
        },
    )
