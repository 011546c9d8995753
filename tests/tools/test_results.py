"""The result of a tool, as text."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import ipaddress
import itertools
import json
import pathlib
import uuid
from collections import OrderedDict, deque, namedtuple
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, HttpUrl, SecretStr

from mlx_tools.tools.executor import ResultError, to_text
from tests.tables import table


class Kind(enum.Enum):
    A = "a"
    N = 1


class Word(enum.StrEnum):
    W = "w"


@dataclasses.dataclass
class Pair:
    left: int
    right: Any


class Page(BaseModel):
    at: HttpUrl
    host: ipaddress.IPv4Address
    key: SecretStr
    more: set[int] = {3}


class Model(BaseModel):
    when: datetime.date
    kind: Kind = Kind.A


Row = namedtuple("Row", "a b")


class Array:
    def tolist(self) -> list[int]:
        return [1, 2]


@table(
    ("value", "text"),
    [
        ("", ""),
        ("as it is\n\u2028", "as it is\n\u2028"),
        (None, "null"),
        (True, "true"),
        (391, "391"),
        (0.5, "0.5"),
        ("é", "é"),
        ({"é": ["<&>", 1, None]}, '{"é":["<&>",1,null]}'),
        ((1, 2), "[1,2]"),
        ({3, 1, 2}, "[1,2,3]"),
        (deque([1]), "[1]"),
        (range(3), "[0,1,2]"),
        (OrderedDict(a=1), '{"a":1}'),
        (Row(1, 2), "[1,2]"),
        (Array(), "[1,2]"),
        (Kind.A, "a"),
        (Kind.N, "1"),
        (Word.W, "w"),
        ([Kind.A, Word.W], '["a","w"]'),
        (Pair(1, Pair(2, Kind.A)), '{"left":1,"right":{"left":2,"right":"a"}}'),
        (Model(when=datetime.date(2026, 11, 21)), '{"when":"2026-11-21","kind":"a"}'),
        (
            Page(at="https://a.example/b", host="10.0.0.1", key="secret"),  # type: ignore[arg-type]
            '{"at":"https://a.example/b","host":"10.0.0.1","key":"**********","more":[3]}',
        ),
        (
            [ipaddress.ip_address("::1"), Pair(1, SecretStr("s"))],
            '["::1",{"left":1,"right":"**********"}]',
        ),
        (datetime.datetime(2026, 11, 21, 10, tzinfo=datetime.UTC), '"2026-11-21T10:00:00Z"'),
        (datetime.timedelta(minutes=1.5), '"PT1M30S"'),
        (decimal.Decimal("1.50"), '"1.50"'),
        (uuid.UUID(int=1), '"00000000-0000-0000-0000-000000000001"'),
        (pathlib.PurePosixPath("a/b"), '"a/b"'),
        ({datetime.date(2026, 11, 21): 1, Kind.A: {2: 3}}, '{"2026-11-21":1,"a":{"2":3}}'),
        ({True: 1, None: 2, 1.5: 3}, '{"true":1,"null":2,"1.5":3}'),
        ("half \ud83d and \ud83d\ude00", "half \ufffd and 😀"),
        (["\udcff"], '["\ufffd"]'),
    ],
)
def test_a_string_is_itself_and_anything_else_json(value: Any, text: str) -> None:
    assert to_text(value) == text


def circle() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


def deep() -> list[Any]:
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]
    return value


async def nothing() -> None: ...


@table(
    ("value", "what"),
    [
        (float("nan"), "JSON"),
        ({"a": [float("inf")]}, "JSON"),
        (b"abc", "bytes"),
        (object(), "type object"),
        (Pair, "type type"),
        (print, "type builtin_function_or_method"),
        ((n for n in range(3)), "type generator"),
        (itertools.count(), "type count"),
        (Page.model_construct(at=object()), "JSON"),
        (circle(), "JSON"),
        ([10**5000], "JSON"),
        (deep(), "too deep"),
    ],
)
def test_what_is_no_data_is_refused(value: Any, what: str) -> None:
    with pytest.raises(ResultError, match=what):
        to_text(value)


def test_a_coroutine_is_closed_and_refused() -> None:
    with pytest.raises(ResultError, match="type coroutine"):
        to_text(nothing())


JSON: Any = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(JSON)
def test_json_values_come_back_from_the_text(value: Any) -> None:
    text = to_text(value)
    assert (text if isinstance(value, str) else json.loads(text)) == value
