"""Ctrl-C at the worst moment: between the start of work and the place that ends it."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal

from mlx_tools import Controller, TranscriptStore
from mlx_tools.app import RunOptions, config
from mlx_tools.cli.background import Turns
from mlx_tools.cli.view import LiveView
from mlx_tools.store.transcript import load
from mlx_tools.transcript import StoppedRecord


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
