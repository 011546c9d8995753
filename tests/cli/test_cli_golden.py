"""`mlx-tools golden`: recording, replaying, checking and accepting."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from mlx_tools.errors import ConfigError
from mlx_tools.golden import read_golden, replaying
from mlx_tools.prompt import PromptWords
from mlx_tools.testing import ScriptedServer, answer, call
from tests.command_line import Run

SCRIPT = (call("calculator", expression="17*23"), answer("It is 391."))
WHAT = "What is 17 * 23?"


@pytest.fixture
def kept(run: Run) -> Path:
    """A transcript that was recorded."""
    with ScriptedServer(*SCRIPT) as server:
        result = run("golden", "record", "calc", WHAT, "--url", server.url, "--about", "A sum.")
    assert result.code == 0, result.err
    return Path("golden_transcripts/calc.jsonl")


def _changed(path: Path, was: str, now: str) -> None:
    text = path.read_text("utf-8")
    assert was in text
    path.write_text(text.replace(was, now), "utf-8")


def test_a_run_is_recorded_and_replays(run: Run, kept: Path, home: Path) -> None:
    text = kept.read_text("utf-8")
    assert str(home) not in text
    golden = read_golden(kept).golden
    assert (golden.name, golden.source, golden.about) == ("calc", "real", "A sum.")
    for where in ((), ("golden_transcripts",)):
        result = run("golden", "run", *where)
        assert (result.code, result.out) == (0, "1 of 1 passed\n")


def test_a_run_that_is_not_as_expected_is_kept_and_told(run: Run) -> None:
    wanted = '{"calls": [{"name": "clock"}], "answer": {"contains": "12"}}'
    with ScriptedServer(*SCRIPT, *SCRIPT) as server:
        record = ("golden", "record", "--url", server.url)
        right = run(*record, "right", WHAT, "--expect", '{"answer": {"number": 391}}')
        wrong = run(*record, "wrong", WHAT, "--expect", wanted)
        asked = len(server.prompts)
        refused = run(*record, "refused", WHAT, "--expect", '{"cals": []}')
        assert len(server.prompts) == asked  # nothing was asked
    assert right.code == wrong.code == 0 and "--expect" not in right.err
    assert '- {"name": "clock"}' in wrong.err and "the answer" in wrong.err
    assert wrong.err.splitlines()[-1].startswith("mlx-tools: note: this run is not what --expect")
    assert refused.code == 2 and "an expectation has no 'cals'" in refused.err


def test_an_answer_without_a_tool_is_recorded_and_replays(run: Run) -> None:
    with ScriptedServer(answer("A sailor.")) as server:
        done = run("golden", "record", "plain", "Who was Popeye?", "--url", server.url)
    assert done.code == 0, done.err
    assert run("golden", "run").out == "1 of 1 passed\n"


def test_a_past_session_is_recorded(run: Run) -> None:
    with ScriptedServer(*SCRIPT) as server:
        outcome = run("ask", WHAT, "--url", server.url, "--json").json
    for number, session in enumerate(("last", outcome["session"], outcome["transcript"])):
        result = run("golden", "record", f"sum{number}", "--session", session)
        assert result.code == 0 and "answered: It is 391. (called calculator)" in result.err
    assert run("golden", "run", "golden_transcripts", "--json").lines[-1] == {
        "checks": 3,
        "passed": 3,
    }


def test_a_past_session_needs_no_options_of_its_own(run: Run, home: Path) -> None:
    (home / "docs").mkdir()
    script = (
        call("file_access", operation="write", path="a.txt", content="tea"),
        call("file_access", operation="list", path="."),
        answer("Done."),
    )
    with ScriptedServer(*script) as server:
        options = ("--url", server.url, "--root", f"{home}/docs:rw", "--tools", "file_access")
        asked = run("ask", "Note: tea", *options, "--approve", "always")
        assert asked.code == 0, asked.err
    result = run("golden", "record", "note", "--session", "last")
    assert result.code == 0, result.err
    assert str(home) not in Path("golden_transcripts/note.jsonl").read_text()
    assert run("golden", "run", "golden_transcripts").code == 0


def test_what_differs_is_shown_with_its_room_and_accepted(run: Run, kept: Path) -> None:
    _changed(kept, "You are a helpful assistant with tools.", "You were a helpful assistant.")
    result = run("golden", "run", str(kept))
    assert result.code == 1
    assert "prompt: the system prompt" in result.out
    assert "+ You are a helpful assistant with tools." in result.out
    before = kept.read_bytes()
    asked = run("golden", "accept", str(kept))
    assert asked.code == 2 and "--yes" in asked.err and kept.read_bytes() == before
    done = run("golden", "accept", str(kept), "--yes")
    assert done.code == 0 and "prompt: the system prompt" in done.out
    assert run("golden", "run", str(kept)).code == 0
    assert "nothing to accept" in run("golden", "accept", str(kept)).err


FUNCTION = """
from mlx_tools import tool


