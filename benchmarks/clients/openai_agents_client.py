"""OpenAI's agents SDK, by chat completions and by responses."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import checks
from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from checks import HELLO, JOKE, MODEL, SUM, SUMS, URL
from openai import AsyncOpenAI
from pydantic import BaseModel


class Joke(BaseModel):
    setup: str
    punchline: str


class Talk:
    """The SDK on one of the interfaces."""

    def __init__(self, kind: Callable[..., Any]) -> None:
        self._kind = kind

    def agent(self, called: list[str], **more: Any) -> Any:
        @function_tool
        def calculator(expression: str) -> str:
            """Work out an arithmetic expression."""
            called.append(expression)
            return checks.calculate(expression)

        self._client = client = AsyncOpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0)
        given = {"tools": [calculator]} | more
        settings = ModelSettings(max_tokens=checks.MOST, **given.pop("settings", {}))
        model = self._kind(MODEL, openai_client=client)
        return Agent(name="a", model=model, model_settings=settings, **given)

    async def answer(self) -> None:
        made = await Runner.run(self.agent([], tools=[]), HELLO)
        checks.check_answer(made.final_output)

    async def call(self, question: str = SUM) -> None:
        called: list[str] = []
        made = await Runner.run(self.agent(called), question, max_turns=4)
        check = checks.check_sum if question == SUM else checks.check_sums
        check(called, made.final_output)

    async def two_calls(self) -> None:
        await self.call(SUMS)

    async def streamed(self) -> None:
        called: list[str] = []
        made = Runner.run_streamed(self.agent(called), SUM, max_turns=4)
        kinds = [event.type async for event in made.stream_events()]
        assert "raw_response_event" in kinds, kinds
        checks.check_sum(called, made.final_output)

    async def required(self) -> None:
        called: list[str] = []
        choice = {
            "settings": {"tool_choice": "required"},
            "tool_use_behavior": "stop_on_first_tool",
        }
        await Runner.run(self.agent(called, **choice), HELLO)
        assert called, "no call"

    async def schema(self) -> None:
        made = await Runner.run(self.agent([], tools=[], output_type=Joke), JOKE)
        checks.check_joke(made.final_output.model_dump())

    def tests(self) -> dict[str, Any]:
        tests = {
            "answer": self.answer,
            "call": self.call,
            "two calls": self.two_calls,
            "streamed call": self.streamed,
            "a call required": self.required,
            "schema": self.schema,
        }
        return {name: partial(self._closing, test) for name, test in tests.items()}

    async def _closing(self, test: Callable[[], Awaitable[None]]) -> None:
        try:
            await test()
        finally:
            await self._client.close()


if __name__ == "__main__":
    set_tracing_disabled(True)
    checks.run("openai-agents", Talk(OpenAIChatCompletionsModel).tests())
    checks.run("openai-agents, responses", Talk(OpenAIResponsesModel).tests())
