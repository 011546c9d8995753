"""The tables of lazily imported names are those that a type checker reads, and each name exists."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from scripts import names

ROOT = Path(__file__).resolve().parent.parent


def lazy_packages() -> list[str]:
    files = sorted((ROOT / "mlx_tools").rglob("__init__.py"))
    return [
        ".".join(path.parent.relative_to(ROOT).parts)
        for path in files
        if "attach_names(" in path.read_text(encoding="utf-8")
    ]


def names_for_type_checkers(package: str) -> dict[str, str]:
    """The names that the package imports from its own modules ``if TYPE_CHECKING``."""
    path = ROOT.joinpath(*package.split("."), "__init__.py")
    blocks = [node for node in ast.parse(path.read_bytes()).body if isinstance(node, ast.If)]
    imports = [node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom)]
    return {
        alias.name: node.module
        for node in imports
        if node.module is not None and node.module.startswith(f"{package}.")
        for alias in node.names
    }


def test_there_are_lazy_packages() -> None:
    assert len(lazy_packages()) > 10


@pytest.mark.parametrize("package", lazy_packages())
def test_a_package_offers_the_names_that_a_type_checker_sees(package: str) -> None:
    module = import_module(package)
    expected = names_for_type_checkers(package)
    offered = set(module.__dir__()) - set(getattr(module, "__all__", ())) | expected.keys()
    assert offered == expected.keys(), "one name is in only one of the two lists of __init__.py"
    for name, home in expected.items():
        assert module.__getattr__(name) is getattr(import_module(home), name), f"{name} of {home}"


def imports(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield line, module and name of what a program imports from the project while it runs."""
    waiting: list[ast.AST] = [ast.parse(text)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Constant):
            yield from imports_of_program(node)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        waiting += ast.iter_child_nodes(node)
        if not isinstance(node, ast.ImportFrom) or node.level:
            continue
        module = node.module or ""
        if module.split(".")[0] in ("mlx_tools", "tests", "scripts"):
            yield from ((node.lineno, module, alias.name) for alias in node.names)


def imports_of_program(node: ast.Constant) -> Iterator[tuple[int, str, str]]:
    """Yield what a text imports that is a program itself, such as one for another process."""
    text = node.value
    if isinstance(text, str) and "import " in text and ("mlx_tools" in text or "tests" in text):
        with suppress(SyntaxError):
            for line, module, name in imports(textwrap.dedent(text)):
                yield node.lineno + line - 1, module, name


def exists(module: str, name: str) -> bool:
    """Return whether a module has a name, or is a package with such a module."""
    try:
        found = import_module(module)
    except ModuleNotFoundError:
        return False
    if hasattr(found, name):
        return True
    return hasattr(found, "__path__") and find_spec(f"{module}.{name}") is not None


@pytest.mark.heavy
def test_every_name_that_is_imported_is_there() -> None:
    """Types do not see a name that a room gives only when it is asked for."""
    missing = [
        f"{path.relative_to(ROOT)}:{line}: {module}.{name}"
        for folder in ("mlx_tools", "tests", "scripts", "benchmarks")
        for path in names.python_files(folder)
        if path.name != "additions.py"  # its programs make modules
        for line, module, name in imports(path.read_text(encoding="utf-8"))
        if name != "*" and not exists(module, name)
    ]
    assert missing == []
