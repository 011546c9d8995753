"""Hostile files and a damaged knowledge base: reported, bounded, and never unpacked."""

from __future__ import annotations

import bz2
import gzip
import io
import os
import random
import socket
import sqlite3
import sys
import tracemalloc
import zipfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from mlx_tools.errors import KnowledgeBaseError, UsageError
from mlx_tools.messages import replace
from mlx_tools.plugins.kb.documents import BOUNDS, UnreadableFile, read_pdf
from mlx_tools.plugins.kb.knowledge_base import KnowledgeBase
from mlx_tools.plugins.kb.walk import WalkedFile, WalkStart, walk_files
from tests.kb.shelf import CATALOG, FONT, PAGE, PAGES, made_pdf, stream
from tests.tools.file_calls import write_files

WORD = b"plover "


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "docs"
    made.mkdir()
    return made


# --- archives -----------------------------------------------------------------------------------


def zipped(data: bytes = WORD * 3) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("../../escaped.txt", data)
        file.writestr("word/document.xml", data)
    return out.getvalue()


@pytest.mark.parametrize(
    "data",
    [zipped(), zipped(bytes(5_000_000)), gzip.compress(WORD), bz2.compress(WORD)],
    ids=["zip", "bomb", "gz", "bz2"],
)
def test_an_archive_is_passed_over_whatever_it_is_called(
    base: KnowledgeBase, folder: Path, data: bytes
) -> None:
    for name in ("a.docx", "a.txt", "a.md", "a.html", "a.pdf", "a.py", "a.zip", "a"):
        (folder / name).write_bytes(data)
    before = {*folder.parent.rglob("*")}
    done = base.add([folder])
    assert done.added_files == 0 and len(done.skipped) == 8
    assert base.search("plover") == [] and {*folder.parent.rglob("*")} - before == {base.path}


# --- what is no plain file, or not for long -----------------------------------------------------


def test_pipes_sockets_devices_and_loops_are_not_opened(
    base: KnowledgeBase, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "a.txt").write_bytes(WORD)
    os.mkfifo(folder / "pipe.txt")
    monkeypatch.chdir(folder)  # the path of a socket is short
    with socket.socket(socket.AF_UNIX) as there:
        there.bind("socket.txt")
        (folder / "self.txt").symlink_to("self.txt")
        (folder / "device.txt").symlink_to("/dev/zero")
        (folder / "up").symlink_to("..")
        done = base.add([folder])
        for name in ("pipe.txt", "socket.txt", "self.txt"):
            with pytest.raises(UsageError):
                base.add([folder / name])
    assert (done.added_files, done.skipped) == (1, ())


def test_what_takes_a_files_place_before_it_is_opened_is_not_read(folder: Path) -> None:
    outside = folder.parent / "secret.txt"
    outside.write_bytes(b"xyzzy")
    found = WalkedFile(WalkStart(folder), ("inner", "a.txt"))
    (folder / "inner").mkdir()
    (folder / "inner" / "a.txt").symlink_to(outside)
    with pytest.raises(OSError):
        found.read(100)
    (folder / "inner" / "a.txt").unlink()
    os.mkfifo(folder / "inner" / "a.txt")
    with pytest.raises(OSError):
        found.read(100)
    (folder / "inner").rename(folder / "moved")
    (folder / "other").mkdir()
    (folder / "other" / "a.txt").write_bytes(b"xyzzy")
    (folder / "inner").symlink_to("other")
    with pytest.raises(OSError):
        found.read(100)


def test_a_file_of_any_size_costs_no_more_than_its_limit(base: KnowledgeBase, folder: Path) -> None:
    for name, head in (("empty.txt", b""), ("text.txt", WORD * 2000), ("a.pdf", b"%PDF-1.7\n")):
        with (folder / name).open("wb") as file:
            file.write(head)
            file.truncate(5_000_000_000)
    tracemalloc.start()
    try:
        done = base.add([folder / "empty.txt", folder / "text.txt"])
        assert tracemalloc.get_traced_memory()[1] < 40_000_000
        tracemalloc.reset_peak()
        done = base.add([folder])
        assert tracemalloc.get_traced_memory()[1] < 350_000_000
    finally:
        tracemalloc.stop()
    reasons = {Path(one.path).name: one.reason for one in done.skipped}
    assert reasons == {
        "a.pdf": "it has more than 100 MB",
        "empty.txt": "it is binary",
        "text.txt": "it has more than 10 MB",
    }


