"""The report is one page that says what came of the checks, and obeys nothing that it shows."""

from __future__ import annotations

import base64
import hashlib
import re
from collections import Counter
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_tools.app.steps import MAX_CHARS, brief, build_steps, escape_invisible, fold_text
from mlx_tools.errors import UsageError
from mlx_tools.golden import (
    ROOMS,
    Column,
    Difference,
    Golden,
    GoldenCheck,
    Sample,
    read_golden,
    replay,
    write_report,
)
from mlx_tools.messages import replace
from mlx_tools.transcript.records import (
    AnswerRecord,
    CallRecord,
    CompletionRecord,
    DecisionRecord,
    GoldenRecord,
    ObservationRecord,
    Record,
    RepairRecord,
    UserRecord,
)
from tests.controller.records import RECORDS
from tests.tables import table

VOID = {"meta"}
INLINE = {"b", "span", "a", "strong", "small"}
ROOT = Path(__file__).parents[2]
TEMPLATES = "".join(
    (ROOT / "mlx_tools" / name).read_text(encoding="utf-8")
    for name in ("golden/report.html.j2", "app/steps.html.j2")
)
TAGS = {"b", *re.findall(r"<([a-z]\w*)", TEMPLATES), *(f"h{level}" for level in range(1, 7))}
ATTRIBUTES = {name.lower() for name in re.findall(r'\s([\w-]+)="', TEMPLATES)} | {"open"}
"""The elements of a page: those of its templates, and ``b`` around unseen characters."""


