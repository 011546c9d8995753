"""No path reaches anything outside its root, whatever is done with it, and none hangs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mlx_tools import builtin_tools
from mlx_tools.tools import Tool, ToolError
from tests.tools.file_calls import SECRET, quick_folder, tree
from tests.tools.hostile_paths import hostile_paths, hostile_tree

OPERATIONS = ("read", "list", "write", "delete", "create")


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    with quick_folder(tmp_path) as folder:
        yield folder


def outside(root: Path) -> object:
    """All that is beside the root, checked by content, mode, number and time."""
    found = tree(root.parent)
    return {
        name: state
        for name, state in found.items()
        if name != "data" and not name.startswith("data/")
    }


def test_there_are_more_than_a_thousand_different_paths(tmp_path: Path) -> None:
    assert len(hostile_paths(tmp_path / "data")) > 1500


@pytest.mark.slow
@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("mode", ["rw", "ro"])
def test_no_path_touches_anything_outside_its_root(place: Path, operation: str, mode: str) -> None:
    root = hostile_tree(place)
    files = builtin_tools([f"{root}:{mode}"])
    tool = files.get("create_file" if operation == "create" else "file_access")
    assert isinstance(tool, Tool)
    before, elsewhere = outside(root), [Path("/etc"), Path.home(), Path.cwd()]
    listed = [sorted(str(entry) for entry in folder.iterdir()) for folder in elsewhere]
    refused = 0
    for path in hostile_paths(root):
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
    assert refused > 1000
    links = {path.name for path in root.rglob("*") if path.is_symlink()}
    assert links >= {"out", "dir", "up", "loop", "root", "self", "deep", "fd", "gone"}
    assert (root / "hard.txt").read_text() == SECRET
    litter = [path for path in root.rglob("*.tmp") if path.name.startswith(".mlx-tools")]
    assert litter == []
