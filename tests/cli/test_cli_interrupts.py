"""Ctrl-C at the worst moment: as work starts, or just before a wait."""

from __future__ import annotations

import selectors
import signal
import threading
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal

from mlx_tools import Controller, TranscriptStore
from mlx_tools.app import RunOptions, config
from mlx_tools.cli.background import Turns, wait_for
from mlx_tools.cli.inputs import run_loop
from mlx_tools.cli.view import LiveView
from mlx_tools.store.transcript import load
from mlx_tools.transcript import StoppedRecord
from tests.interrupts import interrupted_in


class Slow:
    """A model that begins, and never ends."""

    model = "slow"

    def __init__(self) -> None:
        self.begun = anyio.Event()

    async def complete(self, request: Any) -> Any:
        self.begun.set()
        await anyio.sleep_forever()
        yield


class Interrupting:
    """A portal on which somebody presses Ctrl-C as soon as work was started, and has begun."""

    def __init__(self, portal: BlockingPortal, begun: Callable[[], Any]) -> None:
        self._portal, self._begun = portal, begun

    def start_task_soon(self, function: Any, *arguments: Any) -> Any:
        future = self._portal.start_task_soon(function, *arguments)
        self._portal.call(self._begun)
        signal.raise_signal(signal.SIGINT)
        return future


def test_ctrl_c_at_the_beginning_of_a_run_is_written_down(home: Path, tmp_path: Path) -> None:
    model = Slow()
    controller = Controller(model, store=TranscriptStore(tmp_path / "sessions"))
    with start_blocking_portal() as portal:
        talk = portal.call(controller.conversation)
        interrupting: Any = Interrupting(portal, model.begun.wait)
        turns = Turns(interrupting, RunOptions(configuration=config.load()))
        with pytest.raises(KeyboardInterrupt):
            list(turns.follow(lambda: talk.stream("Hello?"), LiveView(steps=None, answer=None)))
        talk.close()
    (path,) = (tmp_path / "sessions").glob("*/transcript.jsonl")
    last = load(path)[-1]
    assert isinstance(last, StoppedRecord) and last.reason == "interrupted"


async def never() -> AsyncGenerator[Any]:
    """The events of a run in which nothing happens."""
    await anyio.sleep_forever()
    yield


def test_ctrl_c_just_before_the_wait_for_an_event_is_noticed(home: Path) -> None:
    with start_blocking_portal() as portal:
        turns = Turns(portal, RunOptions(configuration=config.load()))
        with interrupted_in(Turns.next_item):
            list(turns.follow(never, LiveView(steps=None, answer=None)))


def test_ctrl_c_just_before_the_wait_for_a_result_is_noticed() -> None:
    with interrupted_in(threading.Condition.wait):
        wait_for(Future[None]())


def test_ctrl_c_just_before_an_event_loop_waits_is_noticed() -> None:
    with interrupted_in(selectors.DefaultSelector.select):
        run_loop(anyio.sleep_forever)
