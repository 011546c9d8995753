"""A guide for the completion that a session is due."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mlx_tools.backends.base import Backend
from mlx_tools.decoding.asker import Asker, AskerLimits
from mlx_tools.decoding.evidence import guidance
from mlx_tools.decoding.guided import Guide, Task
from mlx_tools.due import Complete
from mlx_tools.prompt.words import LOOK_UP_MODE
from mlx_tools.session import Session

NO_REQUEST: Final = "..."
"""Stands for the request where the model is asked what it likes whatever is requested."""


def guide_for(
    session: Session, due: Complete, prompt: str, backend: Backend, tell: Callable[[str], None]
) -> Guide:
    """The guide that writes what is due after ``prompt``, which ends before the host's own words.
    ``tell`` is given each piece of the turn."""
    limits, header = session.limits, session.header
    asker_limits = AskerLimits(
        max_tokens=due.max_tokens,
        timeout=limits.completion_timeout,
        idle_timeout=limits.idle_timeout,
        temperature=header.sampling.get("temperature", 0.0),
        seed=header.sampling.get("seed"),
    )
    task = Task(
        style=due.rules.style,
        tools=due.tools,
        tool_choice=due.rules.tool_choice,
        max_calls=due.rules.max_calls or 1,
        observed=due.observed,
        look_up=header.response_mode == LOOK_UP_MODE,
    )
    tools = tuple(due.tools.values())
    evidence = guidance(due.question, due.answered, tools, header.request_weight)
    return Guide(Asker(backend, prompt, asker_limits, _neutral(prompt, due)), task, evidence, tell)


def _neutral(prompt: str, due: Complete) -> str:
    """The prompt with a request that says nothing in place of the last one; empty where that one
    does not end it word for word."""
    before, found, after = prompt.rpartition(due.question)
    if due.answered or not found or not due.question.strip():
        return ""
    return before + NO_REQUEST + after
