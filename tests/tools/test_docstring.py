"""Docstrings: what they say of a function and of its parameters."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mlx_tools.tools.signature import Docstring, parse_docstring
from tests.tables import table


@table(
    ("text", "expected"),
    [
        (None, Docstring()),
        ("", Docstring()),
        ("One line.", Docstring("One line.")),
        ("A line\nthat goes on.\n\n\nMore.", Docstring("A line that goes on.\n\nMore.")),
        ("Kinds:\n\n- one\n- two", Docstring("Kinds:\n\n- one\n- two")),
        ("Note: this is a sentence.", Docstring("Note: this is a sentence.")),
        ("Args: none are needed.", Docstring("Args: none are needed.")),
        ("What.\n\nReturns:\n    args: not these\n", Docstring("What.")),
        ("What.\n\nArgs:\n    a: A.\n\nAfter all.", Docstring("What.", {"a": "A."})),
        (
            "What.\n\nArgs:\n    *rest: The rest.\n"
            "    f (Callable[[int], str], optional): Some: f.\n",
            Docstring("What.", {"rest": "The rest.", "f": "Some: f."}),
        ),
        (
            "What.\n\nArguments:\n    a: A.\n\n        With a blank line.\n    b:\n        B.\n",
            Docstring("What.", {"a": "A. With a blank line.", "b": "B."}),
        ),
        (
            "What.\n\nParameters\n----------\nx, y : float\n    Both.\n\n"
            "Returns\n-------\nint\n    R.",
            Docstring("What.", {"x": "Both.", "y": "Both."}),
        ),
        (
            "What.\n\n:param int a: A\n  goes on.\n:type a: int\n:raises E: never\n:parameter b: B",
            Docstring("What.", {"a": "A goes on.", "b": "B"}),
        ),
        ("What.\n\n@param a: A.", Docstring("What.", {"a": "A."})),
        (":param a: A.", Docstring("", {"a": "A."})),
        ("Args:\n        a: A.\n        b (int): B.\n    ", Docstring("", {"a": "A.", "b": "B."})),
        ("Args:\na: A\n  goes on.\n\nReturns:\nb: not this", Docstring("", {"a": "A goes on."})),
        ("Args:\n    a: A.\nReturns:\n    b: not this", Docstring("", {"a": "A."})),
    ],
)
def test_a_docstring_is_read(text: str | None, expected: Docstring) -> None:
    assert parse_docstring(text) == expected


@given(st.text(alphabet="Args:Paramets-\n #:par x y ()*", max_size=200))
def test_any_text_is_read_and_nothing_is_added(text: str) -> None:
    found = parse_docstring(text)
    words = " ".join([found.text, *found.parameters, *found.parameters.values()]).split()
    assert all(word in text for word in words)
