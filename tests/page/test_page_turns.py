"""The page of a session: question, answer, a line for each call, and what a person does with it."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest

from mlx_tools.app import build_steps
from mlx_tools.errors import StopReason, UsageError
from mlx_tools.messages import ErrorInfo
from mlx_tools.paths import locked
from mlx_tools.plugins.page.session_titles import MAX_TITLE, SessionTitles
from mlx_tools.plugins.page.turns import group_turns
from mlx_tools.plugins.runs.workers import LiveRun
from mlx_tools.testing import answer, call
from mlx_tools.transcript import (
    AnswerRecord,
    CallRecord,
    CompletionRecord,
    CorrectionRecord,
    DecisionRecord,
    ExecutionRecord,
    Header,
    ObservationRecord,
    ResumedRecord,
    StoppedRecord,
    UserRecord,
    drop_advice,
)
from tests.page.test_page import opened, post
from tests.waiting import EXPIRES, HANG, until

pytestmark = pytest.mark.anyio

CALL = (
    CompletionRecord(turn=1, text="{}"),
    CallRecord(turn=1, call="c1", name="look", arguments={"path": "a.txt", "lines": 3}),
    DecisionRecord(call="c1", decision="allow", rule="allow", reason=""),
    ExecutionRecord(call="c1", mutates=False),
    ObservationRecord(call="c1", name="look", content="first\nsecond"),
)


def test_a_call_is_one_line_with_all_that_is_about_it_below() -> None:
    records = (
        Header(session="s", created="2026-01-01T00:00:00+00:00"),
        UserRecord(content="Look."),
        *CALL,
    )
    records = (
        *records,
        CompletionRecord(turn=2, text="x"),
        AnswerRecord(turn=2, content="**No.**"),
    )
    (turn,) = group_turns(build_steps(records))
    assert turn.question is not None and turn.question.whole == "Look."
    assert turn.answer is not None and turn.answer.whole == "**No.**"
    (act,) = turn.acts
    assert (act.step.title, act.arguments, act.outcome) == ("look", "a.txt, 3", "first")
    assert len(act.steps) == len(CALL) and not act.bad
    assert [step.label for step in turn.writing] == ["Model wrote"]
    assert turn.calls == 1


def test_what_went_wrong_is_told_on_its_line() -> None:
    failed = ObservationRecord(call="c1", name="look", error=ErrorInfo("tool_error", "no file"))
    records = (*CALL[:-1], failed, CorrectionRecord(turn=2, error=ErrorInfo("x", "not JSON")))
    (turn,) = group_turns(build_steps((UserRecord(content="Look."), *records)))
    call, correction = turn.acts
    assert call.bad and call.outcome == "tool_error: no file"
    assert correction.bad and "not JSON" in correction.step.words


def test_a_run_that_stopped_and_went_on_has_its_last_end_as_the_answer() -> None:
    records = (
        *(UserRecord(content="Look."), StoppedRecord(reason="iteration_limit")),
        *(ResumedRecord(policy={}), *CALL, AnswerRecord(turn=3, content="There.")),
        *(UserRecord(content="And?"),),
    )
    first, second = group_turns(build_steps(records))
    assert first.answer is not None and first.answer.whole == "There."
    assert [act.step.label for act in first.acts] == ["Call c1", "Stopped"]
    assert second.question is not None and second.answer is None


@pytest.mark.parametrize(
    ("message", "left"),
    [
        ("it failed", "it failed"),
        ("it failed (see --help)", "it failed"),
        ("(a) it failed (b) (raise it (now) with --timeout)", "(a) it failed (b)"),
        ("it failed) (raise it with --timeout)", "it failed)"),
        ("it failed (errno 32)", "it failed (errno 32)"),
        ("f(--x)", "f(--x)"),
        ("--timeout was over)", "--timeout was over)"),
        (f"{' (' * 100_000}--x)", f"{' (' * 99_999}"),
        ("", ""),
    ],
)
def test_only_advice_at_the_end_is_dropped(message: str, left: str) -> None:
    assert drop_advice(message) == left


def test_a_page_gives_no_advice_for_a_terminal_and_a_terminal_does() -> None:
    message = "no server answers at http://a (start one with mlx-tools models serve NAME (1 GB))"
    for reason in get_args(StopReason):
        for text in ("", message, "it broke off (errno 32)"):
            record = StoppedRecord(reason=reason, message=text)
            (step,) = build_steps([record])
            advice = r"mlx-tools (?!failed)[a-z]|--[a-z]|/[a-z]+ in chat"
            assert not re.search(advice, step.words), step.words
            assert step.words.startswith(("stopped", "no server answers at http://a", "it broke"))
            (step,) = build_steps([record], advice=True)
            assert re.search(f"{advice}|errno 32", step.words), step.words


def test_a_part_of_a_session_shows_what_has_no_question() -> None:
    (turn,) = group_turns(build_steps([ObservationRecord(call="c9", name="look", content="x")]))
    assert turn.question is None and len(turn.acts) == 1


# --- what a person does with a session ---


async def answered(begin: Any, *lines: Any, **fields: str) -> tuple[Any, str]:
    """An open page, and the path of a session that has its answer."""
    one = begin(*lines)
    await opened(one)
    path = (await post(one, "/page/ask", question="How large?", **fields)).headers["location"]
    await rested(one, path.rpartition("/")[2])
    return one, path


async def rested(one: Any, run: str) -> dict[str, Any]:
    """The run once it rests, asked by the page's person."""

    async def rests() -> bool:
        shown = (await one.client.get(f"/page/sessions/{run}")).text
        return not any(f'class="state {word}"' in shown for word in ("queued", "running"))

    await until(rests)
    return {}


