"""What a request mentions: always a piece of it, and what a person would see in it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_tools.decoding.amounts import converted, numbers
from mlx_tools.decoding.mentions import MAX_MENTIONS, enumerations, texts

PIECES = (
    "Paris, New York and 3 'red apples' $5,000 5% 2x^2 + 1 of the King's a@b.com [1, 2] ... ; - --"
    " e.g. 10km 2 weeks Dr. Å \u2212 \n twenty half , ( ) \" ' ` “x” 1e9 .5 007"
)
WORDS = st.sampled_from(PIECES.split(" "))
REQUESTS = st.lists(WORDS, max_size=30).map(" ".join) | st.text(max_size=120)


@given(REQUESTS)
def test_every_text_is_a_piece_of_the_request(request: str) -> None:
    found = texts(request)
    assert len(found) <= MAX_MENTIONS
    for mention in found:
        assert 0 <= mention.start <= mention.end <= len(request)
        assert mention.text in request
    for run in enumerations(request):
        assert len(run) >= 2
        assert all(mention.text in request for mention in run)


@given(REQUESTS)
def test_every_number_is_one_in_json_with_its_place(request: str) -> None:
    for mention in numbers(request):
        assert isinstance(json.loads(mention.text), int | float)
        assert 0 <= mention.start < mention.end <= len(request)


@pytest.mark.parametrize(
    ("request_", "wanted"),
    [
        ("Find the King of France", {"King of France", "France"}),
        ("a flight to Denver, Colorado with", {"Denver, Colorado", "Denver", "Colorado"}),
        ("the derivative of 3x^2 + 2x - 1.", {"3x^2 + 2x - 1"}),
        ("mail 'Let's meet at 10' now", {"Let's meet at 10"}),
        ("write to john.doe@example.com.", {"john.doe@example.com"}),
        ("play on Windows 10 for 2 weeks", {"Windows 10", "2 weeks"}),
        ("see Germany's team", {"Germany"}),
        ("found in the plasma membrane of cells", {"plasma membrane", "plasma membrane of cells"}),
        ("on July 4, 2022 at noon", {"July 4, 2022"}),
    ],
)
def test_what_a_request_names_is_seen_whole(request_: str, wanted: set[str]) -> None:
    assert wanted <= {mention.text for mention in texts(request_)}


@pytest.mark.parametrize(
    ("request_", "wanted"),
    [
        ("$50,000 at 5% for three years", ["50000", "5", "0.05", "3"]),
        ("1.5 million people and two apples", ["1500000", "1.5", "2"]),
        ("a=1, b=-3", ["1", "-3"]),
        ("at 298K in 10 m^3", ["298", "10"]),
        ("compounded monthly", ["12"]),
    ],
)
def test_numbers_are_read_as_they_are_meant(request_: str, wanted: list[str]) -> None:
    assert [mention.text for mention in numbers(request_)] == wanted


def test_a_number_is_converted_to_the_unit_that_is_asked_for() -> None:
    (minutes,) = numbers("for 3 minutes")
    found = converted(minutes, {"length", "second"})
    assert found is not None and found.text == "180"
    assert converted(minutes, {"minute"}) is None
    assert converted(minutes, {"kilogram"}) is None
    (years,) = numbers("over 2 years")
    months = converted(years, {"month"})
    assert months is not None and months.text == "24"


def test_lists_of_plain_words_are_seen() -> None:
    found = enumerations("I am efficient, organized, easy going and compassionate.")
    words = [[mention.text for mention in run] for run in found]
    assert ["efficient", "organized", "easy going", "compassionate"] in words
