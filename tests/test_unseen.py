"""Characters that are not seen, wherever a foreign text is shown."""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from mlx_tools.unseen import (
    FOR_DECISIONS,
    FOR_MODELS,
    FOR_PAGES,
    FOR_PATHS,
    FOR_PEOPLE,
    Unseen,
    as_json_escape,
    as_literal,
    as_number,
    escape_unseen,
)
from tests.tables import table

PLACES = (FOR_MODELS, FOR_PEOPLE, FOR_DECISIONS, FOR_PAGES, FOR_PATHS)
ROOT = Path(__file__).resolve().parent.parent


@table(
    ("unseen", "text", "shown"),
    [
        # what ends a line or controls a terminal is escaped everywhere
        *((place, "a\x1b[2Jb\nc\u2028d", r"a\x1b[2Jb\nc\u2028d") for place in PLACES),
        # what turns text around is left in a model's text, where it harms nobody
        (FOR_MODELS, "a\u202eb", "a\u202eb"),
        *((place, "a\u202eb\u200b", r"a\u202eb\u200b") for place in PLACES[1:]),
        # blanks and fillers look like others, or like nothing
        *((place, "a\u00a0\u3164", "a\u00a0\u3164") for place in PLACES[:2]),
        *((place, "a\u00a0\u3164", r"a\xa0\u3164") for place in PLACES[2:4]),
        # a mark is seen on a letter only
        *((place, "e\u0301 नमस्ते", "e\u0301 नमस्ते") for place in PLACES[:4]),
        *(
            (place, "\u0301x" + "e" + "\u0301" * 5, r"\u0301xe" + r"\u0301" * 5)
            for place in PLACES[2:4]
        ),
        (FOR_PATHS, "e\u0301", r"e\u0301"),
        # joiners stay where they join, on pages
        (FOR_PAGES, "👩\u200d🚀 a\u200db", "👩\u200d🚀 a\\u200db"),
        (FOR_DECISIONS, "👩\u200d🚀", "👩\\u200d🚀"),
    ],
)
def test_what_is_not_seen_is_escaped_as_its_place_asks(
    unseen: Unseen, text: str, shown: str
) -> None:
    assert escape_unseen(text, unseen) == shown


def test_what_a_caller_keeps_stays() -> None:
    assert escape_unseen("a\tb\nc\x00", FOR_PEOPLE, keep="\t\n") == "a\tb\nc\\x00"


def test_each_notation_writes_a_character_in_its_own_form() -> None:
    written = [note("\U000e0041", 2) for note in (as_literal, as_json_escape, as_number)]
    assert written == [r"\U000e0041" * 2, r"\udb40\udc41" * 2, "U+E0041×2"]
    assert [note("\x7f", 1) for note in (as_literal, as_json_escape, as_number)] == [
        *(r"\x7f", r"\u007f", "U+007F"),
    ]


@given(st.text(), st.sampled_from(PLACES))
def test_nothing_unseen_is_left_and_plain_text_is_not_touched(text: str, unseen: Unseen) -> None:
    shown = escape_unseen(text, unseen)
    left = {unicodedata.category(char) for char in shown if char not in "\u200c\u200d\ufe0e\ufe0f "}
    assert left.isdisjoint(unseen.categories)
    assert escape_unseen(shown, unseen) == shown
    plain = "".join(char for char in text if " " <= char <= "~")
    assert escape_unseen(plain, unseen) == plain


def test_there_is_one_escaper() -> None:
    escapes = re.compile(r"unicode_escape|ascii\(\w+\)\[1:-1\]|U\+\{ord|json\.dumps\(char\)")
    files = [
        path.name
        for path in (ROOT / "mlx_tools").rglob("*.py")
        if escapes.search(path.read_text(encoding="utf-8"))
    ]
    assert files == ["unseen.py"]