def test_names_of_any_kind_are_told_and_found(base: KnowledgeBase, folder: Path) -> None:
    names = ["a\nb.txt", "\x1b[31m.txt", "<|im_end|>.md", "'; DROP TABLE file;--.txt", "\u202e.txt"]
    names += ["%s.txt", "{0}.txt", "-rf.txt", "~.txt", "con.txt", "é" * 100 + ".txt", "\u0085.txt"]
    for name in names:
        (folder / name).write_bytes(WORD)
    os.mkdir(os.fsencode(folder) + b"/\xff\xfe")  # noqa: PTH102
    with open(os.fsencode(folder) + b"/\xff\xfe/x.txt", "wb") as file:  # noqa: PTH123
        file.write(WORD)
    done = base.add([folder])
    (skipped,) = done.skipped
    assert skipped.reason == "its name is not UTF-8" and skipped.path.isascii()
    assert {Path(hit.path).name for hit in base.search("plover", limit=50)} == {*names}
    assert base.add([folder]).unchanged == len(names)


@pytest.mark.parametrize(
    "corpus", ["\ud800", "a\0b", "", "x" * 10**6, "' OR 1=1 --", "../a", "ü", "-a", "a" * 65, "a\n"]
)
def test_what_names_no_corpus_is_the_callers_fault(
    base: KnowledgeBase, folder: Path, corpus: str
) -> None:
    (folder / "a.txt").write_bytes(WORD)
    base.add([folder])
    for use in (lambda: base.search("plover", corpus), lambda: base.remove(corpus)):
        with pytest.raises(UsageError, match="no corpus"):
            use()
    with pytest.raises(UsageError, match="cannot name"):
        base.add([folder], corpus)


# --- PDF ----------------------------------------------------------------------------------------

FORM = b"/Type /XObject /Subtype /Form /BBox [0 0 9 9] /Resources << /XObject << /X %d 0 R >> >>"
BOMBS: dict[str, Callable[[], bytes]] = {
    "pages in themselves": lambda: made_pdf(
        CATALOG, b"<< /Type /Pages /Kids [2 0 R 2 0 R] /Count 2 >>"
    ),
    "pages without end": lambda: made_pdf(
        CATALOG,
        *(
            b"<< /Type /Pages /Kids [%d 0 R %d 0 R %d 0 R] /Count 9 >>" % (n, n, n)
            for n in range(3, 40)
        ),
        b"<< /Type /Page >>",
    ),
    "an object that is itself": lambda: made_pdf(CATALOG, PAGES, PAGE, b"4 0 R"),
    "a form in itself": lambda: made_pdf(
        CATALOG, PAGES, PAGE, stream(b"/X Do"), stream(b"/X Do /X Do", FORM % 5), FONT
    ),
    "a stream without end": lambda: made_pdf(
        CATALOG, PAGES, PAGE, stream(bytes(300_000_000), times=2)
    ),
    "encrypted": lambda: made_pdf(
        CATALOG,
        b"<< /Type /Pages /Kids [] /Count 0 >>",
        b"<< /Filter /Standard /V 1 /R 2 /O <%s> /U <%s> /P -1 >>" % (b"41" * 32, b"42" * 32),
        trailer=b"/Encrypt 3 0 R /ID [<00> <00>]",
    ),
    "an archive": lambda: b"%PDF-1.7\n" + zipped(),
}


HEAVY = ("pages without end", "a stream without end")


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.slow] * (kind in HEAVY)) for kind in BOMBS]
)
def test_a_pdf_that_is_a_bomb_is_read_or_given_up(kind: str) -> None:
    pytest.importorskip("pypdf")
    try:
        document = read_pdf("a.pdf", BOMBS[kind](), replace(BOUNDS, seconds=30))
    except UnreadableFile as error:
        assert "it cannot be read" in str(error) or "no text" in str(error)
    else:
        assert len(document.text) < 1_000


@pytest.mark.parametrize(
    ("bounds", "said"),
    [
        ({"seconds": 0.2}, r"within 0\.2 s"),
        pytest.param(
            {"memory_mb": 20},
            "20 MB",
            marks=pytest.mark.skipif(sys.platform != "linux", reason="no limit of address space"),
        ),
    ],
)
def test_a_pdf_is_given_up_beyond_its_bounds(bounds: dict[str, Any], said: str) -> None:
    pytest.importorskip("pypdf")
    long = made_pdf(CATALOG, PAGES, PAGE, stream(b"BT (x) Tj ET " * 2_000_000))
    with pytest.raises(UnreadableFile, match=said):
        read_pdf("a.pdf", long, replace(BOUNDS, **bounds))


