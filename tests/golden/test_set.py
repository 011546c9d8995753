"""The golden transcripts replay, hold every feature there is, and can be recorded again."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import get_args

import anyio
import pytest

from mlx_tools.errors import ErrorCode
from mlx_tools.golden import Golden, find_golden, read_golden, replay, write_golden
from mlx_tools.messages import FinishReason, ToolCall, ToolSpec
from mlx_tools.prompt import NAMED_FORMATS
from mlx_tools.protocol import ReadingRules, Style, judge, read
from mlx_tools.store.transcript import load
from mlx_tools.transcript.records import CompletionRecord, Header, MendKind
from scripts.golden_set.scene import record_scene
from scripts.record_golden import list_scripted_scenes
from tests.protocol.texts import COERCIONS, REPAIRS

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "golden_transcripts"
PATHS = find_golden([FOLDER])

FEATURES = (
    *("free", "guided", "parallel", "ids", "sources", "bare-text", "commentary", "leftover"),
    *("repairs", "coercions", "unclean", "correction", "cut-off", "calls-per-turn", "no-call"),
    *("preset", "deny", "glob", "narrowed", "dry-run", "placeholder", "local-only", "secret"),
    *("network-after-read", "private", "rates", "edited", "batch", "for-session", "changed"),
    *("resumed", "in-doubt", "nested", "iterations", "repeated", "artifact", "tool-timeout"),
    *("total-timeout", "completion-timeout", "backend-error", "history", "two-questions"),
    *("unanswered", "project-context", "persona", "rag-first", "no-tools", "tool-choice-none"),
    *("tool-choice-required", "tool-choice-named", "shortlist", "tool-search", "redaction"),
    *("chat-format", "template", "reasoning", "reasoning-off", "reasoning-auto"),
    *("reasoning-budget", "injection", "echoed", "forged", "control-tokens", "file-access"),
    *("irrelevance", "answered", "paused", "format_errors", "repeated_call", "iteration_limit"),
    *("total_timeout", "completion_timeout", "backend_error", "interrupted"),
    *("mends", "dialects", "call-like", "call_like", "truncated", "guided", "auto"),
    *("compacted-filling", "compacted-full", "context_full", "ask-effects", "approval-template"),
    *(f"mended-{kind}" for kind in get_args(MendKind)),
    *("allow-session_consent", "allow-preset", "ask-needs_approval", "ask-changed", "deny-default"),
)
"""The contents of the set, besides styles, formats, repairs, coercions and error codes."""


@pytest.fixture(scope="module")
def goldens() -> list[Golden]:
    return [read_golden(path) for path in PATHS]


def test_a_replay_without_a_difference_makes_the_same_records_again() -> None:
    # Each transcript is replayed as a test of its own, by the plugin.
    for path in PATHS[::12]:
        golden = read_golden(path)
        done = replay(golden)
        assert [d.lines() for d in done.differences] == [], path
        assert done.now.all == golden.all, path


def test_every_feature_style_format_repair_coercion_and_error_code_occurs(
    goldens: list[Golden],
) -> None:
    features = {feature for golden in goldens for feature in golden.golden.features}
    formats = {f"format-{name}" for name in NAMED_FORMATS}
    wanted = {*FEATURES, *get_args(Style), *formats, *REPAIRS, *COERCIONS, *get_args(ErrorCode)}
    assert sorted(wanted - features) == []


def test_each_says_what_it_is_kept_for_and_is_named_as_its_file(goldens: list[Golden]) -> None:
    for golden in goldens:
        assert golden.path is not None
        assert golden.name == str(golden.path.relative_to(FOLDER).with_suffix(""))
        assert golden.golden.about.endswith(".")
        assert golden.golden.features


def test_many_are_of_a_real_model_in_every_style(goldens: list[Golden]) -> None:
    real = [golden for golden in goldens if golden.golden.source == "real"]
    assert len(real) >= 15
    # the embedded model's own template tells of no tools
    assert {golden.header.style for golden in real} == {*get_args(Style)} - {"native"}
    assert {golden.header.strategy for golden in real} >= {"free", "guided", "auto"}


@pytest.mark.parametrize(
    "name", ["approvals/changed", "limits/context-full", "planted/files", "styles/jsonl-parallel"]
)
def test_a_scene_gives_the_same_bytes_each_time(tmp_path: Path, name: str) -> None:
    (scene,) = (scene for scene in list_scripted_scenes() if scene.name == name)
    write_golden(anyio.run(record_scene, scene), tmp_path / "made.jsonl")
    assert (tmp_path / "made.jsonl").read_bytes() == (FOLDER / f"{name}.jsonl").read_bytes()


@pytest.mark.slow
def test_a_scripted_run_gives_the_same_bytes_each_time(tmp_path: Path) -> None:
    script = ROOT / "scripts" / "record_golden.py"
    command = [sys.executable, str(script), "--scripted", "--into", str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True)
    assert dict(_scripted(tmp_path)) == dict(_scripted(FOLDER))


def _scripted(folder: Path) -> Iterator[tuple[str, bytes]]:
    for path in find_golden([folder]):
        if read_golden(path).golden.source == "scripted":
            yield str(path.relative_to(folder)), path.read_bytes()


# --- every recorded call, cut off at every character ---


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


@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("path", PATHS, ids=lambda path: str(path.relative_to(FOLDER)))
def test_no_cut_of_a_recorded_call_makes_another_or_one_that_runs_freely(
    path: Path, step: int
) -> None:
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
        wide = step if step == 1 else max(step, len(record.text) // 64)  # each is read anew
        for cut in range(len(record.text), -1, -wide):
            at = len(record.prefix) + cut
            for reason in ("stop", "length"):
                judged = _judged(record.text[:cut], reason, rules, specs)
                found = [(c.name, c.arguments) for c, _ in judged]
                assert found == calls[: len(judged)] or not readable, cut
                if any(start < at < end for start, end in spans):
                    assert not any(runs == "freely" for _, runs in judged), (cut, reason)


def _objects(text: str) -> Iterator[tuple[int, int]]:
    """The places where the JSON objects of a recorded completion begin and end."""
    decoder, start = json.JSONDecoder(), text.find("{")
    while start >= 0:
        try:
            _, end = decoder.raw_decode(text, start)
        except ValueError:
            end = start + 1
        else:
            yield start, end
        start = text.find("{", end)
