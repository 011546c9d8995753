"""Tools that a run is required to have: what is missing is named, with the reason, before any
completion."""

from __future__ import annotations

from typing import Any

import pytest

from mlx_tools import Controller, Policy, RunSettings, UsageError, tool
from mlx_tools.testing import ScriptedBackend
from mlx_tools.tools import Offer, Registry


@tool(effects={"read"})
def area(width: float) -> float:
    """Area."""
    return width


@tool(effects={"read", "network"})
def fetch(url: str) -> str:
    """Fetches a page."""
    return url


def broken() -> Any:
    raise ImportError("no module named rain")


def registry() -> Registry:
    made = Registry([area, fetch], switched_off={"area": "switched off by tools.disabled"})
    return made.with_entry_points(lambda: [Offer("weather", "forecast", broken)])


@pytest.mark.parametrize(
    ("policy", "required", "said"),
    [
        (Policy(allow=["*"]), "other", ["other (there is no such tool)"]),
        (Policy(allow=["*"]), "Fetch", ["Fetch (there is no such tool)"]),
        (Policy(allow=["*"]), "area", ["area (it is disabled: switched off by tools.disabled)"]),
        (Policy(allow=["*"]), "forecast", ["forecast (it is disabled: ", "no module named rain"]),
        (Policy(allow=["area"]), "fetch", ["fetch (it is not permitted: ", "not among"]),
        (Policy(allow=["*"], deny=["f*"]), "fetch", ["it is not permitted: fetch is denied"]),
        (Policy(allow=["*"], local_only=True), "fetch", ["local-only"]),
        (Policy(preset="readonly_basic"), "fetch", ["not among the allowed tools"]),
    ],
)
@pytest.mark.parametrize("named", ["require_tools", "tool_choice"])
def test_what_is_missing_is_named_with_the_reason_before_the_model_is_asked(
    policy: Policy, required: str, said: list[str], named: str
) -> None:
    backend = ScriptedBackend()
    wanted: Any = (required,) if named == "require_tools" else required
    settings = RunSettings(**{named: wanted})
    with pytest.raises(UsageError) as caught:
        Controller(backend, registry(), policy, settings=settings).run_sync("Hi")
    assert backend.requests == []
    for words in said:
        assert words in str(caught.value)


def test_every_tool_that_is_missing_is_named_and_none_that_is_there() -> None:
    settings = RunSettings(require_tools=("fetch", "area", "other", "fetch"))
    backend = ScriptedBackend()
    with pytest.raises(UsageError) as caught:
        Controller(backend, registry(), Policy(allow=["*"]), settings=settings).run_sync("Hi")
    message = caught.value.message
    assert "area (" in message and "other (" in message and "fetch" not in message
    assert caught.value.hint == "it may call fetch"


@pytest.mark.parametrize("ask", [Policy(allow=["*"], ask=["*"]), Policy(allow=["fetch"])])
def test_a_tool_that_is_asked_about_is_not_missing(ask: Policy) -> None:
    backend = ScriptedBackend('{"type": "final_answer", "content": "hello"}')
    settings = RunSettings(require_tools=("fetch",), strategy="free")
    Controller(backend, registry(), ask, settings=settings).run_sync("Hi")
    assert len(backend.requests) == 1
