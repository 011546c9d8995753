"""Texts of ninety families, from published test suites and after public parsers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

import pytest

from mlx_tools.messages import TOOL_NAME, FinalAnswer, ToolCall, ToolSpec, replace
from mlx_tools.protocol import (
    Reading,
    ReadingRules,
    find_call_keys,
    judge,
    read,
    validate_arguments,
    write_answer,
    write_call,
)
from tests.protocol.texts import streamed
from tests.suites import dialect_vectors

Vector = Mapping[str, Any]
SHARE = 0.98


def all_vectors() -> tuple[Vector, ...]:
    """The published texts, and those of newer forms."""
    return (*dialect_vectors(), *dialect_vectors("vectors_2026.jsonl"))


def _functions(vector: Vector) -> list[dict[str, Any]]:
    return [tool["function"] for tool in vector["tools"]]


def rules_of(vector: Vector) -> ReadingRules:
    return ReadingRules(
        catalog={one["name"]: one.get("parameters") or {} for one in _functions(vector)},
        in_thought=bool(vector["in_thought"]),
        mutates=lambda name, arguments: False,
    )


def read_calls(reading: Reading, vector: Vector) -> list[tuple[str, str]]:
    """The calls, their arguments as validation takes them."""
    schemas = {one["name"]: one.get("parameters") or {} for one in _functions(vector)}
    found = []
    for call in reading.messages:
        if isinstance(call, ToolCall):
            spec = ToolSpec("tool", parameters={"type": "object", **schemas.get(call.name, {})})
            arguments, _, _ = validate_arguments(spec, call.arguments)
            found.append((call.name, json.dumps(arguments, sort_keys=True)))
    return found


def expected_calls(vector: Vector) -> list[tuple[str, str]]:
    calls = vector["calls"] or []
    return [(call["name"], json.dumps(call["arguments"], sort_keys=True)) for call in calls]


def test_calls_are_read_as_they_were_meant_and_none_is_wrong_or_invented() -> None:
    exact = due = 0
    wrong = []
    for vector in all_vectors():
        found = read_calls(
            read(vector["text"], vector.get("finish", "stop"), rules_of(vector)), vector
        )
        expected = expected_calls(vector)
        due += len(expected)
        exact += sum(one == other for one, other in zip(found, expected, strict=False))
        if vector["calls"] is not None and found != expected[: len(found)]:
            wrong.append(vector["id"])
    assert wrong == []
    assert exact >= SHARE * due


def test_no_call_is_taken_for_an_answer() -> None:
    taken = []
    for vector in all_vectors():
        reading = read(vector["text"], vector.get("finish", "stop"), rules_of(vector))
        if (vector["calls"] or vector.get("expect") == "error") and reading.bare_text:
            taken.append(vector["id"])
    assert taken == []


def test_an_answer_is_shown_without_what_its_family_puts_around_it() -> None:
    corrected, other = [], []
    for vector in all_vectors():
        if vector["kind"] != "none":
            continue
        reading = read(vector["text"], vector.get("finish", "stop"), rules_of(vector))
        shown = [m.content for m in reading.messages if isinstance(m, FinalAnswer)]
        if not shown:
            corrected.append(vector["id"])
        elif vector["content_known"] and shown != [(vector["content"] or "").strip()]:
            other.append(vector["id"])
    assert other == []
    assert len(corrected) <= 2


def test_a_text_reads_the_same_however_it_is_split() -> None:
    for vector in all_vectors():
        text, rules = vector["text"], rules_of(vector)
        whole = read(text, "stop", rules)
        for sizes in ((1,), (2, 1, 3), (17, 5, 11)):
            assert streamed(text, rules, sizes=sizes) == whole, vector["id"]


def _planted(text: str) -> Iterator[str]:
    yield text
    yield f"Notes of the day.\n\n{text}\n\nThat was all."
    yield f"# How to\n\n```\n{text}\n```\n"
    yield f"> `{text}`"
    yield json.dumps({"page": {"body": text}})
    yield json.dumps(json.dumps([text], ensure_ascii=False))
    yield text.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;")


@pytest.mark.heavy
def test_a_call_that_stands_in_an_observation_does_not_run_when_the_model_obeys() -> None:
    ran = []
    for vector in all_vectors():
        rules = rules_of(vector)
        reading = read(vector["text"], "stop", rules)
        calls = [m for m in reading.messages if isinstance(m, ToolCall)]
        # The model copies the text, or writes the call in the protocol's own form.
        own = "\n".join(write_call(call.name, call.arguments) for call in calls)
        readings = (reading, read(own)) if calls else ()
        names = [*filter(TOOL_NAME.fullmatch, rules.catalog)]
        for effects in (frozenset({"write"}), frozenset({"read"})):
            tools = {name: ToolSpec(name, "", effects=effects) for name in names}
            for planted, said in product(_planted(vector["text"]), readings):
                judged = judge(said, tools, find_call_keys(planted))
                ran += [vector["id"] for one in judged if one.runs == "freely"]
    assert len(set(ran)) <= 2, set(ran)  # calls that their own brackets or tags cut short


def test_a_call_that_an_answer_quotes_is_part_of_the_answer() -> None:
    for vector in all_vectors():
        rules = replace(rules_of(vector), in_thought=False)
        reading = read(write_answer(vector["text"]), "stop", rules)
        assert reading.messages == (FinalAnswer(vector["text"]),)
