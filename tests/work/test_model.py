"""The scripted model does nothing that its prompt does not show how to do."""

from __future__ import annotations

from pathlib import Path

from tests.command_line import Run
from tests.tables import table
from tests.work.model import ScriptedModel, count_begun_chars, fill_groups, iter_missing
from tests.work.task import Step, Task, call, calls, says

PROMPT = 'edit_file(path: string, old: string, new: string)\n\nUser: In a.py: {"x": 1}\n'
EDIT = call("edit_file", path="a.py", old='{"x": 1}', new="y")


@table(
    ("step", "missing"),
    [
        (EDIT, []),
        (call("edit_file", path="b.py", old="x", new="y"), ["path 'b.py'"]),
        (call("edit_file", path="a.py", old="x = 1\nz", new="y"), ["old 'x = 1'", "old 'z'"]),
        (call("edit_file", path="b.py", old="x", new="y", guesses=True), []),
        (call("edit_file", path="a.py", old="x", new="y", all=True), ["the name all"]),
        (calls(("delete_file", {"path": "a.py"})), ["the name delete_file"]),
        (says("Done.", "saved"), ["'saved'"]),
        (says("Done.", knows=("edit_file", "saved")), ["'saved'"]),
        (Step("no call at all"), []),
    ],
)
def test_what_a_step_needs_and_the_prompt_does_not_show(step: Step, missing: list[str]) -> None:
    assert [*iter_missing(step, PROMPT, "")] == missing


def test_a_text_in_json_is_seen_without_its_escapes() -> None:
    for shown in (r'"{\"x\": 1}"', r'"{\\\"x\\\": 1}"'):
        assert not [*iter_missing(EDIT, PROMPT.replace('{"x": 1}', shown), "")]


def test_a_completion_goes_on_where_the_prompt_ends_and_takes_over_what_was_shown() -> None:
    text = says("Done.").text
    assert [count_begun_chars(text, f"Assistant: {text[:n]}") for n in (0, 1, 8, 20)] == [
        0,
        1,
        8,
        20,
    ]
    step = Step("It is <<sum>>.", (r"sum=(?P<sum>\d+)",))
    assert fill_groups(step, "the sum=42") == "It is 42."


def test_a_fault_ends_the_run_and_is_kept(run: Run, home: Path) -> None:
    task = Task("", "Hello?", (says("Seen.", "what no tool returned"),))
    with ScriptedModel() as model:
        model.begin([task])
        result = run("ask", "--url", model.url, "--json", task.question)
    assert result.json["status"] == "stopped"
    assert "what no tool returned" in model.faults[0] and "Hello?" in model.faults[0]
