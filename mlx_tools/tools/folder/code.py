"""What ``execute.py`` looks like to somebody who does not run it."""

from __future__ import annotations

import ast
import functools
import importlib.util
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from mlx_tools.errors import ToolDefinitionError


def check_code(data: bytes, path: Path) -> ast.Module:
    """The file's syntax tree. Raises ToolDefinitionError where it is not Python, or makes nothing
    called ``execute``."""
    try:
        tree = ast.parse(data, str(path))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        said = error.msg if isinstance(error, SyntaxError) else str(error)
        said = said or "it nests too deep"  # of which a MemoryError says nothing
        raise ToolDefinitionError(f"{path}{line}: not Python: {said}") from None
    if not any(_makes_execute(node) for node in ast.walk(tree)):
        raise ToolDefinitionError(
            f"{path} has no function execute", hint="def execute(arguments: dict) -> dict:"
        )
    return tree


def missing_packages(tree: ast.Module, files: Iterable[str]) -> tuple[str, ...]:
    """The packages that the file cannot do without and that are not installed, in order of names.

    Only imports that are made in any case count: not those within a function, an ``if`` or a
    ``try``. ``files`` are the names of the folder's files, which can be imported too. A file that
    changes where Python looks for packages is believed to find them.
    """
    if any(_moves_path(node) for node in ast.walk(tree)):
        return ()
    own = {name.partition("/")[0].partition(".")[0] for name in files}
    return tuple(sorted({name for name in _imported(tree) if name not in own and _absent(name)}))


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


@functools.lru_cache(maxsize=1024)
def _absent(package: str) -> bool:
    """Whether there is no such package; nothing is imported."""
    if package in sys.modules or package in sys.stdlib_module_names:
        return False
    try:
        return importlib.util.find_spec(package) is None
    except (
        ImportError,
        ValueError,
        AttributeError,
    ):  # of what finds modules here
        return False


def _moves_path(node: ast.AST) -> bool:
    match node:
        case ast.Attribute(ast.Name("sys"), "path" | "meta_path"):
            return True
        case ast.ImportFrom("sys"):
            return any(alias.name in ("path", "meta_path", "*") for alias in node.names)
        case ast.alias():
            return node.name in ("site", "addsitedir")
    return False


def _makes_execute(node: ast.AST) -> bool:
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            return node.name == "execute"
        case ast.Name():
            return node.id == "execute" and isinstance(node.ctx, ast.Store)
        case ast.alias():
            return (node.asname or node.name) in ("execute", "*")
    return False
