"""A stock mlx-lm server's own function calling: its template, its parser, its stream; and what it
drops."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from mlx_tools import Answered, Controller, Policy, tool
from mlx_tools.backends import ServerBackend
from mlx_tools.controller import RunSettings
from mlx_tools.transcript import Outcome
from tests.backends.tiny import END, make_chain_model
from tests.conftest import ENVIRON

pytestmark = [pytest.mark.real, pytest.mark.slow]

GOOD = '{"name": "weather", "arguments": {"city": "Paris"}}'
CALLS = {
    "<tools>": "<tool_call>",
    "</tool_call>": END,
    "<result>": "It is sunny.",
    "It is sunny.": END,
}


def run(folder: Path, log: Path) -> tuple[Outcome, list[str]]:
    asked: list[str] = []

    @tool(effects={"read"})
    def weather(city: str) -> str:
        """The weather in a city."""
        asked.append(city)
        return f"sunny in {city}"

    async def answered() -> Outcome:
        server = ServerBackend(folder, log_folder=log, environ=ENVIRON)
        try:
            controller = Controller(
                backend=server,
                tools=[weather],
                policy=Policy(allow=["weather"]),
                settings=RunSettings(route={"path": "native"}),
            )
            return await controller.run("Is it sunny in Paris?")
        finally:
            await server.aclose()

    return anyio.run(answered), asked


def test_calls_that_the_server_reads_run(real_model: Path, tmp_path: Path) -> None:
    chain = CALLS | {"<tool_call>": GOOD, GOOD: "</tool_call>"}
    outcome, asked = run(make_chain_model(tmp_path / "model", real_model, chain), tmp_path)
    assert isinstance(outcome, Answered), outcome
    assert (outcome.answer, asked) == ("It is sunny.", ["Paris"])
    assert outcome.calls[0].repairs == () and outcome.mends == 0
    assert outcome.usage.prompt_tokens


def test_calls_that_the_server_drops_are_asked_for_by_the_prompt(
    real_model: Path, tmp_path: Path
) -> None:
    broken, rest = '{"name": "weather", ', 'weather","arguments":{"city":"Paris"}}'
    chain = CALLS | {"<tool_call>": broken, broken: "</tool_call>", '":"': rest, rest: END}
    outcome, asked = run(make_chain_model(tmp_path / "model", real_model, chain), tmp_path)
    assert isinstance(outcome, Answered), outcome
    assert (outcome.answer, asked, outcome.mends) == ("It is sunny.", ["Paris"], 1)
