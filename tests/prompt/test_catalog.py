"""The tools as the model sees them: signatures, in bounds, whatever the schema holds."""

from __future__ import annotations

import re
from cProfile import Profile
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_tools.messages import ToolSpec
from mlx_tools.prompt.catalog import (
    MAX_LINE_CHARS,
    MIN_SHOWN_TOOLS,
    build_catalog,
    count_tokens,
    parse_tool_names,
    signature,
)
from mlx_tools.tools import Finder
from tests.tables import table


def tool(name: str = "f", description: str = "", /, **parameters: Any) -> ToolSpec:
    return ToolSpec(name, description, {"type": "object", **parameters})


def typed(schema: Any, **root: Any) -> str:
    """The line of a tool with a required argument ``x`` of this schema."""
    line = signature(tool(properties={"x": schema}, required=["x"], **root))
    return line.removeprefix("f(x: ").removesuffix(")")


def test_a_signature_names_arguments_types_and_what_the_tool_does() -> None:
    spec = tool(
        "weather",
        "Forecast for a city.",
        properties={
            "city": {"type": "string", "description": "Its name."},
            "days": {"type": "integer", "default": 3},
            "unit": {"enum": ["c", "f"]},
        },
        required=["city"],
    )
    assert signature(spec) == (
        'weather(city: string, days?: integer = 3, unit?: "c"|"f") - Forecast for a city. '
        "city: Its name."
    )


@table(
    ("schema", "written"),
    [
        ({"type": "string"}, "string"),
        ({"type": "string", "format": "date"}, "string date"),
        ({"type": "integer", "minimum": 1, "maximum": 9}, "integer 1..9"),
        ({"type": "number", "minimum": 0}, "number"),
        ({"type": ["string", "null"]}, "string|null"),
        ({"enum": ["a", 1, None, True]}, '"a"|1|null|true'),
        ({"const": "x"}, '"x"'),
        ({"type": "array", "items": {"type": "string"}}, "string[]"),
        ({"type": "array", "items": {"enum": ["a", "b"]}}, '("a"|"b")[]'),
        ({"type": "array"}, "any[]"),
        ({"type": "object"}, "object"),
        ({"additionalProperties": {"type": "number"}}, "{[name]: number}"),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, "string|integer"),
        ({"oneOf": [{"type": "string"}, {"type": "string"}]}, "string"),
        ({"allOf": [{"type": "string"}]}, "string"),
        ({}, "any"),
        (True, "any"),
        ("nonsense", "any"),
        ({"type": 7}, "any"),
        (
            {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {"sku": {"type": "string"}, "n": {"type": "integer"}},
                    "required": ["sku"],
                },
            },
            "{sku: string, n?: integer}[]",
        ),
    ],
)
def test_a_schema_is_written_as_a_type(schema: Any, written: str) -> None:
    assert typed(schema) == written


def test_references_are_followed_and_a_circle_ends_in_its_name() -> None:
    tree = {
        "type": "object",
        "properties": {"value": {"type": "integer"}, "left": {"$ref": "#/$defs/tree"}},
        "required": ["value"],
    }
    assert typed({"$ref": "#/$defs/tree"}, **{"$defs": {"tree": tree}}) == (
        "{value: integer, left?: tree}"
    )
    assert typed({"$ref": "#/$defs/a"}, **{"$defs": {"a": {"$ref": "#/$defs/a"}}}) == "a"
    assert typed({"$ref": "https://example.com/x"}) == "any"
    assert typed({"$ref": "#/nowhere"}) == "any"


@pytest.mark.parametrize(
    ("description", "said"),
    [
        ("One.\nTwo.\n\nThree.", "One. Two."),
        ("  a\u2028b\u202e\x00c\t d ", "a b c d"),
        ("x" * 1_000_000, "x" * 239 + "…"),
        ("", ""),
    ],
)
def test_a_description_is_one_line_of_its_first_paragraph(description: str, said: str) -> None:
    assert signature(tool("f", description)) == ("f()" + (f" - {said}" if said else ""))


def test_a_long_description_of_an_argument_is_left_out() -> None:
    spec = tool(properties={"a": {"description": "x" * 200}, "b": {"description": "short"}})
    assert signature(spec) == "f(a?: any, b?: any) - b: short."


def test_too_many_arguments_leave_the_required_ones() -> None:
    many = {f"argument_{number}": {"type": "string"} for number in range(100)}
    line = signature(tool("f", "Does it.", properties=many, required=["argument_99"]))
    assert line == "f(argument_99: string, …) - Does it."


# --- the budget ---

TOOLS = [tool(f"tool_{number}", "word " * 30, properties={"x": {}}) for number in range(20)]


SEARCH = tool("seek", "Finds tools. " * 20, properties={"text": {"type": "string"}})


