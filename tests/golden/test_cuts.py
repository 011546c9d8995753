"""Every recorded call, cut off at every character: nothing that changes anything may come of it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import get_args

import pytest

from mlx_tools.messages import FinishReason, Style, ToolCall, ToolSpec
from mlx_tools.protocol import ReadingRules, judge, read
from mlx_tools.store.transcript import load
from mlx_tools.transcript.records import CompletionRecord, Header

FOLDER = Path(__file__).parents[2] / "golden_transcripts"
TRANSCRIPTS = sorted(FOLDER.rglob("*.jsonl"))


def _mutating(header: Header) -> Mapping[str, ToolSpec]:
    """The recorded tools, each taken to be able to change things: the strictest case."""
    return {
        tool["name"]: ToolSpec(tool["name"], tool["description"], tool["parameters"])
        for tool in header.tools
    }


def _judged(
    text: str, finish_reason: FinishReason, rules: ReadingRules, specs: Mapping[str, ToolSpec]
) -> list[tuple[ToolCall, str]]:
    reading = read(text, finish_reason, rules)
    return [(j.call, j.runs) for j in judge(reading, specs) if j.error is None]


def test_there_are_recorded_calls_in_every_style() -> None:
    headers = [next(iter(load(path))) for path in TRANSCRIPTS]
    assert {h.style for h in headers if isinstance(h, Header)} == set(get_args(Style))


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: str(path.relative_to(FOLDER)))
def test_no_cut_of_a_recorded_call_makes_another_or_one_that_runs_freely(path: Path) -> None:
    records = load(path)
    header = records[0]
    assert isinstance(header, Header)
    specs = _mutating(header)
    for record in records:
        if not isinstance(record, CompletionRecord):
            continue
        rules = ReadingRules(style=header.style, prefix=record.prefix)
        whole = _judged(record.text, "stop", rules, specs)
        calls = [(call.name, call.arguments) for call, _ in whole]
        readable = read(record.text, "stop", rules).error is None
        spans = list(_objects(record.prefix + record.text))
        for cut in range(len(record.text) + 1):
            at = len(record.prefix) + cut
            for reason in ("stop", "length"):
                judged = _judged(record.text[:cut], reason, rules, specs)
                found = [(c.name, c.arguments) for c, _ in judged]
                assert found == calls[: len(judged)] or not readable, cut
                if any(start < at < end for start, end in spans):
                    assert not any(runs == "freely" for _, runs in judged), (cut, reason)


def _objects(text: str) -> Iterator[tuple[int, int]]:
    """Where the JSON objects of a recorded completion begin and end."""
    decoder, start = json.JSONDecoder(), text.find("{")
    while start >= 0:
        try:
            _, end = decoder.raw_decode(text, start)
        except ValueError:
            end = start + 1
        else:
            yield start, end
        start = text.find("{", end)
