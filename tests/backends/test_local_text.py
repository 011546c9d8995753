"""Tokens as text: every tokenizer's tokens give back the text, piece by piece and exactly."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mlx_tools.backends.local_engine import TokenTexts

TEXTS = st.text(st.characters(codec="utf-8"), max_size=30) | st.text(
    "aé😀 <|im_end>\n", max_size=20
)


class SPMStreamingDetokenizer:
    """As mlx-lm's: the bytes of each token, white space spelled as U+2581."""

    def __init__(self) -> None:
        self.tokenmap = [bytes([number]) for number in range(256)]
        self.tokenmap += ["\u2581a".encode(), "é\u2581".encode(), "\u2581".encode()]


class Plain:
    """A tokenizer of bytes that can only decode, and needs its neighbours for that."""

    detokenizer = object()

    def decode(self, tokens: Sequence[int]) -> str:
        return bytes(tokens).decode("utf-8", "replace")


class Spaced:
    detokenizer = SPMStreamingDetokenizer()


@functools.cache
def real(folder: Path) -> tuple[Any, TokenTexts]:
    from mlx_lm.utils import load_tokenizer

    tokenizer = load_tokenizer(folder)
    return tokenizer, TokenTexts(tokenizer)


def streamed(texts: TokenTexts, tokens: Sequence[int], before: Sequence[int] = ()) -> str:
    stream = texts.stream(before)
    return "".join([stream.add(token) for token in tokens] + [stream.finish()])


@pytest.mark.real
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=TEXTS)
def test_a_byte_level_tokenizer_is_read_as_it_reads_itself(real_model: Path, text: str) -> None:
    tokenizer, texts = real(real_model)
    tokens = tokenizer.encode(text, add_special_tokens=False)
    assert streamed(texts, tokens) == tokenizer.decode(tokens)  # it has no token for some bytes


@pytest.mark.real
def test_no_piece_ends_within_a_character(real_model: Path) -> None:
    tokenizer, texts = real(real_model)
    stream = texts.stream(())
    pieces = [stream.add(token) for token in tokenizer.encode("a😀é東")]
    assert "" in pieces  # held back
    assert "".join(pieces) == "a😀é東"


@given(st.binary(max_size=20))
def test_spaces_spelled_otherwise_are_spaces(data: bytes) -> None:
    texts = TokenTexts(Spaced())
    assert streamed(texts, list(data)) == data.decode("utf-8", "replace")
    assert streamed(texts, [256, 257, 258, 97]) == " aé  a"


@given(TEXTS, TEXTS)
def test_a_tokenizer_that_only_decodes_is_read_by_what_each_token_adds(
    before: str, text: str
) -> None:
    tokens = list(text.encode())
    assert streamed(TokenTexts(Plain()), tokens, list(before.encode())) == text
