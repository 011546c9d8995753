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


TEXTS = {
    "laden.md": "# Laden\n\nDie Wochenendöffnungszeiten stehen an der Tür.\n",
    "zahlung.md": "# Kasse\n\nEine Rechnung wird binnen der Frist von zwei Wochen bezahlt.\n",
    "muell.md": "Tonnen leert die Müllabfuhr, Papierkörbe nicht. Heckenschneidemaschinen ruhen.",
    "key.md": "Der Schlüssel liegt bereit.",
    "buecher.txt": "Die Bücherei ist montags geschlossen.",
    "fr.md": "# Hôtel\n\nPour réserver une chambre, écrivez-nous.\n",
    "ru.md": "# Магазин\n\nЧасы работы указаны на двери.\n",
    "knigi.md": "Книги выдаются в библиотеке на три недели.",
    "ar.md": "المكتبة مغلقة يوم الاثنين",
    "hi.txt": "पुस्तकालय सोमवार को बंद रहता है।",
    "th.txt": "ห้องสมุดปิดวันจันทร์",
    "zh.txt": "图书馆星期一不开门。",
    "ja.txt": "東京都の図書館は月曜日に休みです。",
    "mise.md": "# 店\n\n営業時間は九時から五時までです。\n",
    "code.py": "def refreshAccessToken(max_idle): ...",
    **{f"{n}.md": f"Filler number{n} about nothing, too much and old." for n in range(9)},
}


@pytest.fixture(scope="module")
def languages(tmp_path_factory: pytest.TempPathFactory) -> KnowledgeBase:
    folder = tmp_path_factory.mktemp("languages")
    base = KnowledgeBase(folder / "kb.sqlite3")
    base.add([written(folder / "texts", TEXTS)])
    return base


@pytest.mark.parametrize(
    ("file", "questions"),
    [
        ("laden.md", ["Wann sind die Öffnungszeiten?", "Offnungszeiten", "Wochenendöfnungszeiten"]),
        ("zahlung.md", ["Rechnungen schreiben", "Zahlungsfrist"]),
        ("muell.md", ["Heckenschneidemaschine", "Müll"]),
        ("key.md", ["schlussel", "SCHLÜSSEL"]),
        ("buecher.txt", ["bucherei"]),
        ("fr.md", ["comment réserver une chambre", "resserver"]),
        ("ru.md", ["часы работи"]),
        ("knigi.md", ["книга", "библиотекой"]),
        ("ar.md", ["المكتبة"]),
        ("hi.txt", ["पुस्तकालय"]),
        ("th.txt", ["ห้องสมุด"]),
        ("zh.txt", ["图书馆", "门"]),
        ("ja.txt", ["図書館はいつ休みですか"]),
        ("mise.md", ["営業時間"]),
        ("code.py", ["refresh_access_token", "maxIdle"]),
    ],
)
def test_words_of_any_language_are_found_in_other_forms_slips_and_compounds_too(
    languages: KnowledgeBase, file: str, questions: list[str]
) -> None:
    for question in questions:
        assert paths(languages, question)[:1] == [file], question


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


def test_a_word_that_is_like_no_other_finds_nothing(
    pages: KnowledgeBase, languages: KnowledgeBase
) -> None:
    for word in ("zebra", "xylophone", "Qwertz"):
        assert paths(pages, word) == paths(languages, word) == []


def test_of_a_text_of_unknown_words_only_a_few_are_looked_for_by_their_letters() -> None:
    looked: list[str] = []
    words = [f"zq{number:03}xk" for number in range(40)]
    found = query_of(" ".join(words), lambda _: 0, lambda term: looked.append(term) or ["known"])
    assert looked == words[:MAX_NEAR_TERMS]
    assert [one.term for one in found.wanted].count("known") == 1
