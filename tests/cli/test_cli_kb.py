"""``mlx-tools kb``: what is printed, and what a mistake comes to."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from tests.forked import forks
from tests.waiting import wait_until


@pytest.fixture
def docs(home: Path) -> Path:
    folder = Path("docs")
    (folder / "deep").mkdir(parents=True)
    (folder / "shop.md").write_text("# Opening hours\n\nOn Saturdays from ten to one.\n")
    (folder / "deep" / "milk.txt").write_text("Milk stands in the fridge.\n")
    (folder / "image.png").write_bytes(b"\x89PNG\0")
    return folder


def test_add_says_what_it_did(run: Any, docs: Path) -> None:
    first = run("kb", "add", "docs")
    assert (first.code, first.err) == (0, "")
    assert first.out == "default: 2 added, 0 changed, 0 unchanged, 0 removed, 1 no text\n"
    (docs / "shop.md").unlink()
    again = run("kb", "add", "docs", "--json").json
    assert {k: again[k] for k in ("added", "changed", "unchanged", "removed")} == {
        "added": 0,
        "changed": 0,
        "unchanged": 1,
        "removed": 1,
    }
    assert [one["reason"] for one in again["skipped"]] == ["it is binary"]
    assert run("kb", "add", "docs/image.png").error.endswith("image.png: it is binary")


def test_search_and_list_print_json_lines(run: Any, docs: Path) -> None:
    run("kb", "add", "docs/shop.md", "--corpus", "shop")
    run("kb", "add", "docs/deep", "--corpus", "milk")
    (hit,) = run("kb", "search", "when is it open on saturdays", "--json").lines
    assert hit["path"] == hit["location"] == str((docs / "shop.md").resolve())
    assert (hit["corpus"], hit["title"], hit["n"], hit["line"]) == ("shop", "Opening hours", 1, 1)
    assert "ten to one" in hit["snippet"]
    assert run("kb", "search", "saturdays", "--corpus", "milk", "--json").out == ""
    rows = run("kb", "list", "--json").lines
    assert [(row["name"], row["files"]) for row in rows] == [("milk", 1), ("shop", 1)]
    assert rows[0]["size_bytes"] == (docs / "deep" / "milk.txt").stat().st_size


def test_search_and_list_for_people(run: Any, docs: Path) -> None:
    (docs / "odd\nname.md").write_text("# Kiwis\n\nKiwis cannot fly.\n")
    run("kb", "add", "docs")
    assert "odd\\nname.md:1\n" in run("kb", "search", "kiwis").out
    assert run("kb", "forget", "docs/odd\nname.md", "--yes").code == 0
    found = run("kb", "search", "-", stdin="fridge\n")
    assert found.out.startswith("1  Milk stands in the fridge.\n   ")
    assert "milk.txt:1\n   | Milk stands" in found.out
    listed = run("kb", "list").out.split()
    assert listed[:7] == ["default", "2", "files", "2", "passages", "74", "bytes"]
    nothing = run("kb", "search", "zebra")
    assert (nothing.code, nothing.out) == (0, "")
    assert "nothing matches" in nothing.error


def test_what_is_removed_is_asked_about(run: Any, docs: Path) -> None:
    run("kb", "add", "docs")
    run("kb", "add", "docs/shop.md", "--corpus", "shop")
    for arguments in (("remove", "shop"), ("forget", "docs/shop.md")):
        unasked = run("kb", *arguments)
        assert unasked.code == 2 and "--yes" in unasked.error
    assert [row["files"] for row in run("kb", "list", "--json").lines] == [2, 1]
    assert run("kb", "remove", "shop", "--yes").out.startswith("shop: 1 file removed")
    assert [row["name"] for row in run("kb", "list", "--json").lines] == ["default"]


@pytest.mark.parametrize("gone", [False, True])
@pytest.mark.parametrize("path", ["docs/deep/milk.txt", "docs/deep"])
def test_one_file_is_forgotten(run: Any, docs: Path, path: str, gone: bool) -> None:
    run("kb", "add", "docs")
    if gone:
        (docs / "deep" / "milk.txt").unlink()
    done = run("kb", "forget", path, "--yes")
    assert (done.code, done.out) == (0, "1 file removed from the knowledge base\n")
    assert run("kb", "search", "milk", "--json").lines == []
    assert run("kb", "search", "saturdays", "--json").lines
    again = run("kb", "forget", path, "--yes")
    assert again.code == 2 and "nothing of docs/deep" in again.error


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("add", "nowhere"), "nowhere cannot be added: No such file or directory"),
        (("add",), "path"),
        (("add", ""), "an empty path cannot be added"),
        (("add", "docs", "--corpus", "a b"), "cannot name a corpus"),
        (("search", "x", "--corpus", "nope"), "there is no corpus 'nope'"),
        (("search", "x", "--limit", "0"), "--limit"),
        (("search", " "), "the question is empty"),
        (("remove", "nope"), "there is no corpus 'nope'"),
        (("forget", "docs"), "nothing of docs is in the knowledge base"),
    ],
)
def test_a_mistake_is_one_line(run: Any, docs: Path, arguments: Any, said: str) -> None:
    result = run("kb", *arguments)
    assert result.code == 2
    assert said in result.error.lower() if said.islower() else said in result.error


def test_ctrl_c_says_that_what_was_taken_in_is_kept(home: Path) -> None:
    for number in range(2000):
        Path(f"{number}.txt").write_text(f"Number {number} of many.\n")
    adding = forks().start("kb", "add", ".")
    wait_until((home / "data" / "knowledge-base.sqlite3").exists, "it began nothing")
    adding.send_signal(signal.SIGINT)
    out, said = adding.communicate()
    assert (adding.returncode, out) == (130, b"")
    told = b"mlx-tools: interrupted: the files added so far are kept; add again to continue\n"
    assert said == told
