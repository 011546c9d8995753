"""Whole runs with real tools, judged by their outcome."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_tools import Answered, RunSettings, Stopped, data
from mlx_tools.errors import BackendError, BackendRefused, ConfigError
from mlx_tools.evaluate.results import Results
from mlx_tools.evaluate.tasks import (
    TOOLS,
    Task,
    TaskSet,
    answers,
    ask_task,
    fault_of,
    load_tasks,
    numbers_in,
    repeated,
    run_tasks,
    tools_at,
)
from mlx_tools.outcome import CallReport
from mlx_tools.prompt import NAMED_FORMATS
from mlx_tools.testing import ScriptedBackend
from tests.core.sessions import answer, call

TASKS = load_tasks()
BY_ID = {task.id: task for task in TASKS.tasks}
SETTINGS = RunSettings(chat_format=NAMED_FORMATS["chatml"], strategy="free")

RIGHT: dict[str, list[str]] = {
    "product": [call("calculator", expression="387 * 46"), answer("It is 17,802.")],
    "percent": [call("calculator", expression="15% * 260"), answer("15% of 260 is 39.")],
    "invoice": [call("calculator", expression="13*24.5"), answer("You pay 318,50 euros.")],
    "two-results": [
        call("calculator", expression="58*19") + "\n" + call("calculator", expression="1512/12"),
        answer("They are 1102 and 126."),
    ],
    "weekday": [call("clock"), answer("No, it is Thursday.")],
    "year": [call("clock"), answer("It is 2027.")],
    "tokyo": [call("clock", timezone="Asia/Tokyo"), answer("It is 7:42 PM.")],
    "read": [
        call("file_access", operation="read", path="shopping.txt"),
        answer("Oats, lemons and candles."),
    ],
    "list": [
        call("file_access", operation="list", path="letters"),
        answer("harbour.txt and tax-office.txt"),
    ],
    "absent": [
        call("file_access", operation="read", path="recipe.txt"),
        answer("That file does not exist."),
    ],
    "read-and-add": [
        call("file_access", operation="read", path="readings.txt"),
        answer("Their sum is 1287."),
    ],
    "thanks": [answer("You are welcome!")],
    "ocean": [answer("The Indian Ocean.")],
}


READ_X = call("file_access", operation="read", path="x")


def ask(task: Task, *script: Any) -> dict[str, Any]:
    backend = ScriptedBackend(*script)
    return anyio.run(ask_task, task, TASKS.now, backend, SETTINGS)


@pytest.mark.parametrize("task", TASKS.tasks, ids=lambda task: task.id)
def test_every_task_can_be_done_with_the_tools_there_are(task: Task) -> None:
    result = ask(task, *RIGHT[task.id])
    assert result["fault"] == "" and result["correct"] and result["valid"]
    assert result["answered"] and result["repeated"] == 0


@pytest.mark.parametrize("task", TASKS.tasks, ids=lambda task: task.id)
def test_no_task_is_done_by_saying_nothing_or_by_its_own_words(task: Task) -> None:
    assert (
        not ask(task, answer("I cannot help with that, sorry: 1, 2, 3."))["correct"] or task.quiet
    )
    if task.id != "thanks":
        assert not ask(task, answer(task.question))["correct"]


def test_the_observations_hold_what_the_answers_must(tmp_path: Path) -> None:
    (tmp_path / "letters").mkdir()
    registry = tools_at(TASKS.now, tmp_path)
    assert set(registry.specs()) == set(TOOLS) and not registry.disabled
    result = ask(BY_ID["weekday"], call("clock"), lambda prompt: answer(prompt[-400:]))
    assert "2027-08-19" in result["answer"]


def test_the_questions_are_none_of_the_examples_that_the_model_is_shown() -> None:
    words = tomllib.loads(data.read_data("prompts/examples.toml"))
    shown = {example["question"] for example in words["direct"]}
    shown |= {e["question"] for examples in words["tools"].values() for e in examples}
    assert shown.isdisjoint(task.question for task in TASKS.tasks)
    assert len({task.id for task in TASKS.tasks}) == len(TASKS.tasks) >= 12


@pytest.mark.parametrize(
    ("id_", "script", "fault"),
    [
        ("product", [answer("It is 17802.")], "calculator did not run"),
        ("product", [call("calculator", expression="1+1"), answer("2")], "wrong answer"),
        ("read", [READ_X, answer("oats, lemons, candles")], "file_access did not run"),
        ("absent", [answer("It is not there.")], "file_access was not called"),
        ("thanks", [call("clock"), answer("Bye")], "called clock"),
        ("thanks", ['{"type":'] * 9, "stopped"),
    ],
)
def test_what_is_wrong_with_a_run_is_told(id_: str, script: list[str], fault: str) -> None:
    result = ask(BY_ID[id_], *script)
    assert (result["correct"], result["fault"]) == (False, fault)


def test_what_was_broken_repaired_or_said_twice_is_counted() -> None:
    again = call("calculator", expression="387 * 46")
    result = ask(BY_ID["product"], '{"type":', again[:-1] + ",}", again, answer("17802"))
    assert result["correct"] and not result["valid"]
    assert (result["broken"], result["repairs"], result["repeated"]) == (1, 1, 1)
    wrong = ask(BY_ID["ocean"], call("calculator"), answer("The Indian Ocean"))
    assert not wrong["valid"] and wrong["fault"] == "called calculator"


def test_a_task_sees_only_its_own_folder() -> None:
    result = ask(
        BY_ID["read"], call("file_access", operation="list", path="."), lambda p: answer(p[-300:])
    )
    assert "shopping.txt" in result["answer"] and "letters" not in result["answer"]
    outside = ask(
        BY_ID["read"],
        call("file_access", operation="read", path="/etc/passwd"),
        answer("oats lemons candles"),
    )
    assert outside["calls"][0]["status"] != "ok"


def test_all_tasks_by_all_strategies_are_kept_and_gone_on_with(tmp_path: Path) -> None:
    tasks = TaskSet(TASKS.tasks[:2], TASKS.now)
    script = [text for task in tasks.tasks for text in RIGHT[task.id]]
    strategies = {"free": SETTINGS, "second": SETTINGS}

    def run(backend: Any) -> Any:
        async def main() -> Any:
            with Results(tmp_path / "tasks.jsonl", "tasks", {}) as results:
                return await run_tasks(tasks, backend, strategies, results)

        return anyio.run(main)

    found = run(ScriptedBackend(*script, *script))
    assert [(r["id"], r["strategy"], r["correct"]) for r in found] == [
        (task.id, strategy, True) for strategy in strategies for task in tasks.tasks
    ]
    assert run(ScriptedBackend()) == found


def test_a_backend_that_fails_within_a_run_is_no_result() -> None:
    with pytest.raises(BackendError, match="gone"):
        ask(BY_ID["product"], call("calculator", expression="1"), BackendRefused("gone"))


# --- judging ----------------------------------------------------------------------------------


def task(**expected: Any) -> Task:
    return Task(id="t", category="c", question="?", **expected)


@pytest.mark.parametrize(
    ("expected", "text", "right"),
    [
        ({"contains": ("Oats", "rice")}, "RICE and oats", True),
        ({"contains": ("Oats", "rice")}, "oats", False),
        ({"any_of": ("a", "b")}, "B", True),
        ({"any_of": ("a", "b")}, "c", False),
        ({"matches": r"\b7:42\b"}, "at 7:42 PM", True),
        ({"matches": r"\b7:42\b"}, "at 17:42", False),
        ({"number": 17802}, "17,802", True),
        ({"number": 17802}, "17802.0 exactly", True),
        ({"number": 17802}, "178020", False),
        ({"number": 318.5, "tolerance": 0.005}, "318.50 €", True),
        ({"number": 318.5, "tolerance": 0.005}, "1 + 317", False),
        ({"number": 1318.5}, "1.318,50 €", True),
        ({"number": -3}, "\u22123 degrees", True),
        ({"number": 3}, "none", False),
        ({}, "anything", True),
    ],
)
def test_an_answer_is_judged_by_what_it_holds(
    expected: dict[str, Any], text: str, right: bool
) -> None:
    assert answers(task(**expected), text) is right


@given(st.floats(-1e9, 1e9), st.text(alphabet="abc .,", max_size=5))
def test_a_number_is_found_wherever_it_stands(number: float, around: str) -> None:
    written = f"{number:.2f}"
    assert float(written) in numbers_in(f"{around} {written} {around}")


@given(st.text(max_size=200))
def test_any_text_can_be_looked_through_for_numbers(text: str) -> None:
    assert all(isinstance(number, float) for number in numbers_in(text))


def report(name: str, status: Any = "ok", **arguments: Any) -> CallReport:
    return CallReport(id="c", name=name, arguments=arguments, status=status)


def test_a_call_that_only_failed_did_not_run() -> None:
    outcome = Answered(session="s", answer="x", calls=(report("clock", "error"),))
    assert fault_of(task(ran=("clock",)), outcome) == "clock did not run"
    assert fault_of(task(tried=("clock",)), outcome) == ""
    assert fault_of(task(), Stopped(session="s", reason="x")) == "stopped"


def test_calls_are_the_same_by_name_and_arguments_in_any_order() -> None:
    calls = [report("a", x=1, y=2), report("a", y=2, x=1), report("b", x=1, y=2), report("a")]
    assert repeated(calls) == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("now = 1", "no file of tasks"),
        ("[[tasks]]", "no file of tasks"),
        ('now = "2027-01-01T00:00:00Z"\n[[tasks]]\nid = "a"\nsize = 3', "unknown key size"),
        ('now = "never"\ntasks = []', "no file of tasks"),
        ("=", "no file of tasks"),
    ],
)
def test_a_file_that_is_not_one_of_tasks_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "tasks.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=said):
        load_tasks(path)
