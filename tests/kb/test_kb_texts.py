"""The text of files: passages, words, HTML, PDF, encodings; nothing in a file can do harm."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mlx_tools.plugins.kb.documents import UnreadableFile, decode_text, read_document
from mlx_tools.plugins.kb.passages import MAX_CHARS, OVERLAP, split_passages
from mlx_tools.plugins.kb.query import (
    build_query,
    find_phrases,
    index_text,
    iter_terms,
    select_terms,
)
from tests.kb.shelf import CATALOG, FONT, PAGE, made_pdf, stream

FORMS = ("markdown", "rst", "code", "text")


# --- words --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("os.path.join", "os path join ospathjoin"),
        ("read_file readFile", "read file readfile read file readfile"),
        *(("HTTPServer", "http server httpserver"), ("utf-8", "utf 8 utf8")),
        *(("Ünïcode ＡＢＣ", "unicode abc"), ("東京都", "東京 京都 都"), ("हिन्दी", "हिन्दी")),
        ('it\'s a "test" (NEAR) * ^ : -x', "it s a test near x"),
        ("🙂 !", ""),
    ],
)
def test_words(text: str, words: str) -> None:
    assert index_text(text) == words


def test_a_question_is_what_carries_meaning_in_it() -> None:
    assert select_terms("How do I read a CSV file?") == ["read", "csv", "file"]
    assert select_terms("to be or not to be") == ["to", "be", "or", "not"]
    assert select_terms("東京") == ["東京"]
    assert build_query("cat 猫", lambda expression: 9).expression == '"cat" OR "猫"*'
    assert build_query("?", lambda expression: 9).terms == ()


@pytest.mark.parametrize(
    ("question", "found"),
    [
        ('what does "snapshot too old" mean', ["snapshot too old"]),
        ("„Tee und Milch“ «чай и молоко»", ["tee und milch", "чаи и молоко"]),
        ('an "x" in "东京 都"', []),
        ('it"s "a', []),
    ],
)
def test_what_is_quoted_is_looked_for_as_it_stands(question: str, found: list[str]) -> None:
    assert find_phrases(question) == found


@given(st.text(max_size=300))
@example("\ufdfa ⑴ ½ l·l ⒈b")
def test_a_word_holds_nothing_that_a_query_would_obey(text: str) -> None:
    for term in iter_terms(text):
        assert term.split() == [term]
        assert not set(term) & set("\"'()*:^+-\0")


# --- passages -----------------------------------------------------------------------------------

PIECES = [
    *("# a\n", "## b\n", "===\n", "a\n", "\n", "```\n", "def f():\n", "    class g:\n", "@x\n"),
    "w " * 90,
]


@given(
    st.lists(st.sampled_from(PIECES) | st.text(max_size=60), max_size=120).map("".join),
    st.sampled_from(FORMS),
)
@example("# a\n" + "w " * 3_000 + "\n\n## b\n" + "x\n" * 3_000, "markdown")
@example("def f():\n    pass\n" * 300, "code")
def test_passages_hold_all_of_a_text_once_and_are_bounded(text: str, form: str) -> None:
    found = split_passages(text, form)
    at = 0
    for one in found:
        assert not text[at : one.start].strip()
        assert 0 < one.end - one.start <= MAX_CHARS + OVERLAP + 1
        assert text.count("\n", 0, one.start) == one.line - 1
        assert one.line <= one.end_line
        at = max(at, one.end)
    assert not text[at:].strip()
    assert all(a.start < b.start and a.end < b.end for a, b in pairwise(found))


def test_headings_stand_under_each_other() -> None:
    body = "Words that say something. " * 15 + "\n\n"
    markdown = f"# A\n\n{body}## B\n\n{body}```\n# no\n```\n# C\n\n{body}"
    assert [p.heading for p in split_passages(markdown, "markdown")] == ["A", "A > B", "C"]
    rst = f"===\n A\n===\n\n{body}B\n---\n\n{body}C\n---\n\n{body}"
    assert [p.heading for p in split_passages(rst, "rst")] == ["A", "A > B", "A > C"]
    code = "".join(
        f"class {c}:\n    def f(self):\n{'        x = 1  # and more' * 15}\n" for c in "AB"
    )
    assert [p.heading for p in split_passages(code, "code")][-1].startswith("class B")


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "text",
    ["x" * 2_000_000, "\n" * 1_000_000, "# x\n" * 200_000, "===\n" * 200_000, "a b " * 500_000],
    ids=["one word", "blank", "headings", "rules", "one line"],
)
def test_a_hostile_text_is_cut(form: str, text: str) -> None:
    """Each takes minutes where anything is quadratic."""
    found = split_passages(text, form)
    assert all(one.end - one.start <= MAX_CHARS + OVERLAP + 1 for one in found)


# --- files --------------------------------------------------------------------------------------


def test_what_is_no_text_is_said_to_be_none() -> None:
    for data in (b"\x89PNG\r\n\x1a\n\0\0", bytes(range(256)) * 9, b"\x01\x02\x03\x04 \x05" * 50):
        with pytest.raises(UnreadableFile, match="binary"):
            read_document("a.txt", data)
    with pytest.raises(UnreadableFile, match="private key"):
        read_document("notes.txt", b"-----BEGIN OPENSSH " + b"PRIVATE KEY-----\nabc\n")


def test_encodings() -> None:
    assert decode_text("ä\r\nb\rc".encode("utf-8-sig")) == "ä\nb\nc"
    assert decode_text("ä".encode("utf-16")) == "ä"
    assert decode_text("ä".encode("cp1252")) == "ä"
    assert decode_text(b"charset=punycode \xe4") == "charset=punycode ä"
    assert decode_text(b"<meta charset=koi8-r>" + "привет".encode("koi8-r")).endswith("привет")


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        ("документ о налогах", "cp1251"),
        ("東京都の会議は金曜日です", "shift_jis"),
        ("会议在星期五", "gb18030"),
    ],
)
def test_an_encoding_that_is_not_known_is_not_taken_for_another(text: str, encoding: str) -> None:
    with pytest.raises(UnreadableFile, match="encoding is not known"):
        decode_text(text.encode(encoding))


def test_a_form_that_is_not_read_is_named() -> None:
    with pytest.raises(UnreadableFile, match="xlsx are not read"):
        read_document("Letter.XLSX", b"PK\3\4\0\0\0")


def test_a_notebook_is_its_cells() -> None:
    cells = [
        {"cell_type": "markdown", "source": ["# Rain\n", "In Bergen."]},
        {
            "cell_type": "code",
            "source": "gauge()",
            "outputs": [
                {"text": ["12 mm\n"]},
                {"data": {"image/png": "iVBOR" * 999, "text/plain": "<Figure>"}},
            ],
        },
    ]
    document = read_document("a.ipynb", json.dumps({"cells": cells}).encode())
    assert document.title == "Rain"
    words = "# Rain In Bergen. ``` gauge() ``` ``` 12 mm <Figure> ```"
    assert document.text.split() == words.split() and document.passages[0].line == 0
    for data in ("[]", '{"cells": 1}', '{"cells": [1]}', "[" * 100_000, "not JSON"):
        assert read_document("a.ipynb", data.encode()).text == data


@given(st.binary(max_size=400), st.sampled_from(["a.md", "a.html", "a.py", "a.rst", "a"]))
def test_any_bytes_are_a_document_or_unreadable(data: bytes, name: str) -> None:
    try:
        document = read_document(name, data)
    except UnreadableFile as error:
        assert str(error)
    else:
        document.text.encode()


def test_titles() -> None:
    named = {
        "a.md": ("# Tea\n\nBoil.", "Tea"),
        "b.py": ('#!/usr/bin/python\n"""Makes tea.\n\nMore."""\n', "Makes tea."),
        "c.rst": ("=====\n Tea\n=====\n", "Tea"),
        "d.js": ("/* Makes tea. */\nx()", "Makes tea."),
        "e.txt": ("x" * 500, "e.txt"),
        "f.html": ("<h1>Tea</h1>", "Tea"),
        "g.md": ("---\ntags: x\ntitle: 'Tea'\n---\n\n# Other\n", "Tea"),
        "h.md": ("---\ntags: x\n# none\n---\n\n# Tea\n", "Tea"),
    }
    for name, (text, title) in named.items():
        assert read_document(name, text.encode()).title == title


# --- PDF ----------------------------------------------------------------------------------------


def test_a_pdf_is_its_pages() -> None:
    pytest.importorskip("pypdf")
    texts = (b"Boil the water.", b"Add the leaves.")
    first, second = (stream(b"BT /F1 12 Tf 72 720 Td (%s) Tj ET" % text) for text in texts)
    pages = b"<< /Type /Pages /Kids [3 0 R 7 0 R] /Count 2 >>"
    other = PAGE.replace(b"/Contents 4", b"/Contents 8")
    objects = (CATALOG, pages, PAGE, first, b"<< /Title (Tea) >>", FONT, other, second)
    document = read_document("a.pdf", made_pdf(*objects, trailer=b"/Info 5 0 R"))
    assert document.title == "Tea"
    assert document.text.split("\n\n") == [text.decode() for text in texts]
    assert document.pages == (0, len(texts[0]) + 2)
