"""Wrong arguments of a caller of the library, and those that are plainly meant."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
import pytest

from mlx_tools import (
    ApproveAlways,
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
from mlx_tools.controller import call_tool
from mlx_tools.golden import find_golden, make_golden, read_golden
from mlx_tools.plugins.folders import load_tool
from mlx_tools.plugins.kb import KnowledgeBase
from mlx_tools.plugins.schedule.when import parse_when
from mlx_tools.prompt import NAMED_FORMATS
from mlx_tools.store import MemoryStore, SessionFiles
from mlx_tools.testing import ScriptedBackend
from mlx_tools.tools import Registry, ToolOffer, export, load_functions
from mlx_tools.transcript import Header, UserRecord
from tests.tables import table

TOO_LONG = Path("/" + "x" * 300)
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


def called(registry: Any, policy: Any, name: Any) -> Any:
    async def main() -> Any:
        return await call_tool(registry, policy, name, {})

    return anyio.run(main)


CALLING = {"role": "assistant", "content": ""}
RECORDS = (Header(session="s", created=""), UserRecord(content="Hi?"))
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
    ("approver", lambda: controller(approver="yes")),
    ("approver", lambda: controller(approver=ApproveAlways)),
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
    ("tool_calls", lambda: controller().run_sync("Hi?", history=[{**CALLING, "tool_calls": 3}])),
    ("now", lambda: controller(now=None)),
    ("run_context", lambda: controller(run_context="c1")),
    ("specs", lambda: export([area], "openai")),  # type: ignore[list-item]
    ("format", lambda: export([area.spec], ["openai"])),  # type: ignore[arg-type]
    ("registry", lambda: called([area], Policy(), "area")),
    ("policy", lambda: called(Registry([area]), None, "area")),
    ("name", lambda: called(Registry([area]), Policy(), area)),
    ("path", lambda: KnowledgeBase(3)),  # type: ignore[arg-type]
    ("paths", lambda: KnowledgeBase(Path("kb.sqlite3")).add("notes")),
    ("corpus", lambda: KnowledgeBase(Path("kb.sqlite3")).search("bread", corpus=3)),  # type: ignore[arg-type]
    ("now", lambda: parse_when("in an hour", "UTC", None)),  # type: ignore[arg-type]
    ("zone", lambda: parse_when("in an hour", datetime.now(UTC), "UTC")),  # type: ignore[arg-type]
    ("folder", lambda: load_tool("a\0b")),
    ("registry", lambda: make_golden(RECORDS, name="it", registry=[area])),  # type: ignore[arg-type]
    ("features", lambda: make_golden(RECORDS, name="it", registry=Registry(), features=3)),  # type: ignore[arg-type]
    ("features", lambda: make_golden(RECORDS, name="it", registry=Registry(), features="a")),
    ("expect", lambda: make_golden(RECORDS, name="it", registry=Registry(), expect={"a": 1})),  # type: ignore[arg-type]
    ("files", lambda: make_golden(RECORDS, name="it", registry=Registry(), files="a")),  # type: ignore[arg-type]
    ("path", lambda: find_golden([3])),  # type: ignore[list-item]
    ("path", lambda: read_golden("a\0b")),
    ("folder", lambda: TranscriptStore("a\0b")),
    ("folder", lambda: TranscriptStore("\ud800")),
    ("folder", lambda: TranscriptStore(3)),  # type: ignore[arg-type]
    ("folder", lambda: TranscriptStore("")),
    ("keep", lambda: TranscriptStore("a", keep="3 days")),  # type: ignore[arg-type]
    ("preset", lambda: Policy(preset=["readonly_basic"])),  # type: ignore[arg-type]
    ("narrowing", lambda: Policy(narrowing=[{}])),  # type: ignore[arg-type]
    ("narrowing", lambda: Policy().intersect(["area"])),  # type: ignore[arg-type]
    ("chat_format", lambda: RunSettings(chat_format="chatml")),  # type: ignore[arg-type]
    ("chat_format", lambda: RunSettings(chat_format=NAMED_FORMATS["plain"].to_json())),  # type: ignore[arg-type]
    ("verdict", lambda: RunSettings(verdict={})),  # type: ignore[arg-type]
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


@table(("name", "make"), WRONG)
def test_what_cannot_be_is_named_and_a_hint_given(name: str, make: Callable[[], Any]) -> None:
    with pytest.raises(UsageError, match=name) as caught:
        make()
    assert caught.value.hint
    assert len(str(caught.value)) < 300


@table(
    "read",
    [
        lambda: KnowledgeBase(TOO_LONG).corpora(),
        lambda: KnowledgeBase(TOO_LONG).search("bread"),
        lambda: KnowledgeBase(TOO_LONG).remove("notes"),
        lambda: KnowledgeBase(TOO_LONG).forget("bread.md"),
        lambda: load_functions(str(TOO_LONG)),
        lambda: TranscriptStore("sessions").read(TOO_LONG),
        lambda: TranscriptStore(TOO_LONG).read("20260801-120000-00000000"),
    ],
)
def test_a_path_that_is_too_long_is_an_error_of_ours(read: Callable[[], Any]) -> None:
    with pytest.raises(MlxToolsError, match="cannot be read: File name too long"):
        read()


def test_an_error_of_a_callers_own_store_is_shown_alone() -> None:
    class FullStore(MemoryStore):
        def create(self) -> SessionFiles:
            raise OSError("no space left")

    with pytest.raises(OSError, match="no space left") as caught:
        controller(store=FullStore()).run_sync("Hi")
    assert caught.value.__context__ is None


def test_tools_of_a_proposal_are_specs_by_name() -> None:
    async def main() -> None:
        await Proposer(ScriptedBackend(ANSWER))("Hi?", [area])  # type: ignore[arg-type]

    with pytest.raises(MlxToolsError, match="tools cannot be"):
        anyio.run(main)


# --- tools that are required ----------------------------------------------------------------------


@tool(effects={"read", "network"})
def fetch(url: str) -> str:
    """Fetches a page."""
    return url


def broken() -> Any:
    raise ImportError("no module named rain")


def registry() -> Registry:
    made = Registry([area, fetch], switched_off={"area": "switched off by tools.disabled"})
    return made.with_entry_points(lambda: [ToolOffer("weather", "forecast", broken)])


@table(
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
@table("named", ["require_tools", "tool_choice"])
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
