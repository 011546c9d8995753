"""What the official checker is held against: calls that are right, and others."""

from __future__ import annotations

import importlib
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mlx_tools.evaluate.bfcl_data import load_items
from mlx_tools.evaluate.bfcl_score import score
from mlx_tools.messages import ToolCall
from tests.evaluate.questions import QUESTIONS, make_wheel

SCRIPTS = Path(__file__).resolve().parents[2] / "benchmarks" / "bfcl_official"


@pytest.fixture
def mutations(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    return importlib.import_module("mutations")


@pytest.mark.parametrize("category", [c for c in QUESTIONS if "relevance" not in c])
def test_right_calls_are_right_and_changed_ones_of_both_kinds(
    mutations: Any, category: str, tmp_path: Path
) -> None:
    item = load_items(category, make_wheel(tmp_path / "bfcl.whl"))[0]

    def correct(calls: Any) -> bool:
        made = [ToolCall(call["name"], call["arguments"]) for call in calls]
        return score(category, item.functions, made, item.answers).correct

    for turn in (0, 2):  # an odd turn writes out what may be left out
        right = mutations.right_calls(item, turn)
        assert correct(right)
        changed = [*mutations.mutations(item, right, random.Random(turn))]
        assert len({json.dumps(calls) for calls in changed}) > 20
        assert {correct(calls) for calls in changed} == {True, False}


@pytest.mark.slow
def test_the_official_checker_agrees() -> None:
    command = [sys.executable, str(SCRIPTS / "agree.py"), "--every", "50"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "\n0 disagreements" in done.stdout
