"""``read_artifact``: pages through what a session has kept."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_tools.tools import ToolContext, ToolResult, execute, read_artifact

TOOL = read_artifact()
NEXT = re.compile(r"\n\[characters (\d+) to (\d+) of (\d+); the next page begins at offset (\d+)\]")
LAST = re.compile(r"\n\[characters (\d+) to (\d+) of (\d+); this is the end\]")


def read(kept: Mapping[str, str] | None, shown: int | None = None, **arguments: Any) -> ToolResult:
    async def main() -> ToolResult:
        return await execute(
            TOOL, arguments, ToolContext(artifacts=kept, shown_chars=shown), timeout=120
        )

    return anyio.run(main)


def test_a_page_says_where_the_next_one_begins() -> None:
    kept = {"k": "0123456789"}
    first = read(kept, id="k", length=4)
    assert first.content == "0123\n[characters 0 to 4 of 10; the next page begins at offset 4]"
    last = read(kept, id="k", offset=8, length=4)
    assert last.content == "89\n[characters 8 to 10 of 10; this is the end]"
    assert read({"k": ""}, id="k").content == "\n[characters 0 to 0 of 0; this is the end]"


@given(
    st.text(st.characters(exclude_characters="[", exclude_categories=["Cs"])).filter(len),
    st.integers(1, 40),
    st.none() | st.integers(100, 200),
)
def test_the_pages_together_are_the_whole_and_none_is_cut(
    text: str, length: int, shown: int | None
) -> None:
    kept, offset, whole = {"k": text}, 0, ""
    while True:
        content = read(kept, shown, id="k", offset=offset, length=length).content
        assert content is not None
        assert shown is None or len(content) <= shown
        notice = NEXT.search(content)
        whole += content[: content.rindex("\n[")]
        if notice is None:
            assert LAST.search(content)
            break
        assert int(notice[4]) > offset
        offset = int(notice[4])
    assert whole == text


def test_an_id_that_is_not_there_gives_the_same_error_wherever_it_is_asked() -> None:
    errors = {
        read(kept, id=key).error
        for kept in (None, {}, {"other": "x"})
        for key in ("k", "0" * 32, "../secret", "'; drop", "é")
    }
    (error,) = errors
    assert error is not None and error.code == "tool_error"
    assert "no such artifact" in error.message


@pytest.mark.parametrize("offset", [10, 11, 10**30])
def test_an_offset_beyond_the_end_is_told_with_the_size(offset: int) -> None:
    error = read({"k": "0123456789"}, id="k", offset=offset).error
    assert error is not None and "10 characters" in error.message
