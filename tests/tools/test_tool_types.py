"""Types and functions that are somebody else's code, and what is said of them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest

from mlx_tools.errors import ToolDefinitionError
from mlx_tools.tools import Registry, tool


class Broken:
    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        raise ImportError("email-validator is not installed")


class Unwritable:
    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        return handler(int)

    @classmethod
    def __get_pydantic_json_schema__(cls, core: Any, handler: Any) -> Any:
        raise ZeroDivisionError("no schema")


@pytest.mark.parametrize(
    ("hint", "said"),
    [
        (Broken, "ImportError: email-validator is not installed"),
        (Unwritable, "ZeroDivisionError: no schema"),
        (Callable[[int], int], "Cannot generate a JsonSchema"),
    ],
)
def test_whatever_a_type_raises_names_the_parameter(hint: Any, said: str) -> None:
    def sends(count: int, to: Any) -> None:
        """Sends it."""

    sends.__annotations__["to"] = hint
    with pytest.raises(ToolDefinitionError, match=rf"^sends: the parameter to has no .*{said}"):
        Registry([tool(sends)])


class Counter:
    """Counts things."""

    def __call__(self, text: str) -> int:
        """Counts the words of a text.

        Args:
            text: The text to count in.
        """
        return len(text.split())


class Plain:
    """Says it."""

    def __call__(self, text: str) -> str:
        return text


def repeated(text: str, times: int = 2) -> str:
    """Repeats a text.

    Args:
        text: What is repeated.
    """
    return text * times


@pytest.mark.parametrize(
    ("function", "description", "of_text"),
    [
        (Counter(), "Counts the words of a text.", "The text to count in."),
        (Plain(), "Says it.", None),
        (functools.partial(repeated, times=3), "Repeats a text.", "What is repeated."),
        (functools.partial(Counter()), "Counts the words of a text.", "The text to count in."),
        (functools.lru_cache(repeated), "Repeats a text.", "What is repeated."),
        (Counter().__call__, "Counts the words of a text.", "The text to count in."),
    ],
)
def test_what_is_called_says_what_it_is_for(
    function: Any, description: str, of_text: str | None
) -> None:
    spec = tool(name="count")(function).spec
    assert spec.description == description
    assert spec.parameters["properties"]["text"].get("description") == of_text
