"""The benchmarks that need a server: of any kind, and mlx-lm's own that counts."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mlx_tools.evaluate.bfcl_data import wheel_path
from mlx_tools.transcript.records import CompletionRecord, UserRecord
from tests.backends.tiny import LLAMA, make_tiny_model
from tests.cli.scripted_server import ScriptedServer, answer
from tests.conftest import ENVIRON

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(autouse=True)
def scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def run(script: str, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(BENCHMARKS / script), *options],
        capture_output=True,
        text=True,
        timeout=600,
        env=ENVIRON | {"PYTHONPATH": str(BENCHMARKS.parent)},
    )


# --- second_server ------------------------------------------------------------------------------


def result(number: int, strategy: str, *, correct: bool) -> dict[str, Any]:
    return {
        "category": "multiple",
        "strategy": strategy,
        "id": f"multiple_{number}",
        "correct": correct,
        "valid": True,
        "seconds": 2.0,
        "requests": 3,
        "pieces": None if number == 1 else 10,
    }


def test_shares_come_with_their_intervals_and_servers_are_told_apart() -> None:
    second_server = importlib.import_module("second_server")
    found = {
        "servers": {
            "one": {"results": [result(n, "guided", correct=n < 3) for n in range(4)]},
            "two": {"results": [result(n, "guided", correct=n == 3) for n in range(4)]},
        }
    }
    lines = second_server.table(found).splitlines()
    assert lines[2] == (
        "| one | multiple | guided | 3 of 4 (30–95 %) | 4 of 4 (51–100 %) | 8.0 | 30 | 3.0 |"
    )
    assert lines[-1] == "guided: right only on one 3, only on two 1 (p 0.62)"


@pytest.mark.skipif(not wheel_path(ENVIRON).is_file(), reason="BFCL's package is not in the cache")
def test_a_server_that_runs_already_is_measured(tmp_path: Path) -> None:
    out = tmp_path / "found.json"
    with ScriptedServer(*[answer("I cannot.")] * 300) as server:
        done = run(
            *("second_server.py", "--servers", "none", "--url", f"mine={server.url}"),
            *("--categories", "multiple", "--limit", "2", "--chat-format", "chatml"),
            *("--out", str(out)),
        )
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())
    results = found["servers"]["mine"]["results"]
    assert [one["strategy"] for one in results] == ["auto"] * 2 + ["free"] * 2
    assert all(one["requests"] >= 1 for one in results)
    assert [one["valid"] for one in results][2:] == [False, False]
    assert "| mine | multiple | free | 0 of 2" in done.stdout
    assert run("second_server.py", "--table", str(out)).stdout == done.stdout


def test_a_server_that_nobody_knows_is_refused() -> None:
    done = run("second_server.py", "--servers", "mlx,other")
    assert done.returncode == 2 and "no such server: other" in done.stderr


# --- guided_cost --------------------------------------------------------------------------------


def test_requests_are_told_apart_by_the_completion_that_asked_them() -> None:
    guided_cost = importlib.import_module("guided_cost")
    records = [
        UserRecord(content="One?", at=""),
        CompletionRecord(turn=1, text="a", finish_reason="stop", requests=2, pieces=3),
        CompletionRecord(turn=2, text="b", finish_reason="stop", requests=1, pieces=1),
        UserRecord(content="Two?", at=""),
        CompletionRecord(turn=3, text="c", finish_reason="stop", requests=1, pieces=2),
    ]
    rows = [{"prompt": n, "uncached": n, "generated": 1, "seconds": 0.5} for n in (100, 5, 20, 30)]
    turns = list(guided_cost.split(records, [True, False, False, True], rows))
    assert [turn.question for turn in turns] == [1, 1, 2]
    told = [turn.to_json() for turn in turns]
    assert [one["uncached_tokens"] for one in told] == [[100, 5], [20], [30]]
    assert [one["for_likelihoods"] for one in told] == [1, 0, 1]
    with pytest.raises(SystemExit, match="4 requests were sent, and the transcript knows of 1"):
        list(guided_cost.split(records[3:], [True], rows))


@pytest.mark.slow
@pytest.mark.real
def test_the_server_counts_what_each_request_cost(real_model: Path, tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path / "tiny", real_model, LLAMA)
    done = run("guided_cost.py", "--model", str(model), "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert {turn["question"] for turn in found["turns"]} == {1, 2, 3, 4, 5}
    for turn in found["turns"]:
        assert len(turn["uncached_tokens"]) == turn["requests"] > 0
        assert all(0 < n <= turn["prompt_tokens"] for n in turn["uncached_tokens"])
        assert turn["generated_tokens"] >= turn["pieces"]
