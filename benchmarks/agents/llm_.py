"""llm's chain of responses. Its models hand over calls ready made, so no text is read."""

from __future__ import annotations

from typing import Any

import llm

from agents import ANSWER, QUESTION, Agent


class Scripted(llm.Model):
    model_id = "scripted"
    supports_tools = True
    can_stream = False

    def __init__(self, script: Any) -> None:
        self.script = script

    def execute(self, prompt: Any, stream: bool, response: Any, conversation: Any = None) -> Any:
        step = self.script.next()
        if step is None:
            yield ANSWER
            return
        response.add_tool_call(
            llm.ToolCall(name="add", arguments={"a": step, "b": 1}, tool_call_id=f"c{step}")
        )
        yield ""


class Subject(Agent):
    def build(self) -> None:
        self.model = Scripted(self.script)
        self.tool = llm.Tool.function(self.counter.add, name="add")

    def ask(self, steps: int) -> str:
        conversation = self.model.conversation(tools=[self.tool], chain_limit=steps + 2)
        return conversation.chain(QUESTION, stream=False).text()