@pytest.mark.parametrize(
    ("budget", "search", "least", "most"),
    [(500, None, 20, 20), (30, None, 1, 19), (0, None, 1, 1), (0, SEARCH, 2, 2)],
)
def test_a_tight_budget_shortens_all_before_it_hides_any_and_one_is_always_shown(
    budget: int, search: Any, least: int, most: int
) -> None:
    catalog = build_catalog(TOOLS, budget, search=search)
    shown = [name for name in catalog.shown_names if name != "seek"]
    assert [*shown, *catalog.hidden_names] == [spec.name for spec in TOOLS]
    assert least <= len(catalog.shown_names) <= most and len(catalog.lines) == len(
        catalog.shown_names
    )
    assert budget == 0 or sum(map(count_tokens, catalog.lines)) <= budget
    assert build_catalog([], budget, search=search).shown_names == ()


def test_a_shortlist_holds_the_best_that_fit_and_the_search_last() -> None:
    catalog = build_catalog(TOOLS, 300, best=lambda: TOOLS[::-1], search=SEARCH)
    assert catalog.search and catalog.shown_names[-1] == "seek"
    best = [spec.name for spec in TOOLS[::-1]]
    assert list(catalog.shown_names[:-1]) == best[: len(catalog.shown_names) - 1]
    assert list(catalog.hidden_names) == best[len(catalog.shown_names) - 1 :][::-1]
    assert len(catalog.shown_names) > MIN_SHOWN_TOOLS
    assert sum(count_tokens(f"{line}\n") for line in catalog.lines) <= 300
    assert count_tokens(catalog.lines[-1]) <= 300 // 4


def test_all_arguments_of_a_tool_on_a_shortlist_are_told() -> None:
    for budget in range(20, 400, 20):
        for line in build_catalog(TOOLS, budget, best=lambda: TOOLS).lines:
            assert re.match(r"tool_\d+\(x\?: any\) - word", line)


def test_where_all_fit_nothing_is_ranked_or_searched_and_names_are_read_off_the_lines() -> None:
    def best() -> list[ToolSpec]:
        raise AssertionError

    catalog = build_catalog(TOOLS, 500, best=best, search=SEARCH)
    assert (catalog.hidden_names, catalog.search, len(catalog.shown_names)) == ((), False, 20)
    assert tuple(parse_tool_names("\n".join(catalog.lines))) == catalog.shown_names
    assert parse_tool_names("3 more match.\nsay f(x)\n(a)\n") == []


def test_a_request_finds_tools_by_its_own_words_not_by_those_of_any_request() -> None:
    tools = [tool(name, f"Does the {name} for you, if you ask it to.") for name in ("lamp", "door")]
    tools += [tool(f"{verb}_file", f"Can {verb} the file at a path.") for verb in ("read", "write")]
    finder = Finder(tools)
    assert finder.hits("Could you please tell me what the time is?") == []
    # How many tools hold a word does not tell: *file* stands in as many as *you*.
    assert {one.name for one in finder.hits("Is there a file for me?")} == {
        "read_file",
        "write_file",
    }


LEAVES = [{}, True, False, None, 7, "x", [], {"type": "string"}, {"$ref": "#"}]
SCHEMAS = st.recursive(
    st.sampled_from([*LEAVES, {"$ref": "#/$defs/a"}]),
    lambda inner: st.one_of(
        st.fixed_dictionaries({"type": st.just("array"), "items": inner}),
        st.fixed_dictionaries(
            {
                "properties": st.dictionaries(st.text(max_size=5), inner, max_size=4),
                "required": st.one_of(inner, st.lists(st.text(max_size=5), max_size=3)),
            }
        ),
        st.lists(inner, max_size=3).map(lambda some: {"anyOf": some}),
        st.lists(inner, max_size=3).map(lambda some: {"allOf": some}),
        st.lists(inner, max_size=3).map(lambda some: {"enum": some, "examples": some}),
        inner.map(lambda one: {"additionalProperties": one, "default": one, "const": one}),
        inner.map(lambda one: {"description": one, "format": one, "minimum": one, "maximum": 1}),
    ),
    max_leaves=12,
)


@given(schema=SCHEMAS, text=st.text(max_size=40))
def test_any_schema_comes_to_one_bounded_line(schema: Any, text: str) -> None:
    endless = {f"p{n}": {"$ref": "#"} for n in range(40)}
    for properties in ({"x": schema, text: schema}, endless):
        line = signature(tool("f", text, properties=properties, **{"$defs": {"a": schema}}))
        assert len(line) <= MAX_LINE_CHARS and len(line.splitlines()) == 1
        assert line.startswith("f(")


def test_the_line_of_a_tool_is_written_once_for_all_sessions() -> None:
    def describe() -> ToolSpec:  # a new one each time, as of a client's request
        properties = {f"p{n}": {"type": "string", "description": "One."} for n in range(9)}
        schema = {"type": "object", "properties": properties}
        return ToolSpec(name="kept_line", description="Does it.", parameters=schema)

    def write() -> tuple[str, int]:
        spec, profile = describe(), Profile()
        spec.digest()
        line = profile.runcall(signature, spec)
        return line, sum(entry.callcount for entry in profile.getstats())

    (first, work), (second, less) = write(), write()
    assert first == second and less < work / 10
