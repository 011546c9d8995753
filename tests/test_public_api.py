"""The public names are these and no others; taking one away, or adding one, is a decision."""

from __future__ import annotations

import inspect
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import mlx_tools
from mlx_tools.cli.completion import TABLE
from scripts.completion_table import table as completion_table
from tests.tables import table

ROOT = Path(__file__).resolve().parent.parent

PUBLIC = [
    "AnswerPiece",
    "Answered",
    "ApprovalAnswer",
    "ApprovalRequest",
    "ApproveAlways",
    "Approver",
    "BackendError",
    "CallRead",
    "CallReport",
    "ChatFormat",
    "Chunk",
    "CompletionRequest",
    "CompletionsBackend",
    "Controller",
    "Conversation",
    "EffectsBy",
    "Event",
    "Finished",
    "Limits",
    "MlxToolsError",
    "Outcome",
    "Paused",
    "PendingCall",
    "Policy",
    "Registry",
    "RunSettings",
    "ServerBackend",
    "Source",
    "Sources",
    "Stopped",
    "ThoughtPiece",
    "Tool",
    "ToolContext",
    "ToolEnded",
    "ToolError",
    "ToolSpec",
    "ToolStarted",
    "TranscriptError",
    "TranscriptStore",
    "UsageError",
    "__version__",
    "builtin_tools",
    "tool",
]


def test_the_public_names_are_pinned_and_sorted() -> None:
    assert mlx_tools.__all__ == PUBLIC
    assert sorted(PUBLIC) == PUBLIC


def test_dir_shows_the_public_names() -> None:
    assert set(PUBLIC) <= set(dir(mlx_tools))


@table("name", PUBLIC)
def test_a_public_name_can_be_had_and_says_what_it_is(name: str) -> None:
    thing = getattr(mlx_tools, name)
    if inspect.isclass(thing) or inspect.isfunction(thing):
        assert inspect.getdoc(thing)
        assert thing.__module__.startswith("mlx_tools.")


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        mlx_tools.no_such_name  # noqa: B018


def test_every_public_name_can_be_imported_in_a_fresh_interpreter() -> None:
    code = "from mlx_tools import *; import mlx_tools; print(*mlx_tools.__all__)"
    run = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == PUBLIC


def test_the_version_is_that_of_the_project_file() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert mlx_tools.__version__ == project["version"]


def test_what_a_tab_completes_is_what_the_commands_take() -> None:
    assert Path(TABLE).read_text(encoding="utf-8") == completion_table(), "out of date: make docs"