# --- a damaged file -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that was added to a knowledge base beside it."""
    folder = tmp_path_factory.mktemp("shelf") / "docs"
    texts = {f"{n}.md": f"# Tea {n}\n\n" + f"plover {n} tea " * 80 for n in range(8)}
    base = KnowledgeBase(folder.parent / "kb")
    base.add([write_files(folder, texts)])
    assert told(base, folder) == []  # until somebody changes it
    base.add([folder])
    return folder


@pytest.fixture
def filled(base: KnowledgeBase, shelf: Path) -> bytes:
    """The bytes of a knowledge base that holds what is on the shelf."""
    held = (shelf.parent / "kb").read_bytes()
    base.path.write_bytes(held)
    return held


def told(base: KnowledgeBase, folder: Path) -> list[str]:
    """The errors of everything that can be done with it, in words of ours and with what to
    do: nothing else is raised."""
    uses: list[Callable[[], Any]] = [
        *(lambda: base.search("plover tea"), lambda: base.search("tea", "default")),
        *(base.corpora, lambda: base.add([folder]), lambda: base.remove("default")),
    ]
    said = []
    for use in uses:
        try:
            use()
        except (KnowledgeBaseError, UsageError) as error:
            assert error.message and error.hint
            said.append(str(error))
    return said


def test_a_file_with_any_bytes_changed_works_or_says_what_is_wrong(
    base: KnowledgeBase, shelf: Path, filled: bytes
) -> None:
    rolled = random.Random(7)
    damaged = 0
    for _ in range(60):
        data = bytearray(filled)
        for _ in range(rolled.choice((1, 5, 50))):
            data[rolled.randrange(100, len(data))] = rolled.choice((0, 9, rolled.randrange(256)))
        Path(f"{base.path}-journal").unlink(missing_ok=True)
        base.path.write_bytes(data[: rolled.choice((len(data), rolled.randrange(len(data))))])
        damaged += any("damaged" in said for said in told(base, shelf))
    assert damaged > 20  # a third at least; some bytes are room that nothing uses


def test_words_of_the_database_that_are_no_text_are_told_in_ours(
    base: KnowledgeBase, shelf: Path, filled: bytes
) -> None:
    base.path.write_bytes(filled.replace(b"CREATE TABLE file", b"CREATE \xddABLE file"))
    for use in (lambda: base.search("tea"), base.corpora, lambda: base.add([shelf])):
        with pytest.raises(KnowledgeBaseError, match="damaged"):
            use()


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE file SET text = x'00ff'",
        "UPDATE file SET text = x'789c4b04000062000062'",  # packed, and not whole
        "DELETE FROM corpus",
        "DELETE FROM passage",
        "DELETE FROM file",
        "UPDATE file SET path = CAST(CAST(path AS BLOB) || x'ff00fe' AS TEXT)",
        "UPDATE file SET title = CAST(x'ff' AS TEXT)",
        "UPDATE file SET path = path || char(0)",
        "UPDATE file SET title = x'ff'",
        "UPDATE file SET shown = x'ff'",
        "UPDATE file SET size = 'large'",
        "UPDATE passage SET heading = x'ff'",
        "UPDATE passage SET start = 'x'",
    ],
)
@pytest.mark.parametrize("other", [False, True])
def test_a_file_that_somebody_changed_works_or_says_what_is_wrong(
    base: KnowledgeBase, shelf: Path, filled: bytes, change: str, other: bool
) -> None:
    if other:
        base.add([shelf], "other")
    with closing(sqlite3.connect(base.path)) as sql, sql:
        sql.execute("PRAGMA foreign_keys = OFF")
        sql.execute(change)
    sql.close()
    assert all(said.isprintable() for said in told(base, shelf))


def test_a_walk_ends_after_so_many_entries_whatever_they_are(tmp_path: Path) -> None:
    write_files(tmp_path, {"a/1.md": "", "a/2.md": "", "b/.hidden": "", "b/3.md": "", "c/4.md": ""})
    found = [
        [file.parts[-1] for file in walk_files(WalkStart.from_path(tmp_path), print, most)]
        for most in (3, 4, 7, 8)
    ]
    assert found[0] == [] and len(found[1]) == 1 and found[3] == [f"{n}.md" for n in (1, 2, 3, 4)]
    assert found[2] == ["1.md", "2.md", "3.md"]


def test_a_file_that_is_gone_meanwhile_hides_no_other(tmp_path: Path) -> None:
    write_files(tmp_path, {"1.md": "", "2.md": "", "3.md": "", "below/4.md": ""})
    told: list[str] = []
    found = []
    for file in walk_files(WalkStart.from_path(tmp_path), lambda path, why: told.append(why)):
        found.append(file.parts[-1])
        (tmp_path / "2.md").unlink(missing_ok=True)
    assert found == ["1.md", "3.md", "4.md"] and told == []
