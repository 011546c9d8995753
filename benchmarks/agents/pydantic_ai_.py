"""Pydantic AI's Agent with its own FunctionModel, which hands over calls ready made."""

from __future__ import annotations

from typing import Any

from pydantic_ai import Agent as PydanticAgent
from pydantic_ai import ModelResponse, TextPart, ToolCallPart, UsageLimits
from pydantic_ai.models.function import FunctionModel

from agents import ANSWER, QUESTION, Agent


class Subject(Agent):
    def build(self) -> None:
        def reply(messages: Any, info: Any) -> ModelResponse:
            step = self.script.next()
            if step is None:
                return ModelResponse(parts=[TextPart(ANSWER)])
            return ModelResponse(parts=[ToolCallPart("add", {"a": step, "b": 1})])

        self.agent = PydanticAgent(FunctionModel(reply), tools=[self.counter.add])

    def ask(self, steps: int) -> str:
        # Its default limit of 50 requests is one short of 50 steps and an answer.
        return self.agent.run_sync(QUESTION, usage_limits=UsageLimits(request_limit=None)).output
