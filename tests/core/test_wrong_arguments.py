"""What a caller of the library may get wrong, and what is plainly meant."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from mlx_tools import (
    AlwaysApprove,
    Controller,
    MlxToolsError,
    Policy,
    RunSettings,
    TranscriptStore,
    UsageError,
    builtin_tools,
    tool,
)
from mlx_tools.app.proposal import Proposer
from mlx_tools.testing import ScriptedBackend

ANSWER = '{"type":"final_answer","content":"3"}'


@tool(effects={"read"})
def area(width: float, height: float) -> float:
    """Area of a rectangle."""
    return width * height


class Unspeakable:
    def __repr__(self) -> str:
        raise ValueError("no words")


def controller(*tools: Any, **options: Any) -> Controller:
    return Controller(ScriptedBackend(ANSWER), *tools, **options)


WRONG: list[tuple[str, Callable[[], Any]]] = [
    ("policy", lambda: controller([area], policy=["area"])),
    ("policy", lambda: controller([area], policy=[])),
    ("policy", lambda: controller([area], policy="readonly_basic")),
    ("policy", lambda: controller([area], policy=Policy)),
    ("policy", lambda: controller([area], policy=Unspeakable())),
    ("limits", lambda: controller(limits={})),
    ("limits", lambda: controller(limits={"max_iterations": 2})),
    ("settings", lambda: controller(settings={"strategy": "free"})),
    ("settings", lambda: controller(settings=0)),
    ("store", lambda: controller(store="folder")),
    ("store", lambda: controller(store=TranscriptStore)),
    ("approver", lambda: controller(approver=lambda request: True)),
    ("approver", lambda: controller(approver=AlwaysApprove)),
    ("tools", lambda: controller(area)),
    ("tools", lambda: controller("calculator")),
    ("tools", lambda: controller({"area": area})),
    ("tools", lambda: controller(3)),
    ("roots", lambda: builtin_tools("/tmp")),
    ("root", lambda: builtin_tools([3])),  # type: ignore[list-item]
    ("class", lambda: Controller(ScriptedBackend)),  # type: ignore[arg-type]
    ("history", lambda: controller().run_sync("Hi?", history={"role": "user"})),  # type: ignore[arg-type]
    ("history", lambda: controller().run_sync("Hi?", history="Hello.")),  # type: ignore[arg-type]
    ("earlier message", lambda: controller().run_sync("Hi?", history=["Hello."])),  # type: ignore[list-item]
    ("folder", lambda: TranscriptStore(3)),  # type: ignore[arg-type]
    ("folder", lambda: TranscriptStore("")),
    ("keep", lambda: TranscriptStore("a", keep="3 days")),  # type: ignore[arg-type]
    ("preset", lambda: Policy(preset=["readonly_basic"])),  # type: ignore[arg-type]
    ("narrowing", lambda: Policy(narrowing=[{}])),  # type: ignore[arg-type]
    ("narrowing", lambda: Policy().narrowed_by(["area"])),  # type: ignore[arg-type]
    ("chat_format", lambda: RunSettings(chat_format="chatml")),  # type: ignore[arg-type]
    ("context", lambda: RunSettings(context=0)),
    ("context", lambda: RunSettings(context="8k")),  # type: ignore[arg-type]
    ("long_observations", lambda: RunSettings(long_observations="no")),  # type: ignore[arg-type]
    ("style", lambda: RunSettings(style=["xml"])),  # type: ignore[arg-type]
    ("temperature", lambda: RunSettings(temperature=math.inf)),
    ("temperature", lambda: RunSettings(temperature=True)),
    ("seed", lambda: RunSettings(seed="1")),  # type: ignore[arg-type]
    ("persona", lambda: RunSettings(persona=3)),  # type: ignore[arg-type]
    ("project_context", lambda: RunSettings(project_context=None)),  # type: ignore[arg-type]
    ("tool_choice", lambda: RunSettings(tool_choice=None)),  # type: ignore[arg-type]
    ("require_tools", lambda: RunSettings(require_tools="area")),  # type: ignore[arg-type]
    ("require_tools", lambda: RunSettings(require_tools=[area])),  # type: ignore[arg-type]
    ("roots", lambda: RunSettings(roots=None)),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("name", "make"), WRONG)
def test_what_cannot_be_is_named_and_a_hint_given(name: str, make: Callable[[], Any]) -> None:
    with pytest.raises(UsageError, match=name) as caught:
        make()
    assert caught.value.hint
    assert len(str(caught.value)) < 300


def test_tools_of_a_proposal_are_specs_by_name() -> None:
    import anyio

    async def main() -> None:
        await Proposer(ScriptedBackend(ANSWER))("Hi?", [area])  # type: ignore[arg-type]

    with pytest.raises(MlxToolsError, match="tools cannot be"):
        anyio.run(main)