async def test_the_answer_is_drawn_and_stands_before_the_calls(begin: Any) -> None:
    one, path = await answered(begin, call("area", width=2, height=3), answer("It is **6**."))
    text = (await one.client.get(path)).text
    assert "It is <strong>6</strong>." in text
    assert text.index("How large?") < text.index("<strong>6") < text.index("<code>area</code>")
    assert "It is **6**.</textarea>" in text  # what is copied


async def test_the_last_question_can_be_asked_again(begin: Any) -> None:
    one, path = await answered(begin, answer("6"), answer("7"))
    shown = (await one.client.get(path)).text
    assert "Ask the last question again" in shown
    assert (await post(one, f"{path}/continue", question="How large?")).status_code == 303
    await rested(one, path.rpartition("/")[2])
    text = (await one.client.get(path)).text
    assert text.count("How large?</pre>") == 2 and "<p>7</p>" in text


async def test_a_session_gets_a_title_and_is_found_by_it(begin: Any) -> None:
    one, path = await answered(begin, answer("6"))
    assert (await post(one, f"{path}/rename", title="<b>Beds</b>")).status_code == 303
    for place in (path, "/", "/page/sessions?q=beds"):
        assert "&lt;b&gt;Beds&lt;/b&gt;" in (await one.client.get(place)).text, place
    await post(one, f"{path}/rename", title=" ")
    assert "How large?" in (await one.client.get("/")).text
    assert (await post(one, "/page/sessions/nothing/rename", title="x")).status_code == 404


async def test_a_session_is_deleted_once_yes_is_typed(begin: Any) -> None:
    one, path = await answered(begin, answer("6"))
    kept = await post(one, f"{path}/delete", sure="no")
    assert (kept.status_code, "Type yes" in kept.text) == (409, True)
    gone = await post(one, f"{path}/delete", sure="Yes")
    assert (gone.status_code, gone.headers["location"]) == (303, "/page/sessions")
    assert (await one.client.get(path)).status_code == 404
    assert (await post(one, f"{path}/delete", sure="yes")).status_code == 404
    assert "How large?" not in (await one.client.get("/page/sessions")).text


async def test_a_session_without_changes_has_nothing_to_undo(begin: Any) -> None:
    one, path = await answered(begin, answer("6"))
    assert "nothing that can be undone" in (await one.client.get(f"{path}/undo")).text
    assert (await one.client.get("/page/sessions/nothing/undo")).status_code == 404


