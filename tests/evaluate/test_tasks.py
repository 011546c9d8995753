"""Whole runs with real tools, judged by their outcome."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from mlx_tools import Limits, RunSettings
from mlx_tools.app.results import Results
from mlx_tools.errors import BackendError, BackendRefused, ConfigError
from mlx_tools.plugins.evaluate.tasks import (
    TOOLS,
    Task,
    World,
    ask_task,
    is_right_answer,
    load_tasks,
    run_tasks,
)
from mlx_tools.prompt import NAMED_FORMATS
from mlx_tools.testing import ScriptedBackend, answer, call
from tests.tables import table

TASKS = load_tasks()
BY_ID = {task.id: task for task in TASKS.tasks}
SETTINGS = RunSettings(chat_format=NAMED_FORMATS["chatml"], strategy="free")


def calc(expression: str) -> str:
    return call("calculator", expression=expression)


def read(path: str) -> str:
    return call("file_access", operation="read", path=path)


def search(query: str) -> str:
    return call("query_knowledge_base", query=query)


def does(said: str, name: str, **arguments: Any) -> list[str]:
    return [call(name, **arguments), answer(said)]


def later(task: str, when: str) -> list[str]:
    return does("It is scheduled.", "schedule_task", task=task, when=when)


def read_on(prompt: str) -> str:
    """Reads on where the text was cut, from the line that the prompt says."""
    line = re.findall(r"To read on: from_line (\d+)", prompt)[-1]
    return call("file_access", operation="read", path="log.txt", from_line=int(line))


def passed_on(prompt: str) -> str:
    """The last thing that was observed, as the answer."""
    return answer(prompt[prompt.rindex("tool_observation") :])


RIGHT: dict[str, list[Any]] = {
    "product": [calc("387 * 46"), answer("It is 17,802.")],
    "percent": [calc("15% * 260"), answer("15% of 260 is 39.")],
    "invoice": [calc("13*24.5"), answer("You pay 318,50 euros.")],
    "two-results": [calc("58*19") + "\n" + calc("1512/12"), answer("They are 1102 and 126.")],
    "root": [calc("sqrt(7921)"), passed_on],
    "share": [calc("918.40 / 7"), passed_on],
    "weekday": [call("clock"), answer("No, it is Thursday.")],
    "year": [call("clock"), passed_on],
    "tokyo": [call("clock", timezone="Asia/Tokyo"), answer("It is 7:42 PM.")],
    "today": [call("clock"), answer("It is August 19th, 2027.")],
    "read": [read("shopping.txt"), answer("Oats, lemons and candles.")],
    "list": [call("file_access", operation="list", path="letters"), passed_on],
    "absent": [read("recipe.txt"), answer("That file does not exist.")],
    "setting": [read("config/server.toml"), answer("On port 8147.")],
    "line": [read("plants.txt"), answer("The basil.")],
    "make-list": does("Done.", "create_file", path="packing.txt", content="tent\ntorch\nrope\n"),
    "make-letter": does(
        "Done.", "create_file", path="letters/ana.txt", content="Dear Ana, thank you for the keys."
    ),
    "replace": does(
        "Done.", "file_access", operation="write", path="status.txt", content="closed until Monday"
    ),
    "delete": does("It is gone.", "file_access", operation="delete", path="drafts/old-speech.txt"),
    "note-meter": does("Noted.", "notes_create", title="Gas meter", content="It reads 48213."),
    "note-paint": does(
        "Noted.", "notes_create", title="Hallway paint", content="The colour is RAL 9010."
    ),
    "note-plumber": does(
        "Noted.", "notes_create", title="Plumber", content="Comes on Friday at 10."
    ),
    "find-lock": [call("notes_search", query="bicycle lock"), answer("It is 7305.")],
    "find-boiler": [call("notes_search", query="boiler"), passed_on],
    "find-size": [call("notes_search", query="curtains"), answer("235 cm.")],
    "find-nothing": [call("notes_search", query="piano tuner"), answer("No, there is none.")],
    "notice": [search("notice period"), answer("Three months [1].")],
    "excess": [search("excess household insurance"), answer("It is 150 euros [1].")],
    "filter": [search("lint filter"), answer("Every eight weeks [1].")],
    "fault-code": [search("E17"), answer("No water comes in: open the tap [1].")],
    "corpora": [call("list_corpora"), passed_on],
    "remind-tomorrow": later("Remind me to water the tomatoes.", "tomorrow 8:15"),
    "remind-hours": later("Remind me of the bread in the oven.", "in 3 hours"),
    "remind-date": later("Say that the chimney sweep is to be called.", "2027-12-03 14:00"),
    "weekdays": later("Say which birthdays there are today.", "every weekday at 7:30"),
    "bins": later("Say that the bins go out.", "monday 18:00"),
    "read-and-add": [read("readings.txt"), calc("418 + 377 + 492"), passed_on],
    "read-and-note": [
        read("guests.txt"),
        call("notes_create", title="Guests", content="Farid, Ingrid, Tomas"),
        answer("I have noted it."),
    ],
    "age": [call("clock"), calc("2027 - 1969"), passed_on],
    "yearly-rent": [search("monthly rent"), calc("860 * 12"), passed_on],
    "moved": [read("plan.txt"), read("archive/plan.txt"), passed_on],
    "folder": [
        read("recipes"),
        call("file_access", operation="list", path="recipes"),
        answer("Two recipes: pancakes and soup."),
    ],
    "long-log": [read("log.txt"), read_on, answer("At 15:42.")],
    "thanks": [answer("You are welcome!")],
    "ocean": [answer("The Indian Ocean.")],
    "opposite": [answer("Cold.")],
    "birthday": [answer("Happy birthday, dear Greta!")],
}


CUTS = Limits(max_observation_chars=4_000)
"""With these the long log is cut, as it is for a model with a context of 8,192 tokens."""


def ask(task: Task, *script: Any, **more: Any) -> dict[str, Any]:
    backend = ScriptedBackend(*script)
    more = {"limits": CUTS, **more}
    return anyio.run(partial(ask_task, task, TASKS, backend, SETTINGS, **more))


@table("task", TASKS.tasks, ids=lambda task: task.id)
@pytest.mark.heavy
def test_every_task_can_be_done_with_the_tools_there_are(task: Task) -> None:
    result = ask(task, *RIGHT[task.id])
    assert result["fault"] == "" and result["correct"] and result["valid"]
    assert result["answered"] and result["repeated"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS.tasks, ids=lambda task: task.id)
def test_no_task_is_done_by_saying_nothing_or_by_its_own_words(task: Task) -> None:
    assert not ask(task, answer("I cannot do that, sorry: 1, 2, 3."))["correct"]
    if task.id not in ("thanks", "birthday"):
        assert not ask(task, answer(task.question))["correct"]


def test_a_task_offers_its_own_tools_alone(tmp_path: Path) -> None:
    world = World(tmp_path, BY_ID["notice"], TASKS)
    world.write_files()
    assert set(world.build_registry().specs()) == set(TOOLS) and not world.build_registry().disabled
    script = [call("notes_search", query="hot"), answer("Cold.")]
    assert ask(BY_ID["opposite"], *script)["calls"][0]["status"] != "ok"


MADE_OTHER = [call("create_file", path="packing.txt", content="tent"), answer("Done.")]
DELETED_BOTH = [
    call("file_access", operation="delete", path="drafts/old-speech.txt"),
    call("file_access", operation="delete", path="drafts/new-speech.txt"),
    answer("Both are gone."),
]


@table(
    ("id_", "script", "fault"),
    [
        ("product", [calc("1+1"), answer("2")], "wrong answer"),
        ("read", [read("x"), answer("oats, lemons, candles, rice")], "wrong answer"),
        ("absent", [answer("It is not there.")], "file_access was not called"),
        ("thanks", [call("clock"), answer("Bye")], "called clock"),
        ("thanks", ['{"type":'] * 9, "stopped"),
        ("make-list", [answer("Done.")], "no file packing.txt"),
        ("make-list", MADE_OTHER, "packing.txt does not hold what it must"),
        ("delete", [answer("Deleted.")], "drafts/old-speech.txt is still there"),
        ("delete", DELETED_BOTH, "drafts/new-speech.txt was changed"),
        ("note-meter", [answer("Noted.")], "no note was made"),
        (
            "note-meter",
            [*RIGHT["note-paint"][:1], answer("x")],
            "the note does not hold what it must",
        ),
        ("find-lock", [*RIGHT["note-paint"][:1], answer("7305")], "a note was made"),
        ("notice", [search("notice"), answer("Three months.")], "tenancy.md is not cited"),
        ("bins", [answer("I will remind you.")], "no job was made"),
        ("bins", later("bins", "tomorrow 18:00"), "the job is due at 2027-08-20 16:00:00 UTC"),
        ("bins", later("cellar", "monday 18:00"), "the job does not say what it must"),
        (
            "bins",
            later("bins", "every monday at 18:00"),
            "the job is due at 2027-08-23 16:00:00 UTC",
        ),
        (
            "weekdays",
            later("birthdays", "tomorrow 7:30"),
            "the job is due at 2027-08-20 05:30:00 UTC",
        ),
        (
            "bins",
            later("bins", "monday 18:00")[:1] * 1 + later("bins", "tomorrow 9:00"),
            "2 jobs were made",
        ),
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
    tasks = TASKS.select(ids=("product", "percent"))
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


@table(
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
        ({"lacks": ("yes",)}, "Yes.", False),
        ({"lacks": ("yes",)}, "No.", True),
        ({}, "anything", True),
    ],
)
def test_an_answer_is_judged_by_what_it_holds(
    expected: dict[str, Any], text: str, right: bool
) -> None:
    assert is_right_answer(task(**expected), text) is right


def test_the_transcripts_are_kept_where_one_asks_for_them(tmp_path: Path) -> None:
    ask(BY_ID["product"], *RIGHT["product"], transcript_file=tmp_path / "runs" / "it.jsonl")
    assert '"387 * 46"' in (tmp_path / "runs" / "it.jsonl").read_text()


def test_only_some_tasks_are_taken_by_category_or_id() -> None:
    some = TASKS.select(("none",), ("product",))
    assert {task.category for task in some.tasks} == {"none", "calculator"}
    assert TASKS.select() is TASKS
    with pytest.raises(ConfigError, match="no category 'x'"):
        TASKS.select(("x",))
    with pytest.raises(ConfigError, match="no task 'x'"):
        TASKS.select(ids=("x",))


def test_no_task_reaches_out_of_its_folder_or_for_a_tool_that_is_not_there() -> None:
    assert len(BY_ID) == len(TASKS.tasks) and {t.id for t in TASKS.tasks} == set(RIGHT)
    for one in TASKS.tasks:
        assert set(one.tools) | set(one.ran) | set(one.required_calls) <= set(TOOLS)
        documents = [name for texts in one.corpora.values() for name in texts]
        for name in (*one.files, *one.notes, *documents, *one.corpora):
            assert not name.startswith("/") and ".." not in name.split("/")
