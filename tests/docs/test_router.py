"""The router of the documentation asks a framework's own agent, or mlx-tools.

An agent is the framework's own where that is installed, as in the environment of the benchmarks,
else a stand-in that is asked and answers in the same form.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from mlx_tools import Controller, Policy, tool
from mlx_tools.testing import ScriptedBackend, answer, call

ROOT = Path(__file__).resolve().parents[2]


def area(width: float, height: float) -> float:
    """Area of a rectangle in square metres."""
    return width * height


def example() -> Any:
    """Return the module of the example."""
    path = ROOT / "docs" / "examples" / "router.py"
    spec = importlib.util.spec_from_file_location("router", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def is_installed(package: str) -> bool:
    return package in sys.modules or importlib.util.find_spec(package) is not None


class Graph:
    """Stands in for what LangChain's create_agent returns."""

    async def ainvoke(self, state: dict[str, Any]) -> dict[str, Any]:
        ((role, question),) = state["messages"]
        assert role == "user"
        reply = SimpleNamespace(content=f"langchain: {question}")
        return {"messages": [SimpleNamespace(content=question), reply]}


class Agent:
    """Stands in for Pydantic AI's Agent."""

    async def run(self, question: str) -> Any:
        return SimpleNamespace(output=f"pydantic ai: {question}")


def langchain_agent() -> Any:
    if not is_installed("langchain"):
        return Graph()
    from langchain.agents import create_agent
    from langchain_core.language_models.fake_chat_models import FakeMessagesListChatModel
    from langchain_core.messages import AIMessage

    class Model(FakeMessagesListChatModel):
        def bind_tools(self, tools: Any, **options: Any) -> Any:
            return self

    calls = [{"name": "area", "args": {"width": 3.5, "height": 4}, "id": "c1"}]
    said = [AIMessage(content="", tool_calls=calls), AIMessage(content="langchain: How large?")]
    return create_agent(Model(responses=said), [area])


def pydantic_ai_agent() -> Any:
    if not is_installed("pydantic_ai"):
        return Agent()
    from pydantic_ai import Agent as PydanticAgent
    from pydantic_ai.models.test import TestModel

    model = TestModel(custom_output_text="pydantic ai: How large?")
    return PydanticAgent(model, tools=[area])


def test_a_model_is_asked_by_its_framework_and_any_other_through_mlx_tools() -> None:
    module = example()
    backend = ScriptedBackend(call("area", width=3.5, height=4), answer("It is 14."))
    controller = Controller(backend, [tool(effects={"read"})(area)], Policy(allow=["area"]))
    native = {
        "chain": module.from_langchain(langchain_agent()),
        "agent": module.from_pydantic_ai(pydantic_ai_agent()),
    }
    ask = module.router(native, lambda model: module.from_mlx_tools(controller))

    async def answers() -> list[str]:
        return [await ask(model)("How large?") for model in ("chain", "agent", "qwen3-4b")]

    assert anyio.run(answers) == ["langchain: How large?", "pydantic ai: How large?", "It is 14."]
    assert len(backend.requests) == 2


def test_a_run_without_an_answer_is_an_error_that_names_the_session() -> None:
    writing = tool(effects={"write"})(area)
    backend = ScriptedBackend(call("area", width=3.5, height=4))
    ask = example().from_mlx_tools(Controller(backend, [writing], Policy(allow=["area"])))
    with pytest.raises(RuntimeError, match="paused: see the session"):
        anyio.run(ask, "How large?")
