"""A call that can only fail is answered with its tool's error; changes are made in order."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from mlx_tools import Answered, Controller, Outcome, Policy, Tool, ToolSpec, builtin_tools
from mlx_tools.testing import ScriptedApprover, ScriptedBackend, answer, call
from mlx_tools.tools import Preview, ToolError
from mlx_tools.transcript.records import ExecutionRecord, ObservationRecord


def failing(made: list[Mapping[str, Any]]) -> Tool:
    """A tool that writes, and that tells beforehand that it cannot."""

    def preview(arguments: Mapping[str, Any]) -> Preview:
        raise ToolError(f"there is no {arguments['x']}; there are a, b and c")

    def run(arguments: Mapping[str, Any]) -> str:
        made.append(arguments)
        return "written"

    parameters = {"type": "object", "properties": {"x": {"type": "string"}}, "required": ["x"]}
    spec = ToolSpec("write", "Writes.", parameters, frozenset({"write"}))
    return Tool(spec, run, preview=preview)


@pytest.mark.parametrize("answers", [(True,), (False,), ()])
def test_nobody_is_asked_about_a_call_that_can_only_fail(answers: tuple[bool, ...]) -> None:
    made: list[Mapping[str, Any]] = []
    approver = ScriptedApprover(*answers) if answers else None
    backend = ScriptedBackend(call("write", x="d"), answer("There is no d."))
    policy = Policy(allow=["write"])
    outcome = Controller(backend, [failing(made)], policy, approver=approver).run_sync("Write d")
    assert isinstance(outcome, Answered) and made == []
    assert approver is None or approver.requests == []
    (report,) = outcome.calls
    assert (report.status, report.error_code) == ("error", "tool_error")
    assert "there are a, b and c" in backend.prompts[1]
    assert not [r for r in outcome.records if isinstance(r, ExecutionRecord)]


def edits(tmp_path: Path, *changes: tuple[str, str]) -> tuple[Outcome, ScriptedApprover, str]:
    """One turn that makes these changes to a file; what came of it, and the file."""
    file = tmp_path / "app.ini"
    file.write_text("host = local\nport = 80\n")
    lines = (call("edit_file", path="app.ini", old=old, new=new) for old, new in changes)
    backend, approver = ScriptedBackend("\n".join(lines), answer("Done.")), ScriptedApprover(True)
    tools = builtin_tools(roots=[f"{tmp_path}:rw"])
    controller = Controller(backend, tools, Policy(preset="workspace"), approver=approver)
    return controller.run_sync("Set them"), approver, file.read_text()


def test_two_changes_of_one_file_in_one_turn_are_made_one_after_the_other(tmp_path: Path) -> None:
    outcome, approver, text = edits(tmp_path, ("local", "far"), ("80", "8080"))
    assert isinstance(outcome, Answered) and [c.status for c in outcome.calls] == ["ok", "ok"]
    assert text == "host = far\nport = 8080\n"
    # The second is asked about again: the file is another one than was shown with the question.
    assert [request.is_changed for request in approver.requests] == [False, False, True]
    seen = [r.call for r in outcome.records if isinstance(r, ObservationRecord)]
    assert seen == ["c1", "c2"]


def test_an_edit_is_held_against_the_file_as_it_is_when_it_is_asked_about(tmp_path: Path) -> None:
    outcome, _, text = edits(tmp_path, ("local", "far"), ("far", "near"))
    statuses = [c.status for c in outcome.calls]
    assert statuses == ["ok", "error"]  # at the question there is no "far" in the file yet
    assert text == "host = far\nport = 80\n"
