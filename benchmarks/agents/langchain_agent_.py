"""LangChain's create_agent, on LangGraph. Its models hand over calls ready made."""

from __future__ import annotations

from typing import Any

from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import StructuredTool

from agents import ANSWER, QUESTION, Agent


class Scripted(BaseChatModel):
    script: Any

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **options: Any) -> Any:
        return self

    def _generate(self, messages: Any, stop: Any = None, **options: Any) -> ChatResult:
        step = self.script.next()
        if step is None:
            message = AIMessage(content=ANSWER)
        else:
            call = {"name": "add", "args": {"a": step, "b": 1}, "id": f"c{step}"}
            message = AIMessage(content="", tool_calls=[call])
        return ChatResult(generations=[ChatGeneration(message=message)])


class Subject(Agent):
    def build(self) -> None:
        tools = [StructuredTool.from_function(self.counter.add, description="Adds two numbers.")]
        self.graph = create_agent(Scripted(script=self.script), tools)

    def ask(self, steps: int) -> str:
        state = self.graph.invoke(
            {"messages": [("user", QUESTION)]}, {"recursion_limit": 2 * steps + 10}
        )
        return str(state["messages"][-1].content)
