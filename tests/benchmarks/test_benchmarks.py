"""The benchmarks run, hold every competitor to the work, and wrote the page that is there."""

from __future__ import annotations

import importlib
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.evaluate.questions import make_wheel

ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS = ROOT / "benchmarks"


def run(script: str, *options: str) -> str:
    command = [sys.executable, str(BENCHMARKS / script), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout


def results(script: str, *options: str) -> Any:
    return json.loads(run(script, *options))


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs a script that starts no others in this process; gives what it prints."""

    def run_here(script: str, *options: str) -> str:
        monkeypatch.setattr(sys, "argv", [script, *options])
        importlib.import_module(script).main()
        return capsys.readouterr().out

    return run_here


# --- the scripts --------------------------------------------------------------------------------


@pytest.mark.heavy
def test_reading_measures_each_parser_and_says_what_it_found() -> None:
    kinds = ["valid, one long string", "fenced", "{ repeated"]
    parsers = ["json", "mlx-tools", "mlx-tools, streamed", "json_repair"]
    found = results(
        *("reading.py", "--sizes", "100,1000", "--rounds", "1"),
        *("--kinds", ";".join(kinds), "--parsers", ";".join(parsers)),
    )
    assert list(found) == kinds
    for kind in kinds:
        for size in ("100", "1000"):
            assert set(found[kind][size]) == set(parsers)
            assert all(cell["min"] > 0 for cell in found[kind][size].values())
    assert found["valid, one long string"]["1000"]["json"]["outcome"] == "the call"
    assert found["fenced"]["1000"]["json"]["outcome"] == "JSONDecodeError"
    for name in ("mlx-tools", "mlx-tools, streamed"):
        assert found["fenced"]["1000"][name]["outcome"] == "the call"
        assert found["{ repeated"]["1000"][name]["outcome"] == "nothing"


@pytest.mark.slow
def test_replays_are_held_to_their_transcripts_and_stand_beside_a_run() -> None:
    options = ("--here", "--replays", "8", "--repeats", "1", "--rounds", "1")
    found = results("golden_replay.py", *options)
    many = found["many"]
    assert many["replays"] == 8 and many["peak_bytes"] > 1_000_000
    assert many["per_replay_us"] > many["per_completion_us"] > 0
    for count, cells in found["step"].items():
        assert {"mlx-tools", "golden replay"} <= set(cells)
        assert {cell["outcome"] for cell in cells.values()} == {f"{count} calls"}


def test_tool_retrieval_counts_the_questions_whose_tools_are_found(
    here: Any, tmp_path: Path
) -> None:
    wheel = make_wheel(tmp_path / "bfcl.whl")
    named = ("--category", "simple_python,multiple,parallel_multiple")
    options = ("--wheel", str(wheel), *named, "--half", "all", "--tools", "2")
    found = json.loads(here("tool_retrieval", *options, "--json"))
    assert {name: cell["at 5"]["of"] for name, cell in found.items()} == {
        "simple_python": 40,
        "multiple": 8,
        "parallel_multiple": 1,
        "all": 49,
    }
    assert found["multiple"]["at 1"]["hits"] == 8  # they ask to play, which is its name
    assert found["parallel_multiple"]["at 1"]["hits"] == 0  # two tools are not both the first
    assert found["all"]["shown"]["hits"] == 49  # two fit
    page = here("tool_retrieval", *options)
    assert "| multiple | 8 | 100.0 % (67.6 to 100.0) |" in page


def test_the_table_of_rankings_is_what_the_figures_say(here: Any) -> None:
    assert here("tool_ranking", "--check") == ""


@pytest.mark.slow
def test_the_whole_of_it_runs_quickly_without_touching_the_page(tmp_path: Path) -> None:
    figures = tmp_path / "results.json"
    page = run("run.py", "--quick", "--here", "--results", str(figures))
    assert "$ python benchmarks/run.py --quick" in page
    assert "| import | memory |" in page
    assert json.loads(figures.read_text())["machine"]["cores"] >= 1


# --- the page -----------------------------------------------------------------------------------


def test_the_page_is_what_the_figures_say_and_carries_its_command(here: Any) -> None:
    here("report", "--check")
    page = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    assert "\n$ python benchmarks/run.py" in page


def test_peers_are_exact_versions_that_agree_with_the_lock() -> None:
    def pins(path: Path) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for line in path.read_text().splitlines():
            if line and not line.lstrip().startswith("#"):
                name, _, version = line.partition("==")
                assert version, line
                found.setdefault(name, set()).add(version.partition(" ")[0])
        return found

    peers, lock = pins(BENCHMARKS / "peers.txt"), pins(ROOT / "requirements.lock")
    assert {"llm", "smolagents", "langchain", "pydantic-ai-slim"} <= set(peers)
    for name in set(peers) & set(lock):
        assert peers[name] <= lock[name], f"{name}: python benchmarks/run.py --lock"
