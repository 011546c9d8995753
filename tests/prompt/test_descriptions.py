"""Descriptions of tools and their parameters: told whole, or shortened evenly."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from mlx_tools.messages import ToolSpec
from mlx_tools.prompt import parameter_descriptions, shorten_descriptions
from mlx_tools.prompt.catalog import parse_tool_names, whole_signature

EDIT = ToolSpec(
    "edit",
    "Edits a file.\n\nUsage:\n- Read it first.\n  edit(path) is an example.\n\tNothing else.",
    {
        "type": "object",
        "description": "How to edit.",
        "properties": {
            "mode": {"type": "string", "enum": ["all", "first"], "description": "How often."},
            "path": {"type": "string", "description": "The file,\nas a path."},
            "edits": {
                "type": "array",
                "description": "In order.",
                "items": {
                    "type": "object",
                    "description": "One edit.",
                    "properties": {
                        "new": {"type": "string", "description": "What comes."},
                        "old": {"$ref": "#/$defs/text", "description": "What goes."},
                    },
                    "required": ["old"],
                },
            },
            "where": {
                "anyOf": [
                    {"type": "integer", "description": "A line."},
                    {"$ref": "#/$defs/text"},
                ]
            },
            "more": {"type": "object", "additionalProperties": {"description": "Any word."}},
        },
        "required": ["path", "edits"],
        "$defs": {
            "text": {"type": "string", "description": "A text."},
            "loop": {"properties": {"again": {"$ref": "#/$defs/loop"}}},
        },
    },
)


def test_every_description_of_a_parameter_is_told_required_ones_first() -> None:
    assert [tuple(found) for found in parameter_descriptions(EDIT)] == [
        ("arguments", "How to edit."),
        ("path", "The file,\nas a path."),
        ("edits", "In order."),
        ("edits[]", "One edit."),
        ("edits[].old", "What goes."),
        ("edits[].old", "A text."),
        ("edits[].new", "What comes."),
        ("mode", "How often."),
        ("where", "A line."),
        ("more.*", "Any word."),
    ]


def test_a_whole_signature_keeps_line_breaks_and_looks_like_one_tool() -> None:
    assert whole_signature(EDIT) == (
        'edit(mode?: "all"|"first", path: string, edits: {new?: string, old: string}[], '
        "where?: integer|string, more?: {[name]: any}) - Edits a file.\n"
        "  Usage:\n"
        "  - Read it first.\n"
        "    edit(path) is an example.\n"
        "  \tNothing else.\n"
        "  arguments: How to edit.\n"
        "  path: The file,\n"
        "    as a path.\n"
        "  edits: In order.\n"
        "  edits[]: One edit.\n"
        "  edits[].old: What goes.\n"
        "  edits[].old: A text.\n"
        "  edits[].new: What comes.\n"
        "  mode: How often.\n"
        "  where: A line.\n"
        "  more.*: Any word."
    )
    assert parse_tool_names(whole_signature(EDIT)) == ["edit"]


def test_no_value_of_an_enumeration_is_left_out() -> None:
    values = [f"value-{number}" * 9 for number in range(60)]
    spec = ToolSpec("f", "", {"properties": {"v": {"enum": values}}})
    assert all(f'"{value}"' in whole_signature(spec) for value in values)


def test_a_schema_that_refers_to_itself_is_told_once() -> None:
    node: dict[str, Any] = {"type": "object", "description": "A node."}
    node["properties"] = {"next": {"$ref": "#/$defs/node"}}
    spec = ToolSpec(
        "f", "", {"properties": {"n": {"$ref": "#/$defs/node"}}, "$defs": {"node": node}}
    )
    assert [found.text for found in parameter_descriptions(spec)] == ["A node."]


def texts_of(spec: ToolSpec) -> list[str]:
    return [spec.description, *(found.text for found in parameter_descriptions(spec))]


def test_descriptions_are_shortened_from_the_longest() -> None:
    shorter = shorten_descriptions([EDIT], 130)
    (spec,) = shorter.tools
    assert shorter.original_chars == sum(map(len, texts_of(EDIT)))
    assert shorter.size_chars == sum(map(len, texts_of(spec))) <= 130
    cut = [text for text in texts_of(spec) if text.endswith("…")]
    assert max(map(len, texts_of(spec))) - min(map(len, cut)) <= 4
    assert EDIT.description.startswith("Edits a file.\n")  # the original stays


@given(lengths=st.lists(st.integers(0, 60), min_size=1, max_size=8), most=st.integers(0, 300))
def test_what_is_left_is_no_more_than_there_is_room_for(lengths: list[int], most: int) -> None:
    tools = [
        ToolSpec(f"t{n}", "word " * (size // 5), {"properties": {"a": {"description": "x" * size}}})
        for n, size in enumerate(lengths)
    ]
    shorter = shorten_descriptions(tools, most)
    if shorter.original_chars <= most:
        assert shorter.tools == tuple(tools)
    else:
        assert shorter.size_chars <= most
        sizes = [len(text) for spec in shorter.tools for text in texts_of(spec)]
        before = [len(text) for spec in tools for text in texts_of(spec)]
        assert len(shorter.tools) == len(tools) and len(sizes) <= len(before)
