"""Every switch of the benchmarks that ask a model changes what it says it changes.

A switch that nothing reads makes all rows alike, and tables of them say what is not so.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import ablation
import anyio
import pytest
import questions
import second_server
import strong
from strong_model import Asked, StrongModel, StrongServer, Wish

from mlx_tools.messages import replace
from mlx_tools.plugins.evaluate.bfcl_score import score
from mlx_tools.prompt import PROMPTED_STYLES, opening
from tests.evaluate.questions import make_wheel


def asked(tmp_path: Path, *options: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The results that `strong` keeps of a few questions: figures, and a line for each."""
    out, lines = tmp_path / "out.json", tmp_path / "lines.jsonl"
    always = ["--wheel", str(make_wheel(tmp_path / "bfcl.whl")), "--mistaken", "0"]
    always += ["--category", "multiple,irrelevance", "--limit", "2"]
    always += ["--strategy", "free", "--style", "jsonl", "--rows", "base"]
    strong.main([*always, *options, "--out", str(out), "--lines", str(lines)])
    return json.loads(out.read_text()), [
        json.loads(line) for line in lines.read_text().splitlines()
    ]


# --- strong -------------------------------------------------------------------------------------


def test_figures_are_of_what_was_asked_and_keep_what_was_wished(tmp_path: Path) -> None:
    found, lines = asked(tmp_path)
    assert [(line["category"], line["as_wished"]) for line in lines] == [
        ("multiple", True),
        ("multiple", True),
        ("irrelevance", True),
    ]
    (row,) = found["rows"]
    assert row["of"]["multiple"]["as_wished"] == row["of"]["multiple"]["requests"] == 2
    (first, _) = found["wishes"]["multiple"].values()
    assert first == {"right": True, "calls": lines[0]["calls"]} and lines[0]["correct"]
    assert found["options"]["limit"] == 2


HABITS = (
    *("hermes", "blanks", "indented", "escapes", "no likelihoods", "whole", "shuffled"),
    *("stubborn", "stubborn tags", "thinks as OpenAI", "thinks as Anthropic", "thinks as Gemma"),
)


def test_all_habits_are_tested_here() -> None:
    assert list(HABITS) == list(strong.HABITS)


@pytest.mark.parametrize("name", HABITS)
def test_each_habit_changes_what_a_model_writes_or_how_it_is_served(name: str) -> None:
    items = questions.fresh_questions()
    known = "es-6" if name == "escapes" else "en-2"  # a name that is not ASCII; four arguments
    item = next(one for one in items if one.id == known)
    case = strong.Case(item, questions.wanted(item, mistaken=0))
    options = argparse.Namespace(model="strong", latency=0.0, probability=0.97, seed=0)

    def seen(row: Any) -> tuple[Any, ...]:
        model = strong.model_for(case, row, options)
        written = []
        for begun in ("", '{"type":"'):
            asked = Asked(f"<|im_start|>assistant\n{begun}", likely=3)
            written += [token.data for token in model.tokens(asked)]
        return *written, model.serving.whole, model.serving.likelihoods

    base = strong.Row()
    assert seen(replace(base, **strong.HABITS[name])) != seen(base)
    assert replace(base, **strong.HABITS[name]).habits.endswith(name)
    several = replace(base, **strong.ALL)
    assert set(several.habits.split(", ")) > {"hermes", "shuffled"}


# --- the fresh questions ------------------------------------------------------------------------


def test_the_fresh_questions_are_sixty_in_four_languages_and_can_be_answered() -> None:
    items = questions.fresh_questions()
    assert len(items) == len({item.id for item in items}) == len({i.question for i in items}) == 60
    assert {name: len([i for i in items if i.category == name]) for name in questions.FRESH} == {
        f"fresh_{kind}_{language}": count
        for language in ("en", "de", "fr", "es")
        for kind, count in (("multiple", 9), ("parallel", 2), ("irrelevance", 4))
    }
    for item in items:
        wish = questions.wanted(item, mistaken=0)
        assert wish.right and score(item.category, item.functions, wish.calls, item.answers).correct
        assert bool(wish.calls) == ("irrelevance" not in item.category)
        wrong = questions.wanted(item, mistaken=1)
        assert not wrong.right and not questions.same_calls(wrong.calls, wish.calls)


# --- ablation -----------------------------------------------------------------------------------


ROWS = [
    "free",
    "guided",
    *(f"style {style}" for style in PROMPTED_STYLES[1:]),
    "many examples",
    "no examples",
]


def test_all_rows_are_tested_here() -> None:
    assert ["auto", *ROWS] == list(ablation.ROWS)


@pytest.mark.parametrize("name", ROWS)
def test_each_row_of_the_ablation_asks_for_something_else(name: str) -> None:
    async def prints() -> list[Any]:
        return [await ablation.fingerprint(ablation.ROWS[one]) for one in ("auto", name)]

    try:
        first, other = anyio.run(prints)
    finally:
        assert opening.build_examples.__name__ == "build_examples"
    assert first != other


def test_a_switch_that_changes_nothing_is_not_measured() -> None:
    rows = {"auto": ablation.Row(), "idle": ablation.Row({"tool_choice": "auto"})}
    with pytest.raises(SystemExit, match="idle: this switch changes nothing"):
        anyio.run(ablation.check, ["auto", "idle"], rows)
    anyio.run(ablation.check, ["style xml", "no examples"])


# --- second_server ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("switch", "differs"),
    [
        (("--chat-format", "llama3"), "prompt"),
        (("--max-tokens", "33"), "max_tokens"),
        (("--strategies", "guided"), "prompt"),
        (("--categories", "simple_python"), "prompt"),
        (("--seed", "3"), "prompt"),
    ],
)
def test_the_second_servers_switches_reach_the_server(
    tmp_path: Path, switch: tuple[str, str], differs: str
) -> None:
    wheel = str(make_wheel(tmp_path / "bfcl.whl"))

    def asked(*more: str) -> list[Any]:
        command = ["--wheel", wheel, "--servers", "none", "--half", "all", "--limit", "1"]
        with StrongServer(StrongModel(Wish())) as server:
            command += ["--url", server.url, "--categories", "multiple", "--strategies", "free"]
            command += ["--chat-format", "chatml", "--out", str(tmp_path / "out"), *more]
            second_server.main(command)
            return [body[differs] for body in server.bodies]

    assert asked(*switch) != asked()


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


def test_a_server_that_nobody_knows_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        second_server.main(["--servers", "mlx,other"])
    assert "no such server: other" in capsys.readouterr().err