async def test_tools_are_chosen_for_a_question(begin: Any) -> None:
    one = begin(call("area", width=2, height=3), answer("6"), policy__allow="area,keep")
    await opened(one)
    shown = (await one.client.get("/?tools")).text
    assert all(f'name="tool.{name}"' in shown for name in ("area", "keep"))
    fields = {"offered": "area,keep", "tool.keep": "on"}
    path = (await post(one, "/page/ask", question="How large?", **fields)).headers["location"]
    await rested(one, path.rpartition("/")[2])
    text = (await one.client.get(path)).text
    assert "keep(text: string)" in text and "area(width" not in text


async def test_a_run_sees_the_folders_that_it_names_of_the_servers_and_no_other(
    begin: Any, tmp_path: Path
) -> None:
    for name in ("beds", "notes"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.txt").write_text(name)
    beds, notes = (str(tmp_path / name) for name in ("beds", "notes"))
    reads = call("file_access", operation="read", path=f"{notes}/a.txt")
    options = {"tools__roots": [f"{beds}:rw", notes], "policy__allow": "file_access"}
    one = begin(reads, answer("done"), **options)
    await opened(one)
    shown = (await one.client.get("/")).text
    assert f'<option value="{beds}">' in shown and "(may be changed)" in shown
    path = (await post(one, "/page/ask", question="Read.", root=beds)).headers["location"]
    await rested(one, path.rpartition("/")[2])
    records = (await one.client.get(f"{path}/transcript")).text
    assert f'"roots": ["{beds}:rw"]' in records.splitlines()[0]
    assert "outside the folders" in records or "not_allowed" in records
    wrong = await post(one, "/page/ask", question="Read.", root="/")
    assert (wrong.status_code, "no folder of this server" in wrong.text) == (400, True)


async def test_what_formed_before_a_page_was_loaded_comes_first_and_whole(begin: Any) -> None:
    one, path = await answered(begin, answer("6"))
    row = await one.runs.find(None, path.rpartition("/")[2])
    _, records = await one.runs.read_status(row)
    at_work = SimpleNamespace(files=SimpleNamespace(transcript=[*records]))
    live = LiveRun(at_work, {})  # type: ignore[arg-type]
    for text in ("one ", "two ", "three"):
        live.take_note({"type": "answer_piece", "turn": 2, "text": text})
    one.runs.workers.runs[row.id] = live
    try:
        follows = one.runs.follow(row, len(records), with_formed=True)
        told = await anext(follows)
        await follows.aclose()
    finally:
        del one.runs.workers.runs[row.id]
    whole = {"type": "answer_piece", "turn": 2, "text": "one two three", "whole": True}
    assert told == (None, whole)
    live.records.append(records[-1])  # type: ignore[attr-defined]
    live.take_note(None)
    assert live.deltas == []


def test_titles_are_short_lines_and_a_damaged_file_has_none(tmp_path: Path) -> None:
    titles = SessionTitles(tmp_path / "new" / "titles.json")
    assert titles.all() == {}
    titles.set("a", "  two\nlines  ")
    titles.set("b", "x" * 1_000)
    assert titles.all() == {"a": "two lines", "b": "x" * MAX_TITLE}
    titles.set("a", "")
    assert "a" not in titles.all()
    for damaged in ("[", "[1]", '{"a": 1}', '{"a": "x", "b": 1}', "[" * 100_000, "", "\xff"):
        (path := tmp_path / "new" / "titles.json").write_text(damaged, encoding="latin-1")
        assert titles.all() == {}
        with pytest.raises(UsageError, match="cannot be read"):
            titles.set("c", "New")
        assert path.read_text(encoding="latin-1") == damaged


def test_two_gateways_that_name_sessions_at_once_lose_no_title(tmp_path: Path) -> None:
    path = tmp_path / "titles.json"
    with ThreadPoolExecutor() as threads:
        with locked(path):  # as another gateway, which has read the titles
            naming = threads.submit(SessionTitles(path).set, "own", "Own")
            wait([naming], EXPIRES)
            path.write_text('{"other": "Other"}')
        naming.result(HANG)
    assert SessionTitles(path).all() == {"own": "Own", "other": "Other"}


def test_no_title_makes_the_file_larger_than_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "titles.json"
    path.write_text(json.dumps({"a": "x" * ((8 << 20) - 20)}))
    titles = SessionTitles(path)
    with pytest.raises(UsageError, match="larger than 8 MB"):
        titles.set("b", "y" * MAX_TITLE)
    assert titles.all().keys() == {"a"}
