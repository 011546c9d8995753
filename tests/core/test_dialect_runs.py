"""Runs with models that call tools in the form they were trained on, whatever they were asked."""

from __future__ import annotations

import pytest

from mlx_tools import Answered, Controller, Policy, Registry, RunSettings, tool
from mlx_tools.protocol import DIALECTS, Dialect
from mlx_tools.testing import Script, ScriptedBackend
from tests.protocol.test_dialects import written

ANSWER = '{"type":"final_answer","content":"It rains."}'


@pytest.mark.parametrize("style", ["jsonl", "markdown-json", "xml"])
@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
@pytest.mark.parametrize("pieces", [3])
def test_a_call_in_any_dialect_runs_and_its_answer_follows(
    dialect: Dialect, style: str, pieces: int
) -> None:
    seen: list[str] = []

    @tool(effects={"read"})
    def get_weather(city: str) -> str:
        """Tells the weather."""
        seen.append(city)
        return "rain"

    text = written(dialect, [("get_weather", {"city": "Paris"})])
    backend = ScriptedBackend(Script(text, pieces=pieces), ANSWER)
    settings = RunSettings(style=style, strategy="free")
    controller = Controller(
        backend, Registry([get_weather]), Policy(allow=["*"]), settings=settings
    )
    outcome = controller.run_sync("How is the weather in Paris?")
    assert isinstance(outcome, Answered) and outcome.answer == "It rains."
    assert (seen, outcome.requests) == (["Paris"], 2)
