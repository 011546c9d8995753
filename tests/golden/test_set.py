"""The golden transcripts replay, hold every feature there is, and can be recorded again."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from mlx_tools.errors import ErrorCode
from mlx_tools.golden import Golden, find_golden, read_golden, replay
from mlx_tools.prompt import NAMED_FORMATS
from mlx_tools.protocol import Style
from mlx_tools.protocol.scan import REPAIRS
from mlx_tools.schema.validator import COERCIONS
from mlx_tools.transcript.records import MendKind

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
    *("compacted-filling", "compacted-full", "context_full", "ask-effects", "standing-approval"),
    *(f"mended-{kind}" for kind in get_args(MendKind)),
    *("allow-session_consent", "allow-preset", "ask-needs_approval", "ask-changed", "deny-default"),
)
"""What the set must hold, besides styles, formats, repairs, coercions and error codes."""


@pytest.fixture(scope="module")
def goldens() -> list[Golden]:
    return [read_golden(path) for path in PATHS]


@pytest.fixture(scope="module")
def features(goldens: list[Golden]) -> frozenset[str]:
    return frozenset(feature for golden in goldens for feature in golden.golden.features)


@pytest.mark.parametrize("path", PATHS, ids=lambda path: str(path.relative_to(FOLDER)))
def test_a_golden_transcript_replays_without_a_difference(path: Path) -> None:
    golden = read_golden(path)
    done = replay(golden)
    assert [d.lines() for d in done.differences] == []
    assert done.now.all == golden.all


def test_every_feature_occurs(features: frozenset[str]) -> None:
    assert sorted(set(FEATURES) - features) == []


def test_every_style_and_chat_format_occurs(features: frozenset[str]) -> None:
    wanted = {*get_args(Style), *(f"format-{name}" for name in NAMED_FORMATS)}
    assert sorted(wanted - features) == []


def test_every_repair_and_every_coercion_occurs(features: frozenset[str]) -> None:
    assert sorted({*REPAIRS, *COERCIONS} - features) == []


def test_every_error_code_occurs(features: frozenset[str]) -> None:
    assert sorted(set(get_args(ErrorCode)) - features) == []


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
