"""LangChain's JSON chat agent: the model writes JSON text, as mlx-tools' does."""

from __future__ import annotations

import json
from typing import Any

from langchain_classic.agents import AgentExecutor, create_json_chat_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from langchain_core.tools import StructuredTool

from agents import ANSWER, QUESTION, Agent

SYSTEM = (
    "Use the tools where you need them. Tools:\n{tools}\n\n"
    'Answer with one JSON object, {{"action": one of {tool_names} or "Final Answer",'
    ' "action_input": the input or the answer}}.'
)


class Scripted(BaseChatModel):
    script: Any

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def _generate(self, messages: Any, stop: Any = None, **options: Any) -> ChatResult:
        step = self.script.next()
        if step is None:
            action: dict[str, Any] = {"action": "Final Answer", "action_input": ANSWER}
        else:
            action = {"action": "add", "action_input": {"a": step, "b": 1}}
        message = AIMessage(content=json.dumps(action))
        return ChatResult(generations=[ChatGeneration(message=message)])


class Subject(Agent):
    def build(self) -> None:
        tools = [StructuredTool.from_function(self.counter.add, description="Adds two numbers.")]
        prompt = ChatPromptTemplate.from_messages(
            [("system", SYSTEM), ("human", "{input}"), MessagesPlaceholder("agent_scratchpad")]
        )
        agent = create_json_chat_agent(Scripted(script=self.script), tools, prompt)
        self.executor = AgentExecutor(agent=agent, tools=tools, max_iterations=None)

    def ask(self, steps: int) -> str:
        return str(self.executor.invoke({"input": QUESTION})["output"])
