"""A file of results: gone on with, whatever happened to it, and never mixed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mlx_tools.errors import UsageError
from mlx_tools.evaluate.results import Key, Results

SETTINGS: dict[str, Any] = {"model": "a", "limits": {"max_tokens": 512, "parallel": 4}}
KEYS = [Key("multiple", f"multiple_{n}", s) for n in range(3) for s in ("free", "guided")]


def open_results(path: Path, benchmark: str = "bfcl", **changes: Any) -> Results:
    return Results(path, benchmark, {**SETTINGS, **changes})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file with two results."""
    path = tmp_path / "results.jsonl"
    with open_results(path) as results:
        for key in KEYS[:2]:
            results.add(key, {"correct": True, "completion": "é\ud800\u2028"})
    return path


def test_what_was_written_is_there_again(path: Path) -> None:
    with open_results(path) as results:
        assert [bool(results.get(key)) for key in KEYS] == [True, True] + [False] * 4
        found = results.get(KEYS[0])
        assert found is not None and found["completion"] == "é\ud800\u2028"
        added = results.add(KEYS[2], {"correct": False})
    with open_results(path) as results:
        assert results.get(KEYS[2]) == added


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.integers(0, 700))
def test_a_file_cut_anywhere_keeps_its_whole_lines(path: Path, cut: int) -> None:
    whole = path.read_bytes()
    torn = path.with_name("torn.jsonl")
    torn.write_bytes(whole[:cut])
    lines = whole[:cut].count(b"\n")
    with open_results(torn) as results:
        assert sum(results.get(key) is not None for key in KEYS) == max(lines - 1, 0)
        for key in KEYS[:2]:
            if results.get(key) is None:
                results.add(key, {"correct": True, "completion": "é\ud800\u2028"})
    assert torn.read_bytes() == whole


def test_a_file_of_other_settings_is_refused_and_the_settings_are_named(path: Path) -> None:
    before = path.read_bytes()
    with pytest.raises(UsageError, match=r'model was "a", is "b"') as caught:
        open_results(path, model="b", limits={"max_tokens": 9, "parallel": 4})
    assert "limits.max_tokens was 512, is 9" in str(caught.value)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "content",
    ["a,b\n1,2\n", '{"a":1}\n', '{"a":1}', "text", "[1]\n", '{"type":"settings"}\n', "\n\n"],
)
def test_a_file_that_is_not_one_of_results_is_refused_and_left_alone(
    tmp_path: Path, content: str
) -> None:
    path = tmp_path / "other"
    path.write_text(content)
    with pytest.raises(UsageError, match="no file of results"):
        open_results(path)
    assert path.read_text() == content


@pytest.mark.parametrize("line", ["{", '{"type":"item"}', "[]", '{"type":"item","id":1}'])
def test_a_line_that_is_no_result_is_told_by_its_number(path: Path, line: str) -> None:
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], lines[1], line, lines[2]]) + "\n")
    with pytest.raises(UsageError, match="line 3 is no result"):
        open_results(path)


def test_two_runs_do_not_write_the_same_file(path: Path) -> None:
    with (
        open_results(path),
        pytest.raises(UsageError, match="another run writes it"),
    ):
        open_results(path)
    with open_results(path):
        pass


def test_where_nothing_can_be_written_that_is_told(tmp_path: Path) -> None:
    for path, said in (
        (tmp_path, "Is a directory"),
        (tmp_path / "no" / "file", "No such file"),
        (Path("/dev/null"), "read back"),
    ):
        with pytest.raises(UsageError, match=said):
            open_results(path)
