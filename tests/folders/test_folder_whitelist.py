"""Tool folders of the older layout, and the paths that a folder's tool may be given."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from mlx_tools.errors import ToolDefinitionError
from mlx_tools.messages import ALL_EFFECTS
from mlx_tools.plugins.folders import load_tool
from mlx_tools.plugins.folders.definition import read_folder
from mlx_tools.tools import ToolResult, execute
from tests.folders.tool_folders import make_folder

SECRET = "nobody may read this"
READS = """
import pathlib
def execute(arguments):
    path = pathlib.Path(arguments["path"])
    if "text" in arguments:
        path.write_text(arguments["text"])
    return {"absolute": path.is_absolute(), "text": path.read_text()}
"""
PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"path": {"type": "string"}, "text": {"type": "string"}},
}


def older(parent: Path, name: str = "reader", **metadata: Any) -> Path:
    """A folder whose configuration is of the older layout."""
    folder = make_folder(parent, name, READS, PARAMETERS)
    config = {"name": name, "type": "llm_invokable", "directory": name, "metadata": metadata}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory: documents, what is none, and links from one to the other."""
    top = tmp_path / "project"
    (top / "docs" / "deep").mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    for name in ("docs/a.md", "docs/deep/b.md"):
        (top / name).write_text(name)
    for path in (top / "plan.txt", top / "docs" / "key.txt", tmp_path / "outside" / "c.md"):
        path.write_text(SECRET)
    (top / "docs" / "key.md").symlink_to("key.txt")
    (top / "docs" / "out.md").symlink_to(tmp_path / "outside" / "c.md")
    (top / "docs" / "out").symlink_to(tmp_path / "outside")
    os.link(tmp_path / "outside" / "c.md", top / "docs" / "hard.md")
    monkeypatch.chdir(top)
    return top


def called(folder: Path, arguments: dict[str, Any], *roots: str) -> ToolResult:
    return asyncio.run(execute(load_tool(folder, roots), arguments, timeout=120))


def test_the_older_layout_says_the_same(tmp_path: Path) -> None:
    said = {"mode": "ro", "whitelist": ["docs/**/*.md"], "requires_approval": True}
    found = read_folder(older(tmp_path, "file_access", **said))
    assert (found.spec.name, found.restrictions.mode) == ("file_access", "ro")
    assert found.spec.needs_approval and found.restrictions.whitelist == ("docs/**/*.md",)
    assert read_folder(older(tmp_path / "rw", mode="rw")).restrictions.mode == "rw"
    assert read_folder(older(tmp_path / "bare")).spec.effects == ALL_EFFECTS


@pytest.mark.parametrize(
    ("config", "fault"),
    [
        ({"type": "plugin"}, "type: "),
        ({"directory": "../other"}, "directory: "),
        ({"metadata": []}, "metadata: expected an object"),
        ({"metadata": {"mode": "wr"}}, "mode: "),
        ({"metadata": {"mode": ["ro"]}}, "mode: "),
        ({"metadata": {"mod": "ro"}}, "metadata.mod: unknown key"),
        ({"metadata": {"mode": "ro"}, "mode": "ro"}, "mode: it says mode once more"),
        ({"metadata": {"whitelist": []}}, "whitelist: "),
        ({"metadata": {"whitelist": "**/*.md"}}, "whitelist: "),
        ({"metadata": {"whitelist": ["/etc/*"]}}, "whitelist: "),
        ({"metadata": {"whitelist": ["../*"]}}, "whitelist: "),
        ({"metadata": {"whitelist": ["*", 3]}}, "whitelist: "),
        ({"metadata": {"requires_approval": "yes"}}, "requires_approval: "),
    ],
)
def test_what_is_wrong_with_one_is_said_with_the_key(
    tmp_path: Path, config: dict[str, Any], fault: str
) -> None:
    folder = make_folder(tmp_path, "reader", READS, PARAMETERS)
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ToolDefinitionError, match=f"config.json: {fault}"):
        read_folder(folder)


