"""``edit_file``: one text of a file is replaced, exactly where it stands, and nothing else."""

from __future__ import annotations

import contextlib
import os
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mlx_tools import builtin_tools
from mlx_tools.plugins.files import Undo
from mlx_tools.plugins.files.edit import MAX_EDITED_BYTES
from mlx_tools.plugins.files.text_edit import edit_text
from mlx_tools.store import TranscriptStore
from mlx_tools.tools import Registry, Tool, ToolContext, ToolError
from mlx_tools.transcript import Header
from tests.tables import table
from tests.tools.file_calls import execute_call, make_fast_folder, read_tree, write_files

FIXTURE = [HealthCheck.function_scoped_fixture]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    with make_fast_folder(tmp_path) as made:
        yield made


@pytest.fixture
def files(folder: Path) -> Registry:
    return builtin_tools([f"{folder}:rw"])


def edit(files: Registry, path: str, old: str, new: str, **more: Any) -> str:
    """The result of a call. Raises AssertionError for an error."""
    context = ToolContext(expected=more.pop("expected", None), undo=more.pop("undo", None))
    result = execute_call(files.get("edit_file"), context, path=path, old=old, new=new, **more)
    assert result.error is None, result.error
    return result.content or ""


def refused(files: Registry, path: str, old: str, new: str, **more: Any) -> tuple[str, str]:
    """The code and the message of a call that fails; the folder stays as it was."""
    context = ToolContext(expected=more.pop("expected", None))
    result = execute_call(files.get("edit_file"), context, path=path, old=old, new=new, **more)
    assert result.error is not None, result.content
    return result.error.code, result.error.message


def preview(files: Registry, path: str, old: str, new: str, **more: Any) -> Any:
    tool = files.get("edit_file")
    assert isinstance(tool, Tool)
    return tool.preview({"path": path, "old": old, "new": new, **more})


# --- what is replaced ---


def test_one_text_is_replaced_and_the_rest_stays(files: Registry, folder: Path) -> None:
    write_files(folder, {"a.py": "def f():\n    return 1\n\n\ndef g():\n    return 2\n"})
    said = edit(files, "a.py", "    return 2", "    return 3")
    assert (folder / "a.py").read_text() == "def f():\n    return 1\n\n\ndef g():\n    return 3\n"
    assert "line 6" in said


@pytest.mark.parametrize(
    ("text", "old", "new", "result"),
    [
        ("a\r\nb\r\nc\r\n", "a\nb", "x\ny\nz", "x\r\ny\r\nz\r\nc\r\n"),
        ("a\nb\n", "a\r\nb", "x\r\ny", "x\ny\n"),
        ("a\rb\rc", "a\nb", "x\ny", "x\ry\rc"),
        ("a  \nb\t\nc\n", "a\nb\nc", "a\nb\nd", "a  \nb\t\nd\n"),
        ("a\nb\n", "a \nb  ", "x", "x\n"),
        ("if a:  \n    b\n", "if a:\n    b\n", "if a:\n    c\n", "if a:  \n    c\n"),
        ("one two", "two", "three", "one three"),
        ("a\nb\nc\n", "b\n", "", "a\nc\n"),
        ("a\nc\n", "a\nc", "a\nb\nc", "a\nb\nc\n"),
        ("a\r\nb\n", "a\nb", "a\nc", "a\r\nc\n"),
        ("a\r\nb\nc\nd\n", "c", "c\nx", "a\r\nb\nc\nx\nd\n"),
        ("x\n\n\ny", "x\n\n\ny", "x\ny", "x\ny"),
        ("tab\there", "tab\there", "tab\tthere", "tab\tthere"),
        ("one line", "one line", "two\r\nlines", "two\r\nlines"),
        ("a\nb  \nc\n", "a\nb\nc", "A\nb\nC", "A\nb  \nC\n"),
        ("a \nb\t\nc\n", "a\nb\nc", "x\na\ny\nb\nz", "x\na \ny\nb\t\nz\n"),
        ("a\r\nb\nc\r\nd\r\n", "a\nb\nc\nd", "A\nb\nC\nD", "A\r\nb\nC\r\nD\r\n"),
        ("a\r\nb\nc\nd\n", "a\nb", "A\nb", "A\r\nb\nc\nd\n"),
        ("a  \nbc\nd\n", "a\nb", "a", "ac\nd\n"),
        ("a  \nb\n", "a\nb\n", "a\nb\nb\n", "a  \nb\nb\n"),
        ("xa \nb\n", "a\nb", "y\na\nb", "xy\na \nb\n"),
    ],
)
def test_line_ends_and_white_space_at_the_end_of_lines_do_not_count(
    files: Registry, folder: Path, text: str, old: str, new: str, result: str
) -> None:
    write_files(folder, {"f": text})
    edit(files, "f", old, new)
    assert (folder / "f").read_bytes().decode() == result


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_mark_and_encoding_stay(files: Registry, folder: Path, encoding: str) -> None:
    (folder / "f").write_bytes("größe: 1\r\n😀\r\n".encode(encoding))
    edit(files, "f", "größe: 1", "größe: 2")
    assert (folder / "f").read_bytes() == "größe: 2\r\n😀\r\n".encode(encoding)


