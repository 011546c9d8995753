"""The bytes of a prompt only grow, its roles alternate, and no text becomes a control token."""

from __future__ import annotations

import itertools
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from mlx_tools.prompt import Prompt
from mlx_tools.transcript.records import UserRecord
from tests.prompt.conversations import formats
from tests.prompt.transcripts import CONTENT, ORIGINS, STYLES, Step, Texts, opened, transcripts

REASONING = ("off", "auto", 200)


def hostile(text: str) -> Texts:
    """Texts of every origin that are all the same."""
    return Texts(**dict.fromkeys(ORIGINS, text))


@st.composite
def runs(draw: Any) -> tuple[str, str, str | int, list[Step]]:
    """A format's name, a style, how much is thought, and a conversation in that style."""
    style = draw(st.sampled_from(STYLES))
    name = draw(st.sampled_from(sorted(formats())))
    return name, style, draw(st.sampled_from(REASONING)), draw(transcripts(style))


def prompts_of(prompt: Prompt, steps: list[Step]) -> list[str]:
    """The prompt of each completion."""
    asked = []
    for step in steps:
        for record in step.records:
            prompt.add(record)
        if step.prefix is not None:
            asked.append(prompt.render(step.prefix))
    return asked


@given(run=runs(), text=CONTENT)
def test_the_prompt_of_a_turn_is_a_prefix_of_the_next(
    run: tuple[str, str, str | int, list[Step]], text: str
) -> None:
    name, style, reasoning, steps = run
    prompt = opened(formats()[name], style, hostile(text), reasoning=reasoning)
    asked = prompts_of(prompt, steps)
    prompt.add(UserRecord(content="and then?"))
    asked.append(prompt.render())
    for before, after in itertools.pairwise(asked):
        assert after.startswith(before)
    # Folded again, without a prompt in between, it is the same.
    again = opened(formats()[name], style, hostile(text), reasoning=reasoning)
    for step in steps:
        for record in step.records:
            again.add(record)
    again.add(UserRecord(content="and then?"))
    assert again.render() == asked[-1]
    asked[-1].encode("utf-8")
