"""A person is told before a change what the model has not seen of the file."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from mlx_tools import (
    ApprovalAnswer,
    ApprovalRequest,
    Controller,
    Limits,
    Paused,
    Policy,
    TranscriptStore,
    builtin_tools,
)
from mlx_tools.testing import ScriptedBackend, answer, call

POLICY = Policy(preset="workspace")
NUMBERS = "".join(f"line {number}\n" for number in range(1, 2001))


class Watching:
    """Approves every call, keeps what it was shown, and lets somebody else act before."""

    def __init__(self) -> None:
        self.previews: list[str] = []

    async def decide(self, requests: Sequence[ApprovalRequest]) -> Sequence[ApprovalAnswer]:
        self.previews += [request.preview for request in requests]
        return [ApprovalAnswer(True) for _ in requests]


def read(**more: Any) -> str:
    return call("file_access", operation="read", path="f.txt", **more)


def write(content: str = "new\n") -> str:
    return call("file_access", operation="write", path="f.txt", content=content)


def edit(old: str, new: str) -> str:
    return call("edit_file", path="f.txt", old=old, new=new)


def shown(folder: Path, *turns: str | Callable[[str], str]) -> list[str]:
    """The previews of the calls that were asked about."""
    watching = Watching()
    controller = Controller(
        ScriptedBackend(*turns, answer()),
        builtin_tools([f"{folder}:rw"]),
        POLICY,
        limits=Limits(max_iterations=20, max_observation_chars=4000),
        approver=watching,
    )
    controller.run_sync("Change it.")
    return watching.previews


def then(turn: str, act: Callable[[], Any]) -> Callable[[str], str]:
    """A turn before which somebody else does something."""

    def make(prompt: str) -> str:
        act()
        return turn

    return make


def test_a_write_says_which_lines_the_model_has_seen(tmp_path: Path) -> None:
    (tmp_path / "f.txt").write_text(NUMBERS)
    (preview,) = shown(tmp_path, read(from_line=101, lines=20), write())
    assert preview.startswith("The model has seen lines 101 to 120 of 2,000 of f.txt.\n--- f.txt")


def test_a_text_that_was_cut_counts_as_seen_to_where_it_was_cut(tmp_path: Path) -> None:
    (tmp_path / "f.txt").write_text(NUMBERS)
    (preview,) = shown(tmp_path, read(), write())
    assert "The model has seen lines 1 to " in preview and " of 2,000" in preview


def test_what_was_read_whole_or_written_needs_no_word(tmp_path: Path) -> None:
    (tmp_path / "f.txt").write_text("".join(f"line {number}\n" for number in range(1, 41)))
    parts = (read(from_line=1, lines=20), read(from_line=21))
    for turns in ((read(),), parts, (write("one\n"),), (read(), edit("line 7\n", "x\ny\n"))):
        previews = shown(tmp_path, *turns, write("next\n"))
        assert "The model" not in previews[-1] and "changed on disk" not in previews[-1]
        (tmp_path / "f.txt").write_text("".join(f"line {number}\n" for number in range(1, 41)))


@pytest.mark.parametrize("change", [write(), edit("old", "new")])
def test_a_file_that_changed_since_it_was_read_is_told_of(tmp_path: Path, change: str) -> None:
    path = tmp_path / "f.txt"
    path.write_text("old\n")
    (preview,) = shown(tmp_path, read(), then(change, lambda: path.write_text("old\nmore\n")))
    assert preview.startswith("f.txt has changed on disk since the model read it.\n")


def test_a_part_that_was_seen_is_enough_for_an_edit(tmp_path: Path) -> None:
    (tmp_path / "f.txt").write_text(NUMBERS)
    (preview,) = shown(tmp_path, read(from_line=5, lines=2), edit("line 5\n", "line five\n"))
    assert preview.startswith("--- f.txt")


def test_a_session_that_is_resumed_elsewhere_still_knows(tmp_path: Path) -> None:
    root, store = tmp_path / "root", TranscriptStore(tmp_path / "sessions")
    root.mkdir()
    (root / "f.txt").write_text(NUMBERS)
    tools = builtin_tools([f"{root}:rw"])
    first = Controller(
        ScriptedBackend(read(from_line=1, lines=3), write()), tools, POLICY, store=store
    )
    paused = first.run_sync("Change it.")
    assert isinstance(paused, Paused)
    watching = Watching()
    second = Controller(ScriptedBackend(answer()), tools, POLICY, store=store, approver=watching)
    asyncio.run(second.resume(paused.session))
    assert watching.previews[0].startswith("The model has seen lines 1 to 3 of 2,000")


def test_lines_count_as_they_stand_after_an_edit_of_the_model(tmp_path: Path) -> None:
    (tmp_path / "f.txt").write_text(NUMBERS)
    turns = read(from_line=1, lines=10), edit("line 7\n", "x\ny\n"), write()
    assert shown(tmp_path, *turns)[-1].startswith("The model has seen lines 1 to 11 of 2,001 of")


def test_an_edit_of_a_file_that_changed_meanwhile_makes_it_no_better_known(tmp_path: Path) -> None:
    path = tmp_path / "f.txt"
    path.write_text("old\n")
    changed = then(edit("old", "new"), lambda: path.write_text("old\nmore\n"))
    previews = shown(tmp_path, read(), changed, write())
    assert previews[-1].startswith("f.txt has changed on disk since the model read it.\n")


def test_lines_with_others_between_them_are_not_seen_together(tmp_path: Path) -> None:
    (tmp_path / "f.txt").write_text(NUMBERS)
    for last, seen in ((4, "1 to 7"), (3, "5 to 7")):
        turns = read(from_line=1, lines=last), read(from_line=5, lines=3), write()
        (preview,) = shown(tmp_path, *turns)
        assert preview.startswith(f"The model has seen lines {seen} of 2,000 of"), preview[:80]
        (tmp_path / "f.txt").write_text(NUMBERS)


def test_a_line_that_was_cut_counts_as_seen_in_part(tmp_path: Path) -> None:
    (tmp_path / "f.txt").write_text("x" * 10_000)
    (preview,) = shown(tmp_path, read(), write())
    assert preview.startswith("The model has seen a part of lines 1 to 1 of 1 of f.txt.\n")


def test_a_file_of_the_same_name_below_another_root_is_another_file(tmp_path: Path) -> None:
    names = []
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "f.txt").write_text(f"{folder}\n")
        names.append(str(tmp_path / folder / "f.txt"))
    watching = Watching()
    turns = (
        call("file_access", operation="read", path=names[0]),
        call("file_access", operation="write", path=names[1], content="new\n"),
    )
    tools = builtin_tools([f"{tmp_path}/a:rw", f"{tmp_path}/b:rw"])
    backend = ScriptedBackend(*turns, answer())
    Controller(backend, tools, POLICY, approver=watching).run_sync("Change it.")
    assert watching.previews[0].startswith("---")
