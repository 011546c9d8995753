"""Sends each question to the agent that suits the model: a framework's own, or mlx-tools."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from mlx_tools import Answered, Controller

Ask = Callable[[str], Awaitable[str]]


def from_langchain(graph: Any) -> Ask:
    async def ask(question: str) -> str:
        state = await graph.ainvoke({"messages": [("user", question)]})
        return str(state["messages"][-1].content)

    return ask


def from_pydantic_ai(agent: Any) -> Ask:
    async def ask(question: str) -> str:
        return str((await agent.run(question)).output)

    return ask


def from_mlx_tools(controller: Controller) -> Ask:
    async def ask(question: str) -> str:
        outcome = await controller.run(question)
        if isinstance(outcome, Answered):
            return outcome.answer
        raise RuntimeError(f"{outcome.status}: see the session {outcome.session}")

    return ask


def router(native: Mapping[str, Ask], otherwise: Callable[[str], Ask]) -> Callable[[str], Ask]:
    """Return what asks a model by its name: by ``native``, else by what ``otherwise`` makes."""
    return lambda model: native.get(model) or otherwise(model)
