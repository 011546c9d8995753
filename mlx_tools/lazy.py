"""A package's names, each imported when it is first used, so that the package itself costs nothing
to import.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any


def names_of(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of a package (PEP 562).

    Its names are those that its ``__init__.py`` imports from its own modules ``if TYPE_CHECKING``:
    the list that a type checker reads is the only one. It is read when a name is first asked for.
    The first of the two raises `AttributeError` for any other name.
    """

    @cache
    def homes() -> dict[str, str]:
        import ast

        file = sys.modules[package].__file__ or ""
        blocks = ast.parse(Path(file).read_text(encoding="utf-8")).body
        guarded = [line for block in blocks if isinstance(block, ast.If) for line in block.body]
        return {
            alias.name: line.module
            for line in guarded
            if isinstance(line, ast.ImportFrom) and line.module
            if line.module.startswith(f"{package}.")
            for alias in line.names
        }

    def getter(name: str) -> Any:
        if name not in homes():
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(homes()[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return getter, lambda: sorted({*homes(), *getattr(sys.modules[package], "__all__", ())})