@tool(effects={{"read"}})
def in_stock(article: str) -> int:
    '''{doc}'''
    return 3
"""


def test_a_changed_function_of_a_file_is_a_difference(run: Run) -> None:
    file = Path("stock.py")
    file.write_text(FUNCTION.format(doc="Pieces in stock."))
    script = call("in_stock", article="hammer"), answer("There are 3.")
    with ScriptedServer(*script) as server:
        named = ("--functions", "stock.py", "--tools", "in_stock")
        done = run("golden", "record", "stock", "Hammers?", "--url", server.url, *named)
    assert done.code == 0, done.err
    kept = Path("golden_transcripts/stock.jsonl")
    assert "stock.py" not in kept.read_text("utf-8")  # a path of this machine
    same = run("golden", "run", "--functions", "stock.py")
    assert (same.code, same.out, same.err) == (0, "1 of 1 passed\n", "")
    file.write_text(FUNCTION.format(doc="Pieces on the shelf."))
    unseen = run("golden", "run")
    assert unseen.code == 0
    assert "note: not here, so not compared: in_stock (--functions FILE.py" in unseen.err
    changed = run("golden", "run", "--functions", "stock.py")
    assert changed.code == 1 and "tools: the description of the tool in_stock" in changed.out
    assert run("golden", "accept", "--functions", "stock.py", "--yes").code == 0
    assert run("golden", "run", "--functions", "stock.py").code == 0
    assert "on the shelf" in kept.read_text("utf-8")


def test_a_recorded_call_that_waits_is_said_to_wait(run: Run) -> None:
    with ScriptedServer(call("notes_create", title="Milk", content="Buy milk.")) as server:
        options = ("--url", server.url, "--tools", "notes_create")
        done = run("golden", "record", "milk", "Note: milk", *options)
    assert "paused: a call waits for an approval (called notes_create)" in done.err


def test_a_fault_of_the_prompts_is_told_once(
    run: Run, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> PromptWords:
        raise ConfigError("prompts/persona.txt is empty")

    monkeypatch.setattr(replaying, "load_words", fail)
    kept.with_name("two.jsonl").write_bytes(kept.read_bytes())
    for command in ("run", "accept"):
        done = run("golden", command)
        assert (done.code, done.out) == (2, "")
        assert done.err == "mlx-tools: error: prompts/persona.txt is empty\n"


def test_an_equal_difference_of_several_transcripts_is_shown_once(run: Run, kept: Path) -> None:
    _changed(kept, "You are a helpful assistant with tools.", "You were a helpful assistant.")
    text = kept.read_text(encoding="utf-8")
    for number in range(9):
        kept.with_name(f"copy{number}.jsonl").write_text(text, encoding="utf-8")
    kept.with_name("other.jsonl").write_text(
        text.replace("You were a helpful assistant.", "You were."), encoding="utf-8"
    )
    result = run("golden", "run", "--report", "report.html")
    assert result.code == 1 and "0 of 11 passed" in result.out
    assert result.out.count("prompt: the system prompt") == 2
    assert "in 10 transcripts: " in result.out and "and 4 more" in result.out
    assert result.out.splitlines()[-2] == "  in golden_transcripts/other.jsonl"
    page = Path("report.html").read_text(encoding="utf-8")
    assert page.count("<del>− You were a helpful assistant.") == 1
    assert page.count("as in 10 transcripts") == page.count('href="#difference1"') == 10
    shown = run("golden", "accept")
    assert shown.out.count("prompt: the system prompt") == 2 and "in 10 transcripts" in shown.out


def test_a_transcript_that_only_its_digests_are_old_of_is_brought_up_to_date(
    run: Run, kept: Path
) -> None:
    text = kept.read_text(encoding="utf-8")
    digest = json.loads(text.splitlines()[1])["words"]["persona.txt"]
    kept.write_text(text.replace(digest, "0" * len(digest)), encoding="utf-8")
    assert run("golden", "run", str(kept)).code == 0
    done = run("golden", "accept", str(kept), "--yes")
    assert done.code == 0 and "digests of the words" in done.out, done.err
    assert kept.read_text(encoding="utf-8") == text


def test_accepting_goes_on_after_a_damaged_file(run: Run, kept: Path) -> None:
    good = kept.read_bytes()
    _changed(kept, "You are a helpful assistant with tools.", "You were a helpful assistant.")
    damaged = {"a.jsonl": b"no transcript\n", "b.jsonl": good[:-20], "z.jsonl": b"\xff\n"}
    for name, data in damaged.items():
        kept.with_name(name).write_bytes(data)
    result = run("golden", "accept", "--yes")
    assert result.code == 1 and "1 written" in result.err
    for name, data in damaged.items():
        assert result.err.count(f"golden_transcripts/{name}: ") == 1
        assert kept.with_name(name).read_bytes() == data
    assert kept.read_bytes() == good


def test_a_transcript_that_is_no_file_is_not_passed_over(run: Run, kept: Path) -> None:
    (kept.parent / "gone.jsonl").symlink_to("nowhere.jsonl")
    os.mkfifo(kept.parent / "pipe.jsonl")
    result = run("golden", "run", str(kept.parent))
    assert result.code == 1 and "1 of 3 passed" in result.out + result.err
    for problem in ("gone.jsonl cannot be read: No such file", "pipe.jsonl cannot be read: it is"):
        assert problem in result.out + result.err


def test_questions_are_asked_again_of_a_model(run: Run, kept: Path) -> None:
    with ScriptedServer(*SCRIPT, answer("391, I think.")) as server:
        live = ("golden", "run", "golden_transcripts", "--live", "--url", server.url)
        good = run(*live, "--strategy", "free", "--json")
        assert good.code == 0, good.err
        worse = run(*live, "--strategy", "free")
    assert worse.code == 1
    assert "FAIL  calc  scripted · jsonl · free  0/1" in worse.out
    assert "0 of 1 runs passed, 0 % (0 to 79 %)" in worse.out
    assert "with 95 % confidence (Wilson)" in worse.out
    assert "outcome: the calls" in worse.out


def test_several_models_are_asked_and_reported_side_by_side(run: Run, kept: Path) -> None:
    with ScriptedServer(*SCRIPT, answer("I do not know.")) as server:
        result = run(
            *("golden", "run", "golden_transcripts", "--live", "--url", server.url),
            *("--models", "one,two", "--style", "markdown-json", "--strategy", "free"),
            *("--report", "r.html", "--json"),
        )
        asked = [body["model"] for body in server.bodies]
    assert [(line["model"], line["passed"]) for line in result.lines[:-1]] == [
        ("one", True),
        ("two", False),
    ]
    assert asked == ["one", "one", "two"]
    page = Path("r.html").read_text("utf-8")
    assert "one · markdown-json · free" in page and "two · markdown-json · free" in page
    assert "I do not know." in page


def test_transcripts_are_reported(run: Run, kept: Path) -> None:
    assert run("golden", "report", "golden_transcripts", "--out", "r.html").code == 0
    assert WHAT in Path("r.html").read_text("utf-8")
    result = run("golden", "run", "golden_transcripts", "--report", "s.html")
    assert result.code == 0 and "It is 391." in Path("s.html").read_text("utf-8")


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (("run",), "there is no golden_transcripts"),
        (("run", "nowhere"), "there is no nowhere"),
        (("run", "."), "holds no transcripts"),
        (("run", "x.jsonl", "--samples", "2"), "a replay asks no model"),
        (("run", "x.jsonl", "--live", "--style", "yaml"), "--style"),
        (("record", "x"), "give the questions to ask"),
        (("record", "../x", "Hm?"), "cannot name a transcript"),
        (("record", "x", "Hm?", "--into", "."), "is there already"),
        (("record", "y", "Hm?", "--expect", "{"), "--expect: not JSON"),
        (("record", "y", "Hm?", "--expect", "[{}, {}]"), "2 expectations for 1 questions"),
        (("record", "y", "--session", "nothing"), "there are no sessions"),
    ],
)
def test_a_slip_is_told_in_a_line(run: Run, arguments: tuple[str, ...], fault: str) -> None:
    if "x.jsonl" in arguments or "." in arguments[-1:]:
        Path("x.jsonl").write_text("")
    if arguments == ("run", "."):
        Path("x.jsonl").unlink()
    result = run("golden", *arguments)
    assert result.code == 2
    assert fault in result.error


def test_what_a_foreign_transcript_says_is_escaped_in_a_pipe_too(run: Run, tmp_path: Path) -> None:
    made = tmp_path / "strange\x1b[2J\x9b\u202e.jsonl"
    made.write_text('{"type":"header"}\n')
    done = run("golden", "run", str(made))
    assert done.code != 0
    for unseen in ("\x1b", "\x9b", "\u202e"):
        assert unseen not in done.out + done.err


def test_recorded_runs_are_exported_as_training_data(run: Run, kept: Path, home: Path) -> None:
    data = str(home / "data")
    done = run("golden", "export", "--format", "mlx-lora", data)
    assert (done.code, done.out) == (0, "")
    said = "2 completions to train with, 0 to validate with, 0 left out"
    assert said in done.err
    rows = [json.loads(line) for line in (home / "data" / "train.jsonl").read_text().splitlines()]
    assert [row["completion"] for row in rows] == list(SCRIPT)
    again, other = run("golden", "export", data), run("golden", "export", "--format", "csv", data)
    assert again.code == other.code == 2 and "is there already" in again.error
    assert "'csv' is not allowed" in other.error
