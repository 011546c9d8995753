"""Pydantic AI, by chat completions, by responses, and by Anthropic's interface."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import checks
from checks import HELLO, JOKE, MODEL, SUM, SUMS, URL
from pydantic import BaseModel
from pydantic_ai import Agent, BinaryContent, NativeOutput, PromptedOutput
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.profiles import ModelProfile
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider


class Joke(BaseModel):
    setup: str
    punchline: str


def openai() -> Any:
    return OpenAIProvider(base_url=f"{URL}/v1", api_key="none")


MODELS: dict[str, Callable[[], Any]] = {
    "pydantic-ai": lambda: OpenAIChatModel(MODEL, provider=openai()),
    "pydantic-ai, responses": lambda: OpenAIResponsesModel(MODEL, provider=openai()),
    "pydantic-ai, anthropic": lambda: AnthropicModel(
        MODEL,
        provider=AnthropicProvider(base_url=URL, api_key="none"),
        profile=ModelProfile(supports_json_schema_output=True),
    ),
}


class Tests:
    """The tests by one of these interfaces."""

    def __init__(self, model: Callable[[], Any]) -> None:
        self._model = model

    def agent(self, called: list[str] | None = None, **more: Any) -> Agent[None, Any]:
        agent: Agent[None, Any] = Agent(
            self._model(),
            instructions="Be brief.",
            model_settings={"max_tokens": checks.MOST},
            **more,
        )
        if called is not None:

            @agent.tool_plain
            def calculator(expression: str) -> str:
                """Work out an arithmetic expression."""
                called.append(expression)
                return checks.calculate(expression)

        return agent

    async def answer(self) -> None:
        checks.check_answer((await self.agent().run(HELLO)).output)

    async def conversation(self) -> None:
        agent = self.agent()
        first = await agent.run("My name is Ada.")
        more = await agent.run("What is my name?", message_history=first.all_messages())
        assert more.output == "Your name is Ada.", more.output

    async def call(self) -> None:
        called = list[str]()
        checks.check_sum(called, (await self.agent(called).run(SUM)).output)

    async def two_calls(self) -> None:
        called = list[str]()
        checks.check_sums(called, (await self.agent(called).run(SUMS)).output)

    async def streamed_answer(self) -> None:
        async with self.agent().run_stream(HELLO) as result:
            pieces = [piece async for piece in result.stream_text(delta=True, debounce_by=None)]
        checks.check_answer("".join(pieces))

    async def streamed_call(self) -> None:
        called = list[str]()
        async with self.agent(called).run_stream(SUM) as result:
            checks.check_sum(called, await result.get_output())

    async def output(self, kind: Any) -> None:
        assert isinstance((await self.agent(output_type=kind).run(JOKE)).output, Joke)

    async def picture(self) -> None:
        data = base64.b64decode(checks.PICTURE.partition(",")[2])
        await self.agent().run(["What is this?", BinaryContent(data, media_type="image/png")])

    def all(self) -> dict[str, Callable[[], Any]]:
        return {
            "answer": self.answer,
            "conversation": self.conversation,
            "call": self.call,
            "two calls": self.two_calls,
            "streamed answer": self.streamed_answer,
            "streamed call": self.streamed_call,
            "output by a tool": lambda: self.output(Joke),
            "schema": lambda: self.output(NativeOutput(Joke)),
            "output by prompt": lambda: self.output(PromptedOutput(Joke)),
            "picture": self.picture,
        }


if __name__ == "__main__":
    for name, model in MODELS.items():
        checks.run(name, Tests(model).all())
