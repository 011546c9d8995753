"""The benchmarks that need a server: of any kind, and mlx-lm's own that counts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import second_server

from mlx_tools.evaluate.bfcl_data import wheel_path
from mlx_tools.testing import ScriptedServer, answer
from tests.conftest import ENVIRON

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


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
    of = {"category": "multiple", "strategy": strategy, "id": f"multiple_{number}"}
    cost = {"seconds": 2.0, "requests": 3, "pieces": None if number == 1 else 10}
    return of | cost | {"correct": correct, "valid": True}


def test_shares_come_with_their_intervals_and_servers_are_told_apart() -> None:
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


def test_a_server_that_nobody_knows_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        second_server.main(["--servers", "mlx,other"])
    assert "no such server: other" in capsys.readouterr().err
