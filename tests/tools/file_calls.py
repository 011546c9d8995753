"""Calls to the file tools, and what a tree holds, for the tests of both."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mlx_tools.errors import ErrorCode
from mlx_tools.tools import Preview, Registry, Tool, ToolContext, ToolLike, ToolResult, execute
from tests.waiting import HANG

SECRET = "nobody may read this"


def execute_call(
    tool: ToolLike, context: ToolContext | None = None, timeout: float = HANG, **arguments: Any
) -> ToolResult:
    """Run a call, and return its result."""
    return asyncio.run(execute(tool, arguments, context, timeout=timeout))


def run(
    registry: Registry, operation: str, path: str, content: Any = None, *, expected: Any = None
) -> ToolResult:
    """Call ``create_file`` (operation ``create``) or ``file_access``."""
    tool, arguments = _call(registry, operation, path, content)
    return execute_call(tool, ToolContext(expected=expected), **arguments)


def preview(registry: Registry, operation: str, path: str, content: Any = None) -> Preview | None:
    tool, arguments = _call(registry, operation, path, content)
    return tool.preview(arguments)


def run_and_read(
    registry: Registry, operation: str, path: str, content: Any = None, **more: Any
) -> str:
    result = run(registry, operation, path, content, **more)
    assert result.error is None, result.error
    assert result.content is not None
    return result.content


def run_and_refuse(
    registry: Registry, operation: str, path: str, content: Any = None, **more: Any
) -> tuple[ErrorCode, str]:
    result = run(registry, operation, path, content, **more)
    assert result.content is None, result.content
    assert result.error is not None
    assert len(result.error.message) <= 500
    assert SECRET not in result.error.message
    return result.error.code, result.error.message


def _call(registry: Registry, operation: str, path: str, content: Any) -> tuple[Tool, Any]:
    tool = registry.get("create_file" if operation == "create" else "file_access")
    assert isinstance(tool, Tool)
    arguments = {"path": path} | ({} if content is None else {"content": content})
    return tool, arguments | ({} if operation == "create" else {"operation": operation})


def write_files(folder: Path, files: Mapping[str, str | bytes]) -> Path:
    """Write files into a folder, by path, and return the folder.

    A path with a ``/`` at its end is a folder.
    """
    for name, content in files.items():
        path = folder / name
        (path if name.endswith("/") else path.parent).mkdir(parents=True, exist_ok=True)
        if not name.endswith("/"):
            path.write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


def list_names(folder: Path) -> list[str]:
    """Return the names of a folder's entries, sorted."""
    return sorted(entry.name for entry in folder.iterdir())


@contextmanager
def make_fast_folder(otherwise: Path) -> Iterator[Path]:
    """Provide a folder in memory if the system has one, for thousands of files."""
    memory = Path("/dev/shm")
    if not (memory.is_dir() and os.access(memory, os.W_OK)):
        yield otherwise
        return
    with TemporaryDirectory(dir=memory, prefix="mlx-tools-test-") as made:
        yield Path(made).resolve()


def read_tree(folder: Path) -> dict[str, Any]:
    """Return kinds, modes, times and contents of a tree, without following links."""
    found = {}
    for base, folders, files in os.walk(folder):
        for name in (*folders, *files, "."):
            path = Path(base, name)
            status = path.lstat()
            held: Any = None
            if stat.S_ISLNK(status.st_mode):
                held = str(path.readlink())
            elif stat.S_ISREG(status.st_mode):
                held = path.read_bytes()
            found[str(path.relative_to(folder))] = (
                *(status.st_mode, status.st_ino, status.st_nlink, status.st_mtime_ns),
                held,
            )
    return found
