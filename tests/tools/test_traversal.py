"""No path reaches anything outside its root, whatever is done with it, and none hangs.

The paths are made by rule, and tried on a tree in which every kind of trap is set.
"""

from __future__ import annotations

import itertools
import os
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from mlx_tools import builtin_tools
from mlx_tools.tools import Tool, ToolError
from tests.tools.file_calls import SECRET, make_fast_folder, read_tree, write_files

TARGETS = ("secret.txt", "data-evil/a.txt", "etc/passwd", "new-outside.txt")
DOTS = (
    "..",
    *("%2e%2e", "%252e%252e", "%c0%ae%c0%ae", "%u002e%u002e", "..%00", "&#46;&#46;", "\\x2e\\x2e"),
    *("．．", "‥", "․․", "。。", "．.", "..\u200b", "\u200d..", ".\u00ad.", "..\ufe0f", "\u202e.."),
    *(".. ", " ..", "...", "....", "..;", "..;x=1", "..\t", "..\n", "..\r", "..\0", ".\0."),
)
SLASHES = (
    *("/", "//", "///", "/./", "/.//./", "\\", "\\/", "/\\", "%2f", "%252f", "%5c", "%c0%af"),
    *("%u2215", "∕", "⁄", "／", "⧸", "＼", "/\u200b", "/\0/", ":", "::", "/;/", "/?/", "/#/"),
)
PREFIXES = ("", "sub/", "./", "/", "//", "sub//", "{root}/", "{root}/sub/", "{ROOT}/", "a.txt/")
LINKS = ("out", "dir", "up", "loop", "root", "self", "sub/deep", "fd")


def hostile_tree(base: Path) -> Path:
    """A root called ``data`` below ``base``, in which every kind of trap is set, and secrets beside
    it. Returns the root."""
    root = write_files(base / "data", {"a.txt": "inside", "sub/b.txt": "inside", "sub/inner/": ""})
    secrets = ("secret.txt", "data-evil/a.txt", "etc/passwd", "DATA2/a.txt", "data.d/a.txt")
    write_files(base, dict.fromkeys((*secrets, "data.txt"), SECRET))
    os.mkfifo(base / "pipe")
    for name, target in {
        "out": base / "secret.txt",
        "dir": base,
        "up": "..",
        "loop": "loop",
        "root": "/",
        "self": "/proc/self/root",
        "sub/deep": "../..",
        "fd": "/dev/fd",
        "gone": base / "new-outside.txt",
    }.items():
        (root / name).symlink_to(target)
    os.link(base / "secret.txt", root / "hard.txt")
    os.mkfifo(root / "fifo")
    os.mkfifo(root / "sub" / "fifo")
    return root


def hostile_paths(root: Path) -> list[str]:
    """Well over a thousand different paths, in an order that does not change."""
    marks = {"{root}": str(root), "{ROOT}": str(root).upper(), "{base}": str(root.parent)}
    found = {}
    for path in _paths():
        for mark, meant in marks.items():
            path = path.replace(mark, meant)
        found[path] = None
    return list(found)


