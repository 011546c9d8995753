"""The preview of a change, which is made only while it holds."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_tools import builtin_tools
from mlx_tools.toolbox.text_diff import MAX_DIFF_CHARS, NOT_COMPARED, unified_diff
from mlx_tools.tools import Preview, Registry, ToolError
from tests.tools.file_calls import preview, read_tree, run_and_read, run_and_refuse, write_files


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_files(tmp_path / "data", {"sub/": "", "a.txt": "one\ntwo\nthree\n"})


@pytest.fixture
def files(folder: Path) -> Registry:
    return builtin_tools([f"{folder}:rw"])


def shown(files: Registry, operation: str, path: str, content: str | None = None) -> Preview:
    told = preview(files, operation, path, content)
    assert told is not None
    return told


def state(content: bytes) -> str:
    return f"file sha256:{hashlib.sha256(content).hexdigest()}"


# --- what is told ---


def test_a_write_is_told_as_a_diff(files: Registry, folder: Path) -> None:
    told = shown(files, "write", "a.txt", "one\n2\nthree\n")
    assert told.text == "--- a.txt\n+++ a.txt\n@@ -1,3 +1,3 @@\n one\n-two\n+2\n three"
    assert told.state == state(b"one\ntwo\nthree\n")
    told = shown(files, "write", "new.txt", "x")
    assert told.text == (
        "--- /dev/null\n+++ new.txt\n@@ -0,0 +1 @@\n+x\n\\ No newline at end of file"
    )
    assert told.state == "absent"
    assert "no difference" in shown(files, "write", "a.txt", "one\ntwo\nthree\n").text
    assert "empty" in shown(files, "write", "new.txt", "").text
    told = shown(files, "create", "x/y.txt", "a\nb\n")
    diff = "--- /dev/null\n+++ x/y.txt\n@@ -0,0 +1,2 @@\n+a\n+b"
    paths = {"path": f"{folder.resolve()}/x/y.txt"}
    assert told == Preview(diff, "absent", paths, counts="+2 -0")
    assert not (folder / "x").exists()


def test_a_deletion_is_told_with_what_is_lost(files: Registry, folder: Path) -> None:
    told = shown(files, "delete", "a.txt")
    assert told.text == (
        "a.txt is deleted: 14 bytes\n--- a.txt\n+++ /dev/null\n@@ -1,3 +0,0 @@\n-one\n-two\n-three"
    )
    assert told.state == state(b"one\ntwo\nthree\n")
    (folder / "long.txt").write_text("line\n" * 500)
    told = shown(files, "delete", "long.txt")
    assert told.text.endswith("@@ -1,500 +0,0 @@\n" + "\n".join(["-line"] * 500))
    assert told.counts == "+0 -500"
    (folder / "empty").touch()
    assert shown(files, "delete", "empty").text == "empty is deleted: 0 bytes"


def test_a_present_content_that_is_no_text_is_told_in_words(files: Registry, folder: Path) -> None:
    (folder / "binary").write_bytes(b"\0\xff" * 10)
    told = shown(files, "write", "binary", "x\n")
    assert told.text.startswith("binary: 20 bytes, which are no text, are replaced by:\n---")
    assert told.text.endswith("+x") and told.state == state(b"\0\xff" * 10)
    assert "no text" in shown(files, "delete", "binary").text
    assert told.counts == "+1 lines, -20 bytes" and not told.omitted
    (folder / "utf16").write_text("é\n", encoding="utf-16")
    assert "changes to UTF-8" in shown(files, "write", "utf16", "é\n").text


def test_all_of_a_large_present_content_is_told(files: Registry, folder: Path) -> None:
    (folder / "large").write_text("".join(f"line {number}\n" for number in range(200_000)))
    told = shown(files, "write", "large", "line 0\nx\n")
    assert told.counts == "+1 -199999" and not told.omitted
    assert "-line 1\n" in told.text and told.text.endswith("\n-line 199999\n+x")
    told = shown(files, "delete", "large")
    assert told.counts == "+0 -200000" and told.text.endswith("-line 199999")


def test_a_present_content_that_is_too_large_is_told_to_be_left_out(
    files: Registry, folder: Path
) -> None:
    huge = b"xy\n" * 2_000_000
    (folder / "huge").write_bytes(huge)
    told = shown(files, "write", "huge", "x\n")
    assert "6000000 bytes, too many to be shown" in told.text and told.state == state(huge)
    assert told.counts == "+1 lines, -6000000 bytes"
    assert told.omitted == "the present content of huge, 6000000 bytes, is not shown"
    told = shown(files, "delete", "huge")
    assert "6000000" in told.text and told.counts == "-6000000 bytes" and told.omitted


def test_with_several_roots_it_is_told_where(folder: Path) -> None:
    files = builtin_tools([str(folder), f"{folder}/sub:rw"])
    for operation in ("write", "create"):
        told = shown(files, operation, "n.txt", "x")
        assert f"+++ {folder}/sub/n.txt\n" in told.text
        assert str(folder / "sub" / "n.txt") in run_and_read(files, operation, "n.txt", "x")
        (folder / "sub" / "n.txt").unlink()


def test_telling_changes_nothing(files: Registry, folder: Path) -> None:
    before = read_tree(folder)
    shown(files, "write", "a.txt", "x")
    shown(files, "write", "n.txt", "x")
    shown(files, "delete", "a.txt")
    shown(files, "create", "p/q/r.txt", "x")
    assert preview(files, "read", "a.txt") is None and preview(files, "list", ".") is None
    assert read_tree(folder) == before


def test_what_could_only_fail_is_told_as_the_error(files: Registry, folder: Path) -> None:
    (folder / "link").symlink_to("a.txt")
    for operation, path, content in (
        *(("write", "link", "x"), ("write", ".env", "x"), ("write", "../x", "x")),
        *(("write", "a.txt", None), ("write", "a.txt", "\ud800"), ("write", "no/x", "x")),
        *(("delete", "none", None), ("delete", "sub", None), ("delete", "link", None)),
        *(("create", "a.txt", "x"), ("create", "link/x", "x"), ("create", "/etc/x", "x")),
    ):
        with pytest.raises(ToolError) as caught:
            preview(files, operation, path, content)
        assert run_and_refuse(files, operation, path, content) == (
            caught.value.code,
            str(caught.value),
        )


# --- the diff itself ---

TEXTS = st.lists(st.sampled_from(["a\n", "b\n", "c\n", "\n", "d", "e\n"]), max_size=40).map("".join)


@given(before=TEXTS, after=TEXTS)
def test_the_diff_is_one_that_leads_from_the_one_to_the_other(before: str, after: str) -> None:
    diff = unified_diff(before, after, "x", "y")
    if before == after:
        assert "no difference" in diff.text and not diff.counts
        return
    assert applied(before, diff.text) == after
    assert diff.counts == counted(diff.text) and not diff.omitted


def counted(diff: str) -> str:
    lines = diff.split("\n")[2:]
    added, removed = (sum(line.startswith(mark) for line in lines) for mark in "+-")
    return f"+{added} -{removed}"


def applied(before: str, diff: str) -> str:
    """The result of a patch program, by the rules of the format alone."""
    lines = before.splitlines(keepends=True)
    result: list[str] = []
    place, last = 0, ""
    for line in diff.split("\n")[2:]:
        if line.startswith("@@"):
            start, _, length = line.split()[1][1:].partition(",")
            until = int(start) - (0 if length == "0" else 1)
            result += lines[place:until]
            place = until
        elif line.startswith("\\"):
            if last == "+":
                result[-1] = result[-1].removesuffix("\n")
        elif line.startswith("+"):
            result.append(line[1:] + "\n")
        else:
            assert lines[place].removesuffix("\n") == line[1:]
            if line[0] == " ":
                result.append(lines[place])
            place += 1
        last = line[0]
    return "".join(result + lines[place:])


@pytest.mark.heavy
def test_a_diff_shows_all_lines_however_many_and_however_hard_to_compare_they_are() -> None:
    for before, after in (
        (range(50_000), range(50_000, 100_000)),
        ([n % 40 for n in range(50_000)], [n * 7 % 40 for n in range(50_000)]),
        ([7] * 50_000, [7, 8] * 30_000),
        (range(50_000), [*range(25_000), 1, 2, *range(25_000, 50_000)]),
        (range(50_000), range(49_999, -1, -1)),
    ):
        old, new = ("".join(f"{number}\n" for number in lines) for lines in (before, after))
        diff = unified_diff(old, new, "x", "y")
        assert applied(old, diff.text) == new
        assert diff.counts == counted(diff.text) and not diff.omitted
    long = "x" * 900_000
    assert unified_diff("", f"{long}\n", "x", "y").text.endswith(f"\n+{long}")


def test_a_few_changes_far_apart_are_shown_as_few_lines() -> None:
    lines = [f"    value_{number % 3000} = {number % 7}" for number in range(20_000)]
    changed = [line.replace("value_5 ", "amount ") for line in lines]
    changed[10_000:10_000] = ["    # new", "    }"]
    diff = unified_diff("\n".join(lines), "\n".join(changed), "x", "y")
    assert diff.counts == "+9 -7"
    assert NOT_COMPARED not in diff.text


def test_lines_that_are_not_compared_are_said_to_be() -> None:
    before = "".join(f"{number % 40}\n" for number in range(5_000))
    after = "".join(f"{number * 7 % 40}\n" for number in range(5_000))
    assert f"@@ ({NOT_COMPARED})" in unified_diff(before, after, "x", "y").text


def test_a_diff_of_more_than_is_shown_counts_all_of_it_and_says_what_is_left_out() -> None:
    line = "y" * 999 + "\n"
    before = line * (MAX_DIFF_CHARS // 1000 + 10)
    diff = unified_diff(before, "one\ntwo\n", "x", "y")
    assert diff.counts == f"+2 -{MAX_DIFF_CHARS // 1000 + 10}"
    assert diff.omitted == "10026 characters in 13 lines are not shown"
    assert diff.text.endswith("are not shown)")
    assert len(diff.text) < MAX_DIFF_CHARS + 6_000  # a mark a line is not counted


def test_what_nobody_would_see_is_escaped() -> None:
    diff = unified_diff("a\r\n\ta\n", "a\n\x1b[31mb\u202e\u2028c\u200b\n", "a\nb", "a")
    assert diff.text == (
        "--- a\\nb\n+++ a\n@@ -1,2 +1,2 @@\n-a\\r\n-\ta\n+a\n+\\x1b[31mb\\u202e\\u2028c\\u200b"
    )


# --- what was approved ---


def test_what_was_approved_is_done_while_it_holds(files: Registry, folder: Path) -> None:
    for operation, path, content in (
        ("write", "a.txt", "new"),
        ("write", "n.txt", "new"),
        ("create", "p/q.txt", "new"),
        ("delete", "a.txt", None),
    ):
        told = shown(files, operation, path, content)
        run_and_read(files, operation, path, content, expected=told.state)
    assert sorted(read_tree(folder)) == [".", "n.txt", "p", "p/q.txt", "sub"]


@pytest.mark.parametrize("change", ["other content", "longer", "", None])
def test_a_file_that_changed_or_appeared_since_is_left_alone(
    files: Registry, folder: Path, change: str | None
) -> None:
    for operation, content in (("write", "new"), ("delete", None)):
        told = shown(files, operation, "a.txt", content)
        (folder / "a.txt").unlink()
        if change is not None:
            (folder / "a.txt").write_text(change)
        before = read_tree(folder)
        code, message = run_and_refuse(files, operation, "a.txt", content, expected=told.state)
        if change is not None or operation == "write":
            assert code == "not_allowed" and "has changed since it was approved" in message
        assert {k: v[-1] for k, v in read_tree(folder).items()} == {
            k: v[-1] for k, v in before.items()
        }
        (folder / "a.txt").write_text("one\n")


def test_a_file_that_appeared_since_is_left_alone(files: Registry, folder: Path) -> None:
    for operation in ("write", "create"):
        told = shown(files, operation, "n.txt", "new")
        (folder / "n.txt").write_text("somebody else's")
        run_and_refuse(files, operation, "n.txt", "new", expected=told.state)
        assert (folder / "n.txt").read_text() == "somebody else's"
        (folder / "n.txt").unlink()