def test_a_whitelist_that_holds_for_no_argument_is_refused(tmp_path: Path) -> None:
    queried = {"type": "object", "properties": {"query": {"type": "string"}}}
    with pytest.raises(ToolDefinitionError, match="none of the parameters is a path or a command"):
        read_folder(make_folder(tmp_path, parameters=queried, whitelist=["*"]))
    queried["properties"]["query"]["format"] = "path"  # type: ignore[index]
    found = read_folder(make_folder(tmp_path / "b", parameters=queried, whitelist=["*"]))
    assert found.restrictions.parameters.paths == {"query"}


def refused(result: ToolResult) -> str:
    """Return the reason why a call is refused."""
    assert result.error is not None and result.error.code == "not_allowed"
    assert SECRET not in str(result)
    return result.error.message


@pytest.mark.parametrize("rooted", [False, True])
@pytest.mark.heavy
def test_a_tool_is_given_what_fits_its_whitelist_and_nothing_else(
    tmp_path: Path, project: Path, rooted: bool
) -> None:
    folder = older(tmp_path, mode="ro", whitelist=["docs/**/*.md"])
    named = [str(project)] if rooted else []
    for path in ("docs/a.md", "docs/deep/b.md", f"{project}/docs/a.md"):
        found = {"absolute": True, "text": path.removeprefix(f"{project}/")}
        assert json.loads(called(folder, {"path": path}, *named).content or "") == found
    for path in (
        *("plan.txt", "docs/key.txt", "docs/../plan.txt", f"{tmp_path}/outside/c.md"),
        *("docs/key.md", "docs/out.md", "docs/out/c.md", "docs/hard.md", "~/x.md", "docs/a.md\0"),
        *("docs", "", ".", "../outside/c.md", "docs/none/../../plan.txt", "docs/.ssh/a.md"),
        "/etc/passwd",
    ):
        assert refused(called(folder, {"path": path}, *named)), path


def test_writing_is_held_to_it_too(tmp_path: Path, project: Path) -> None:
    folder = older(tmp_path, mode="rw", whitelist=["docs/**/*.md"])
    for path in ("plan.txt", "new.md", "docs/key.md", "docs/out/new.md"):
        assert refused(called(folder, {"path": path, "text": "x"}))
    new = {"path": "docs/new.md", "text": "x"}
    assert called(folder, new).error is None
    assert (project / "docs" / "new.md").read_text() == "x"
    assert ":rw" in refused(called(folder, new, str(project)))
    assert called(folder, new, f"{project}:rw").error is None
    assert not (tmp_path / "outside" / "new.md").exists()


def test_the_patterns_of_a_root_hold_besides(tmp_path: Path, project: Path) -> None:
    folder = older(tmp_path, mode="ro", whitelist=["docs/**"])
    root = f"{project}:ro:**/*.txt"
    assert called(folder, {"path": "docs/key.txt"}, root).error is None
    assert refused(called(folder, {"path": "docs/a.md"}, root))


def test_paths_within_lists_and_objects_are_held_to_it(tmp_path: Path, project: Path) -> None:
    code = "def execute(arguments):\n    return arguments\n"
    names = {name: {} for name in ("source_path", "outputDir", "files", "note", "more")}
    folder = make_folder(tmp_path, "t", code, {"properties": names}, whitelist=["docs/*.md"])
    given = {"files": ["docs/a.md"], "note": "plan.txt", "more": [{"path": "docs/a.md"}]}
    whole = str(project / "docs" / "a.md")
    assert json.loads(called(folder, given).content or "") == {
        "files": [whole],
        "note": "plan.txt",
        "more": [{"path": whole}],
    }
    for wrong in (
        *({"source_path": "plan.txt"}, {"outputDir": "docs"}, {"files": ["docs/a.md", "plan.txt"]}),
        *({"more": [{"path": "plan.txt"}]}, {"more": {"x": {"file": ["plan.txt"]}}}),
    ):
        assert refused(called(folder, wrong)), wrong
