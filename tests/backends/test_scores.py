"""Likelihoods as servers write them: which bytes a token stands for, and when that is not known."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_tools.backends import CompletionsBackend, TokenScore
from mlx_tools.backends.scores import ScoreReader, Spelling, alphabet, token_bytes
from tests.backends.asking import ask, json_values
from tests.backends.loopback import Connection, answers, serving

SPELLED = {byte: char for char, byte in alphabet().items()}


def spelled(data: bytes) -> str:
    return "".join(SPELLED[byte] for byte in data)


def content(*rows: list[Any]) -> dict[str, Any]:
    """As mlx-lm's server writes them: unsorted, with ids."""
    return {"logprobs": {"content": [{"top_logprobs": row} for row in rows]}}


def one(token: Any, logprob: Any = -1.0, **more: Any) -> dict[str, Any]:
    return {"token": token, "logprob": logprob, **more}


@given(st.text(st.characters(codec="utf-8"), min_size=1, max_size=8), st.data())
def test_tokens_that_split_a_character_are_its_bytes_and_join_to_the_text(
    text: str, data: st.DataObject
) -> None:
    raw = text.encode()
    cuts = sorted({0, len(raw), *data.draw(st.lists(st.integers(0, len(raw)), max_size=6))})
    parts = [raw[a:b] for a, b in pairwise(cuts)]
    rows = [[one(spelled(part), -0.1, id=7), one("Ġno", -9.0)] for part in parts]
    read = ScoreReader().read(content(*rows))
    assert b"".join(row[0].data for row in read) == raw
    assert [row[0].text for row in read] == [part.decode("utf-8", "replace") for part in parts]


def test_the_byte_level_alphabet_is_gpt2s() -> None:
    assert len(alphabet()) == 256 and sorted(alphabet().values()) == list(range(256))
    assert [SPELLED[byte] for byte in b" \n\t!\xad\x7f\xff"] == list("ĠĊĉ!Ńġÿ")


def test_a_byte_that_sentencepiece_falls_back_to_is_that_byte() -> None:
    for byte in range(256):
        assert token_bytes(f"<0x{byte:02X}>", Spelling.PIECES) == bytes([byte])


@given(st.text(st.characters(codec="utf-8", exclude_characters="▁\ufffd"), max_size=12))
def test_every_text_comes_back_from_its_sentencepiece_spelling(text: str) -> None:
    token = text.replace(" ", "▁")
    assert token_bytes(token, Spelling.PIECES) == text.encode() or token.startswith("<0x")


def test_bytes_that_the_server_gives_are_taken_as_they_are() -> None:
    row = [one("\ufffd", -0.1, bytes=[0xE2, 0x80]), one(" Größe", -3.0, bytes=[*" Größe".encode()])]
    (read,) = ScoreReader().read(content(row))
    assert [score.data for score in read] == [b"\xe2\x80", " Größe".encode()]


def test_alternatives_come_best_first_with_id_text_and_bytes() -> None:
    row = [one("Ġno", -2.0, id=3), one("âĢ", -0.5, id=4), one("<|im_end|>", -9.0, id=2)]
    assert ScoreReader().read(content(row)) == (
        (
            TokenScore("\ufffd", -0.5, b"\xe2\x80", 4),
            TokenScore(" no", -2.0, b" no", 3),
            TokenScore("<|im_end|>", -9.0, b"<|im_end|>", 2),
        ),
    )


@pytest.mark.parametrize(
    ("tokens", "data"),
    [
        (["Ã©", "Ġa"], "é"),
        (["é", "▁a"], "é"),
        (["é", "a b"], "é"),
        (["<0xE2>", "a"], b"\xe2"),
        (["Ã©", "Ġa", "<｜end▁of▁sentence｜>"], "é"),
        (["▁▁x", "Ġ"], "  x"),
        (["{", '"'], "{"),
        (["北京", "é"], "北京"),
    ],
)
def test_the_spelling_is_told_by_what_the_tokens_show(tokens: list[str], data: str | bytes) -> None:
    row = [one(token, -float(place)) for place, token in enumerate(tokens)]
    (read,) = ScoreReader().read(content(row))
    assert read[0].data == (data if isinstance(data, bytes) else data.encode())


def test_a_spelling_that_cannot_be_told_counts_as_no_likelihoods_until_it_is_known() -> None:
    reader, doubtful = ScoreReader(), content([one("Ã©"), one("x")])
    assert reader.read(doubtful) == ()
    assert reader.read(content([one("Ġa"), one("x")]))
    assert reader.read(doubtful)[0][0].data == "é".encode()


def test_tables_hold_plain_text_and_what_they_have_lost_is_left_out() -> None:
    def tables(*rows: dict[str, Any]) -> dict[str, Any]:
        return {"logprobs": {"tokens": ["x"] * len(rows), "top_logprobs": list(rows)}}

    (row,) = ScoreReader().read(tables({" Ġé": -0.5, "\ufffd": -3.0, "b": -0.1}))
    assert [score.data for score in row] == [b"b", " Ġé".encode()]
    assert ScoreReader().read(tables({"\ufffd": -0.1, "b": -3.0})) == ()


def test_tables_by_the_numbers_of_tokens_are_no_likelihoods() -> None:
    choice = {"logprobs": {"tokens": [311], "top_logprobs": [{"311": -0.1, "312": -2.0}]}}
    assert ScoreReader().read(choice) == ()


@given(
    json_values("content", "top_logprobs", "token", "logprob", "bytes", "id", "tokens", "logprobs")
)
def test_no_json_value_breaks_the_reading_of_likelihoods(value: Any) -> None:
    for row in ScoreReader().read({"logprobs": value}):
        assert row and all(isinstance(score.data, bytes) for score in row)


@pytest.mark.parametrize("logprob", [float("nan"), float("-inf"), -(10**400), True, None, "-1"])
def test_what_is_no_likelihood_is_none(logprob: Any) -> None:
    (read,) = ScoreReader().read(content([one("a"), one("b", logprob)]))
    assert [score.text for score in read] == ["a"]


def test_two_tokens_are_asked_for_and_told_each_with_its_alternatives() -> None:
    def complete(request: Connection) -> None:
        assert request.body["max_tokens"] == 2 and request.body["stream"] is False
        rows = [[one("Ġ7", -0.1, id=5), one("x", -3.0)], [one("}", -0.2), one(",", -2.0)]]
        choice = {"text": " 7}", "finish_reason": "length", **content(*rows)}
        usage = {"prompt_tokens": 4, "completion_tokens": 2}
        request.answer(200, {"choices": [choice], "usage": usage})

    with serving(complete) as server:
        text, last = ask(CompletionsBackend(server.url), max_tokens=2, top_logprobs=11)
    assert (text, last.finish_reason, last.edited) == (" 7}", "length", False)
    assert [row[0].data for row in last.scores] == [b" 7", b"}"]
    assert last.scores[0][0].id == 5
    assert last.usage is not None and last.usage.completion_tokens == 2


def test_the_bias_of_a_request_is_sent_beside_the_forbidden_tokens() -> None:
    with serving(answers(200, {"choices": [{"text": "x"}]})) as server:
        backend = CompletionsBackend(server.url, forbidden_tokens=(5, 6))
        ask(backend, logit_bias={6: 2, 7: -1.5}, top_logprobs=3)
        assert server.bodies[0]["logit_bias"] == {"5": -100, "6": 2, "7": -1.5}
