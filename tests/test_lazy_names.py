"""The tables of lazily imported names are those that a type checker reads, and each name exists."""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def lazy_packages() -> list[str]:
    files = sorted((ROOT / "mlx_tools").rglob("__init__.py"))
    return [
        ".".join(path.parent.relative_to(ROOT).parts)
        for path in files
        if "names_of(" in path.read_text(encoding="utf-8")
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