def test_big_endian_text_stays_so(files: Registry, folder: Path) -> None:
    (folder / "f").write_bytes(b"\xfe\xff" + "a b\n".encode("utf-16-be"))
    edit(files, "f", "b", "c")
    assert (folder / "f").read_bytes() == b"\xfe\xff" + "a c\n".encode("utf-16-be")


@pytest.mark.parametrize(
    ("text", "old", "result"),
    [
        ("x\nfoo\nfoo\n", "foo", "x\nbaz\nbaz\n"),
        ("foo foo", "foo", "baz baz"),
        ("fofofo", "fofo", "bazfo"),
        ("foo  \nbar\nfoo\nbar", "foo\nbar", "baz\nbaz"),
    ],
)
def test_a_text_that_stands_twice_is_not_replaced_but_with_all(
    files: Registry, folder: Path, text: str, old: str, result: str
) -> None:
    write_files(folder, {"f": text})
    before = read_tree(folder)
    code, message = refused(files, "f", old, "baz")
    assert code == "tool_error" and "2 times" in message and "line" in message
    assert read_tree(folder) == before
    edit(files, "f", old, "baz", all=True)
    assert (folder / "f").read_text() == result


def test_all_replaces_every_place_and_says_how_many(files: Registry, folder: Path) -> None:
    write_files(folder, {"f": "a\r\nb\r\na\r\n"})
    assert "2 places, at lines 1, 3" in edit(files, "f", "a", "aa", all=True)
    assert (folder / "f").read_bytes() == b"aa\r\nb\r\naa\r\n"


# --- what an error says ---


def test_a_text_that_is_not_there_is_answered_with_the_nearest_lines(
    files: Registry, folder: Path
) -> None:
    lines = [f"value_{number} = {number}" for number in range(500)]
    lines[321] = "def total_price(items, tax):"
    write_files(folder, {"f.py": "\n".join(lines)})
    message = refused(files, "f.py", "def total_prices(items):\n", "x")[1]
    assert "322: def total_price(items, tax):" in message
    assert "nor anything like it" in refused(files, "f.py", "€€€€ ¶¶¶¶", "x")[1]


def test_another_indentation_is_answered_with_the_files_own_text(
    files: Registry, folder: Path
) -> None:
    own = "        if ready:\n            start()\n"
    write_files(folder, {"f.py": f"class A:\n    def f(self):\n{own}\n"})
    message = refused(files, "f.py", "if ready:\n    start()", "x")[1]
    assert own.rstrip("\n") in message and "lines 3 to 4" in message
    edit(files, "f.py", message.partition("to copy:\n")[2], "        pass")
    assert "pass" in (folder / "f.py").read_text()


