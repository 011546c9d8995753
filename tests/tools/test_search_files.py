"""``search_files``: the lines that match, of the files that may be seen, in linear time."""

from __future__ import annotations

import os
import random
import re
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mlx_tools import builtin_tools
from mlx_tools.plugins.files.line_pattern import LinePattern
from mlx_tools.plugins.files.search import MAX_RESULTS, search_files
from mlx_tools.store import Root, RootName
from mlx_tools.toolbox.ignore_rules import IgnoreRules, is_ignored
from mlx_tools.toolbox.tree_walk import MAX_DEPTH
from mlx_tools.tools import ToolContext
from mlx_tools.tools.context import CONTEXT
from tests.tables import table
from tests.tools.file_calls import SECRET, execute_call, list_names, write_files

TEXTS = {
    "a.txt": "one flour\ntwo\r\nthree Flour\n",
    "sub/b.py": "import os\n\nflour = 1",
    "sub/deeper/c.md": "# flour\n",
    ".github/ci.yml": "flour: yes\n",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_files(tmp_path, {"outside.txt": "flour"})
    return write_files(tmp_path / "data", TEXTS)


def search(folder: Path | list[str], pattern: str, **more: Any) -> list[str]:
    """The lines of the result."""
    roots = folder if isinstance(folder, list) else [str(folder)]
    context = ToolContext(shown_chars=more.pop("shown_chars", None))
    result = execute_call(
        builtin_tools(roots).get("search_files"), context, pattern=pattern, **more
    )
    assert result.error is None, result.error
    return (result.content or "").split("\n")


def refused(folder: Path, pattern: str, **more: Any) -> str:
    result = execute_call(builtin_tools([str(folder)]).get("search_files"), pattern=pattern, **more)
    assert result.error is not None, result.content
    return result.error.message


def test_lines_are_found_with_path_and_number_in_order(folder: Path) -> None:
    assert search(folder, "flour") == [
        ".github/ci.yml:1: flour: yes",
        "a.txt:1: one flour",
        "sub/b.py:3: flour = 1",
        "sub/deeper/c.md:1: # flour",
    ]
    assert search(folder, "FLOUR", ignore_case=True, path="a.txt") == [
        "a.txt:1: one flour",
        "a.txt:3: three Flour",
    ]
    assert search(folder, r"^two$") == ["a.txt:2: two"]
    assert search(folder, r"^\w+ = \d$|^import") == [
        "sub/b.py:1: import os",
        "sub/b.py:3: flour = 1",
    ]
    assert search(folder, "sugar") == ["[No line matches in 4 files.]"]


@pytest.mark.parametrize(
    ("options", "paths"),
    [
        ({"path": "sub"}, {"sub/b.py", "sub/deeper/c.md"}),
        ({"path": "sub/b.py"}, {"sub/b.py"}),
        ({"glob": "*.py"}, {"sub/b.py"}),
        ({"glob": "*.{py,md}"}, {"sub/b.py", "sub/deeper/c.md"}),
        ({"glob": "sub/*"}, {"sub/b.py"}),
        ({"glob": "sub/**"}, {"sub/b.py", "sub/deeper/c.md"}),
        ({"glob": "deeper/*", "path": "sub"}, {"sub/deeper/c.md"}),
        ({"glob": "sub/**/*.md", "path": "sub"}, {"sub/deeper/c.md"}),
        ({"glob": "**/*.txt"}, {"a.txt"}),
    ],
)
def test_path_and_glob_narrow_the_search(folder: Path, options: Any, paths: set[str]) -> None:
    assert {line.partition(":")[0] for line in search(folder, "flour", **options)} == paths


def test_lines_of_a_text_without_other_line_ends_end_at_carriage_returns(folder: Path) -> None:
    write_files(folder, {"mac": "one\rneedle\rtwo needle", "mixed": "a\rneedle\n"})
    assert search(folder, "needle") == [
        *("mac:2: needle", "mac:3: two needle", "mixed:1: a\rneedle"),
    ]


def test_several_roots_are_searched_with_whole_paths(folder: Path, tmp_path: Path) -> None:
    write_files(tmp_path / "other", {"x.txt": "flour"})
    lines = search([f"{folder}/sub", f"{tmp_path}/other"], "flour")
    assert lines[-1] == f"{tmp_path}/other/x.txt:1: flour"
    assert lines[0].startswith(f"{folder}/sub/b.py:3")


def test_what_is_no_regular_expression_is_searched_as_it_is(folder: Path) -> None:
    write_files(folder, {"code.c": "f(x) {\n  a[0]++;\n"})
    for pattern, found in (("f(x) {", "code.c:1: f(x) {"), ("a[0]++;(", ""), ("(?=f)", "")):
        lines = search(folder, pattern)
        assert "no regular expression" in lines[-1]
        assert not found or lines[0] == found
    assert search(folder, "F(X) {", ignore_case=True)[0] == "code.c:1: f(x) {"


def test_what_gitignore_names_is_left_out(folder: Path) -> None:
    rules = "*.log\n!keep.log\n/build/\nnode_modules\ndocs/*.tmp\n# a comment\n\\#x\n"
    ignored = ("x.log", "build/a", "sub/node_modules/a", "docs/a.tmp", "#x", "sub/own/b.txt")
    seen = ("keep.log", "sub/build/a", "docs/sub/a.tmp", "comment", "sub/own/c.txt", "b.txt")
    write_files(folder, {".gitignore": rules, "sub/own/.gitignore": "b.txt\n!*.log\n"})
    write_files(folder, dict.fromkeys((*ignored, *seen, "sub/own/d.log"), "needle"))
    found = {line.partition(":")[0] for line in search(folder, "needle")}
    assert found == {*seen, "sub/own/d.log"}
    assert search(folder, "needle", path="build") == ["build/a:1: needle"]
    assert search(folder, "needle", path="x.log") == ["x.log:1: needle"]


def test_private_names_and_what_is_no_text_are_left_out(folder: Path) -> None:
    private = (".env", ".ssh/config", "id_rsa", ".git/HEAD", "x.git/config", ".netrc", "a.pem")
    write_files(folder, dict.fromkeys(private, "needle " + SECRET))
    write_files(folder, {"image.png": b"needle\0", "wide.txt": "needle é".encode("utf-16")})
    write_files(folder, {"latin.txt": b"needle \xe9\n", "mark.txt": b"\xef\xbb\xbfneedle\n"})
    (folder / "link.txt").symlink_to(folder.parent / "outside.txt")
    (folder / "loop").symlink_to(folder)
    os.mkfifo(folder / "pipe")
    os.link(folder.parent / "outside.txt", folder / "hard.txt")
    found = search(folder, "needle|outside|^flour$")
    assert found[:3] == ["latin.txt:1: needle \ufffd", "mark.txt:1: needle", "wide.txt:1: needle é"]
    assert found[3:] == ["[1 files or folders could not be read.]"]
    assert "private" in refused(folder, "x", path=".ssh")
    for path in ("..", "/etc", "../outside.txt"):
        refused(folder, "x", path=path)
    patterned = search([f"{folder}:ro:**/*.md"], "flour")
    assert patterned == ["sub/deeper/c.md:1: # flour"]


def test_results_are_bounded_and_say_so(folder: Path) -> None:
    write_files(
        folder, {"many.txt": "needle\n" * 1000, "long.txt": "x" * 5000 + "needle" + "y" * 5000}
    )
    lines = search(folder, "needle")
    assert len(lines) == MAX_RESULTS + 1 and "first 200" in lines[-1]
    assert all(len(line) <= 400 for line in lines)
    assert "needle" in lines[0] and lines[0].startswith("long.txt:1: …x")
    few = search(folder, "needle", shown_chars=2000)
    assert len("\n".join(few)) <= 2000 and "Only the first" in few[-1]


def test_a_search_that_takes_too_long_gives_what_it_has(folder: Path) -> None:
    times = iter(range(0, 1000, 7))
    tool = search_files([Root(RootName(str(folder)))], lambda: float(next(times)))
    result = execute_call(tool, pattern="flour")
    assert result.content and "The time was over" in result.content


@pytest.mark.parametrize(
    ("cancelled", "timeout", "late"), [(False, None, False), (False, 4.0, True), (True, None, True)]
)
def test_a_search_ends_in_the_time_of_its_call_and_once_nobody_waits(
    folder: Path, cancelled: bool, timeout: float | None, late: bool
) -> None:
    write_files(folder, {f"{number}.txt": "flour\n" for number in range(20)})
    times = iter(range(1000))
    tool = search_files([Root(RootName(str(folder)))], lambda: next(times) / 4)
    context = ToolContext(timeout=timeout)
    context.cancelled = cancelled
    token = CONTEXT.set(context)
    try:
        content = tool.blocking({"pattern": "flour"})
    finally:
        CONTEXT.reset(token)
    assert ("The time was over" in content) is late


def test_a_large_folder_of_files_that_are_not_wanted_is_left_in_time(folder: Path) -> None:
    write_files(folder, {f"flat/{number}.txt": "" for number in range(300)})
    times = iter((0.0, *[100.0] * 10))
    tool = search_files([Root(RootName(str(folder / "flat")))], lambda: next(times))
    result = execute_call(tool, pattern="flour", glob="*.none")
    assert result.content is not None and "The time was over after 0 files" in result.content


def test_a_folder_that_lies_too_deep_is_told_of(folder: Path) -> None:
    deep = folder.joinpath(*["d"] * (MAX_DEPTH + 1))
    deep.mkdir(parents=True)
    (deep / "a.txt").write_text("needle")
    assert search(folder, "needle")[-1] == "[1 files or folders could not be read.]"


def test_a_name_that_breaks_the_line_is_escaped(folder: Path) -> None:
    write_files(folder, {"a\nb.txt:1: flour": "needle"})
    (line,) = search(folder, "needle")
    assert line.startswith("a\\nb.txt")


def test_of_a_long_line_less_is_searched_for_a_pattern_of_many_repetitions() -> None:
    one, many = LinePattern("(a?){5}"), LinePattern("(a?){500}")
    assert one.max_line_chars > 90 * many.max_line_chars


@table(
    "pattern",
    [
        *("a{1,100}{1,100}b", "(a{100}){100}b", "(a{100})*{100}b", "(?x)(a{100}) {100}b"),
        "(?x)(a{100}) # so often:\n{100}b",
    ],
)
def test_a_repeated_repetition_counts_as_the_product_of_both(pattern: str) -> None:
    assert LinePattern(pattern).max_line_chars == 2_000


def test_a_costly_pattern_gives_up_within_a_text() -> None:
    pattern = LinePattern("(a?){500}b")
    lines = "a" * 1_500 + "\n"
    answers = iter((False, True))
    found = pattern.find_lines(lines * 2 + "b\n" + lines + "b\n" + lines, lambda: next(answers))
    assert [number for number, _ in found] == [2]


def test_a_search_says_of_how_many_files_only_a_part_was_searched(folder: Path) -> None:
    late_nul, late_match = "text\n" * 20_000 + "\0needle", "\n" * 5_300_000 + "needle"
    write_files(folder, {"line": "a" * 3_000 + "needle", "nul": late_nul, "image": "\0needle"})
    (folder / "utf-16").write_bytes(late_match.encode("utf-16"))
    said = search(folder, "needle")
    assert len(said) == 2 and said[0].startswith("line:1: …a")
    assert said[1].startswith("[2 files were searched only in part")
    said = search(folder, "(a?){500}needle", glob="line")
    assert said[0].startswith("[No line matches")
    assert said[1].startswith("[1 files were searched only in part")


def test_numbers_are_right_in_large_files(folder: Path) -> None:
    lines = [f"line {number} {'x' * (number % 50)}" for number in range(100_000)]
    lines[77_777] += " é needle"
    write_files(
        folder, {"large.txt": "\r\n".join(lines) + "\n", "one.txt": "a" * 3_000_000 + "\nneedle"}
    )
    *found, partial = search(folder, "needle$")
    assert found == [f"large.txt:77778: {lines[77_777]}", "one.txt:2: needle"]
    assert partial.startswith("[1 files were searched only in part")  # its first line is too long


LINE = st.text(st.sampled_from("abc é.\t(")).filter(lambda line: "\r" not in line)
PATTERN = st.sampled_from(
    ("a", "^a", "b$", "^$", "a.c", "[ab]+c", "a|é", r"\bab\b", r"(a)(b)?", r"\.", "a{2,3}", "c*$")
)


@given(lines=st.lists(LINE, max_size=8), end=st.sampled_from(("\n", "\r\n")), pattern=PATTERN)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_lines_are_those_that_python_finds(lines: list[str], end: str, pattern: str) -> None:
    text = "".join(line + end for line in lines)
    expected = [number for number, line in enumerate(lines) if re.search(pattern, line)]
    assert [number for number, _ in LinePattern(pattern).find_lines(text)] == expected


@pytest.mark.parametrize(
    "pattern",
    [
        *(r"(a*)*b", r"(a|a)*b", r"(.*)*x", r"1[01]{5000}x", r"(?:[01]{1,50}){1,50}x"),
        *(r"(x+x+)+y", r".*.*.*.*=.*", r"(?:a?){30}a{30}b", r"\w{300}Q", "a" * 1000, "(" * 1000),
    ],
)
def test_hostile_patterns_take_linear_time(folder: Path, pattern: str) -> None:
    chance = random.Random(1)
    binary = "".join(chance.choice("01") for _ in range(20_000))
    write_files(folder, {"a": "a" * 300_000, "b": binary, "c": "x\n" * 50_000})
    assert search(folder, pattern)


def test_hostile_ignore_files_take_linear_time(folder: Path) -> None:
    rules = [f"*{'a*' * count}b" for count in range(60)] + ["[" * 50, "**/" * 200 + "x", "\ud800?"]
    content = "\n".join(rules).encode("utf-8", "replace")
    write_files(folder, {".gitignore": content, "a" * 200: "needle"})
    assert search(folder, "needle")[0].endswith(":1: needle")


def test_ignore_rules_of_inner_folders_overrule_outer_ones() -> None:
    outer, inner = IgnoreRules(b"*.txt\n", ""), IgnoreRules(b"!a.txt\nb/\n", "sub/")
    assert is_ignored("a.txt", [outer])
    assert not is_ignored("sub/a.txt", [outer, inner])
    assert is_ignored("sub/b/", [outer, inner]) and not is_ignored("sub/b", [outer, inner])


@pytest.mark.heavy
def test_a_link_swapped_in_while_searching_is_never_followed(folder: Path) -> None:
    """A thread puts a link to the secret in the place of a file, again and again."""
    write_files(folder.parent, {"outside.txt": SECRET})
    victim, stop = folder / "victim.txt", threading.Event()

    def swap() -> None:
        while not stop.is_set():
            (folder / "spare").write_text("mine")
            (folder / "spare").replace(victim)
            (folder / "link").symlink_to(folder.parent / "outside.txt")
            (folder / "link").replace(victim)

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        for _ in range(300):
            assert not any(SECRET in line for line in search(folder, SECRET[:10]))
    finally:
        stop.set()
        thread.join()


def test_no_descriptor_is_left_open(folder: Path) -> None:
    files = builtin_tools([str(folder)])
    before = len(list_names(Path("/dev/fd")))
    for pattern, path in (("flour", "."), ("x", "none"), ("o", "a.txt"), ("x", ".ssh")):
        execute_call(files.get("search_files"), pattern=pattern, path=path)
    assert len(list_names(Path("/dev/fd"))) <= before
