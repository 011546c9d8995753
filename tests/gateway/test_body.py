"""A client's body is read strictly, and one error names one field."""

from __future__ import annotations

from typing import Any

import pytest

from mlx_tools.gateway.body import (
    Body,
    SamplingBody,
    TokenLimit,
    Whole,
    answer_schema,
    json_object,
    read,
    unknown_fields,
)
from mlx_tools.gateway.request import ApiError
from tests.tables import table


class Part(Body):
    text: str


class Sampled(SamplingBody):
    parts: list[Part]
    stop: str | list[str] | None = None


@pytest.mark.parametrize(
    ("value", "param"),
    [
        ({}, "parts"),
        ({"parts": 1}, "parts"),
        ({"parts": [{"text": "a"}, {"text": 1}]}, "parts[1].text"),
        ({"parts": [{}]}, "parts[0].text"),
        ({"parts": [], "temperature": "1"}, "temperature"),
        ({"parts": [], "temperature": 3}, "temperature"),
        ({"parts": [], "seed": True}, "seed"),
        ({"parts": [], "seed": 10**30}, "seed"),
        ({"parts": [], "stop": 5}, "stop"),
    ],
)
def test_the_field_that_is_wrong_is_named(value: Any, param: str) -> None:
    with pytest.raises(ApiError) as told:
        read(Sampled, value)
    assert (told.value.status, told.value.param) == (400, param)
    assert param in str(told.value)


def test_what_is_sampled_with_goes_on_as_it_came_and_nothing_else_does() -> None:
    body = read(Sampled, {"parts": [], "temperature": 0, "top_p": None, "min_p": 0.1, "extra": 1})
    assert body.sampling() == {"temperature": 0, "min_p": 0.1}
    assert unknown_fields(body, ()) == ("extra",)
    assert unknown_fields(body, {"extra"}) == ()


DEEP = f'{{"a": {"[" * 100_000}{"]" * 100_000}}}'


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", '{"a": "\\ud800"}', '{"a": NaN}', '{"a": [1e999]}'),
        pytest.param(DEEP, id="deep"),
    ],
)
def test_what_is_no_object_that_can_be_written_again_is_refused(text: str) -> None:
    with pytest.raises(ApiError) as told:
        json_object(text, "the body is")
    assert told.value.status == 400


def test_an_answer_is_held_to_all_of_its_schema() -> None:
    with pytest.raises(ApiError):
        answer_schema({"type": "object", "properties": {"to": {"pattern": "^(?!a)b$"}}}, "schema")


class Counted(Body):
    limit: TokenLimit = None
    count: Whole | None = None


@table(
    ("value", "limit"),
    [(5, 5), (100.0, 100), (-1, None), (0, None), (0.0, None), (None, None), (-1.0, None)],
)
def test_a_limit_of_tokens_may_be_none_and_written_as_a_float(value: Any, limit: Any) -> None:
    body = read(Counted, {"limit": value, "count": value})
    assert body.limit == limit
    assert body.count == value and not isinstance(body.count, float)


@table("value", [(-2,), (1.5,), (True,), (False,), ("5",)])
def test_what_is_no_limit_of_tokens_is_refused(value: Any) -> None:
    with pytest.raises(ApiError):
        read(Counted, {"limit": value})
