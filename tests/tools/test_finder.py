"""The ranking of tools against a request."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Collection, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_tools.errors import MissingDependency
from mlx_tools.messages import ToolSpec
from mlx_tools.prompt import stems
from mlx_tools.tools import Finder, finder
from tests.tables import table

TOOLS = (
    ToolSpec("triangle_area", "Compute the area of a triangle."),
    ToolSpec("weather", "Forecast for a city."),
    ToolSpec("sendMail", "Send a message to a person."),
    ToolSpec(
        "book",
        "Reserve.",
        {"type": "object", "properties": {"hotel": {"description": "The name of the inn"}}},
    ),
)


@table(
    ("request_text", "names"),
    [
        ("What are the areas of these triangles?", ["triangle_area"]),
        ("mail a message", ["sendMail"]),
        ("an inn", ["book"]),
        ("please do it for me", []),
        ("", []),
        # nothing in a request is a query: neither operators of FTS5 nor its quotes
        ('weather" OR NOT (mail*) NEAR', ["weather", "sendMail"]),
        ("name:weather", ["weather", "book"]),
        ("\x00\ud800 weather", ["weather"]),
    ],
)
def test_a_request_finds_the_tools_that_share_a_word(request_text: str, names: list[str]) -> None:
    assert [tool.name for tool in Finder(TOOLS).hits(request_text)] == names


def test_a_word_that_most_tools_have_still_ranks_them() -> None:
    tools = [
        ToolSpec("file", "Anything."),
        ToolSpec("a", "A file."),
        ToolSpec("b", "A file, long."),
    ]
    assert [tool.name for tool in Finder(tools).hits("the file")] == ["file", "a", "b"]


def bm25(texts: Sequence[Sequence[str]], words: Collection[str]) -> list[float]:
    """Return the scores of texts as Robertson and Zaragoza have them (2009)."""
    mean = sum(map(len, texts)) / len(texts)
    scores = [0.0] * len(texts)
    for word in words:
        having = sum(word in text for text in texts)
        rarity = math.log(1 + (len(texts) - having + 0.5) / (having + 0.5))
        for number, text in enumerate(texts):
            times, norm = text.count(word), 1.2 * (0.25 + 0.75 * len(text) / mean)
            scores[number] += rarity * times * 2.2 / (times + norm) if times else 0
    return scores


WORDS = st.sampled_from(["lamp", "door", "file", "straße", "東京", "été", "4"])
TEXTS = st.lists(WORDS, max_size=6).map(" ".join)


@given(st.lists(TEXTS, min_size=1, max_size=6), TEXTS)
def test_scores_are_those_of_bm25(descriptions: list[str], request_text: str) -> None:
    tools = [ToolSpec(f"x{number}", text) for number, text in enumerate(descriptions)]
    texts = [finder.tool_text(tool).split() for tool in tools]
    wanted = bm25(texts, set(stems(request_text)))
    for tool, score in Finder(tools).matches(request_text):
        assert score == pytest.approx(wanted[int(tool.name[1:])], abs=1e-5)


def test_without_fts5_the_error_says_what_to_do() -> None:
    class WithoutFts5(sqlite3.Connection):
        def execute(self, sql: str, *rest: Any) -> sqlite3.Cursor:
            raise sqlite3.OperationalError("no such module: fts5")

    finder = Finder(TOOLS, lambda: sqlite3.connect(":memory:", factory=WithoutFts5))
    with pytest.raises(MissingDependency, match="no such module: fts5") as caught:
        finder.matches("weather")
    assert caught.value.hint == "this Python's SQLite has no FTS5: use another build of Python"


@given(st.text(), st.lists(st.text(), max_size=4))
def test_any_text_can_be_asked_for_and_described(
    request_text: str, descriptions: list[str]
) -> None:
    tools = [ToolSpec(f"t{number}", text) for number, text in enumerate(descriptions)]
    ranked = Finder(tools).matches(request_text)
    assert sorted(tool.name for tool, _ in ranked) == [tool.name for tool in tools]
    assert ranked == Finder(tools[::-1]).matches(request_text)