@table("old", ["return x + 3\n", "return x + 3", "turn x + 30", "    return x +\n"])
def test_a_part_of_a_word_or_line_differs_in_more_than_white_space(old: str) -> None:
    text = "def a(x):\n    return x - 3\n\n\ndef b(x):\n    return  x + 30\n"
    with pytest.raises(ToolError) as refusal:
        edit_text(text, old, "y", "f.py")
    assert "white space differs" not in str(refusal.value)


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("", "x", "empty"),
        ("a", "a", "same"),
        ("a", "\0", "NUL"),
        ("a", "\ud800", "surrogate"),
        ("a", "\ufeffa", "byte order mark"),
    ],
)
def test_what_cannot_be_is_said(
    files: Registry, folder: Path, old: str, new: str, what: str
) -> None:
    write_files(folder, {"f": "a\n"})
    before = read_tree(folder)
    assert what in refused(files, "f", old, new)[1]
    assert read_tree(folder) == before


def test_a_file_of_just_what_may_be_edited_is_edited(files: Registry, folder: Path) -> None:
    most = "é" * (MAX_EDITED_BYTES // 2 - 1)  # two bytes each
    write_files(folder, {"f": most + "ab"})
    edit(files, "f", "ab", "cd")
    assert (folder / "f").read_text() == most + "cd"
    assert refused(files, "f", "cd", "cde")[0] == "payload_too_large"


def test_what_is_no_text_or_too_large_is_not_edited(files: Registry, folder: Path) -> None:
    write_files(folder, {"image": b"\x89PNG\0", "large": b"a\n" * 2_500_001, "many": "a" * 60_000})
    assert "not a text file" in refused(files, "image", "PNG", "x")[1]
    assert refused(files, "large", "a", "b", all=True)[0] == "payload_too_large"
    assert refused(files, "many", "a", "b" * 1000, all=True)[0] == "payload_too_large"


def test_where_nothing_may_be_changed_nothing_is(files: Registry, folder: Path) -> None:
    write_files(folder, {".env": "KEY=1\n", "sub/f": "a\n"})
    (folder / "link").symlink_to("sub/f")
    os.link(folder / "sub" / "f", folder / "hard")
    read_only = builtin_tools([str(folder), f"{folder}/sub:rw"])
    before = read_tree(folder)
    for path in (".env", "link", "hard", "../f", "/etc/passwd"):
        assert refused(files, path, "a", "b")[0] == "not_allowed"
    (folder / "hard").unlink()
    write_files(folder, {"top": "a\n"})
    assert refused(read_only, "top", "a", "b")[0] == "not_allowed"
    assert refused(files, "none", "a", "b") == ("tool_error", "there is no none")
    assert "edit_file" in builtin_tools([str(folder)]).disabled
    assert {k: v[-1] for k, v in read_tree(folder).items() if k in before} == {
        k: v[-1] for k, v in before.items() if k != "hard"
    }


# --- approval and undo ---


def test_the_preview_is_the_diff_and_holds_only_for_what_was_shown(
    files: Registry, folder: Path
) -> None:
    write_files(folder, {"f": "a\nb\nc\n"})
    seen = preview(files, "f", "b", "B")
    assert "-b\n+B" in seen.text and seen.paths == {"path": str(folder / "f")}
    (folder / "f").write_text("a\nb\nc\nd\n")
    code, message = refused(files, "f", "b", "B", expected=seen.state)
    assert code == "not_allowed" and "changed since it was approved" in message
    assert (folder / "f").read_text() == "a\nb\nc\nd\n"
    edit(files, "f", "b", "B", expected=preview(files, "f", "b", "B").state)
    with pytest.raises(ToolError, match="does not occur"):
        preview(files, "f", "none", "x")


LINES = st.lists(
    st.tuples(
        st.sampled_from(("", "a", "b", "ab", "  a", "\tb", "x = 1", "é😀", "a b")),
        st.sampled_from(("", "", "", " ", "\t  ")),
    ),
    max_size=8,
)
ENDS = st.sampled_from(("\n", "\r\n"))
NEW = st.text("ab \t\né", max_size=12)


@given(lines=LINES, end=ENDS, tail=st.sampled_from(("", "a", "b ")), new=NEW, data=st.data())
@settings(suppress_health_check=FIXTURE, max_examples=settings().max_examples * 4)
def test_an_edit_changes_its_place_alone_and_is_undone_exactly(
    folder: Path, lines: list[tuple[str, str]], end: str, tail: str, new: str, data: st.DataObject
) -> None:
    text = "".join(line + blank + end for line, blank in lines) + tail
    start = data.draw(st.integers(0, len(text)))
    stop = data.draw(st.integers(start, len(text)))
    old = data.draw(st.sampled_from((text[start:stop], text[start:stop].replace("\r\n", "\n"))))
    before, path = text.encode(), folder / "root" / "f"
    write_files(folder, {"root/f": before})
    files, store = builtin_tools([f"{folder}/root:rw"]), TranscriptStore(folder / "sessions")
    session = store.create()
    session.transcript.append(Header(session=session.session, created=""))
    session.transcript.close()
    found, context = occurrences(text, old), ToolContext(undo=session.undo)
    result = execute_call(files.get("edit_file"), context, path="f", old=old, new=new)
    after = path.read_bytes()
    if result.error is not None:
        assert after == before
        fits = occurrences(plain(text), plain(old))
        assert found != 1 or fits > 1 or "same" in result.error.message, result.error
        return
    assert found == 1
    assert "\n" not in text or "\n" not in after.decode().replace(end, "")
    assert is_replaced(text, after.decode(), old, new)
    with Undo(store, session.session) as undo:
        (step,) = undo.list_steps()
        assert undo.undo(step).status == "undone"
    assert path.read_bytes() == before


@given(
    lines=st.lists(
        st.tuples(st.sampled_from("abc"), st.sampled_from(("", " ", "\t  ")), ENDS),
        min_size=2,
        max_size=9,
    ),
    changed=st.sets(st.integers(0, 8), min_size=1, max_size=3),
)
def test_lines_that_the_new_text_repeats_keep_their_ends_and_blanks(
    lines: list[tuple[str, str, str]], changed: set[int]
) -> None:
    """The old text has plain line ends and no blanks at the end of lines, as models write it."""
    numbers = changed & set(range(len(lines))) or {0}
    text = "".join(f"{number}{line}{blank}{end}" for number, (line, blank, end) in enumerate(lines))
    old = "\n".join(f"{number}{line}" for number, (line, _, _) in enumerate(lines))
    new_lines = [
        f"new {number}" if number in numbers else f"{number}{line}"
        for number, (line, _, _) in enumerate(lines)
    ]
    expected = [
        line + (end if number in numbers else blank + end)
        for number, (line, (_, blank, end)) in enumerate(zip(new_lines, lines, strict=True))
    ]
    last, ending = len(lines) - 1, lines[-1][1] + lines[-1][2]
    expected[last] = new_lines[last] + ending  # the place ends before the blanks of its last line
    assert edit_text(text, old, "\n".join(new_lines), "f").text == "".join(expected)


def test_the_size_of_the_result_counts_not_that_of_each_new_text() -> None:
    line = "v" * 50_000
    text = f"{line}\n" * 60
    result = edit_text(text, line, f"{line}w", "f", replace_all=True)
    assert result.text == f"{line}w\n" * 60
    with pytest.raises(ToolError, match="too large"):
        edit_text(text, line, line * 2, "f", replace_all=True)


def test_a_text_that_stands_nearly_everywhere_is_not_counted_to_its_end() -> None:
    with pytest.raises(ToolError, match="more than 1000 times in f, at lines 1, 2, 3"):
        edit_text("a\n" * 5_000, "a", "b", "f")
    with pytest.raises(ToolError, match="more than 200000 times in f: give more"):
        edit_text("a" * 200_001, "a", "b", "f", replace_all=True)


def occurrences(text: str, old: str) -> int:
    """The count of a text in another, overlapping itself too; line ends aside."""
    text, old = (part.replace("\r\n", "\n") for part in (text, old))
    return sum(bool(old) and text.startswith(old, start) for start in range(len(text)))


def plain(part: str) -> str:
    """The text without what does not count."""
    lines = part.replace("\r\n", "\n").split("\n")
    return "\n".join(line.rstrip(" \t") for line in lines)


def is_replaced(text: str, result: str, old: str, new: str) -> bool:
    """True if the result is the text with one place, which is ``old``, replaced by ``new``."""

    for start in range(len(text) + 1):
        if text[:start] != result[:start]:
            return False
        for stop in range(start, len(text) + 1):
            end = len(result) - (len(text) - stop)
            if end < start or not result.endswith(text[stop:]):
                continue
            if plain(text[start:stop]) == plain(old) and plain(result[start:end]) == plain(new):
                return True
    return False


@given(text=st.text("ab \n", max_size=30), old=st.text("ab \n", min_size=1, max_size=4))
def test_a_text_that_stands_twice_is_never_replaced(text: str, old: str) -> None:
    if occurrences(text, old) > 1:
        with pytest.raises(ToolError, match="times"):
            edit_text(text, old, "new", "f")


@pytest.mark.heavy
def test_hostile_texts_take_linear_time() -> None:
    """Each would take minutes if anything took quadratic time."""
    many = "a" * 2_000_000
    for text, old in (
        (many + "b", "a" * 60_000 + " "),
        (many, " \n" + "a" * 60_000),
        (" " * 2_000_000 + "x", "y"),
        ("a\n" * 200_000, "a\n" * 30_000 + "b"),
        ("\n" * 300_000, "\n" * 60_000 + "x"),
        ("word " * 400_000, "word wort"),
        ("ab\n" * 200_000, "abc\n" * 10_000),
    ):
        with pytest.raises(ToolError):
            edit_text(text, old, "x", "f")
    text = ("v" * 30 + "\n") * 60_000
    assert edit_text(text, "v\n", "w\n", "f", replace_all=True).text == text.replace("v\n", "w\n")


# --- another writer at the same time ---


def race(folder: Path, turns: int, *, in_place: bool) -> dict[str, int]:
    """Edits a file again and again while another thread writes it; returns what came of it.

    The other writer puts a line in place of the first. If its writing is over and the line is not
    there although the edit was told to be made, that update was lost.
    """
    files, chance = builtin_tools([f"{folder}:rw"]), random.Random(folder.name)
    tool, path, spare = files.get("edit_file"), folder / "f", folder / "spare"
    assert isinstance(tool, Tool)
    begin, done = threading.Barrier(2), threading.Barrier(2)

    def write() -> None:
        for turn in range(turns):
            text, pause = f"turn {turn}\nold\n", chance.randrange(0, 6_000)
            begin.wait()
            for _ in range(pause):
                pass
            if in_place:
                path.write_text(text)
            else:
                spare.write_text(text)
                spare.replace(path)
            done.wait()

    outcomes = {"edited": 0, "overwritten": 0, "refused": 0}

    def write_until_the_end() -> None:
        with contextlib.suppress(threading.BrokenBarrierError):  # the other side has ended
            write()

    writer = threading.Thread(target=write_until_the_end)
    path.write_text("first\nold\n")
    writer.start()
    try:
        for turn in range(turns):
            begin.wait()
            try:
                tool.blocking({"path": "f", "old": "old", "new": "new"})  # type: ignore[misc]
                told = "edited"
            except ToolError:
                told = "refused"
            done.wait()
            now = path.read_text()
            expected = f"turn {turn}\n"
            assert now.startswith(expected), f"lost: {now!r} after {told} in {turn}"
            assert now in (expected + "old\n", expected + "new\n")
            assert told == "edited" or now.endswith("old\n")
            lost = told == "edited" and now.endswith("old\n")  # the other wrote it afterwards
            outcomes["overwritten" if lost else told] += 1
    finally:
        begin.abort()
        done.abort()
        writer.join()
    return outcomes


@pytest.mark.parametrize("in_place", [False, True])
def test_no_update_of_another_writer_is_lost(folder: Path, in_place: bool) -> None:
    outcomes = race(folder, 300, in_place=in_place)
    assert sum(outcomes.values()) == 300
    assert sorted(entry.name for entry in folder.iterdir()) == ["f"]


@pytest.mark.slow
@pytest.mark.parametrize("in_place", [False, True])
def test_no_update_of_another_writer_is_lost_in_10_000_races(folder: Path, in_place: bool) -> None:
    outcomes = race(folder, 10_000, in_place=in_place)
    assert outcomes["edited"] and outcomes["overwritten"] and outcomes["refused"]
