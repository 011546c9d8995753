"""Results of a search: which, in which order, what they show, and what is asked of the indexes."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mlx_tools.errors import UsageError
from mlx_tools.plugins.kb.database import Database
from mlx_tools.plugins.kb.knowledge_base import MAX_LIMIT, AddReport, KnowledgeBase
from mlx_tools.plugins.kb.query import MAX_NEAR_TERMS, QueryTerm, TermMatcher, build_query
from mlx_tools.plugins.kb.search import make_snippet, search
from tests.kb.shelf import TEXTS, paths
from tests.tools.file_calls import write_files


def test_what_was_added_is_found(base: KnowledgeBase, folder: Path) -> None:
    done = base.add([folder])
    assert done == AddReport("default", 5, 0, 0, 0, ())
    assert paths(base, "Where are the cups?") == ["page.html"]
    assert paths(base, "how long must leaves stand")[0] == "tea.md"
    assert paths(base, "heatWater")[0] == "kettle.py"
    (hit,) = base.search("what does heat_water do", limit=1)
    assert (hit.title, hit.heading, hit.line) == ("Drives the kettle.", "def heat_water", 1)
    assert "def heat_water" in hit.snippet
    assert base.search("zebra") == []


def test_corpora_are_apart(base: KnowledgeBase, folder: Path) -> None:
    base.add([folder / "milk"], "milk")
    base.add([folder / "tea.md"], "tea")
    assert [(one.name, one.files) for one in base.corpora()] == [("milk", 2), ("tea", 1)]
    assert set(paths(base, "boil")) == {"tea.md", "warm.rst"}
    assert paths(base, "boil", corpus="milk") == ["warm.rst"]
    with pytest.raises(UsageError, match="milk, tea"):
        base.search("boil", "coffee")
    assert base.remove("milk") == 2
    assert paths(base, "boil") == ["tea.md"]
    with pytest.raises(UsageError, match="no corpus 'milk'"):
        base.remove("milk")


def test_what_is_quoted_comes_first(base: KnowledgeBase, tmp_path: Path) -> None:
    texts = {
        "a.md": "old snapshot, too; too old a snapshot. Snapshot, old, too, snapshot too.",
        "b.md": "The snapshot too old error is about the undo space, which is not large enough.",
    }
    base.add([write_files(tmp_path / "d", texts)])
    assert paths(base, '"snapshot too old"') == ["b.md", "a.md"]


def test_a_file_is_found_by_what_it_is_about_however_large_it_is(
    base: KnowledgeBase, tmp_path: Path
) -> None:
    """A title is one word of one file, not one of each passage."""
    parts = [f"## Part {n}\n\n{'It goes on and on here. ' * 30}" for n in range(60)]
    many = "\n\nThe kettle again.\n\n".join(parts)
    few = "# Sugar\n\nThe kettle is mentioned here once, beside the sugar and the plover."
    texts = {"kettle.md": f"# Kettle\n\n{many}\n\nDescale it every month.", "other.md": few}
    texts |= {f"{n}.md": f"# {n}\n\nDescale the iron every month, number{n}." for n in range(6)}
    base.add([write_files(tmp_path / "d", texts)])
    (hit, *_) = base.search("how often do I descale the kettle")
    assert Path(hit.path).name == "kettle.md"
    assert "Descale it" in hit.snippet


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> KnowledgeBase:
    folder = tmp_path_factory.mktemp("kb")
    base = KnowledgeBase(folder / "kb.sqlite3")
    base.add([write_files(folder / "docs", TEXTS)])
    return base


NASTY = [
    *('"', "'", "*", "^", "(", ")", "AND", "OR", "NOT", "NEAR(", "a:b", "-x", "{", "\0", "🙂"),
    *("東", "\ud800"),
]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(NASTY) | st.text(max_size=12), max_size=12).map(" ".join))
def test_any_text_is_a_question(shared: KnowledgeBase, question: str) -> None:
    assert len(shared.search(question)) <= 5
    hits = shared.search(f"kettle {question}")
    assert 1 <= len(hits) <= 5
    assert all(hit.snippet.strip("…") in hit.text for hit in hits)


@pytest.mark.parametrize(
    "question", ["a" * 1_000_000, "x " * 300_000, '"' * 100_000, "東" * 100_000]
)
def test_a_long_question_is_bounded(shared: KnowledgeBase, question: str) -> None:
    assert len(shared.search(question, limit=10**9)) <= MAX_LIMIT


@given(st.text(max_size=2_000), st.integers(20, 500))
def test_a_snippet_is_part_of_the_text_and_fits(text: str, most: int) -> None:
    at, shown = make_snippet(text, TermMatcher([QueryTerm("tea")]), most)
    assert len(shown) <= most
    assert text[at:].startswith(shown.strip("…").rstrip())


@pytest.mark.parametrize("between", ["\n", " ", ". "])
def test_a_snippet_is_where_the_words_are(between: str) -> None:
    words = [*("nothing here" for _ in range(60)), "green tea", *("or here" for _ in range(60))]
    text = between.join(words)
    at, shown = make_snippet(text, TermMatcher([QueryTerm("tea"), QueryTerm("gree", True)]), 100)
    assert "green tea" in shown
    assert 60 < len(shown) <= 100
    assert shown.startswith("…") and shown.endswith("…")
    assert text[at:].startswith(shown.strip("…"))


def test_a_hit_says_in_which_line_its_snippet_begins(base: KnowledgeBase, tmp_path: Path) -> None:
    lines = [f"Line {n} says nothing of use, and goes on for a while." for n in range(1, 41)]
    lines[29] = "The plover nests in May."
    page = "".join(f"<p>{line}\n" for line in lines)
    notebook = {"cells": [{"cell_type": "markdown", "source": lines}]}
    texts = {"a.txt": "\n".join(lines), "b.html": page, "c.ipynb": json.dumps(notebook)}
    base.add([write_files(tmp_path / "d", texts)])
    hits = {Path(hit.path).name: hit for hit in base.search("when do plovers nest")}
    hit = hits["a.txt"]
    assert (hit.line or 99) <= 30 <= (hit.end_line or 0)
    first = hit.snippet.strip("…").splitlines()[0]
    assert first in lines[(hit.snippet_line or 0) - 1] and "plover" in hit.snippet
    for name in ("b.html", "c.ipynb"):
        assert (hits[name].line, hits[name].end_line, hits[name].snippet_line) == (None,) * 3


FEW, MANY = 3, 2_100  # passages: fewer and more than a small knowledge base has


class Planned(Database):
    """Keeps how SQLite goes about each query."""

    plans: list[str]

    def rows(self, query: str, *values: object) -> Iterator[tuple[object, ...]]:
        plan = list(super().rows(f"EXPLAIN QUERY PLAN {query}", *values))
        self.plans += [str(step[3]) for step in plan]
        return super().rows(query, *values)


@pytest.mark.parametrize("sections", [FEW, MANY])
def test_a_search_in_one_corpus_never_goes_through_its_files_one_by_one(
    base: KnowledgeBase, tmp_path: Path, sections: int
) -> None:
    text = "".join(f"# Section {number}\n\n{'tea ' * 80}\n\n" for number in range(sections))
    (tmp_path / "tea.md").write_text(text)
    base.add([tmp_path / "tea.md"], "tea")
    with Planned(base.path) as database:
        database.plans = []
        corpus = database.corpus("tea")
        assert search(database, "tea and kettles", corpus, 5)
        assert database.plans and not [step for step in database.plans if "corpus=?" in step]


def test_copies_of_a_file_take_no_places_from_files_that_say_more(
    base: KnowledgeBase, tmp_path: Path
) -> None:
    for number in range(8):
        (tmp_path / f"copy{number}.md").write_text("# Wombats\n\nWombats dig burrows.\n")
    (tmp_path / "other.md").write_text("# Animals\n\nMarsupials, among them wombats.\n")
    base.add([tmp_path])
    hits = base.search("wombats", limit=4)
    names = [Path(hit.path).name for hit in hits]
    assert names == ["copy0.md", "other.md", "copy1.md", "copy2.md"]
    scores = [hit.score for hit in hits]
    assert scores == sorted(scores, reverse=True)
    assert len(base.search("wombats", limit=50)) == 9


# --- plain words ----------------------------------------------------------------------------------


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
        *(("scedule", "scheduler.md"), ("aproval", "approvals.md")),
        *(("knowlege", "knowledge-base.md"), ("redakton", "policy.md")),
        ("protocoll", "protocol.md"),
    ],
)
def test_a_misspelled_word_is_found_all_the_same(
    pages: KnowledgeBase, words: str, page: str
) -> None:
    assert page in paths(pages, words, limit=3)


LANGUAGES = {
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
    base.add([write_files(folder / "texts", LANGUAGES)])
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
        *(("ru.md", ["часы работи"]), ("knigi.md", ["книга", "библиотекой"])),
        *(("ar.md", ["المكتبة"]), ("hi.txt", ["पुस्तकालय"]), ("th.txt", ["ห้องสมุด"])),
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
    folder = write_files(tmp_path / "both", texts)
    base.add([folder])
    assert paths(base, "xylohpone") == ["a.md"]
    base.forget(folder / "a.md")
    assert paths(base, "xylohpone") == [] and paths(base, "kettel") == ["b.md"]
    with closing(sqlite3.connect(base.path)) as sql, sql:
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
    found = build_query(" ".join(words), lambda _: 0, lambda term: looked.append(term) or ["known"])
    assert looked == words[:MAX_NEAR_TERMS]
    assert [one.term for one in found.terms].count("known") == 1
