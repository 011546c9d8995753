"""Observers of runs take every event, and no fault of one reaches a run."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from mlx_tools import Controller, Policy, tool
from mlx_tools.controller import RunSettings, SessionWriter
from mlx_tools.controller.writer import observe_run
from mlx_tools.errors import BackendBroken, UsageError
from mlx_tools.testing import ScriptedBackend, answer, call
from mlx_tools.tools import ToolContext
from mlx_tools.transcript import Header, Record
from tests.controller.sessions import fold_session, header
from tests.tables import table

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    """The event loop of tests that are coroutines."""
    return "asyncio"


@tool(effects={"read"})
def look() -> str:
    """Looks."""
    return "seen"


@tool(effects={"read"})
async def ask_within(context: ToolContext) -> str:
    """Asks the model within the call."""
    return await context.ask("And within?")


class Recorder:
    """An observer that keeps what it is told; a ``fault`` is raised by that method."""

    def __init__(self, fault: str = "", error: BaseException | None = None) -> None:
        self.fault = fault
        self.error = error or RuntimeError("no observer today")
        self.runs: list[tuple[str, int]] = []
        self.told: list[str] = []
        self.ends: list[BaseException | None] = []

    def begin(self, transcript: Sequence[Record]) -> Any:
        header = transcript[0]
        assert isinstance(header, Header)
        self.runs.append((header.session, len(transcript)))
        self._fail("begin")
        return self

    def tell(self, event: Any) -> None:
        self.told.append(event.type)
        self._fail("tell")

    def end(self, error: BaseException | None) -> None:
        self.ends.append(error)
        self._fail("end")

    def _fail(self, where: str) -> None:
        if where == self.fault:
            raise self.error


def controller_with(*observers: Any, script: Sequence[Any]) -> Controller:
    return Controller(
        ScriptedBackend(*script),
        [look, ask_within],
        Policy(allow=["look", "ask_within"]),
        settings=RunSettings(strategy="free"),
        observers=observers,
    )


async def test_every_run_is_observed_with_the_events_that_its_caller_gets() -> None:
    recorder = Recorder()
    script = (answer("one"), call("look"), answer("two"))
    controller = controller_with(recorder.begin, lambda transcript: None, script=script)
    events: list[str] = []
    async with await controller.conversation() as conversation:
        for _ in range(2):
            await conversation.run("Hello?", emit=lambda event: events.append(event.type))
    assert recorder.told == events and "tool_ended" in events
    first, second = recorder.runs
    assert first[0] == second[0] and first[1] == 1 < second[1]
    assert recorder.ends == [None, None]


async def test_a_run_within_a_call_is_observed_too() -> None:
    recorder = Recorder()
    script = (call("ask_within"), answer("inner"), answer("outer"))
    outcome = await controller_with(recorder.begin, script=script).run("Hello?")
    assert outcome.status == "answered"
    assert len({session for session, _ in recorder.runs}) == 2
    assert recorder.ends == [None, None]


@table("fault", ["begin", "tell", "end"])
@table("error", [RuntimeError(), SystemExit(3), asyncio.CancelledError(), GeneratorExit()])
def test_no_fault_of_an_observer_reaches_the_run(
    fault: str, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.clear()
    faulty, sound = Recorder(fault, error), Recorder()
    script = (call("look"), answer("Done."))
    controller = controller_with(faulty.begin, sound.begin, script=script)
    assert controller.run_sync("Hello?").answer == "Done."
    (warning,) = [one for one in caplog.records if one.levelno == logging.WARNING]
    assert warning.getMessage() == (
        "mlx-tools: warning: the observer of runs "
        f"{__name__}.Recorder.begin failed: {type(error).__name__}"
    )
    assert len(sound.told) > 3 and sound.ends == [None]
    assert faulty.told == ([] if fault == "begin" else sound.told)
    assert faulty.ends == ([] if fault == "begin" else [None])


async def test_an_observer_gets_the_exception_that_the_run_raises() -> None:
    recorder = Recorder()
    controller = controller_with(recorder.begin, script=[BackendBroken("gone")])
    with pytest.raises(BackendBroken) as raised:
        await controller.run("Hello?")
    assert recorder.ends == [raised.value]


def test_without_observers_nothing_stands_between_a_run_and_its_caller() -> None:
    def emit(event: Any) -> None:
        """Take an event."""

    writer = SessionWriter(fold_session(header()), [], secret=b"", now=lambda: datetime.now(UTC))
    for observers in ([], [lambda transcript: None]):
        with observe_run(observers, writer, emit):
            assert writer.emit is emit


@table("observers", [7, ["x"], [None], "ab"])
def test_what_is_no_observer_is_refused(observers: Any) -> None:
    with pytest.raises(UsageError, match="observers cannot be"):
        Controller(ScriptedBackend(), observers=observers)
