"""LangGraph: an agent's graph, with ChatOpenAI and ChatAnthropic as its model."""

from __future__ import annotations

from typing import Any

import checks
from checks import HELLO, JOKE, MODEL, SUM, SUMS, URL
from langchain.agents import create_agent
from langchain.agents.structured_output import ToolStrategy
from langchain_core.messages import AIMessageChunk
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from pydantic import BaseModel


class Joke(BaseModel):
    """A joke."""

    setup: str
    punchline: str


def graph(called: list[str], **more: Any) -> Any:
    def calculator(expression: str) -> str:
        """Work out an arithmetic expression."""
        called.append(expression)
        return checks.calculate(expression)

    model = ChatOpenAI(
        base_url=f"{URL}/v1", api_key="none", model=MODEL, max_tokens=checks.MOST, max_retries=0
    )
    return create_agent(model, **{"tools": [calculator]} | more)


def asked(question: str) -> Any:
    return {"messages": [{"role": "user", "content": question}]}


def answer() -> None:
    made = graph([], tools=[]).invoke(asked(HELLO))
    checks.check_answer(made["messages"][-1].content)


def call(question: str = SUM) -> tuple[list[str], str]:
    called: list[str] = []
    made = graph(called).invoke(asked(question), {"recursion_limit": 10})
    return called, made["messages"][-1].content


def streamed() -> None:
    called: list[str] = []
    pieces = []
    for chunk, _ in graph(called).stream(asked(SUM), stream_mode="messages"):
        if isinstance(chunk, AIMessageChunk) and isinstance(chunk.content, str):
            pieces.append(chunk.content)
    checks.check_sum(called, "".join(pieces))


def memory() -> None:
    """A second question of a conversation that the graph keeps."""
    made = graph([], tools=[], checkpointer=InMemorySaver())
    thread = {"configurable": {"thread_id": "1"}}
    made.invoke(asked("My name is Ada."), thread)
    said = made.invoke(asked("What is my name?"), thread)["messages"][-1].content
    assert "Ada" in said if checks.SCRIPTED else said, said


def schema() -> None:
    made = graph([], tools=[], response_format=ToolStrategy(Joke)).invoke(asked(JOKE))
    checks.check_joke(made["structured_response"].model_dump())


if __name__ == "__main__":
    checks.run(
        "langgraph",
        {
            "answer": answer,
            "call": lambda: checks.check_sum(*call()),
            "two calls": lambda: checks.check_sums(*call(SUMS)),
            "streamed call": streamed,
            "conversation": memory,
            "schema": schema,
        },
    )
