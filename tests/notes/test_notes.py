"""`notes_create`: plain files in one folder, and nothing outside it."""

from __future__ import annotations

import stat
import threading
import unicodedata
from datetime import datetime
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_tools import builtin_tools
from mlx_tools.controller import DirectCall, call_tool
from mlx_tools.plugins.kb.notes import (
    MAX_SAME,
    Notes,
    make_body,
    make_stem,
    notes_create,
    parse_note,
    rank_notes,
)
from mlx_tools.policy import Policy
from mlx_tools.tools import Registry, ToolContext, ToolError
from tests.notes.conftest import NOON
from tests.suites import naughty_strings
from tests.tables import table
from tests.tools.file_calls import execute_call


def calls(registry: Registry, name: str, *arguments: Any, **policy: Any) -> list[DirectCall]:
    """Calls as a run of a model would make them, one after the other."""

    async def main() -> list[DirectCall]:
        given = Policy(**policy)
        return [await call_tool(registry, given, name, one, session="s-1") for one in arguments]

    return anyio.run(main)


def tree(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


# --- writing ------------------------------------------------------------------------------------


def test_a_note_is_a_markdown_file_that_says_where_it_came_from(notes: Notes, folder: Path) -> None:
    name, size = notes.create("Bread", "Buy *flour*.", ToolContext(session="s-1"))
    text = (folder / name).read_text()
    assert name == "Bread.md" and size == len(text.encode())
    assert text == (
        "---\ncreated: 2026-03-04T12:00:00+00:00\n"
        "by: mlx-tools, session s-1\n---\n\n# Bread\n\nBuy *flour*.\n"
    )
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.parametrize(
    "other", ["Plän", "PLÄN", "Plän.md", "Plän?", " .Plän. ", "Ｐlän", "Pla\u0308n"]
)
def test_a_note_never_replaces_another_that_some_file_system_takes_for_the_same(
    notes: Notes, folder: Path, other: str
) -> None:
    notes.create("Plän", "first")
    first = (folder / "Plän.md").read_bytes()
    name, _ = notes.create(other, "second")
    assert name.endswith(" 2.md") and (folder / "Plän.md").read_bytes() == first


@table(
    ("title", "stem"),
    [
        *(("../../etc/passwd", "etc passwd"), ("/etc/passwd", "etc passwd")),
        *(("C:\\Windows\\x", "C Windows x"), ("..", "note"), (".env", "env"), ("~root", "root")),
        *(("--help", "help"), ("a\nb\x00c\x1b[31m", "a b c [31m"), ("a\u202eb\u200bc", "abc")),
        ("???", "note"),
        ("食料品の買い物", "食料品の買い物"),
        ("🍞", "🍞"),
        ("x" * 500, "x" * 100),
        ("Notes of the day.md", "Notes of the day"),
    ],
)
def test_a_title_becomes_a_name_that_is_no_path(title: str, stem: str) -> None:
    assert make_stem(title) == stem


@given(st.text(max_size=600))
def test_any_title_becomes_a_name_that_every_file_system_takes(title: str) -> None:
    stem = make_stem(title)
    assert stem and not set(stem) & set('/\\:*?"<>|\0') and stem[0] not in ".-~ "
    assert len(f"{stem} {MAX_SAME}.md".encode()) <= 255
    assert all(unicodedata.category(c)[0] != "C" for c in stem)
    assert make_stem(stem) == stem


@pytest.mark.parametrize("title", ["", "  ", "\n\t", "\u200b\u2060", "\ufeff"])
def test_a_title_that_nobody_sees_is_refused(notes: Notes, folder: Path, title: str) -> None:
    with pytest.raises(ToolError, match="title is empty"):
        notes.create(title, "text")
    assert not folder.exists()


@pytest.mark.parametrize(
    ("content", "said"), [("a\0b", "NUL"), ("\ud800", "half a character"), ("x" * 10**6, "bytes")]
)
def test_a_content_that_is_no_text_is_refused_and_leaves_nothing(
    notes: Notes, folder: Path, content: str, said: str
) -> None:
    with pytest.raises(ToolError, match=said):
        notes.create("Title", content)
    assert not folder.exists()


@given(title=st.text(min_size=1, max_size=80), content=st.text(max_size=200))
def test_no_arguments_touch_anything_outside_the_folder_and_content_stays_as_it_is(
    tmp_path_factory: pytest.TempPathFactory, title: str, content: str
) -> None:
    above = tmp_path_factory.mktemp("above")
    (above / "beside.md").write_text("x")
    notes = Notes(above / "notes", lambda: NOON)
    before = tree(above)
    try:
        name, _ = notes.create(title, content)
    except ToolError:
        assert tree(above) == before
        return
    after = tree(above)
    assert set(after) - set(before) == {f"notes/{name}"}
    assert {path: after[path] for path in before} == before
    assert after[f"notes/{name}"].decode().endswith(make_body(title, content))
    assert content in parse_note(name, after[f"notes/{name}"].decode()).text


@pytest.mark.parametrize("each", [5, pytest.param(1, marks=pytest.mark.heavy)])
def test_naughty_strings_are_kept_as_they_are_and_found_again(each: int, tmp_path: Path) -> None:
    """One of every five strings, and all of them."""
    strings = [text for text in naughty_strings() if text.strip()][::each]
    registry = builtin_tools(notes=tmp_path / "notes")
    arguments = []
    for text in strings:
        seen = any(unicodedata.category(c)[0] not in "CZ" for c in text)
        arguments.append({"title": text if seen else "Nothing to see", "content": text})
    made = calls(registry, "notes_create", *arguments, preset="notes", ask_effects=())
    assert {(one.status, one.error) for one in made} == {("ok", None)}
    files = tree(tmp_path)
    assert all(name.startswith("notes/") and name.count("/") == 1 for name in files)
    kept = [parse_note(name, raw.decode()).text for name, raw in files.items()]
    assert all(any(note.endswith(f"\n\n{text}\n") for note in kept) for text in strings)
    notes = Notes(tmp_path / "notes").read_all().notes
    for text in strings[:: max(1, len(strings) // 60)]:
        wanted = [note for note in notes if f"\n\n{text}\n" in note.text]
        assert not wanted or rank_notes(notes, text), text


def test_two_at_once_write_two_notes(notes: Notes, folder: Path) -> None:
    threads = [threading.Thread(target=notes.create, args=("Same", f"text {n}")) for n in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    texts = sorted(parse_note(p.name, p.read_text()).text for p in folder.glob("*.md"))
    assert len(texts) == 12 and len(set(texts)) == 12
    assert not list(folder.glob(".mlx-tools-*"))


def test_a_name_that_is_taken_meanwhile_or_is_a_link_is_left_for_the_next_number(
    notes: Notes, folder: Path
) -> None:
    folder.mkdir()
    target = folder.parent / "outside" / "new.md"
    (folder / "Plan.md").symlink_to(target)
    assert notes.create("Plan", "text")[0] == "Plan 2.md" and not target.exists()

    def now() -> datetime:  # after the title was read, before the name is looked for
        (folder / "Tea.md").write_text("first")
        return NOON

    assert Notes(folder, now).create("Tea", "second")[0] == "Tea 2.md"
    assert (folder / "Tea.md").read_text() == "first"


def test_what_is_no_folder_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("I am a file")
    with pytest.raises(ToolError, match=r"cannot be used|cannot be opened"):
        Notes(tmp_path / "notes").create("Plan", "text")
    with pytest.raises(ToolError, match="cannot be opened"):
        Notes(tmp_path / "notes").read_all()


# --- approval and policy ------------------------------------------------------------------------


def test_an_approval_is_for_the_name_that_was_shown(notes: Notes, folder: Path) -> None:
    tool = notes_create(notes)
    shown = tool.preview({"title": "Plan", "content": "text"})
    assert shown is not None and "+++ Plan.md" in shown.text and "+text" in shown.text
    assert not folder.exists()
    notes.create("plan", "another")
    context = ToolContext(expected=shown.state)
    result = execute_call(tool, context, title="Plan", content="text")
    assert (
        result.error is not None
        and result.error.code == "not_allowed"
        and len(list(folder.iterdir())) == 1
    )


def test_notes_are_written_where_policy_allows_it_and_nowhere_else(tmp_path: Path) -> None:
    registry = builtin_tools(notes=tmp_path / "notes")
    arguments = {"title": "Plan", "content": "text"}
    for policy in ({}, {"preset": "readonly_basic"}):
        (denied,) = calls(registry, "notes_create", arguments, **policy)
        assert denied.status == "denied"
    (dry,) = calls(registry, "notes_create", arguments, preset="notes", dry_run=True)
    assert dry.status == "dry_run" and not (tmp_path / "notes").exists()
    (asked,) = calls(registry, "notes_create", arguments, preset="notes")
    assert asked.status == "pending" and not (tmp_path / "notes").exists()
    (unasked,) = calls(registry, "notes_create", arguments, preset="notes", ask_effects=())
    assert unasked.status == "ok"
    assert "session s-1" in (tmp_path / "notes" / "Plan.md").read_text()


def test_without_a_folder_the_tools_are_disabled_and_say_why() -> None:
    disabled = builtin_tools().disabled
    assert "no folder for notes" in disabled["notes_create"]
    assert "no folder for notes" in disabled["notes_search"]
