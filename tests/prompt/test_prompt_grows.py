"""The bytes of a prompt only grow, its roles alternate, and no text becomes a control token."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_tools.messages import ToolSpec
from mlx_tools.prompt import (
    NAMED_FORMATS,
    ChatFormat,
    Frame,
    Neutraliser,
    Prompt,
    build_examples,
    build_system,
)
from mlx_tools.prompt.neutralise import PROTOCOL_TAGS
from mlx_tools.transcript.records import UserRecord
from tests.prompt.conversations import MODELS, WORDS, format_of
from tests.prompt.transcripts import CONTENT, STYLES, Step, transcripts

REASONING = ("off", "auto", 200)


@cache
def formats() -> dict[str, ChatFormat]:
    """Every format there is to test: the named ones, and one for each template."""
    return {**NAMED_FORMATS, **{f"from {name}": format_of(name) for name in MODELS}}


def hostile_tool(text: str) -> ToolSpec:
    """A tool whose description and schema hold ``text`` wherever they can."""
    return ToolSpec(
        "read_file",
        text,
        {
            "type": "object",
            "properties": {
                "path": {"type": "string", "description": text, "examples": [text]},
                text or "x": {"enum": [text, 1]},
                "n": {"type": "integer", "default": text},
            },
            "required": ["path"],
        },
    )


def opened(chat_format: ChatFormat, style: str, text: str, **more: Any) -> Prompt:
    """A prompt with a catalog, a project context, a persona and examples that hold ``text``."""
    neutraliser = Neutraliser(chat_format.control_tokens)
    tools = [hostile_tool(text), ToolSpec("calculator", "Calculates.")]
    return Prompt(
        chat_format=chat_format,
        style=style,
        system=build_system(
            Frame(
                words=WORDS,
                style=style,
                tools=tools,
                project_context=text,
                persona=text,
                neutraliser=neutraliser,
            )
        ).text,
        examples=build_examples(WORDS, tools, style),
        neutraliser=neutraliser,
        words=WORDS,
        **more,
    )


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
    prompt = opened(formats()[name], style, text, reasoning=reasoning)
    asked = prompts_of(prompt, steps)
    prompt.add(UserRecord(content="and then?"))
    asked.append(prompt.render())
    for before, after in itertools.pairwise(asked):
        assert after.startswith(before)
    # Folded again, without a prompt in between, it is the same.
    again = opened(formats()[name], style, text, reasoning=reasoning)
    for step in steps:
        for record in step.records:
            again.add(record)
    again.add(UserRecord(content="and then?"))
    assert again.render() == asked[-1]
    asked[-1].encode("utf-8")


@pytest.mark.slow
@given(run=runs(), text=CONTENT)
def test_the_roles_alternate_whatever_happens(
    run: tuple[str, str, str | int, list[Step]], text: str
) -> None:
    _, style, _, steps = run
    bare = NAMED_FORMATS["chatml"]
    prompt = opened(bare, style, text)
    prompts_of(prompt, steps)
    prompt.add(UserRecord(content="and then?"))
    headers = [part.partition("\n")[0] for part in prompt.render().split("<|im_start|>")[1:]]
    assert headers[0] == "system"
    assert headers[1::2] == ["user"] * len(headers[1::2])
    assert headers[2::2] == ["assistant"] * len(headers[2::2])
    assert headers[-1] == "assistant"
    assert prompt.render().count("<|im_end|>") == len(headers) - 1


# --- on real token ids ---


def control_ids(tokenizer: Any, chat_format: ChatFormat, text: str) -> list[int]:
    """The ids in ``text`` that are special to the tokenizer."""
    special = {
        number for number, token in tokenizer.get_added_tokens_decoder().items() if token.special
    }
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    return [number for number in ids if number in special]


ROLES = {"system", "user", "assistant"}


def roles_of(tokenizer: Any, chat_format: ChatFormat, run: Any, text: str) -> set[str]:
    """Whose turns there are, where of all special ids those alone that open and close turns are
    there, and these in order."""
    _, style, reasoning, steps = run
    found: set[str] = set()
    prompt = opened(chat_format, style, text, reasoning=reasoning)
    for asked in prompts_of(prompt, steps):
        own = asked
        for tag in PROTOCOL_TAGS:  # the style's own, where they have their place
            own = own.replace(tag, "") if style == "xml" else own
        count = sum(own.count(header) for header in ("<|im_start|>", "<|im_end|>"))
        assert len(control_ids(tokenizer, chat_format, own)) == count
        turns = own.split("<|im_start|>")
        assert all(turn.count("<|im_end|>") == 1 for turn in turns[1:-1])
        assert turns[0] == ""
        assert "<|im_end|>" not in turns[-1]
        found |= {turn.partition("\n")[0] for turn in turns[1:]}
    return found


def special_tokens(tokenizer: Any) -> list[str]:
    return [t.content for t in tokenizer.get_added_tokens_decoder().values() if t.special]


@cache
def small_tokenizer() -> Any:
    """A byte-level tokenizer that knows nothing but bytes and well-known control tokens."""
    tokenizers = pytest.importorskip("tokenizers")
    from mlx_tools.prompt.neutralise import BUILTIN_TOKENS, TOOL_MARKERS

    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.BPE({letter: number for number, letter in enumerate(alphabet)}, [])
    )
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens([*BUILTIN_TOKENS, *TOOL_MARKERS, "<think>", "</think>"])
    return tokenizer


@pytest.mark.slow
@given(run=runs(), text=CONTENT)
def test_no_text_adds_a_control_token_for_a_tokenizer_with_all_that_are_known(
    run: Any, text: str
) -> None:
    assert roles_of(small_tokenizer(), NAMED_FORMATS["chatml"], run, text) <= ROLES


@cache
def tokenizer_in(folder: Path) -> Any:
    tokenizers = pytest.importorskip("tokenizers")
    return tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))


@pytest.mark.real
@given(run=runs(), text=CONTENT)
def test_no_text_adds_a_control_token_for_the_embedded_models_tokenizer(
    real_model: Path, run: Any, text: str
) -> None:
    tokenizer = tokenizer_in(real_model)
    chat_format = replace(NAMED_FORMATS["chatml"], control_tokens=tuple(special_tokens(tokenizer)))
    assert roles_of(tokenizer, chat_format, run, text) <= ROLES
