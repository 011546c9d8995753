"""`mlx-tools eval`: questions asked, scored, kept, and told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mlx_tools.testing import Completion, ScriptedServer, answer, call
from tests.evaluate.questions import make_wheel

RIGHT = {"width": 2.5, "height": 4}


@pytest.fixture
def wheel(home: Path) -> str:
    return str(make_wheel(home / "bfcl.whl"))


def bfcl(run: Any, wheel: str, *options: str, script: tuple[Any, ...] = ()) -> Any:
    with ScriptedServer(*script) as server:
        chosen = ("--url", server.url, "--wheel", wheel)
        return run("eval", "bfcl", *chosen, *options, MODEL_CHAT_FORMAT="chatml"), server


def test_questions_are_asked_scored_and_told_in_a_table(run: Any, wheel: str) -> None:
    script = (call("shapes.area", **RIGHT), answer("No idea."))
    options = ("--category", "simple_python", "--limit", "2", "--strategy", "free")
    result, server = bfcl(run, wheel, *options, script=script)
    assert (result.code, result.err) == (0, "")
    head, row = result.out.splitlines()
    assert head.split() == ["items", "free", "valid", "tokens", "time"]
    assert row.split()[:5] == ["simple_python", "2", "50.0", "%", "(9-91)"]
    assert len(server.prompts) == 2 and "shapes.area(" in server.prompts[0]


def test_the_summary_as_json_says_what_was_asked_and_of_whom(run: Any, wheel: str) -> None:
    options = ("--category", "irrelevance,live_simple", "--strategy", "free", "--json")
    result, server = bfcl(
        run, wheel, *options, script=(answer("You."), call("shapes.area", **RIGHT))
    )
    assert result.code == 0, result.err
    value = result.json
    assert list(value) == ["benchmark", "settings", "sample", "rows"]
    assert value["sample"] == {
        "categories": ["irrelevance", "live_simple"],
        "limit": None,
        "seed": 0,
        "half": "all",
    }
    assert value["settings"]["data"].startswith("sha256:")
    assert [row["correct"]["hits"] for row in value["rows"]] == [1, 1]
    assert "You are terse." in server.prompts[1] and "Hi\n\nthere" in server.prompts[1]


def test_a_run_that_broke_off_goes_on_from_its_file(run: Any, wheel: str, environ: Any) -> None:
    right = call("shapes.area", **RIGHT)
    options = ("--category", "simple_python", "--strategy", "free", "--out", "results.jsonl")
    broken = Completion("gone", finish_reason=None)
    result, _ = bfcl(run, wheel, *options, "--limit", "3", script=(right, right, broken))
    assert result.code == 3 and result.out == ""
    assert len(Path("results.jsonl").read_text().splitlines()) == 3
    result, server = bfcl(run, wheel, *options, "--limit", "4", "--json", script=(right, right))
    assert result.code == 0, result.err
    assert result.json["rows"][0]["items"] == 4 and len(server.bodies) == 2
    environ(MODEL_PROMPT_STYLE="xml")
    result, server = bfcl(run, wheel, *options, "--limit", "4")
    assert result.code == 2 and server.bodies == []
    assert 'other settings: style was "jsonl", is "xml"' in result.error


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--category", "simple"), "--category: 'simple' is not allowed"),
        (("--category", ","), "--category: none is named"),
        (("--half", "first"), "--half: 'first' is not allowed"),
        (("--half", "tune,report"), "--half: 'tune,report' is not allowed"),
        (("--strategy", "wild"), "--strategy: 'wild' is not allowed"),
        (("--strategy", ","), "--strategy: none is named"),
        (("--limit", "0"), "--limit"),
        (("--limit", "x"), "--limit"),
        (("--out", "no/such/folder/file"), "cannot be written"),
        (("--wheel", "none.whl"), "--wheel: none.whl: No such file"),
    ],
)
def test_wrong_usage_is_one_line_and_nothing_is_asked(
    run: Any, wheel: str, options: tuple[str, ...], said: str
) -> None:
    result, server = bfcl(run, wheel, "--category", "multiple", *options)
    assert (result.code, result.out) == (2, "") and server.bodies == []
    assert said in result.error


def tasks(run: Any, *options: str, script: tuple[Any, ...] = ()) -> Any:
    with ScriptedServer(*script) as server:
        chosen = ("--url", server.url, "--strategy", "free")
        return run("eval", "tasks", *chosen, *options, MODEL_CHAT_FORMAT="chatml"), server


def test_tasks_are_run_judged_and_kept(run: Any) -> None:
    script = (answer("The Indian Ocean, I think."),) * 10
    some = ("--category", "calculator,none", "--out", "tasks.jsonl")
    result, _ = tasks(run, *some, "--json", script=script)
    assert result.code == 0, result.err
    rows = {row["category"]: row["correct"]["hits"] for row in result.json["rows"]}
    assert rows == {"calculator": 0, "none": 1}
    assert result.json["settings"]["tasks"].startswith("sha256:")
    lines = [json.loads(line) for line in Path("tasks.jsonl").read_text().splitlines()]
    assert lines[0]["benchmark"] == "tasks" and len(lines) == 11
    again, server = tasks(run, *some)
    assert again.code == 0 and server.bodies == []


def test_tasks_change_nothing_of_the_users(run: Any, home: Path) -> None:
    script = (call("notes_create", title="Gas meter", content="It reads 48213."), answer("Noted."))
    given = ("--only", "note-meter", "--transcripts", "runs", "--json")
    result, _ = tasks(run, *given, script=script)
    assert result.code == 0, result.err
    assert [row["correct"]["hits"] for row in result.json["rows"]] == [1]
    assert "48213" in Path("runs/note-meter-free.jsonl").read_text()
    assert not [path for path in home.rglob("*.md") if path.parent.name == "notes"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--category", "cellar"), "there is no category 'cellar'"),
        (("--only", "cellar"), "there is no task 'cellar'"),
        (("--transcripts", "file.txt"), "file.txt/product-free.jsonl cannot be written"),
    ],
)
def test_wrong_usage_of_tasks_is_one_line(
    run: Any, write: Any, options: tuple[str, ...], said: str
) -> None:
    write("file.txt", "")
    result, _ = tasks(run, "--only", "product", *options, script=(answer("1"),))
    assert (result.code, result.out) == (2, "") and said in result.error


def test_the_halves_and_the_seed_choose_the_questions(run: Any, wheel: str) -> None:
    right = call("shapes.area", **RIGHT)

    def ids(*options: str) -> list[str]:
        name = "_".join(options).replace("-", "") + ".jsonl"
        given = ("--category", "simple_python", "--strategy", "free", "--limit", "2")
        result, _ = bfcl(run, wheel, *given, "--out", name, *options, script=(right,) * 2)
        assert result.code == 0, result.err
        return [json.loads(line)["id"] for line in Path(name).read_text().splitlines()[1:]]

    tune, report = ids("--half", "tune"), ids("--half", "report")
    assert not set(tune) & set(report)
    assert ids("--seed", "1") != ids("--seed", "2")
