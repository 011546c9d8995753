"""On token ids: no text of any origin adds a control token to those that the host writes.

The same conversation is put together twice, once with harmless texts and once with texts made of
control tokens, whole and in pieces. The control tokens of both must be the same, in order.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_tools.backends import find_chat_format, read_model_files
from mlx_tools.messages import ErrorInfo
from mlx_tools.prompt import (
    NAMED_FORMATS,
    ChatFormat,
)
from mlx_tools.prompt.neutralise import KNOWN_TOKENS, PROTOCOL_TAGS
from mlx_tools.protocol import forcing_prefix, write_answer, write_call
from mlx_tools.transcript.records import (
    AnswerRecord,
    CallRecord,
    CompletionRecord,
    CorrectionRecord,
    ObservationRecord,
    Record,
    UserRecord,
)
from tests.prompt.conversations import list_formats
from tests.prompt.transcripts import ORIGINS, STYLES, TOOL_NAMES, opened, texts_of


def said(text: str, prefix: str = "") -> CompletionRecord:
    """A completion of which all counts; a blank one would be no turn."""
    counted = prefix + (text if text.strip() else "x")
    return CompletionRecord(
        turn=1, prefix=prefix, text=counted[len(prefix) :], retained_text=counted
    )


def conversation(style: Any, texts: Any) -> list[tuple[str, list[Record]]]:
    """The records before each completion that is due, and the prefix it is asked with."""
    arguments = {"path": texts.argument, texts.argument: [texts.argument]}
    names = (texts.tool_name, texts.unknown_tool)
    calls = [
        CallRecord(turn=1, call=key, name=name, arguments=arguments, id=texts.call_id)
        for key, name in zip("ab", names, strict=True)
    ]
    lines = [write_call(c.name, c.arguments, c.id, style) for c in calls]
    seen = ObservationRecord(call="a", name=names[0], content=texts.observation, id=texts.call_id)
    failed = ErrorInfo("tool_error", texts.tool_error)
    final = forcing_prefix(style, "none")
    return [
        (
            "",
            [
                UserRecord(content=texts.earlier_question),
                AnswerRecord(turn=0, content=texts.earlier_answer),
                UserRecord(content=texts.question, tools=(texts.brought_tool,)),
            ],
        ),
        (
            forcing_prefix(style, "required"),
            [
                said("\n".join((texts.prose_before_calls, *lines))),
                *calls,
                ObservationRecord(call="b", name=names[1], error=failed),
                seen,
            ],
        ),
        (
            final,
            [
                said(texts.broken_line, forcing_prefix(style, "required")),
                CorrectionRecord(turn=2, error=ErrorInfo("invalid_json", texts.correction)),
            ],
        ),
        (
            "",
            [
                said(write_answer(texts.answer, style).removeprefix(final), final),
                AnswerRecord(turn=3, content=texts.answer),
                UserRecord(content=texts.question),
            ],
        ),
        (
            "",
            [
                said(texts.prose_answer),
                AnswerRecord(turn=4, content=texts.prose_answer, bare_text=True),
                UserRecord(content=texts.question),
            ],
        ),
    ]


def prompts_of(chat_format: ChatFormat, style: str, texts: Any) -> list[str]:
    """Every prompt of the conversation."""
    prompt, asked = opened(chat_format, style, texts), []
    for prefix, records in conversation(style, texts):
        for record in records:
            prompt.add(record)
        asked.append(prompt.render(prefix))
    return asked


@cache
def harmless(chat_format: ChatFormat, style: str) -> list[str]:
    """Every prompt of the conversation, with texts that hold no control token."""
    return prompts_of(chat_format, style, texts_of())


@cache
def texts_made_of(tokens: tuple[str, ...]) -> st.SearchStrategy[Any]:
    """Texts of control tokens, whole, in two pieces, within one another, beside JSON and marks."""
    usual = (*tokens, *KNOWN_TOKENS, *PROTOCOL_TAGS)
    pieces = [
        *("<", "|", ">", "[", "|>", "·", "¦", '"', "\\", "{", "}", "\n", " ", "\r", "\u2028", ""),
        *('{"type":"tool_observation","name":"x"', '{"a":"', "```json\n", "\nUser:", "user\n"),
    ]
    one = st.one_of(st.sampled_from(usual), st.sampled_from(tokens), st.sampled_from(pieces))
    half = st.tuples(st.sampled_from(usual), st.integers(1, 12), st.booleans()).map(
        lambda cut: cut[0][: cut[1]] if cut[2] else cut[0][cut[1] :]
    )
    nested = st.tuples(st.sampled_from(usual), st.sampled_from(usual), st.integers(1, 12)).map(
        lambda cut: cut[0][: cut[2]] + cut[1] + cut[0][cut[2] :]
    )
    text = st.lists(st.one_of(one, half, nested, st.text(max_size=4)), max_size=6).map("".join)
    return st.builds(
        texts_of, **dict.fromkeys(ORIGINS, text), tool_name=st.sampled_from(TOOL_NAMES)
    )


# --- each format, for a tokenizer that has all of its control tokens ---


def ids_by(tokenizer: Any, style: str) -> Callable[[str], list[int]]:
    """Return a function for the ids of control tokens in a text, the style's own tags aside."""
    added = tokenizer.get_added_tokens_decoder()
    own = PROTOCOL_TAGS if style == "xml" else ()
    control = {number for number, token in added.items() if token.content not in own}

    def ids(text: str) -> list[int]:
        encoded = tokenizer.encode(text, add_special_tokens=False).ids
        return [number for number in encoded if number in control]

    return ids


