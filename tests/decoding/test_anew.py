"""Servers that begin the model's line anew instead of going on with the host's."""

from __future__ import annotations

import json
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_tools import Answered, Chunk, Controller, Policy, tool
from mlx_tools.decoding import Asker, AskerLimits, Guide, Opening, Task, guidance
from mlx_tools.decoding.anew import begins_anew
from mlx_tools.protocol import Style, forcing_prefix, write_answer, write_call
from mlx_tools.records import CompletionRecord
from mlx_tools.run_settings import RunSettings
from mlx_tools.spec import ToolSpec
from mlx_tools.testing import ScriptedBackend

STYLES = st.sampled_from(["jsonl", "markdown-json", "xml"])
NAMED = "add"
CHOICES = st.sampled_from(["none", "required", NAMED])


@tool(effects={"read"})
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


def pieces(text: str, size: int) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]


def opened(prefix: str, text: str, size: int) -> tuple[str, bool]:
    opening = Opening(prefix)
    read = "".join(opening.feed(piece) for piece in pieces(text, size))
    return read + opening.feed("", last=True), opening.anew


@given(st.text(), st.integers(1, 9), STYLES, CHOICES)
def test_nothing_of_a_text_is_lost_or_changed(
    text: str, size: int, style: Style, choice: str
) -> None:
    assert opened(forcing_prefix(style, choice), text, size)[0] == text


@given(st.text(min_size=1), st.integers(1, 9), STYLES, CHOICES, st.sampled_from(["", " ", "\n"]))
def test_a_whole_line_is_told_from_its_rest(
    content: str, size: int, style: Style, choice: str, space: str
) -> None:
    prefix = forcing_prefix(style, choice)
    line = write_call(NAMED, {"a": 1}, style=style)
    if choice == "none" and style != "xml":  # a text that no tag holds stands in an object
        line = write_answer(content, style)
    if choice == "none" and style == "xml":
        line = f"<final_answer>{content}</final_answer>"
    assert opened(prefix, space + line, size) == (space + line, True)
    if line.startswith(prefix) and (rest := line[len(prefix) :]):
        assert opened(prefix, rest, size) == (rest, False)


@pytest.mark.parametrize(
    ("prefix", "text"),
    [
        ('{"type":"final_answer","content":"', "<final_answer> is a tag"),
        ('{"type":"final_answer","content":"', "<tool_call> is a tag"),
        ('{"type":"final_answer","content":"', '```json\\n{\\"type\\":\\"tool_call\\"'),
        ("<final_answer>", '{"type":"final_answer","content":"x"}'),
        ("<final_answer>", '{"type":"object"}'),
        ('{"type":"tool_call","name":"add","arguments":{', '"type":"tool_call"'),
    ],
)
def test_what_may_go_on_with_the_prefix_does(prefix: str, text: str) -> None:
    for size in (1, 3, 100):
        assert opened(prefix, text, size) == (text, False)


def test_white_space_is_not_held_back_for_ever() -> None:
    assert begins_anew(" " * 63) is None
    assert begins_anew(" " * 64) is False


# --- whole runs -------------------------------------------------------------------------------


@pytest.mark.parametrize("style", ["jsonl", "markdown-json", "xml"])
@pytest.mark.parametrize("choice", ["required", NAMED])
@pytest.mark.parametrize("strategy", ["free", "auto", "guided"])
def test_a_forced_call_that_comes_as_a_whole_line_is_read(
    style: Style, choice: str, strategy: str
) -> None:
    call, answer = write_call(NAMED, {"a": 1, "b": 2}, style=style), write_answer("3", style)

    async def chat(prompt: str) -> str:  # a chat of its own: it never sees how its turn begins
        since = prompt.rpartition("Add 1 and 2.")[2]
        return answer if "observation" in since or "tool_response" in since else call

    async def main() -> tuple[Any, list[CompletionRecord]]:
        controller = Controller(
            chat,
            [add],
            Policy(allow=[NAMED]),
            settings=RunSettings(strategy=strategy, style=style, tool_choice=choice),
        )
        async with await controller.conversation() as conversation:
            outcome = await conversation.run("Add 1 and 2.")
            records = conversation._driver.files.transcript
            return outcome, [r for r in records if isinstance(r, CompletionRecord)]

    outcome, completions = anyio.run(main)
    assert [(c.name, c.status, c.output) for c in outcome.calls] == [(NAMED, "ok", "3")]
    assert (completions[0].prefix, completions[0].text) == ("", call)
    assert isinstance(outcome, Answered) and outcome.answer == "3"


@pytest.mark.parametrize("style", ["jsonl", "markdown-json", "xml"])
def test_a_forced_answer_that_comes_as_a_whole_line_is_read(style: Style) -> None:
    line = write_answer("Hello.", style)
    settings = RunSettings(strategy="free", style=style, tool_choice="none")
    outcome = Controller(ScriptedBackend(line), settings=settings).run_sync("Hi.")
    assert isinstance(outcome, Answered) and outcome.answer == "Hello."


def test_a_free_value_with_a_type_of_its_own_is_no_new_line() -> None:
    arguments = {"shape": {"type": "circle", "radius": 3}}
    spec = ToolSpec(
        "draw",
        "Draws a shape.",
        {"type": "object", "properties": {"shape": {}}, "required": ["shape"]},
    )

    class Once:
        async def complete(self, request: Any) -> Any:
            yield Chunk('{"type":"circle","radius":3}}}', "stop")

    asker = Asker(Once(), "Prompt.", AskerLimits(max_tokens=99, timeout=9, idle_timeout=9))
    task = Task(style="jsonl", tools={"draw": spec}, tool_choice="required")
    text = anyio.run(Guide(asker, task, guidance("Draw it."), lambda said: None).write)
    assert json.loads(text)["arguments"] == arguments
