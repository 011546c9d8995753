"""Java and JavaScript values, quirks of the official converters included."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_tools.evaluate.bfcl_literals import (
    JAVA_TYPES,
    JS_TYPES,
    MOST_CHARS,
    java_value,
    javascript_value,
)

AB = {"a": 1, "b": "c"}


@pytest.mark.parametrize(
    ("text", "kind", "element", "value"),
    [
        ("42", "integer", None, 42),
        ("-42", "short", None, -42),
        ("42L", "integer", None, "42L"),
        ("42L", "long", None, 42),
        ("42", "long", None, "42"),
        ("3.5f", "float", None, 3.5),
        ("3e2F", "float", None, 300.0),
        ("3.5", "float", None, "3.5"),
        ("3.5", "double", None, 3.5),
        ("true", "boolean", None, True),
        ("True", "boolean", None, "True"),
        ("'c'", "char", None, "'c'"),
        ('"a"', "String", None, '"a"'),
        ("x", "any", None, "x"),
        ('new ArrayList<String>(Arrays.asList("a", "b"))', "ArrayList", "String", ["a", "b"]),
        ("new ArrayList<>(Arrays.asList(1, x, true))", "ArrayList", None, [1, "x", True]),
        ("new ArrayList<Integer>() {{ add(1); add(2); }}", "ArrayList", "integer", [1, 2]),
        ("new ArrayList<>()", "ArrayList", "String", []),
        ("list", "ArrayList", "String", "list"),
        ("new int[]{1, 2,}", "Array", "integer", [1, 2]),
        ("new int[] { }", "Array", "integer", []),
        # The official converter leaves the quotes of an array's texts.
        ('new String[]{"a"}', "Array", "String", ['"a"']),
        ('new Object[]{1L, "a", 2.5f, 3}', "Array", None, [1, "a", 2.5, 3]),
        ("int[]{1}", "Array", "integer", "int[]{1}"),
        ("new HashMap<>()", "HashMap", None, {}),
        ('new HashMap<A, B>() {{ put("a", 1); put("b", "c"); }}', "HashMap", None, AB),
        ('new HashMap<A, B>() { { put("a",\n true); } }', "HashMap", None, {"a": True}),
        ("map", "HashMap", None, "map"),
        ("x", "Set", None, "x"),
    ],
)
def test_java_values(text: str, kind: str, element: str | None, value: Any) -> None:
    found = java_value(text, kind, element)
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "kind", "element", "value"),
    [
        ("'a'", "String", None, "a"),
        ("a", "String", None, "a"),
        ("\"a'", "String", None, "\"a'"),
        ("7", "integer", None, 7),
        ("7.0", "integer", None, "7.0"),
        ("7", "float", None, 7.0),
        ("7n", "Bigint", None, 7),
        ("true", "Boolean", None, True),
        ("[1, 'a', true]", "array", None, [1, "a", True]),
        ("[1.5, 2]", "array", "float", [1.5, 2.0]),
        ("new Array('a', 'b')", "array", "String", ["a", "b"]),
        ("[]", "array", "String", []),
        ("[[1, 2], [3]]", "array", "integer", [[1, 2], [3]]),
        ("[ [1] , [2]] more", "array", "any", [[1], [2]]),
        ("new Array([1, 2], [3])", "array", "integer", [[1, 2], [3]]),
        ("[[1], 2]", "array", "any", ["[1"]),
        ("names", "array", "String", "names"),
        ("{}", "dict", None, {}),
        ("{a: 1, 'b': 'c', \"d\": [1, 2]}", "dict", None, {"a": 1, "b": "c", "d": [1, 2]}),
        # It ends at its first closing brace.
        ("{a: {b: 1}, c: 2}", "dict", None, {"a": "{b: 1"}),
        ("options", "dict", None, "options"),
        ("x", "any", None, "x"),
    ],
)
def test_javascript_values(text: str, kind: str, element: str | None, value: Any) -> None:
    found = javascript_value(text, kind, element)
    assert found == value and type(found) is type(value)


KINDS = [
    *((java_value, kind) for kind in JAVA_TYPES),
    *((javascript_value, kind) for kind in JS_TYPES),
]
PIECES = ["[", "]", "],", "[[", ",", " ", "\n", "1", "'a'", "{", "}", ":", "new Array(", ")"]
PIECES += ["new ArrayList<", ">", "(Arrays.asList(", "()", "{{", "}}", "add(", 'put("', '",', "x"]
PIECES += ["new HashMap<", "new int[]{", "1L", "2f"]


@given(st.sampled_from(KINDS), st.lists(st.sampled_from(PIECES), max_size=12), st.booleans())
def test_a_value_is_of_its_type_or_the_text(
    kind: tuple[Any, str], pieces: list[str], typed: bool
) -> None:
    read, name = kind
    text = "".join(pieces)
    types = JAVA_TYPES if read is java_value else JS_TYPES
    found = read(text, name, "integer" if typed else None)
    assert type(found) is types[name] or found in (text, text.strip())


@pytest.mark.parametrize(
    "text",
    [
        "[[" + "1],[" * 2000,
        "[" * 8000,
        "new Array([" + "1],[" * 2000,
        "{" + "a" * 9000,
        "{" + "a:" * 4500,
        "{" + "a: b, " * 1500,
        "new HashMap<" * 800,
        'new HashMap<A>() {{ put("a", ' * 330,
        "new ArrayList<A>() {{ add(" * 380,
        "new ArrayList<A>(Arrays.asList(" * 320,
        "new ArrayList<A>() {{" + " " * 9000 + "x",
        "new ArrayList<A>() {{ " * 400,
        "new HashMap<A> () { { " * 400,
        "9" * 6000,
    ],
    ids=lambda text: text[:14],
)
def test_a_text_that_goes_on_for_ever_comes_to_an_end(text: str) -> None:
    assert len(text) <= MOST_CHARS
    for read, kind in KINDS:
        read(text, kind, None)
