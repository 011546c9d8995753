"""Runs and their access list: written, held to before every call, gone afterwards."""

from __future__ import annotations

import signal
import textwrap
from pathlib import Path
from typing import Any

import anyio
import pytest

from mlx_tools import (
    Answered,
    Controller,
    Outcome,
    Paused,
    Policy,
    Stopped,
    Tool,
    TranscriptStore,
    tool,
)
from mlx_tools.errors import BackendUnreachable
from mlx_tools.messages import replace
from mlx_tools.store.access_list import fingerprints
from mlx_tools.testing import ScriptedBackend, answer, call
from mlx_tools.tools import Registry
from mlx_tools.transcript.records import DecisionRecord, ExecutionRecord, ObservationRecord
from tests.controller.sessions import read_records, require_answer
from tests.forked import forks

ALL = Policy(allow=["*"])


def lists(folder: Path) -> list[Path]:
    return list(folder.glob("*/access.json*"))


def doing(name: str, body: Any, **options: Any) -> Tool:
    def run() -> str:
        body()
        return "done"

    return tool(run, name=name, **{"effects": {"read"}, **options})


def run(folder: Path, tools: Any, *scripts: Any, policy: Policy = ALL, **store: Any) -> Outcome:
    kept = TranscriptStore(folder, **store)
    return Controller(ScriptedBackend(*scripts), tools, policy, store=kept).run_sync("Go")


def denied(outcome: Outcome) -> str:
    """The reason for which the second call was denied: it was allowed, and the list denied it."""
    found = read_records(outcome)
    assert sum(isinstance(r, ExecutionRecord) for r in found) == 1
    decisions = [r for r in found if isinstance(r, DecisionRecord) and r.call == "c2"]
    assert [r.decision for r in decisions] == ["allow", "deny"]
    assert (decisions[1].rule, decisions[1].code) == ("access_list", "not_allowed")
    (seen,) = (r for r in found if isinstance(r, ObservationRecord) and r.call == "c2")
    assert seen.error is not None and seen.error.code == "not_allowed"
    assert decisions[1].reason in seen.error.message
    assert [c.status for c in outcome.calls] == ["ok", "denied"]
    return decisions[1].reason


def test_the_list_is_there_while_a_tool_runs_and_gone_when_the_run_ended(tmp_path: Path) -> None:
    seen: list[Path] = []
    look = doing("look", lambda: seen.extend(lists(tmp_path)))
    assert isinstance(run(tmp_path, [look], call("look"), answer()), Answered)
    assert [path.name for path in seen] == ["access.json"]
    assert lists(tmp_path) == []


def test_whoever_deletes_the_list_stops_every_further_call(tmp_path: Path) -> None:
    ran: list[str] = []
    first = doing("first", lambda: [path.unlink() for path in lists(tmp_path)])
    second = doing("second", lambda: ran.append("second"))
    outcome = require_answer(
        run(tmp_path, [first, second], call("first"), call("second"), answer())
    )
    assert "is gone" in denied(outcome) and ran == []


def test_a_configuration_that_changes_while_a_run_goes_on_stops_its_calls(tmp_path: Path) -> None:
    place = tmp_path / "config.toml"
    first = doing("first", lambda: place.write_text("[policy]\ndeny = ['second']\n"))
    outcome = run(
        tmp_path / "sessions",
        [first, doing("second", lambda: None)],
        *(call("first"), call("second"), answer()),
        watched=fingerprints([place]),
    )
    assert str(place) in denied(outcome)


def test_a_tool_that_changes_while_a_run_goes_on_does_not_run(tmp_path: Path) -> None:
    class Shifty:
        """A tool whose spec comes to say something else."""

        def __init__(self) -> None:
            self.spec = doing("second", lambda: None).spec

        async def call(self, arguments: Any) -> str:
            raise AssertionError("it ran")

    shifty = Shifty()

    def change() -> None:
        shifty.spec = replace(shifty.spec, description="Does more.")

    registry = Registry([doing("first", change), shifty])
    outcome = run(tmp_path, registry, call("first"), call("second"), answer())
    assert "second has changed" in denied(outcome)


def fails() -> Any:
    return BackendUnreachable("nobody there")


@pytest.mark.parametrize(
    ("scripts", "kind"),
    [
        ((call("look"), answer()), Answered),
        ((call("look"), fails()), Stopped),
        (('{"type": "tool_call"',) * 2, Stopped),
        ((call("careful"),), Paused),
    ],
)
def test_however_a_run_ends_the_list_is_gone(
    tmp_path: Path, scripts: tuple[Any, ...], kind: type
) -> None:
    tools = [doing("look", lambda: None), doing("careful", lambda: None, needs_approval=True)]
    assert isinstance(run(tmp_path, tools, *scripts), kind)
    assert lists(tmp_path) == []


def test_a_run_that_is_cancelled_leaves_no_list(tmp_path: Path) -> None:
    seen: list[Path] = []

    async def main() -> None:
        @tool(effects={"read"})
        async def wait() -> str:
            """Waits."""
            seen.extend(lists(tmp_path))
            scope.cancel()
            await anyio.sleep(60)
            return "never"

        backend = ScriptedBackend(call("wait"))
        controller = Controller(backend, [wait], ALL, store=TranscriptStore(tmp_path))
        with anyio.CancelScope() as scope:
            await controller.run("Go")

    anyio.run(main)
    assert len(seen) == 1 and lists(tmp_path) == []


KILLED = """
    import os, signal, sys
    from mlx_tools import Controller, Policy, TranscriptStore, tool
    from mlx_tools.testing import ScriptedBackend

    @tool(effects={"read"})
    def die() -> str:
        "Ends the process."
        os.kill(os.getpid(), signal.SIGKILL)

    call = '{"type": "tool_call", "name": "die", "arguments": {}}'
    store = TranscriptStore(sys.argv[1])
    Controller(ScriptedBackend(call), [die], Policy(allow=["die"]), store=store).run_sync("Go")
"""


def test_a_run_that_is_killed_leaves_its_list_which_helps_no_other(tmp_path: Path) -> None:
    folder = tmp_path / "sessions"
    killed = forks().start(str(folder), code=textwrap.dedent(KILLED))
    assert killed.communicate() and killed.returncode == -signal.SIGKILL
    (left,) = lists(folder)
    look = doing("look", lambda: left.unlink())
    outcome = run(folder, [look, doing("peek", lambda: None)], call("look"), call("peek"), answer())
    assert [c.status for c in outcome.calls] == ["ok", "ok"]  # it was not this run's list
