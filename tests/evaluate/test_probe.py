"""The probe tells which style and strategy a model follows, and nothing that chance would say."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_tools import Limits, RunSettings
from mlx_tools.app.probe import (
    Cell,
    Expected,
    ProbeResult,
    is_better,
    judge,
    list_styles,
    load_questions,
    make_verdict,
    measure,
)
from mlx_tools.app.proposal import Proposal
from mlx_tools.backends.verdicts import parse_verdict
from mlx_tools.errors import BackendRefused, BackendTimeout, BackendUnreachable, ConfigError
from mlx_tools.messages import ToolCall
from mlx_tools.prompt import NAMED_FORMATS, PROMPTED_STYLES
from tests.evaluate.oracle import Oracle, some_questions
from tests.prompt.tooled import tooled_format

ASKED = some_questions()
ALL = ("jsonl", "markdown-json", "xml")


def probe(backend: Any, seconds: float = 60, **more: Any) -> ProbeResult:
    verdict = more.pop("verdict", None)
    settings = RunSettings(chat_format=NAMED_FORMATS["chatml"], verdict=verdict)

    async def main() -> ProbeResult:
        return await measure(
            backend, ASKED.questions, settings=settings, limits=Limits(), seconds=seconds, **more
        )

    return anyio.run(main)


@cache
def followed(free: tuple[str, ...] = (), guided: tuple[str, ...] = ()) -> ProbeResult:
    """The measurement of a model that follows these styles, free or guided."""
    return probe(Oracle(ASKED.questions, free=free, guided=guided))


def right(measured: ProbeResult) -> dict[tuple[str, str], int]:
    return {(cell.style, cell.strategy): len(cell.right) for cell in measured.cells}


@pytest.mark.parametrize("style", ALL)
def test_a_model_that_follows_one_style_alone_gets_that_style(style: str) -> None:
    measured = followed((style,), (style,))
    assert measured.complete and measured.failure is None
    assert right(measured)[style, "free"] == right(measured)[style, "guided"] == 10
    # Prose is an answer: the two questions that need one are answered in every style.
    assert {right(measured)[other, "free"] for other in ALL if other != style} == {2}
    assert judge(measured.cells).style == style


def test_a_model_that_follows_all_styles_stays_with_the_usual_one() -> None:
    judged = judge(followed(ALL, ALL).cells)
    assert judged.style == "jsonl"
    assert {one.strategy for one in judged.styles.values()} == {"auto"}


def test_a_model_that_is_right_only_where_it_is_guided_begins_guided() -> None:
    judged = judge(followed(guided=ALL).cells)
    assert (judged.style, judged.styles["jsonl"].strategy) == ("jsonl", "guided")
    assert "guided 10 of 10" in judged.styles["jsonl"].reason


def test_figures_come_with_their_intervals_and_costs() -> None:
    cell = followed(("jsonl",), ("jsonl",)).cells[1].to_json()
    assert (cell["style"], cell["strategy"], cell["questions"]) == ("jsonl", "free", 10)
    assert (cell["valid"], cell["correct"], cell["correct_interval"]) == (10, 10, [0.722, 1.0])
    assert cell["requests"] == 10 and cell["pieces"] == 10 and cell["completion_tokens"] is None
    assert cell["wrong"] == cell["invalid"] == []


def test_the_style_native_is_probed_where_the_models_template_tells_of_tools() -> None:
    native = RunSettings(chat_format=tooled_format("qwen2.5-tools"))
    assert list_styles(native) == (*PROMPTED_STYLES, "native")
    for other in (RunSettings(), RunSettings(chat_format=NAMED_FORMATS["chatml"])):
        assert list_styles(other) == PROMPTED_STYLES


def test_every_question_is_asked_every_way_side_by_side() -> None:
    steps: list[None] = []
    styles: list[str] = []
    measured = probe(
        Oracle(ASKED.questions, free=ALL, guided=ALL),
        step=lambda: steps.append(None),
        prepare=styles.append,
    )
    assert len(steps) == len(styles) == 10 * len(PROMPTED_STYLES) * 3
    assert styles[:9] == [style for style in PROMPTED_STYLES for _ in range(3)]
    assert {cell.question_count for cell in measured.cells} == {10}


# --- what goes wrong --------------------------------------------------------------------------


def test_a_server_that_dies_in_the_middle_ends_the_probe_and_what_was_measured_stays() -> None:
    def dies(number: int) -> None:
        if number >= 30:
            raise BackendUnreachable("nobody answers", hint="start it")

    measured = probe(Oracle(ASKED.questions, free=ALL, guided=ALL, disturb=dies))
    assert not measured.complete and isinstance(measured.failure, BackendUnreachable)
    asked = [cell.question_count for cell in measured.cells]
    assert 0 < sum(asked) < 90 and max(asked) - min(asked) <= 1


def test_a_probe_ends_when_its_time_does() -> None:
    def waits(number: int) -> Any:
        return anyio.sleep(0) if number < 5 else anyio.sleep_forever()

    measured = probe(Oracle(ASKED.questions, free=ALL, guided=ALL, disturb=waits), seconds=0.2)
    assert not measured.complete and measured.failure is None
    assert sum(cell.question_count for cell in measured.cells) < 90


def test_a_completion_that_fails_alone_counts_as_wrong() -> None:
    def stumbles(number: int) -> None:
        if number == 0:
            raise BackendTimeout("too slow")
        if number == 2:
            raise BackendRefused("too long")

    measured = probe(Oracle(ASKED.questions, free=ALL, guided=ALL, disturb=stumbles))
    assert measured.complete and right(measured)["jsonl", "auto"] == 9


def test_a_server_that_refuses_everything_ends_the_probe() -> None:
    def refuses(number: int) -> None:
        raise BackendRefused("no")

    measured = probe(Oracle(ASKED.questions, disturb=refuses))
    assert not measured.complete and isinstance(measured.failure, BackendRefused)
    assert sum(cell.question_count for cell in measured.cells) == 0


# --- judging ----------------------------------------------------------------------------------

WAYS = ("auto", "free", "guided", "grammar")
MARKS = st.lists(st.tuples(st.booleans(), st.booleans()), min_size=8, max_size=8)


def cell(style: Any, strategy: Any, marks: list[tuple[bool, bool]], group: str = "q") -> Cell:
    """The results of so many questions of a group: each valid or not, right or not."""
    return Cell(
        style,
        strategy,
        tuple(
            {"id": f"{group}{n}", "category": group, "valid": valid, "correct": right}
            for n, (valid, right) in enumerate(marks)
        ),
    )


@given(st.lists(MARKS, min_size=12, max_size=12), st.integers(1, 4))
def test_what_is_chosen_is_never_clearly_worse_than_what_was_left(
    marks: list[list[tuple[bool, bool]]], ways: int
) -> None:
    cells = [
        cell(style, way, marks[4 * n + m])
        for n, style in enumerate(ALL)
        for m, way in enumerate(WAYS[:ways])
    ]
    judged = judge(cells)
    for style, one in judged.styles.items():
        by_way = {c.strategy: c for c in cells if c.style == style}
        chosen = by_way[one.strategy]
        assert not any(
            len(other.right) > len(chosen.right) and is_better(other, chosen)
            for name, other in by_way.items()
            if name != "grammar"
        )
        assert one.fallback != "grammar"
    verdict = make_verdict(
        "m", ProbeResult(tuple(cells), True, 1.0), ASKED, RunSettings(), {"mlx_tools": "1"}
    )
    assert parse_verdict(json.dumps(verdict.to_json()).encode(), verdict.model) == verdict


def test_guided_is_not_begun_with_where_a_group_of_questions_goes_worse() -> None:
    def results(strategy: Any, right: range, group: str) -> tuple[Any, ...]:
        return cell("jsonl", strategy, [(False, n in right) for n in range(8)], group).results

    for known, expected in ((range(1), "auto"), (range(0), "guided")):
        cells = []
        for strategy, one, other in (("auto", known, range(0)), ("guided", range(0), range(8))):
            found = results(strategy, one, "known") + results(strategy, other, "new")
            cells.append(Cell("jsonl", strategy, found))  # type: ignore[arg-type]
        assert judge(cells).styles["jsonl"].strategy == expected
    assert cells[1].to_json()["correct_by_group"] == {"known": 0, "new": 8}


def test_a_grammar_is_begun_with_where_it_is_better_than_all_else() -> None:
    good, bad = (True, True), (False, False)
    cells = [cell("jsonl", way, [bad] * 8) for way in WAYS[:3]]
    cells.append(cell("jsonl", "grammar", [good] * 8))
    one = judge(cells).styles["jsonl"]
    assert (one.strategy, one.fallback) == ("grammar", "auto")
    cells[2] = cell("jsonl", "guided", [good] * 8)
    assert judge(cells).styles["jsonl"].strategy == "guided"


# --- the questions ----------------------------------------------------------------------------


def test_the_questions_that_come_along_can_be_answered() -> None:
    known = load_questions()
    assert len(known.questions) >= 20
    assert any(one.call is None for one in known.questions)
    assert any(len(one.tools) > 1 for one in known.questions)
    from mlx_tools.protocol import Reading
    from mlx_tools.protocol import judge as judge_calls

    for one in known.questions:
        if one.call is None:
            continue
        arguments = {name: values[0] for name, values in one.call.arguments.items()}
        call = ToolCall(one.call.name, arguments)
        assert one.call.is_met(call)
        (judged,) = judge_calls(Reading(messages=(call,)), one.tools)
        assert judged.error is None and not judged.call.repairs


EXPECTED = Expected("f", {"city": ["York"], "n": [2]}, {"unit": ["kg"]})


@pytest.mark.parametrize(
    ("name", "arguments", "right"),
    [
        ("f", {"city": "York", "n": 2}, True),
        ("f", {"city": " york. ", "n": 2.0, "unit": "kg"}, True),
        ("g", {"city": "York", "n": 2}, False),
        ("f", {"city": "York"}, False),
        ("f", {"city": "York", "n": True}, False),
        ("f", {"city": "York", "n": "2"}, False),
        ("f", {"city": "York", "n": 2, "unit": "lb"}, False),
        ("f", {"city": "York", "n": 2, "more": 1}, False),
        ("f", {"city": ["York"], "n": 2}, False),
    ],
)
def test_a_call_is_right_by_its_name_and_all_of_its_arguments(
    name: str, arguments: dict[str, Any], right: bool
) -> None:
    assert EXPECTED.is_met(ToolCall(name, arguments)) is right


def test_an_answer_is_right_only_where_one_is_due() -> None:
    call, answer = ASKED.questions[0], ASKED.questions[-1]
    answered = Proposal(answered=True, valid=True)
    called = Proposal(calls=(ToolCall("count", {"n": 0}),), valid=True)
    both = Proposal(calls=called.calls * 2, valid=True)
    assert (call.is_right(called), call.is_right(answered), call.is_right(both)) == (True,) + (
        False,
    ) * 2
    assert (answer.is_right(called), answer.is_right(answered)) == (False, True)
    assert (call.is_valid(answered), answer.is_valid(answered)) == (False, True)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "catalogs = 3",
        "[[catalogs]]\nname = 'n'\ntools = []\nquestions = []\n",
        "[[catalogs]]\nname = 'n'\ntools = []\nquestions = [{ id = 'a' }]\n",
        "[[catalogs]]\nname = 'n'\ntools = []\n"
        "questions = [{ id = 'a', question = 'b', call = { name = 'x', arguments = {} } }]\n",
        "[[catalogs]]\nname = 'n'\ntools = []\n"
        "questions = [{ id = 'a', question = 'b' }, { id = 'a', question = 'c' }]\n",
    ],
)
def test_a_file_without_questions_is_a_fault_of_the_file(text: str) -> None:
    with pytest.raises(ConfigError, match=r"probe\.toml"):
        load_questions(text)
