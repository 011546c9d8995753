"""Names and first lines of docstrings keep to docs/glossary.md, and pages to short sentences.

What breaks a rule only shrinks.
"""

from __future__ import annotations

import ast

import pytest

from scripts import names, sentences
from tests.tables import table

pytestmark = pytest.mark.check

TABLE = names.read_table()


@table("room", names.rooms())
def test_no_name_is_a_participle_a_pronoun_or_a_preposition(room: str) -> None:
    found = names.bad_names(room)
    assert len(found) <= TABLE["names"].get(room, 0), "\n".join(map(str, found))


@table("room", names.rooms())
def test_a_first_line_is_short_and_is_a_sentence_or_a_noun_phrase(room: str) -> None:
    found = names.bad_first_lines(room)
    assert len(found) <= TABLE["first_lines"].get(room, 0), "\n".join(map(str, found))


@table(
    "source",
    [
        "def call(): ...",
        "async def call(): ...",
        "@cache\ndef call(): ...",
    ],
)
def test_a_docstring_of_a_function_begins_with_a_verb(source: str) -> None:
    node = ast.parse(source).body[0]
    assert names.begins_with_noun(node, "The call with this key.")
    assert names.begins_with_noun(node, "All calls.")
    assert not names.begins_with_noun(node, "Return the call with this key.")


@table(
    "source",
    [
        "class Call: ...",
        "@property\ndef call(): ...",
        "@cached_property\ndef call(): ...",
        "@pytest.fixture\ndef call(): ...",
    ],
)
def test_a_docstring_of_a_value_may_begin_with_a_noun(source: str) -> None:
    assert not names.begins_with_noun(ast.parse(source).body[0], "The call with this key.")


@table("folder", ["benchmarks", "mlx_tools", "scripts", "tests"])
def test_no_docstring_begins_with_a_question_word(folder: str) -> None:
    assert names.bad_openers(folder) == []


def test_every_name_that_is_allowed_is_there() -> None:
    defined = {
        path.relative_to(names.PACKAGE).as_posix(): {
            name for name, _ in names.definitions(names.parse(path))
        }
        for path in names.files()
    }
    for name, allowed in TABLE["allowed"].items():
        assert set(allowed) <= defined[name], name


@table("kind", ["long", "unusual"])
def test_no_page_has_more_long_sentences_or_unusual_words_than_it_had(kind: str) -> None:
    allowed, counts = sentences.read_table()[kind], sentences.count()[kind]
    more = {name: count for name, count in counts.items() if count > allowed.get(name, 0)}
    assert not more, f"python scripts/sentences.py PAGE lists them: {more}"