def _paths() -> Iterator[str]:
    for dots, slash, depth in itertools.product(DOTS, SLASHES, (1, 2)):
        for target in TARGETS[:2]:
            yield (dots + slash) * depth + target
    for prefix, dots, target in itertools.product(PREFIXES, DOTS, TARGETS):
        yield f"{prefix}{dots}/{target}"
    for link, target in itertools.product(LINKS, (*TARGETS, "", "data/a.txt", "x/y")):
        for tail in ("", "/", "/.", " ", "."):
            yield f"{link}/{target}{tail}" if target else f"{link}{tail}"
    for target in TARGETS:
        whole = "{base}/" + target
        yield from (whole, f"/{whole}", quote(whole), quote(whole, safe=""), f"{whole}\0")
        yield from (f"file://{whole}", f"file:{whole}", f"FILE://localhost{whole}")
        yield from (f"~/{target}", f"~root/{target}", f"{{root}}/../{target}")
        yield from (f"{{root}}-evil/{target}", f"{{root}}/{whole}", f"C:{whole}", f"C:\\{target}")
        yield from (f"\\\\host\\share\\{target}", f"//host/{target}")
        for form in ("NFC", "NFD", "NFKC", "NFKD"):
            yield unicodedata.normalize(form, f"．．／{target}")
    tails = ("-evil/a.txt", ".d/a.txt", ".txt", "2/a.txt", "", "/", "/..", "/../..", " ", ".")
    for around, tail in itertools.product(("{root}", "{base}", "{ROOT}"), tails):
        yield around + tail
    kernel = ("/proc/self/root", "/proc/self/cwd/..", "/proc/1/root", "/dev/fd/0", "/dev/stdin")
    below = ("", "/etc/passwd", "{base}/secret.txt", "/etc/shadow")
    for path in map("".join, itertools.product(kernel, below)):
        yield from (path, path[1:])
    yield from (
        *("/", "//", "/etc", "/etc/passwd", "/etc/shadow", "/dev/null", "/dev/zero", "/dev/tty"),
        *("hard.txt", "fifo", "sub/fifo", "fifo/x", "gone", "{root}/gone", "../pipe", "dir/pipe"),
        *("", ".", "./", "..", "../", "...", "\0", "\ud800", "\udfff/x", "-", "--", "*", "?"),
        "aux",
        *("$HOME", "$HOME/x", "${HOME}/x", "`id`", "$(id)", "| id", "; id", "%HOMEPATH%", "con"),
        *("nul", "aux"),
    )
    for length in (255, 256, 1000, 4095, 4096, 4097, 70_000):
        up = "../" * (length // 3) + "secret.txt"
        yield from ("x" * length, up, "s/" * (length // 2), f"sub/{up}")


# --- what is done with them -----------------------------------------------------------------------


OPERATIONS = ("read", "list", "write", "delete", "create")


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    with make_fast_folder(tmp_path) as folder:
        yield folder


def outside(root: Path) -> object:
    """All that is beside the root, checked by content, mode, number and time."""
    found = read_tree(root.parent)
    return {
        name: state
        for name, state in found.items()
        if name != "data" and not name.startswith("data/")
    }


def test_there_are_more_than_a_thousand_different_paths(tmp_path: Path) -> None:
    assert len(hostile_paths(tmp_path / "data")) > 1500


@pytest.mark.parametrize(
    ("operation", "mode", "each"),
    [
        ("write", "rw", 4),  # of every four paths one
        pytest.param("write", "rw", 1, marks=pytest.mark.heavy),
        *(
            pytest.param(operation, mode, 1, marks=pytest.mark.slow)
            for operation in OPERATIONS
            for mode in ("rw", "ro")
            if (operation, mode) != ("write", "rw")
        ),
    ],
)
def test_no_path_touches_anything_outside_its_root(
    place: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    operation: str,
    mode: str,
    each: int,
) -> None:
    # Other tests write into the home and the folder that they all have.
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    root = hostile_tree(place)
    files = builtin_tools([f"{root}:{mode}"])
    tool = files.get("create_file" if operation == "create" else "file_access")
    assert isinstance(tool, Tool)
    before, elsewhere = outside(root), [Path("/etc"), Path.home(), Path.cwd()]
    listed = [sorted(str(entry) for entry in folder.iterdir()) for folder in elsewhere]
    refused = 0
    for path in hostile_paths(root)[::each]:
        arguments = {"operation": operation, "path": path, "content": "written"}
        for call in (tool.preview, lambda given: tool.blocking(given)):
            try:
                told = call(arguments)
            except ToolError as error:
                refused += 1
                told = str(error)
            assert SECRET not in str(told), path
    assert outside(root) == before
    assert listed == [sorted(str(entry) for entry in folder.iterdir()) for folder in elsewhere]
    assert refused > 1000 / each
    links = {path.name for path in root.rglob("*") if path.is_symlink()}
    assert links >= {"out", "dir", "up", "loop", "root", "self", "deep", "fd", "gone"}
    assert (root / "hard.txt").read_text() == SECRET
    litter = [path for path in root.rglob("*.tmp") if path.name.startswith(".mlx-tools")]
    assert litter == []
