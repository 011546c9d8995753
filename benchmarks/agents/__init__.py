"""The same scripted run in each framework: N calls of one small tool, then an answer.

Each file here holds a class `Subject`: what it makes of itself once (the agent, the tool, the model
that says what it is told to) is its construction; ``run`` is one whole run, a question to its
answer, as a user of that framework would ask for it. Nothing goes over a network. The tool counts
its calls, and the harness holds every run to the count and to the answer.
"""

from __future__ import annotations

import importlib
from time import perf_counter
from typing import Any

QUESTION = "Count to the end, one step at a time."
ANSWER = "done"


class Counter:
    """The tool's work, the same for all: adds two numbers and counts that it was asked to."""

    def __init__(self) -> None:
        self.calls = 0

    def add(self, a: int, b: int) -> int:
        self.calls += 1
        return a + b


class Script:
    """The next text of the scripted model: step ``i`` calls the tool with ``a=i, b=1``.

    No two calls are the same, since some frameworks rightly object to that.
    """

    def __init__(self) -> None:
        self.steps = 0
        self.said = 0

    def restart(self, steps: int) -> None:
        self.steps, self.said = steps, 0

    def next(self) -> int | None:
        """The number of the next call, or None where the answer is due."""
        self.said += 1
        return self.said if self.said <= self.steps else None


class Agent:
    """The common part of the files of this folder.

    Frameworks wait for threads, and the synced one for the disk: what counts is the wall clock.
    """

    clock = staticmethod(perf_counter)

    def __init__(self) -> None:
        self.counter = Counter()
        self.script = Script()
        self.build()

    def build(self) -> None:
        """Makes the agent. Not timed."""
        raise NotImplementedError

    def ask(self, steps: int) -> str:
        """One run, to its answer."""
        raise NotImplementedError

    def prepare(self, steps: int) -> None:
        self.steps = steps

    def run(self) -> str:
        """One run, to its answer. Timed."""
        self.counter.calls = 0
        self.script.restart(self.steps)
        return self.ask(self.steps)

    def outcome(self, answer: str) -> str:
        """Raises RuntimeError where the framework did not do the work of the last run."""
        if self.counter.calls != self.steps or answer != ANSWER:
            raise RuntimeError(f"{self.counter.calls} of {self.steps} calls, answer {answer!r}")
        return f"{self.steps} calls"

    def close(self) -> None:
        """Removes what the agent left behind."""


AGENTS: dict[str, tuple[str, dict[str, Any]]] = {
    "mlx-tools": ("mlx_tools_", {}),
    "mlx-tools, durable": ("mlx_tools_", {"durable": True}),
    "mlx-tools, synced": ("mlx_tools_", {"durable": True, "effects": "write"}),
    "mlx-tools, streamed": ("mlx_tools_", {"piece": 4}),
    "llm": ("llm_", {}),
    "smolagents": ("smolagents_", {}),
    "smolagents, calls as text": ("smolagents_", {"as_text": True}),
    "Pydantic AI": ("pydantic_ai_", {}),
    "LangChain JSON chat": ("langchain_json_", {}),
    "LangChain create_agent": ("langchain_agent_", {}),
}
"""The measured agents: the file of each, and the arguments of its `Subject`."""

REPLAY = "golden replay"
"""The same run, recorded once and replayed: it stands beside the agents in golden_replay.py."""


def load(name: str) -> Agent:
    """The agent of that name, built. Raises ModuleNotFoundError where its framework is missing."""
    module, options = ("golden_", {}) if name == REPLAY else AGENTS[name]
    subject: Agent = importlib.import_module(f"agents.{module}").Subject(**options)
    return subject