@cache
def tokenizer_for(name: str) -> Any:
    """A byte-level tokenizer that knows nothing but bytes and a format's control tokens."""
    tokenizers = pytest.importorskip("tokenizers")
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.BPE({letter: number for number, letter in enumerate(alphabet)}, [])
    )
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokens = list_formats()[name].control_tokens
    tokenizer.add_special_tokens([token for token in tokens if len(token.strip()) > 1])
    return tokenizer


@st.composite
def cases(draw: Any) -> tuple[str, str, Any]:
    """A format, a style and texts that are made for the format."""
    name = draw(st.sampled_from(sorted(list_formats())))
    texts = draw(texts_made_of(list_formats()[name].control_tokens))
    return name, draw(st.sampled_from(STYLES)), texts


@given(case=cases())
def test_in_every_format_the_control_tokens_are_those_of_a_harmless_conversation(
    case: tuple[str, str, Any],
) -> None:
    name, style, texts = case
    ids = ids_by(tokenizer_for(name), style)
    asked_all = prompts_of(list_formats()[name], style, texts)
    for asked, plain in zip(asked_all, harmless(list_formats()[name], style), strict=True):
        assert ids(asked) == ids(plain)


# --- the embedded model's own tokenizer ---


@cache
def real_tokenizer(folder: Path) -> Any:
    tokenizers = pytest.importorskip("tokenizers")
    return tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))


@cache
def real_format(folder: Path, wanted: str) -> ChatFormat:
    return find_chat_format(wanted, files=read_model_files(folder)).chat_format


@pytest.mark.slow
@pytest.mark.real
@given(data=st.data(), style=st.sampled_from(STYLES))
def test_the_embedded_models_tokenizer_finds_the_hosts_control_tokens_and_no_other(
    real_model: Path, data: Any, style: str
) -> None:
    tokenizer = real_tokenizer(real_model)
    wanted = data.draw(st.sampled_from(["auto", "auto", *NAMED_FORMATS]))
    chat_format = real_format(real_model, wanted)
    special = tuple(t.content for t in tokenizer.get_added_tokens_decoder().values())
    texts = data.draw(texts_made_of(special))
    ids = ids_by(tokenizer, "jsonl")  # the tags of the xml style are ordinary text to it
    start, end = (tokenizer.token_to_id(token) for token in ("<|im_start|>", "<|im_end|>"))
    asked_all = prompts_of(chat_format, style, texts)
    for asked, plain in zip(asked_all, harmless(chat_format, style), strict=True):
        assert ids(asked) == ids(plain)
        if wanted in ("auto", "chatml"):
            turns = plain.count("<|im_start|>")
            assert ids(asked) == [start, end] * (turns - 1) + [start]
        else:
            assert not {start, end} & set(ids(asked))
