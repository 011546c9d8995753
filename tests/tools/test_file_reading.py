"""``file_access`` reads a part of a file by lines and lists what fits a pattern."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mlx_tools import builtin_tools
from mlx_tools.toolbox.tree_walk import MAX_DEPTH
from mlx_tools.tools import Tool, ToolContext
from mlx_tools.tools.context import CONTEXT
from tests.tools.file_calls import SECRET, execute_call, write_files


def call(folder: Path, **arguments: Any) -> str:
    """The result, or the error's message."""
    context = ToolContext(shown_chars=arguments.pop("shown_chars", None))
    result = execute_call(builtin_tools([str(folder)]).get("file_access"), context, **arguments)
    return result.content if result.error is None and result.content else str(result.error)


def read(folder: Path, path: str, **more: Any) -> str:
    return call(folder, operation="read", path=path, **more)


def listed(folder: Path, pattern: str, path: str = ".") -> list[str]:
    return call(folder, operation="list", path=path, pattern=pattern).split("\n")


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_lines_are_read_by_their_numbers(tmp_path: Path, end: str) -> None:
    write_files(tmp_path, {"f": "".join(f"line {number}{end}" for number in range(1, 101))})
    assert read(tmp_path, "f", from_line=61, lines=2) == (
        f"line 61{end}line 62{end}[Lines 61 to 62 of 100 are shown. To read on: from_line 63.]"
    )
    assert read(tmp_path, "f", from_line=100) == (
        f"line 100{end}[Lines 100 to 100 of 100 are shown, the last ones.]"
    )
    assert read(tmp_path, "f", lines=1).startswith(f"line 1{end}[Lines 1 to 1 of 100")
    assert read(tmp_path, "f", from_line=1, lines=500).endswith(f"line 100{end}")
    assert "has 100 lines" in read(tmp_path, "f", from_line=101)


def test_the_last_line_needs_no_end(tmp_path: Path) -> None:
    write_files(tmp_path, {"f": "a\nb", "old": "a\rb\rc"})
    assert read(tmp_path, "f", from_line=2) == "b\n[Lines 2 to 2 of 2 are shown, the last ones.]"
    assert read(tmp_path, "old", from_line=2, lines=1).startswith("b\r[Lines 2 to 2 of 3")


def test_a_long_text_is_shown_to_a_line_and_can_be_read_on(tmp_path: Path) -> None:
    text = "".join(f"{number:04} {'x' * 40}\n" for number in range(1, 2001))
    write_files(tmp_path, {"f": text})
    pieces, start = "", 1
    while True:
        shown = read(tmp_path, "f", shown_chars=4000, **({"from_line": start} if start > 1 else {}))
        assert len(shown) <= 4000
        part, _, notice = shown.rpartition("[")
        pieces += part
        if "To read on" not in notice:
            break
        start = int(notice.rpartition("from_line ")[2].strip(".]"))
    assert pieces == text


def test_a_text_that_fits_is_shown_as_it_is(tmp_path: Path) -> None:
    write_files(tmp_path, {"f": "a\nb\n", "long": "x" * 9000})
    assert read(tmp_path, "f", shown_chars=4000) == "a\nb\n"
    assert read(tmp_path, "long", shown_chars=4000) == "x" * 9000  # read_artifact reads on in it


def test_lines_far_down_in_a_large_file_are_read(tmp_path: Path) -> None:
    write_files(tmp_path, {"f": "".join(f"line {number}\n" for number in range(1, 200_001))})
    assert read(tmp_path, "f", from_line=150_000, lines=1).startswith("line 150000\n")
    assert "of 200000" in read(tmp_path, "f", shown_chars=4000)


@given(text=st.text("ab\n\r", max_size=60), first=st.integers(1, 12), count=st.integers(1, 12))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_lines_are_those_of_the_file(tmp_path: Path, text: str, first: int, count: int) -> None:
    (tmp_path / "f").write_bytes(text.encode())
    end = "\r" if "\r" in text and "\n" not in text else "\n"
    lines = [line + end for line in text.split(end)]
    lines[-1] = lines[-1].removesuffix(end)
    lines = lines if lines[-1] else lines[:-1] or [""]
    shown = read(tmp_path, "f", from_line=first, lines=count)
    if first > len(lines):
        assert f"has {len(lines)} lines" in shown
    elif text:
        assert shown.startswith("".join(lines[first - 1 : first - 1 + count]))


TREE = {
    "a.py": "12345",
    "b.txt": "x",
    "sub/c.py": "",
    "sub/deep/d.py": "é",
    "sub/deep/e.md": "",
    ".ssh/f.py": SECRET,
    ".git/g.py": "x",
    "node_modules/h.py": "x",
    "build.log": "x",
    ".gitignore": "node_modules/\n*.log\n",
}


def test_a_pattern_lists_what_fits_in_all_folders_with_sizes(tmp_path: Path) -> None:
    write_files(tmp_path, TREE)
    (tmp_path / "link.py").symlink_to("a.py")
    left_out = (
        "[Left out, since .gitignore names them: node_modules/. To list one, give it as path.]"
    )
    assert listed(tmp_path, "**/*.py") == [
        *("a.py (5 bytes)", "link.py@", "sub/c.py (0 bytes)", "sub/deep/d.py (2 bytes)"),
        left_out,
    ]
    assert listed(tmp_path, "*.{py,txt}")[:3] == ["a.py (5 bytes)", "b.txt (1 bytes)", "link.py@"]
    assert listed(tmp_path, "**/*.md", "sub") == ["sub/deep/e.md (0 bytes)"]
    assert listed(tmp_path, "sub/*")[:2] == ["sub/c.py (0 bytes)", "sub/deep/"]
    assert listed(tmp_path, "*.py", "node_modules") == ["node_modules/h.py (1 bytes)"]
    assert listed(tmp_path, "**/*.log")[0] == "build.log (1 bytes)"
    assert listed(tmp_path, "*.none")[0] == "[Nothing fits the pattern.]"
    for pattern in ("../*", "/etc/*", "a/../b"):
        assert "pattern" in listed(tmp_path, pattern)[0]


def test_a_list_has_a_thousand_entries_at_most(tmp_path: Path) -> None:
    write_files(tmp_path, {f"d{number % 7}/{number:04}.txt": "" for number in range(1100)})
    lines = listed(tmp_path, "**/*.txt")
    assert len(lines) == 1001 and "1000" in lines[-1]
    assert lines[:1000] == sorted(lines[:1000])


def test_a_glob_that_stands_for_too_many_patterns_is_refused(tmp_path: Path) -> None:
    assert "more than 100" in listed(tmp_path, "{a,b}" * 20)[0]


def test_a_list_says_what_could_not_be_looked_at(tmp_path: Path) -> None:
    tmp_path.joinpath(*["d"] * (MAX_DEPTH + 1)).mkdir(parents=True)
    assert listed(tmp_path, "**/*.txt") == [
        "[Nothing fits the pattern.]",
        "[1 folders could not be read.]",
    ]
    tool, context = builtin_tools([str(tmp_path)]).get("file_access"), ToolContext()
    assert isinstance(tool, Tool)
    context.cancelled = True  # the walk ends as it does after too many entries
    token = CONTEXT.set(context)
    try:
        content = tool.blocking({"operation": "list", "path": ".", "pattern": "**/*.txt"})
    finally:
        CONTEXT.reset(token)
    assert "[Only the first 1 entries were looked at: list a smaller folder.]" in content
