"""Copies with small changes take no places from texts that say something else."""

from __future__ import annotations

import itertools
from pathlib import Path

from mlx_tools.toolbox.kb import KnowledgeBase
from mlx_tools.toolbox.kb.copies import MOST, SeenTexts
from tests.kb.shelf import paths, written

NUMBERS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
TEXT = " ".join(
    f"A wombat digs the {this} burrow beside the {that} creek, and sleeps there till the dusk."
    for this, that in itertools.pairwise(NUMBERS)
)


def test_copies_with_small_changes_come_last(base: KnowledgeBase, tmp_path: Path) -> None:
    texts = {
        "a.md": f"# Wombats\n\n{TEXT}\n",
        "b.md": f"# Wombats\n\n{TEXT}\n\n\n",
        "c.md": f"# Wombats\n\n{TEXT.replace('sleeps', 'rests', 1)}\n",
        "d.txt": f"Wombats\n\n{TEXT}\n",
        "e.html": f"<h1>Wombats</h1><p>{TEXT}</p>",
        "other.md": "# Animals\n\nMarsupials, among them the wombat.\n",
        "more.md": "# Zoo\n\nWombat, koala and quoll are fed at noon beside the creek.\n",
    }
    base.add([written(tmp_path / "d", texts)])
    found = paths(base, "where does the wombat sleep", limit=7)
    assert {*found[1:3]} == {"other.md", "more.md"}
    assert {found[0], *found[3:]} == {"a.md", "b.md", "c.md", "d.txt", "e.html"}
    scores = [hit.score for hit in base.search("where does the wombat sleep", limit=7)]
    assert scores == sorted(scores, reverse=True)


def test_a_passage_that_a_file_repeats_comes_after_those_that_say_more(
    base: KnowledgeBase, tmp_path: Path
) -> None:
    again = f"{TEXT}\n\n" * 5
    own = "# Food\n\nA wombat eats grass, roots and bark. " + "It chews for long. " * 20
    base.add([written(tmp_path / "d", {"a.md": f"# Burrows\n\n{again}\n\n{own}\n"})])
    hits = base.search("wombat", limit=3)
    assert sum("eats grass" in hit.text for hit in hits) == 1
    assert len(base.search("wombat", limit=50)) > 3


def test_texts_that_differ_in_a_number_are_no_copies(base: KnowledgeBase, tmp_path: Path) -> None:
    texts = {f"{n}.md": f"# Invoice\n\n{TEXT} Pay {n}00 for the wombat.\n" for n in range(1, 5)}
    texts["other.md"] = "# Animals\n\nMarsupials, among them the wombat.\n"
    base.add([written(tmp_path / "d", texts)])
    assert "other.md" not in paths(base, "invoice for the wombat burrow", limit=4)


def test_whose_a_text_is_makes_no_other_text_of_it(base: KnowledgeBase, tmp_path: Path) -> None:
    texts = {
        f"{n}.txt": f"{mark} 201{n} {who}\n\n{TEXT}\n"
        for n, (mark, who) in enumerate([("Copyright", "A. Bell"), ("# (c)", "B"), ("©", "C. Dy")])
    }
    texts["other.md"] = "# Animals\n\nMarsupials, among them the wombat.\n"
    base.add([written(tmp_path / "d", texts)])
    assert "other.md" in paths(base, "where does the wombat sleep", limit=2)


def test_files_that_are_found_by_name_alone_are_no_copies(
    base: KnowledgeBase, tmp_path: Path
) -> None:
    texts = {f"plover/{n}.py": f"# {TEXT}\n\ndef {w}(): ...\n" for n, w in enumerate(NUMBERS[:3])}
    base.add([written(tmp_path / "d", texts)])
    first, *others = base.search("plover", limit=3)
    assert [hit.score for hit in others] == [first.score] * 2


def test_what_repeats_what() -> None:
    told = SeenTexts()
    assert [told.repeats(text) for text in (TEXT, TEXT.upper(), TEXT[:200])] == [False, True, True]
    assert not told.repeats(f"{TEXT} And this is new, all of it, from the first word to the last.")
    assert [told.repeats(text) for text in ("", "", "one", "one", "two")] == [False, True] * 2 + [
        False
    ]
    assert [told.repeats(text) for text in ("図書館は月曜日", "図書館は火曜日")] == [False, False]


def test_no_more_texts_are_compared_than_bounded() -> None:
    told = SeenTexts()
    assert sum(told.repeats("the same again") for _ in range(MOST + 100)) == MOST - 1
