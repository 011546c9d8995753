from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_tools.decoding.answers import (
    HELD_FROM,
    LEAST_CHARS,
    TIMES,
    Answer,
    AnswerHole,
    TextHole,
    said_again,
)


def pieces(data: Any, text: str) -> list[str]:
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=40)))
    return [text[a:b] for a, b in pairwise([0, *cuts, len(text)])]


def said(answer: Answer, texts: list[str]) -> str:
    return "".join([*(answer.feed(text) for text in texts), answer.finish()])


@pytest.mark.parametrize(
    ("written", "answer"),
    [
        ('He said, "Hi" to her."}', 'He said, "Hi" to her.'),
        ('He said, "Hi", and left."}', 'He said, "Hi", and left.'),
        ('"Yes" is yes."}', '"Yes" is yes.'),
        ('It is "x" }', 'It is "x'),
        ('Four."\n}', "Four."),
        ('Four.", "sources": [1]}', "Four."),
        ('Four."', "Four."),
        ('Four." ', "Four."),
        ('a \\"b\\" c"}', 'a "b" c'),
    ],
)
def test_only_a_quote_that_ends_the_object_or_begins_a_member_ends_an_answer(
    written: str, answer: str
) -> None:
    reader = Answer(AnswerHole())
    assert json.loads(f'"{said(reader, list(written))}"') == answer
    assert reader.done


@given(st.text("ab .", max_size=LEAST_CHARS - 1), st.data())
def test_what_does_not_go_round_is_said_whole_whatever_its_pieces_are(text: str, data: Any) -> None:
    answer = Answer(TextHole("</final_answer>"))
    assert said(answer, pieces(data, f"{text}</final_answer>")) == text
    assert answer.done


@given(st.text("abc ", max_size=60), st.text("abc ", min_size=1, max_size=150), st.data())
def test_what_goes_round_ends_after_the_first_round(before: str, piece: str, data: Any) -> None:
    text = before + piece * (LEAST_CHARS // len(piece) + TIMES + 1)
    texts = pieces(data, text)
    answer = Answer(TextHole("</final_answer>"))
    whole = said(answer, texts)
    assert answer.done and text.startswith(whole)
    longest = max(map(len, texts))
    assert len(whole) < len(before) + len(piece) + HELD_FROM + longest
    assert len(whole) + longest >= min(len(before), 1)


@given(st.text("ab", max_size=40), st.text("ab ", min_size=1, max_size=150), st.integers(2, 99))
def test_a_run_of_one_piece_is_found_from_its_beginning(
    before: str, piece: str, times: int
) -> None:
    text = before + piece * times
    found = said_again(text)
    if len(piece) * times < HELD_FROM:
        return
    assert found is not None
    begin, length = found
    assert begin + 2 * length <= len(text)
    assert all(text[at] == text[at + length] for at in range(begin, len(text) - length))


@given(st.text(min_size=1, max_size=60))
def test_what_is_never_said_twice_is_not_said_again(text: str) -> None:
    assert said_again("".join(f"{number}{text}" for number in range(30, 40))) is None
