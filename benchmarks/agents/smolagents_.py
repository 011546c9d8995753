"""smolagents' ToolCallingAgent, with calls that the model hands over ready made, or writes as text
that the framework reads."""

from __future__ import annotations

import json
from typing import Any

from smolagents import ChatMessage, LogLevel, Model, ToolCallingAgent, tool
from smolagents.models import ChatMessageToolCall, ChatMessageToolCallFunction

from agents import ANSWER, QUESTION, Agent, Script


class Scripted(Model):
    def __init__(self, script: Script, as_text: bool) -> None:
        super().__init__()
        self.script, self.as_text = script, as_text

    def generate(self, messages: Any, **options: Any) -> ChatMessage:
        step = self.script.next()
        name = "add" if step else "final_answer"
        arguments = {"a": step, "b": 1} if step else {"answer": ANSWER}
        if self.as_text:
            content = json.dumps({"name": name, "arguments": arguments})
            return ChatMessage(role="assistant", content=content)
        function = ChatMessageToolCallFunction(name=name, arguments=arguments)
        call = ChatMessageToolCall(id=f"c{step}", type="function", function=function)
        return ChatMessage(role="assistant", content="", tool_calls=[call])


class Subject(Agent):
    def __init__(self, as_text: bool = False) -> None:
        self.as_text = as_text
        super().__init__()

    def build(self) -> None:
        counter = self.counter

        @tool
        def add(a: int, b: int) -> int:
            """Adds two numbers.

            Args:
                a: One number.
                b: The other.
            """
            return counter.add(a, b)

        self.agent = ToolCallingAgent(
            tools=[add],
            model=Scripted(self.script, self.as_text),
            verbosity_level=LogLevel.OFF,
        )

    def ask(self, steps: int) -> str:
        return str(self.agent.run(QUESTION, max_steps=steps + 1))
