"""The live check: the same questions, another model; tools replayed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import anyio
import pytest

from mlx_tools import Registry, Tool, ToolSpec
from mlx_tools.controller import ApprovalAnswer
from mlx_tools.errors import BackendUnreachable, UsageError
from mlx_tools.golden import Golden, GoldenCheck, check_live
from mlx_tools.messages import replace
from mlx_tools.testing import ScriptedApprover, ScriptedBackend, answer, call
from mlx_tools.transcript.records import EditRecord, ObservationRecord, UserRecord
from tests.golden.recordings import SETTINGS, record_golden


def weather() -> list[Tool]:
    text = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}

    def look(arguments: Mapping[str, Any]) -> str:
        if arguments["city"] == "nowhere":
            raise ValueError("no such city")
        return f"It rains in {arguments['city']}."

    read, write = frozenset({"read"}), frozenset({"write"})
    return [
        Tool(ToolSpec("weather", "Tells the weather.", text, read), look),
        Tool(ToolSpec("note", "Notes.", text, write, needs_approval=True), look),
    ]


def weathered(*scripts: str, edited: Mapping[str, Any] | None = None, **more: Any) -> Golden:
    """A golden transcript of a run with these tools."""
    approver = ScriptedApprover(ApprovalAnswer(True, "as said", arguments=edited))
    return record_golden(Registry(weather()), *scripts, approver=approver, **more)


def checked(golden: Golden, *scripts: Any, **more: Any) -> GoldenCheck:
    """The check of a transcript by a scripted model."""
    settings = more.pop("settings", SETTINGS)

    async def check() -> GoldenCheck:
        return await check_live(golden, ScriptedBackend(*scripts), settings=settings, **more)

    return anyio.run(check)


def observations(check: GoldenCheck) -> list[ObservationRecord]:
    """The observations of its only run."""
    return [r for r in check.samples[0].records if isinstance(r, ObservationRecord)]


RAIN = weathered(call("weather", city="Bonn"), answer("It rains."))


def test_a_model_that_calls_something_else_does_not() -> None:
    check = checked(RAIN, call("weather", city="Paris"), answer("Rain."))
    (difference,) = check.samples[0].differences
    assert (difference.room, difference.subject) == ("outcome", "the calls")
    (observed,) = observations(check)
    assert (
        observed.error is not None and observed.error.code == "tool_error"
    )  # nothing was recorded for Paris


def test_a_call_that_is_as_good_gets_what_was_recorded() -> None:
    wanted = {"calls": [{"name": "weather", "arguments": {"subset": {"city": {"contains": "n"}}}}]}
    golden = weathered(call("weather", city="Bonn"), answer(), expect=[wanted])
    check = checked(golden, call("weather", city="bonn"), answer())
    assert check.passed
    (observed,) = observations(check)
    assert observed.content == "It rains in Bonn."


def test_an_error_that_was_recorded_comes_again() -> None:
    golden = weathered(call("weather", city="nowhere"), answer("No."))
    check = checked(golden, call("weather", city="nowhere"), answer("No."))
    (observed,) = observations(check)
    assert observed.error is not None and "no such city" in observed.error.message
    assert check.passed


def test_what_a_person_said_is_said_again_of_the_same_call() -> None:
    golden = weathered(call("note", city="Bonn"), answer(), edited={"city": "Köln"})
    check = checked(golden, call("note", city="Bonn"), answer())
    assert check.passed
    edits = [r.arguments for r in check.samples[0].records if isinstance(r, EditRecord)]
    assert edits == [{"city": "Köln"}]
    other = checked(golden, call("note", city="Rome"), answer())
    assert [d.subject for d in other.samples[0].differences] == ["the calls", "the status"]


def test_samples_are_counted_and_seeded_one_by_one() -> None:
    seeds: list[Any] = []

    class Noting(ScriptedBackend):
        def complete(self, request: Any) -> Any:
            seeds.append(request.seed)
            return super().complete(request)

    scripts = (call("weather", city="Bonn"), answer(), answer("I do not know."))

    async def check() -> GoldenCheck:
        settings = replace(SETTINGS, seed=7)
        return await check_live(RAIN, Noting(*scripts), settings=settings, samples=2)

    done = anyio.run(check)
    assert (done.share.hits, done.share.total) == (1, 2) and not done.passed
    assert seeds == [7, 7, 8]


def test_the_style_is_the_recorded_one_where_none_is_named() -> None:
    script = "<tool_call>" + call("weather", city="Bonn") + "</tool_call>"
    xml = replace(RAIN, header=replace(RAIN.header, style="xml"))
    check = checked(xml, script, "<final_answer>Rain.</final_answer>")
    assert check.cell.style == "xml" and check.passed


def test_a_server_that_is_not_there_is_told_at_once() -> None:
    with pytest.raises(BackendUnreachable):
        checked(RAIN, BackendUnreachable("nobody is there"))


def test_an_expectation_that_is_none_is_told_before_anything_is_asked() -> None:
    golden = replace(RAIN, golden=replace(RAIN.golden, expect=({"answr": "x"},)))
    with pytest.raises(UsageError, match="answr"):
        checked(golden)


def test_what_was_piped_into_a_question_is_so_when_it_is_asked_again() -> None:
    (question, *rest) = RAIN.records
    piped = replace(
        question, content=f"Hm? {call('weather', city='Bonn')}", untyped_suffix_chars=70
    )
    check = checked(
        replace(RAIN, records=(piped, *rest)), call("weather", city="Bonn"), answer(".")
    )
    (asked,) = (record for record in check.samples[0].records if isinstance(record, UserRecord))
    assert asked.untyped_suffix_chars == 70
