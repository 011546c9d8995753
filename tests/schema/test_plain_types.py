"""Schemas and values of plain annotations are pydantic's, and made without it."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from typing import Any, Literal, Optional, Union

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlx_tools.tools import signature
from mlx_tools.tools.plain_types import NotPlain, PlainArguments, build_schema
from mlx_tools.tools.signature import Arguments, InvalidArguments

EMPTY = inspect.Parameter.empty

LITERALS = st.one_of(
    st.lists(st.sampled_from(["a", "b", "\u00e9", ""]), min_size=1, max_size=3),
    st.lists(st.integers(-2, 2), min_size=1, max_size=3),
).map(lambda values: Literal[tuple(values)])


def more_types(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        inner.map(lambda part: list[part]),  # type: ignore[valid-type]
        inner.map(lambda part: dict[str, part]),  # type: ignore[valid-type]
        inner.map(lambda part: Optional[part]),  # noqa: UP045
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: Union[tuple(parts)]),  # noqa: UP007
    )


TYPES = st.recursive(
    st.sampled_from([str, int, float, bool, Any, list, dict]) | LITERALS, more_types, max_leaves=4
)
VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-3, 3),
        st.integers(),
        st.floats(),
        st.sampled_from(["a", "b", "1", ""]),
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner),
    max_leaves=4,
)
FIELDS = st.dictionaries(
    st.sampled_from(["a", "b", "model_x", "type"]), st.tuples(TYPES, st.just(EMPTY) | VALUES)
)


@settings(max_examples=30)
@given(FIELDS, st.data())
def test_schemas_and_values_are_those_of_pydantic(fields: Any, data: Any) -> None:
    try:
        schema, plain = build_schema(fields), PlainArguments(fields)
    except NotPlain:
        return
    model, expected = signature.build_model(fields)
    assert json.dumps(signature.compact(schema)) == json.dumps(signature.compact(expected))
    arguments = {name: data.draw(VALUES) for name in fields if data.draw(st.booleans())}
    try:
        values = plain.convert(arguments)
    except NotPlain:
        return
    made = model.model_validate(dict(arguments))
    names = enumerate(fields)
    assert repr(values) == repr(
        {name: getattr(made, signature.field_name(at)) for at, name in names}
    )


def test_most_tools_of_a_person_are_plain() -> None:
    def look(
        path: str,
        lines: int = 10,
        scale: float = 1,
        deep: bool = False,
        names: list[str] | None = None,
        kind: Literal["file", "folder"] = "file",
        options: dict[str, Any] | None = None,
        either: int | str = "all",
        *,
        anything: Any = None,
    ) -> str:
        return path

    assert build_schema(Arguments(look, "look").fields)["required"] == ["path"]


def test_what_does_not_fit_is_told_as_pydantic_tells_it() -> None:
    def add(a: int, b: float = 1.0) -> float:
        return a + b

    arguments = Arguments(add, "add")
    assert arguments.convert({"a": 1, "b": 2}) == {"a": 1, "b": 2.0}
    assert arguments.convert({"a": 2.0}) == {"a": 2, "b": 1.0}
    with pytest.raises(InvalidArguments, match=r"a: Input should be a valid integer"):
        arguments.convert({"a": "x"})
    with pytest.raises(InvalidArguments, match=r"a: Field required; c: Extra inputs"):
        arguments.convert({"c": 1})


def test_a_default_is_not_shared_between_calls() -> None:
    def add(names: list[str] = []) -> None:  # noqa: B006
        names.append("x")

    arguments = Arguments(add, "add")
    add(**arguments.convert({}))
    assert arguments.convert({}) == {"names": []}


PROGRAM = """
import sys
from mlx_tools import Controller, Policy, tool
from mlx_tools.testing import ScriptedBackend, answer, call

@tool(effects={"read"})
def add(a: int, b: float = 1.5, names: list[str] | None = None) -> float:
    "Adds."
    return a + b

backend = ScriptedBackend(call("add", a=1), answer("2.5"))
outcome = Controller(backend, [add], Policy(allow=["*"])).run_sync("What is it?")
assert outcome.answer == "2.5" and outcome.calls[0].status == "ok", outcome
print(sorted(name for name in sys.modules if name.startswith("pydantic")))
"""


def test_a_first_answer_with_a_plain_tool_does_not_import_pydantic() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr
