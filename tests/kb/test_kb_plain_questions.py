"""Questions in plain words over our own pages, and words that are not spelled as they are there."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from mlx_tools.toolbox import KnowledgeBase
from mlx_tools.toolbox.kb.query import MAX_NEAR_TERMS, query_of
from tests.kb.shelf import paths, written

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> KnowledgeBase:
    base = KnowledgeBase(tmp_path_factory.mktemp("pages") / "kb.sqlite3")
    base.add([ROOT / "docs", ROOT / "README.md"])
    return base


@pytest.mark.parametrize(
    ("question", "page"),
    [
        ("How do I stop a tool from writing files without asking me first?", "policy.md"),
        ("Can I bring back a file that the model deleted?", "approvals.md"),
        ("How can I let my own Python function be called by the model?", "tools.md"),
        ("Which kinds of passwords and keys are hidden from the model?", "policy.md"),
        ("How do I run a task every morning?", "scheduler.md"),
        ("Can the model look at pages on my local network?", "web.md"),
        ("How do I check that a new model still calls tools correctly?", "golden.md"),
        ("Can it read my PDF and Word files?", "knowledge-base.md"),
    ],
)
def test_the_page_that_answers_is_among_the_first_three(
    pages: KnowledgeBase, question: str, page: str
) -> None:
    assert page in paths(pages, question, limit=3)


@pytest.mark.parametrize(
    ("words", "page"),
    [
        ("scedule", "scheduler.md"),
        ("aproval", "approvals.md"),
        ("knowlege", "knowledge-base.md"),
        ("redakton", "policy.md"),
        ("protocoll", "protocol.md"),
    ],
)
def test_a_misspelled_word_is_found_all_the_same(
    pages: KnowledgeBase, words: str, page: str
) -> None:
    assert page in paths(pages, words, limit=3)


@pytest.mark.parametrize(
    ("question", "file"),
    [
        ("Wann sind die Öffnungszeiten?", "de.md"),
        ("Offnungszeiten", "de.md"),
        ("Wochenendöfnungszeiten", "de.md"),
        ("Rechnungen schreiben", "zahlung.md"),
        ("Zahlungsfrist", "zahlung.md"),
        ("comment réserver une chambre", "fr.md"),
        ("resserver", "fr.md"),
        ("часы работи", "ru.md"),
        ("営業時間", "ja.md"),
    ],
)
def test_words_of_other_languages_are_found_slips_and_compounds_too(
    base: KnowledgeBase, tmp_path: Path, question: str, file: str
) -> None:
    texts = {
        "de.md": "# Laden\n\nDie Wochenendöffnungszeiten stehen an der Tür.\n",
        "zahlung.md": "# Kasse\n\nEine Rechnung wird binnen der Frist von zwei Wochen bezahlt.\n",
        "fr.md": "# Hôtel\n\nPour réserver une chambre, écrivez-nous.\n",
        "ru.md": "# Магазин\n\nЧасы работы указаны на двери.\n",
        "ja.md": "# 店\n\n営業時間は九時から五時までです。\n",
    }
    base.add([written(tmp_path / "languages", texts)])
    assert paths(base, question)[:1] == [file]


def test_what_is_forgotten_is_like_no_word_any_more(base: KnowledgeBase, tmp_path: Path) -> None:
    texts = {"a.md": "# One\n\nThe xylophone stands here.\n", "b.md": "# Two\n\nA kettle.\n"}
    folder = written(tmp_path / "both", texts)
    base.add([folder])
    assert paths(base, "xylohpone") == ["a.md"]
    base.forget(folder / "a.md")
    assert paths(base, "xylohpone") == [] and paths(base, "kettel") == ["b.md"]
    with sqlite3.connect(base.path) as sql:
        left = sql.execute("SELECT term FROM word WHERE term LIKE 'xylo%'").fetchall()
    sql.close()
    assert left == []


def test_a_word_that_is_like_no_other_finds_nothing(pages: KnowledgeBase) -> None:
    for word in ("zebra", "xylophone", "Qwertz"):
        assert paths(pages, word) == []


def test_of_a_text_of_unknown_words_only_a_few_are_looked_for_by_their_letters() -> None:
    looked: list[str] = []
    words = [f"zq{number:03}xk" for number in range(40)]
    found = query_of(" ".join(words), lambda _: 0, lambda term: looked.append(term) or ["known"])
    assert looked == words[:MAX_NEAR_TERMS]
    assert [one.term for one in found.wanted].count("known") == 1
