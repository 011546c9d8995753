"""Asking what a file of results does not hold yet, the file itself, and what results come to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mlx_tools.app.proposal import Proposal
from mlx_tools.app.results import Key, Results, format_table, summarise
from mlx_tools.app.statistics import mcnemar, wilson
from mlx_tools.errors import BackendBroken, BackendError, BackendRefused, UsageError
from mlx_tools.messages import ToolCall, Usage
from mlx_tools.plugins.evaluate.bfcl_data import BfclItem, load_items, run_bfcl
from tests.evaluate.questions import make_wheel

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
    with open_results(path), pytest.raises(UsageError, match="another run writes it"):
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


# --- asking what is not there yet, and what results come to -----------------------------------

AREA = ToolCall("shapes.area", {"width": 2.5, "height": 4})
RIGHT = Proposal(
    calls=(AREA,),
    valid=True,
    requests=2,
    usage=Usage(prompt_tokens=100, cached_tokens=60, completion_tokens=7),
    seconds=0.5,
    completion="{}",
)
NOTHING = Proposal(answered=True, valid=True, completion="Hi.", pieces=3)


class Says:
    """A proposer that says what it is told for each question, by its id."""

    def __init__(self, **said: Any) -> None:
        self.said = said
        self.asked: list[Mapping[str, Any]] = []

    async def __call__(self, question: str, tools: Any, **more: Any) -> Proposal:
        self.asked.append({"question": question, "tools": list(tools), **more})
        found = self.said.get(question, self.said.get("other", RIGHT))
        if isinstance(found, Exception):
            raise found
        assert isinstance(found, Proposal)
        return found


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_wheel(tmp_path_factory.mktemp("wheel") / "bfcl.whl")


def run(
    items: list[BfclItem], path: Path | None = None, steps: list[int] | None = None, **says: Says
) -> Any:
    async def main() -> Any:
        with Results(path, "bfcl", {"model": "a"}) as results:
            step = (lambda: steps.append(1)) if steps is not None else lambda: None
            return await run_bfcl(items, says, results, step)

    return anyio.run(main)


def test_an_item_is_scored_and_its_cost_kept(wheel: Path) -> None:
    (result,) = run(load_items("simple_python", wheel)[:1], free=Says())
    assert {key: result[key] for key in ("correct", "valid", "fault", "answered", "error")} == {
        "correct": True,
        "valid": True,
        "fault": "",
        "answered": False,
        "error": None,
    }
    assert (result["requests"], result["prompt_tokens"], result["seconds"]) == (2, 100, 0.5)
    assert result["calls"] == [
        {"name": "shapes.area", "arguments": {"width": 2.5, "height": 4}, "repairs": []}
    ]


def test_where_a_call_is_due_an_answer_is_neither_right_nor_a_valid_call(wheel: Path) -> None:
    (result,) = run(load_items("simple_python", wheel)[:1], free=Says(other=NOTHING))
    assert (result["correct"], result["valid"], result["fault"]) == (False, False, "not_called")
    (result,) = run(load_items("irrelevance", wheel), free=Says(other=NOTHING))
    assert (result["correct"], result["valid"], result["answered"]) == (True, True, True)
    (result,) = run(load_items("irrelevance", wheel), free=Says())
    assert (result["correct"], result["valid"], result["fault"]) == (False, True, "called")


def test_one_strategy_comes_after_the_other(wheel: Path) -> None:
    steps: list[int] = []
    items = load_items("simple_python", wheel)[:3]
    found = run(items, steps=steps, free=Says(), guided=Says())
    assert [r["strategy"] for r in found] == ["free"] * 3 + ["guided"] * 3
    assert len(steps) == 6


def test_what_a_file_holds_is_not_asked_again(wheel: Path, tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    items = load_items("simple_python", wheel)
    run(items[:3], path, free=Says())
    says, other = Says(other=NOTHING), Says()
    found = run(items[:5], path, free=says, guided=other)
    assert (len(says.asked), len(other.asked)) == (2, 5)
    assert [r["correct"] for r in found] == [True] * 3 + [False] * 2 + [True] * 5
    assert run(items[:5], path, free=Says(other=BackendBroken("never asked"))) == found[:5]


def test_a_backend_that_fails_ends_the_run_and_nothing_is_lost(wheel: Path, tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    items = load_items("simple_python", wheel)[:4]
    breaks = Says(**{items[2].question: BackendBroken("gone")})
    with pytest.raises(BackendBroken, match="gone"):
        run(items, path, free=breaks)
    says = Says()
    assert len(run(items, path, free=says)) == 4
    assert [asked["question"] for asked in says.asked] == [items[2].question, items[3].question]


def test_what_the_server_refuses_is_a_result_where_it_takes_others(wheel: Path) -> None:
    items = load_items("simple_python", wheel)[:6]
    refused = BackendRefused("too long")
    says = Says(
        **{items[1].question: refused, items[2].question: refused, items[5].question: refused}
    )
    found = run(items, free=says)
    assert [r["error"] for r in found] == [None, "refused", "refused", None, None, "refused"]
    assert [r["id"] for r in found] == [item.id for item in items]


def test_a_server_that_refuses_everything_ends_the_run(wheel: Path, tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    says = Says(other=BackendRefused("bad key"))
    with pytest.raises(BackendError, match="bad key"):
        run(load_items("simple_python", wheel), path, free=says)
    assert len(says.asked) == 3
    with pytest.raises(BackendError, match="bad key"):
        run(load_items("irrelevance", wheel), path, free=says)
    assert path.read_text().count("\n") == 1


# --- what it comes to -------------------------------------------------------------------------


def result(category: str, number: int, strategy: str, correct: bool, **more: Any) -> dict[str, Any]:
    base = {"category": category, "id": f"{category}_{number}", "strategy": strategy}
    cost = {"requests": 1, "prompt_tokens": 10, "cached_tokens": 4, "completion_tokens": 3}
    return {**base, "correct": correct, "valid": True, "seconds": 0.25, **cost, **more}


def test_a_row_counts_and_adds_up() -> None:
    results = [result("multiple", n, "free", n < 3) for n in range(10)]
    results[9] |= {"valid": False, "error": "timeout", "answered": True}
    (row,) = summarise(results)
    assert (row.correct.hits, row.valid.hits, row.answered) == (3, 9, 1)
    assert (row.requests, row.generated_tokens, row.uncached_tokens) == (10, 30, 60)
    assert row.seconds == 2.5 and row.errors == {"timeout": 1}
    shown = row.to_json()
    assert shown["items"] == 10 and shown["correct"]["share"] == 0.3
    assert shown["correct"]["low"] < 0.3 < shown["correct"]["high"]


def test_a_number_that_is_not_known_for_all_is_not_known() -> None:
    known, pieces, unknown = (
        result("multiple", n, "free", True, completion_tokens=tokens, pieces=some)
        for n, tokens, some in ((0, 5, 9), (1, None, 4), (2, None, None))
    )
    assert summarise([known, pieces])[0].generated_tokens == 9
    (row,) = summarise([known, pieces, {**unknown, "cached_tokens": None}])
    assert row.generated_tokens is None and row.uncached_tokens is None
    assert summarise([]) == ()


def test_the_table_has_strategies_side_by_side() -> None:
    results = [
        result(category, n, strategy, n < (1 if strategy == "free" else 3))
        for category in ("multiple", "irrelevance", "live_irrelevance")
        for strategy in ("free", "guided")
        for n in range(4)
    ]
    lines = format_table(summarise(results)).splitlines()
    assert lines[0].split() == [
        "items",
        *["free", "valid", "tokens", "time", "guided", "valid", "tokens", "time"],
    ]
    assert lines[1].split()[:5] == ["multiple", "4", "25.0", "%", "(5-70)"]
    assert [line.split()[0] for line in lines[1:4]] == [
        "multiple",
        "irrelevance",
        "live_irrelevance",
    ]
    assert Counter(len(line) for line in lines[:4]).most_common(1)[0][1] == 4
    assert format_table(summarise([])).strip() == "items"


# --- intervals and tests: properties, and values that are in print -------------------------------

shares = st.integers(1, 5000).flatmap(
    lambda total: st.tuples(st.integers(0, total), st.just(total))
)


@given(shares)
def test_an_interval_holds_its_share_and_stays_within_0_and_1(share: tuple[int, int]) -> None:
    hits, total = share
    low, high = wilson(hits, total)
    assert 0 <= low <= hits / total <= high <= 1
    assert low < high


@pytest.mark.parametrize(
    ("hits", "total", "low", "high"),
    [
        # Newcombe 1998, Statistics in Medicine 17, table I, method 3
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_intervals_are_those_in_print(hits: int, total: int, low: float, high: float) -> None:
    assert wilson(hits, total) == pytest.approx((low, high), abs=5e-5)


def test_mcnemar_is_the_binomial_test() -> None:
    assert mcnemar(0, 5) == pytest.approx(2 * 0.5**5)
    assert mcnemar(1, 9) == pytest.approx(2 * 11 / 1024)
    assert mcnemar(0, 0) == 1
    with pytest.raises(ValueError, match="at least 0"):
        mcnemar(-1, 2)