class Page(HTMLParser):
    """A page as a browser would read it: its elements, and the text within them."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.source = text
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text: list[str] = []
        self.flow: list[str] = []
        self.declared: list[str] = []
        self.feed(text)
        self.close()
        self.ids = [own["id"] for _, own in self.elements if "id" in own]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self.flow.append("" if tag in INLINE else " ")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        self.flow.append("" if tag in INLINE else " ")

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["style"]:
            self.text.append(data)
            self.flow.append(data)

    def handle_comment(self, data: str) -> None:
        raise AssertionError("a comment")

    def handle_decl(self, decl: str) -> None:
        self.declared.append(decl)

    def all(self, tag: str, **own: str) -> list[dict[str, str | None]]:
        """The attributes of the elements of a kind."""
        return [
            attributes
            for name, attributes in self.elements
            if name == tag and own.items() <= attributes.items()
        ]

    def classes(self, name: str) -> int:
        """The number of elements of a class."""
        return sum(name in (own.get("class") or "").split() for _, own in self.elements)

    @property
    def words(self) -> str:
        """All its text, in single spaces."""
        return " ".join("".join(self.flow).split())


def page_of(checks: list[GoldenCheck], folder: Path) -> Page:
    path = folder / "report.html"
    write_report(checks, path)
    return Page(path.read_text(encoding="utf-8"))


FOLDER = ROOT / "golden_transcripts"


def changed(golden: Golden) -> Golden:
    """The transcript as another version might have recorded it: different in every room."""
    records = []
    for record in golden.records:
        match record:
            case CompletionRecord(turn=1):
                record = replace(record, commentary="Let me see.")
            case DecisionRecord(decision="ask"):
                record = replace(record, reason="every change needs a yes", rule="effects")
        records.append(record)
    header = golden.header
    own = replace(golden.golden, outcomes=({**golden.golden.outcomes[0], "turns": 9},))
    tools = tuple({**tool, "description": "Does it."} for tool in header.tools)
    header = replace(header, system=f"{header.system} Now.", tools=tools)
    return replace(golden, header=header, golden=own, records=tuple(records))


def check_of(golden: Golden, *more: Difference, records: bool = True) -> GoldenCheck:
    """The check of a replay."""
    kept = golden.all if records else ()
    sample = Sample(differences=(*replay(golden).differences, *more), records=kept)
    return GoldenCheck.from_golden(golden, samples=(sample,))


@pytest.fixture(scope="module")
def replays() -> list[GoldenCheck]:
    """Checks of recorded runs; two differ, one in all rooms, and one could not be read."""
    told = ("approvals/edited", "approvals/refused", "approvals/paused", "reading/repairs-commas")
    rows = ("limits/format-errors", "prompt/history")
    first, second = (read_golden(FOLDER / f"approvals/{n}.jsonl") for n in ("approved", "batch"))
    damaged = Sample(error="line 7 of the transcript is damaged: a line is not JSON")
    return [
        *(check_of(read_golden(FOLDER / f"{name}.jsonl")) for name in told),
        *(check_of(read_golden(FOLDER / f"{name}.jsonl"), records=False) for name in rows),
        check_of(changed(first), Difference("tools", "the output of save", "call c1", "a", "b")),
        check_of(replace(second, header=replace(second.header, system="x"))),
        GoldenCheck(
            name="a/damaged", path="golden_transcripts/a/damaged.jsonl", samples=(damaged,)
        ),
    ]


@pytest.fixture(scope="module")
def page(replays: list[GoldenCheck], tmp_path_factory: pytest.TempPathFactory) -> Page:
    return page_of(replays, tmp_path_factory.mktemp("report"))


def test_the_page_is_whole_and_names_no_other_file(page: Page) -> None:
    assert page.open == []
    assert page.declared == ["doctype html"]
    assert {tag for tag, _ in page.elements} <= TAGS
    assert {name for _, own in page.elements for name in own} <= ATTRIBUTES
    links = {own["href"] for own in page.all("a")}
    assert all(link and link.startswith("#") and link[1:] in page.ids for link in links)
    assert len(page.ids) == len(set(page.ids))
    assert "url(" not in page.source
    assert "@import" not in page.source


def test_only_its_own_style_is_let_in(page: Page) -> None:
    (policy,) = page.all("meta", **{"http-equiv": "Content-Security-Policy"})
    (style,) = re.findall("<style>(.*?)</style>", page.source, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    let_in = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    assert policy["content"] == let_in


def test_what_reads_a_page_aloud_finds_its_way(page: Page) -> None:
    assert page.all("html", lang="en")
    assert len(page.all("h1")) == len(page.all("main")) == len(page.all("title")) == 1
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch(r"h\d", tag)]
    assert all(after - before <= 1 for before, after in pairwise(levels))
    assert len(page.all("caption")) == len(page.all("table")) == 2
    assert all(own.get("scope") in ("col", "row") for own in page.all("th"))


def test_the_summary_counts_by_result_and_room(page: Page, replays: list[GoldenCheck]) -> None:
    assert {room for check in replays for room in check.rooms} == set(ROOMS)
    assert "3 of 9 transcripts failed" in page.words
    assert "✓ passed 6 ✗ differ 2 ! error 1" in page.words
    assert "tools the tools, and what they give 1 1" in page.words


def test_failed_transcripts_come_first_and_are_written_out(page: Page) -> None:
    states = [own["data-state"] for own in page.all("tr") if "data-state" in own]
    assert states == ["error", "failed", "failed", *["passed"] * 6]
    runs = [own["data-state"] for own in page.all("article")]
    assert runs == ["error", "failed", "failed", *["passed"] * 4]  # two have no records


def test_what_differs_is_open_and_named_by_its_room(page: Page, replays: list[GoldenCheck]) -> None:
    told = [own for own in page.all("details") if own.get("class") == "difference"]
    differences = [d for check in replays for s in check.samples for d in s.differences]
    assert len(told) == len(differences)
    assert all("open" in own for own in told)
    for difference in differences:
        assert f"{difference.room} {difference.subject} {difference.location}".strip() in page.words
        for line in difference.lines():
            assert " ".join(line[2:].split()) in page.words


def test_a_run_is_told_step_by_step(page: Page) -> None:
    for words in (
        "Setup scripted",
        "System prompt:",
        "Question Please help me.",
        "Model wrote turn 1",
        'Call c1 save {"path": "a.txt", "text": "tea"}',
        "repaired: trailing_comma",
        "Policy c1 ask rule effects requires_confirmation every change",
        "Waits for a person c1",
        "Person c1 approved",
        "Person c1 refused",
        "Person c1 edited the call {",
        "Runs c1 the tool starts can change things",
        "Result c1 save saved a.txt",
        "Answer Done.",
        "line 7 of the transcript is damaged",
    ):
        assert words in page.words, words


@given(st.lists(RECORDS, max_size=8))
def test_every_record_is_a_step_but_what_is_noted_at_another_or_says_nothing(
    records: list[Record],
) -> None:
    steps = build_steps(records)
    told = [r for r in records if not isinstance(r, RepairRecord | GoldenRecord)]
    assert len(told) <= len(steps) <= len(records)
    assert all(step.label for step in steps)


def test_a_matrix_has_a_column_for_each_cell(tmp_path: Path) -> None:
    wrong = Difference("outcome", "the calls", "question 1", "a", "b")
    samples = tuple(
        Sample(differences=(wrong,) * (n < 2), records=(UserRecord(content="?"),), seconds=n / 3)
        for n in range(5)
    )
    cells = [Column(model, style, "free") for model in ("small", "large") for style in ("a", "b")]
    checks = [
        GoldenCheck(name=name, path=name, mode="live", cell=cell, samples=samples[2 * right :])
        for number, name in enumerate(("x", "y", "z"))
        for column, cell in enumerate(cells)
        for right in (number * column % 2 == 0,)
    ]
    page = page_of(checks, tmp_path)
    assert len(page.all("th", scope="col")) == 1 + len(cells) + 3
    failed = [check for check in checks if not check.passed]
    assert f"{len(failed)} of {len(checks)} checks failed" in page.words
    assert "3/5 failed 23–88 %" in page.words
    linked = [own for own in page.all("a") if "state" in (own.get("class") or "")]
    assert len(page.all("article")) == len(linked) == len(checks)
    assert page.classes("sample") == sum(len(check.samples) for check in checks)
    rows = [own["data-state"] for own in page.all("tr") if "data-state" in own]
    assert rows == sorted(rows, key=lambda state: state == "passed")


def test_nothing_at_all_is_a_page_too_and_one_that_cannot_be_written_is_told_of(
    tmp_path: Path,
) -> None:
    assert "Nothing was checked" in page_of([], tmp_path).words
    with pytest.raises(UsageError, match="cannot be written"):
        write_report([], tmp_path / "no" / "report.html")


def test_an_endless_text_is_cut_in_its_middle() -> None:
    block = fold_text("a" * 100_000 + "z", "Text")
    assert (len(block.text) + len(block.tail), block.tail[-1]) == (MAX_CHARS, "z")
    assert block.left_out == 100_001 - MAX_CHARS
    assert block.fold == "Text: 100,001 characters"


# --- nothing that is shown is obeyed ---

ODD = "\0\x07\x1b\x7f\x85\r\u00ad\u200b\u200e\u202e\u2028\u2066\u3164\ud800\udfff\ufeff\U000e0041"
MARKUP = (
    *("</script>", "</style>", "</pre>", "</title>", "<script>alert(1)</script>"),
    *("<svg onload=alert(1)>", "<img src=https://example.com/x.png onerror=alert(1)>"),
    *('" onclick="alert(1)', "' style='color:red", "<!--", "-->", "]]>", "&lt;b&gt;", "&#0;"),
    *("javascript:alert(1)", "{{ 7 * 7 }}", "{% raw %}", "\n", "\t", " ", "é語"),
)
PIECES = st.sampled_from([*MARKUP, *ODD]) | st.text(max_size=8)
HOSTILE = st.lists(PIECES, max_size=8).map("".join)
RECORD = RECORDS | st.one_of(
    st.builds(UserRecord, content=HOSTILE, tools=st.lists(HOSTILE, max_size=2).map(tuple)),
    st.builds(CompletionRecord, turn=st.just(1), text=HOSTILE, prefix=HOSTILE, reasoning=HOSTILE),
    st.builds(
        CallRecord,
        turn=st.just(1),
        call=HOSTILE,
        name=HOSTILE,
        arguments=st.dictionaries(HOSTILE, HOSTILE, max_size=3),
    ),
    st.builds(ObservationRecord, call=HOSTILE, name=HOSTILE, content=HOSTILE, whole=HOSTILE),
    st.builds(AnswerRecord, turn=st.just(1), content=HOSTILE, sources=st.tuples(HOSTILE)),
)
DIFFERENCE = st.builds(
    Difference, st.sampled_from(ROOMS), HOSTILE, HOSTILE, was=HOSTILE, now=HOSTILE
)
CHECK = st.builds(
    GoldenCheck,
    name=HOSTILE,
    path=HOSTILE,
    mode=st.sampled_from(["replay", "live"]),
    cell=st.builds(Column, HOSTILE, HOSTILE, HOSTILE),
    source=HOSTILE,
    about=HOSTILE,
    features=st.lists(HOSTILE, max_size=2).map(tuple),
    samples=st.lists(
        st.builds(
            Sample,
            differences=st.lists(DIFFERENCE, max_size=3).map(tuple),
            records=st.lists(RECORD, max_size=4).map(tuple),
            error=HOSTILE,
            seconds=st.none() | st.floats(0, 1e6),
        ),
        min_size=1,
        max_size=3,
    ).map(tuple),
)


@pytest.mark.slow
@given(checks=st.lists(CHECK, max_size=4))
def test_whatever_is_shown_is_text(
    checks: list[GoldenCheck], tmp_path_factory: pytest.TempPathFactory
) -> None:
    page = page_of(checks, tmp_path_factory.getbasetemp())
    assert page.open == []
    assert {tag for tag, _ in page.elements} <= TAGS
    assert {name for _, own in page.elements for name in own} <= ATTRIBUTES
    count = Counter(tag for tag, _ in page.elements)
    assert count["style"] == count["title"] == 1
    assert all((own["href"] or "").startswith("#") for own in page.all("a"))
    assert not set(page.source) & (set(ODD) | {"\u200f", "\u061c"})
    whole = "".join(page.text)
    for check in checks:
        assert escape_invisible(brief(check.name)) in whole
        for sample in check.samples:
            assert escape_invisible(sample.error) in whole
            for difference in sample.differences:
                assert escape_invisible(brief(difference.subject)) in whole


AS_THEY_ARE = (
    *("naïve 語 العربية", "👩\u200d🚀", "❤\ufe0f\u200d🔥", "می\u200cخواهم", "a\tb\n", "é"),
)


@table(
    ("text", "shown"),
    [
        *((text, text) for text in AS_THEY_ARE),
        ("a\u202eb", "aU+202Eb"),
        ("a\u200db", "aU+200Db"),
        ("語\u200d\u200d語", "語U+200D×2語"),
        ("\ud83d", "U+D83D"),
        ("a\u00a0b", "aU+00A0b"),
        ("o" + "\u0301" * 6, "oU+0301×6"),
        ("\U000e0041", "U+E0041"),
    ],
)
def test_what_is_not_seen_is_written_by_its_number_and_scripts_and_emoji_stay(
    text: str, shown: str
) -> None:
    assert escape_invisible(text) == shown
