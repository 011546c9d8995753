"""Chat formats read from templates: put together, the turns are what the template writes."""

from __future__ import annotations

import pytest

from mlx_tools.errors import ChatFormatError
from mlx_tools.prompt import ChatFormat, Neutraliser, format_from_template
from tests.prompt.conversations import (
    MODELS,
    join_conversation,
    load_format,
    load_template,
    make_prompt,
    render_conversation,
)
from tests.tables import table

ONE = [("system", "Be brief."), ("user", "What is a tram?")]
LONG = [
    *ONE,
    ("assistant", "A train in the street."),
    ("user", "And a bus?"),
    ("assistant", "A car\n\nfor many."),
    ("user", "Thanks! {{ x }} {% y %}"),
]
REFUSES_SYSTEM = {"gemma2"}
NEEDS_SYSTEM = {"needs-system"}


@table("name", sorted(set(MODELS) - REFUSES_SYSTEM))
def test_a_first_question_is_put_as_the_template_puts_it(name: str) -> None:
    assert join_conversation(load_format(name), ONE, reasoning="auto") == render_conversation(
        name, ONE
    )


@table("name", sorted(n for n in MODELS if not MODELS[n].rewrites))
def test_a_long_conversation_is_put_as_the_template_puts_it(name: str) -> None:
    messages = LONG[1:] if name in REFUSES_SYSTEM else LONG
    assert join_conversation(load_format(name), messages, reasoning="auto") == render_conversation(
        name, messages
    )


@table("name", sorted(set(MODELS) - NEEDS_SYSTEM))
def test_without_a_system_text_the_templates_own_stands(name: str) -> None:
    assert join_conversation(load_format(name), ONE[1:], reasoning="auto") == render_conversation(
        name, ONE[1:]
    )


@pytest.mark.parametrize("name", ["mistral-v0.3", "mistral-nemo"])
def test_a_system_text_that_the_template_moves_to_the_last_question_stays_in_the_first(
    name: str,
) -> None:
    text = join_conversation(load_format(name), LONG)
    moved = render_conversation(name, LONG)
    assert text.replace("Be brief.\n\n", "") == moved.replace("Be brief.\n\n", "")
    assert text.index("Be brief.") < text.index("What is a tram?") < moved.index("Be brief.")


@pytest.mark.parametrize("name", ["deepseek-r1", "qwen3-thinking", "qwen3.5", "nemotron-nano"])
def test_a_thought_that_the_template_opens_is_closed_in_earlier_turns(name: str) -> None:
    chat_format = load_format(name)
    assert chat_format.opens_thought
    text = join_conversation(chat_format, LONG, reasoning="auto")
    closed = chat_format.answering.removeprefix(chat_format.assistant[0])
    assert text.count("<think>") == 3
    assert text.count("</think>") == 2
    for opening in ("<think>\n\n", "<think>\n"):
        text = text.replace(f"{opening}{closed}", "")
    assert text == render_conversation(name, LONG)


@pytest.mark.parametrize("name", ["qwen3", "qwen3.5", "gemma4"])
def test_told_not_to_think_the_answer_opens_as_the_template_has_it(name: str) -> None:
    text = join_conversation(load_format(name), ONE, reasoning="off")
    assert text == render_conversation(name, ONE, enable_thinking=False)


def test_gpt_oss_answers_on_its_final_channel_where_it_must_not_think() -> None:
    chat_format = load_format("gpt-oss")
    assert chat_format.assistant[0] == "<|start|>assistant"
    assert chat_format.answering == "<|start|>assistant<|channel|>final<|message|>"
    assert chat_format.reasoning == (
        "<|channel|>analysis<|message|>",
        "<|channel|>final<|message|>",
    )


@pytest.mark.parametrize(
    ("name", "reasoning", "opens"),
    [
        ("qwen3", ("<think>", "</think>"), False),
        ("qwen3-thinking", ("<think>", "</think>"), True),
        ("deepseek-r1", ("<think>", "</think>"), True),
        ("deepseek-v3.1", ("<think>", "</think>"), False),
        ("gemma4", ("<|channel>thought", "<channel|>"), False),
        ("magistral", ("[THINK]", "[/THINK]"), False),
        ("qwen2.5", None, False),
        ("llama3.1", None, False),
    ],
)
def test_reasoning_is_found_in_the_template(
    name: str, reasoning: tuple[str, str] | None, opens: bool
) -> None:
    chat_format = load_format(name)
    assert (chat_format.reasoning, chat_format.opens_thought) == (reasoning, opens)
    assert make_prompt(chat_format, reasoning="auto").thought_open is opens
    assert make_prompt(chat_format, reasoning="off").thought_open is False


@table("name", sorted(n for n in MODELS if MODELS[n].bos))
def test_there_is_one_beginning_of_text_whoever_adds_it(name: str) -> None:
    bos = MODELS[name].bos
    messages = LONG[1:] if name in REFUSES_SYSTEM else LONG
    left_out = join_conversation(load_format(name, adds_bos=True), messages)
    written = join_conversation(load_format(name, adds_bos=False), messages)
    if render_conversation(name, messages).startswith(bos):
        assert bos + left_out == written
        assert not left_out.startswith(bos)
    else:
        assert left_out == written


@table("name", sorted(MODELS))
def test_every_marker_of_a_format_is_a_control_token(name: str) -> None:
    chat_format = load_format(name)
    neutraliser = Neutraliser(chat_format.control_tokens)
    for before, after in (chat_format.user, (chat_format.answering, chat_format.assistant[1])):
        forged = f"x\n{after}{before}y"
        assert neutraliser.contains_token(forged), forged


@table("name", sorted(MODELS))
def test_a_format_comes_back_from_a_transcripts_header(name: str) -> None:
    chat_format = load_format(name)
    assert ChatFormat.from_json(chat_format.to_json()) == chat_format


def test_special_tokens_of_the_tokenizer_are_control_tokens() -> None:
    chat_format = format_from_template(
        load_template("qwen2.5"),
        name="x",
        bos_token="",
        eos_token="<|im_end|>",
        special_tokens=["<|im_start|>", "<|im_end|>", "<repo_name>", "<|vision_start|>"],
        adds_bos=False,
    )
    assert {"<repo_name>", "<|vision_start|>", "<tool_call>"} <= set(chat_format.control_tokens)


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{% if %}", "cannot be read"),
        ("{{ messages | nothing }}", "cannot be read"),
        ("{{ nothing.there }}", "cannot be rendered"),
        ("{{ raise_exception('go away') }}", "go away"),
        ("hello", "does not write a conversation"),
        ("", "does not write a conversation"),
        ("{{ messages[-1].content }}", "does not write a conversation"),
        ("{% for m in messages[::-1] %}{{ m.content }};{% endfor %}", "does not write"),
        ("{% for m in messages %}{{ m.content | upper }}{% endfor %}", "does not write"),
        ("{% for m in messages %}{{ m.content }}{{ m.content }}{% endfor %}", "does not write"),
        ("x" * 1_000_001, "1,000,001 characters"),
    ],
)
def test_a_template_that_cannot_be_used_says_what_to_do(template: str, said: str) -> None:
    with pytest.raises(ChatFormatError, match=said) as caught:
        format_from_template(template, name="x", bos_token="", eos_token="", adds_bos=False)
    assert "--chat-format" in (caught.value.hint or "")


def test_a_format_knows_the_marks_of_its_templates_own_calls() -> None:
    assert load_format("qwen2.5").dialects == ("<tool_call>",)
    assert load_format("gpt-oss").dialects == ("<|channel|>",)
    assert load_format("smollm2").dialects == ()
