"""One turn, and nothing runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import anyio
import pytest

from mlx_tools import Limits, RunSettings, ToolSpec
from mlx_tools.app.proposal import Proposal, Proposer
from mlx_tools.errors import BackendBroken, BackendError, BackendTimeout
from mlx_tools.messages import Usage
from mlx_tools.prompt import NAMED_FORMATS
from mlx_tools.testing import Script, ScriptedBackend, answer, call
from tests.waiting import EXPIRES

CITY = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
TOOLS = {
    "weather": ToolSpec("weather", "The weather.", {**CITY, "required": ["city"]}),
    "clock": ToolSpec("clock", "The time."),
}


def propose(backend: Any, question: str = "Weather in Oslo?", **options: Any) -> Proposal:
    said: dict[str, Any] = {k: options.pop(k) for k in ("history", "context") if k in options}
    limits = options.pop("limits", None)
    settings = RunSettings(chat_format=NAMED_FORMATS["chatml"], **{"strategy": "free", **options})
    proposer = Proposer(backend, settings=settings, limits=limits)

    async def main() -> Proposal:
        return await proposer(question, TOOLS, **said)

    return anyio.run(main)


def test_a_right_call_is_valid_and_does_not_run() -> None:
    usage = Usage(prompt_tokens=9, cached_tokens=4, completion_tokens=7)
    backend = ScriptedBackend(Script(call("weather", city="Oslo"), usage=usage))
    found = propose(backend)
    assert [(c.name, c.arguments) for c in found.calls] == [("weather", {"city": "Oslo"})]
    assert found.valid and not found.answered and found.error is None
    assert (found.requests, found.usage, found.strategy) == (1, usage, "free")
    assert found.completion == call("weather", city="Oslo")
    assert found.seconds > 0 and len(backend.requests) == 1


@pytest.mark.parametrize(
    ("text", "valid", "answered", "calls", "error"),
    [
        (answer("Sunny."), True, True, 0, None),
        ("Sunny.", False, True, 0, None),
        (call("weather"), False, False, 1, "invalid_arguments"),
        (call("wether", city="Oslo"), False, False, 1, "unknown_tool"),
        (call("weather", city="Oslo", days="2"), False, False, 1, None),
        (call("weather", city="Oslo")[:-1] + ",}", False, False, 1, None),
        (f"{call('weather', city='Oslo')}\n{call('clock')}", True, False, 2, None),
        (f"{call('weather', city='Oslo')}\n{call('clock')[:9]}", False, False, 0, None),
        ('{"type":"tool_call","name":"weather","argu', False, False, 0, "truncated_output"),
    ],
)
def test_valid_is_what_needs_no_repair_and_fits(
    text: str, valid: bool, answered: bool, calls: int, error: str | None
) -> None:
    found = propose(ScriptedBackend(text))
    assert (found.valid, found.answered, len(found.calls)) == (valid, answered, calls)
    if error is not None:
        assert found.error == error


def test_history_and_context_stand_in_the_prompt() -> None:
    backend = ScriptedBackend(answer("Yes."))
    history = [
        {"role": "user", "content": "I live in Bergen."},
        {"role": "assistant", "content": "Noted."},
    ]
    propose(backend, history=history, context="Be terse.", project_context="A weather station.")
    (prompt,) = backend.prompts
    places = [prompt.index(s) for s in ("A weather station.", "Be terse.", "I live in", "Noted.")]
    assert places == sorted(places)
    assert prompt.index("Noted.") < prompt.index("Weather in Oslo?")


def test_nothing_of_one_proposal_is_left_in_the_next() -> None:
    backend = ScriptedBackend(answer("Yes."), answer("No."))
    proposer = Proposer(
        backend, settings=RunSettings(chat_format=NAMED_FORMATS["chatml"], strategy="free")
    )

    async def main() -> Sequence[Proposal]:
        first = await proposer("One?", TOOLS, context="Be terse.")
        return first, await proposer("Two?", {"clock": TOOLS["clock"]})

    first, second = anyio.run(main)
    assert first.completion != second.completion
    assert "terse" not in backend.prompts[1] and "weather(" not in backend.prompts[1]


def test_a_backend_that_fails_gives_no_proposal() -> None:
    with pytest.raises(BackendBroken, match="gone"):
        propose(ScriptedBackend(BackendBroken("gone")))
    broken = '{"type":"tool_call","name":"weather","argu'
    with pytest.raises(BackendError, match="gone"):
        # without likelihoods it can do, without text it cannot
        gone = BackendBroken("gone"), BackendBroken("gone")
        propose(ScriptedBackend(broken, *gone), strategy="auto")


def test_a_turn_that_takes_too_long_says_so() -> None:
    class Slow(ScriptedBackend):
        async def complete(self, request: Any) -> Any:
            async for chunk in super().complete(request):
                yield chunk
                await anyio.sleep(60)

    with pytest.raises(BackendTimeout):
        propose(Slow(Script(json.dumps("a") * 9, pieces=1)), limits=Limits(total_timeout=EXPIRES))
