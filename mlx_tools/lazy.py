"""A package's names, each imported when it is first used, so that the package itself costs nothing
to import.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

UNSUPPORTED: Final = (
    "Windows is not supported (in WSL it works: https://learn.microsoft.com/windows/wsl)"
)


def names_of(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of a package (PEP 562).

    Its names are those that its ``__init__.py`` imports from its own modules ``if TYPE_CHECKING``:
    the list that a type checker reads is the only one. It is read when a name is first asked for.
    The first of the two raises `AttributeError` for any other name, and on Windows `ImportError`:
    what it would import fails there at a module that Windows lacks.
    """

    found: dict[str, str] = {}

    def homes() -> dict[str, str]:
        if not found:
            import ast  # here, since every start imports this module
            from pathlib import Path

            source = Path(sys.modules[package].__file__ or "").read_text(encoding="utf-8")
            blocks = [one for one in ast.parse(source).body if isinstance(one, ast.If)]
            lines = [line for block in blocks for line in block.body]
            for line in (line for line in lines if isinstance(line, ast.ImportFrom)):
                if (home := line.module or "").startswith(f"{package}."):
                    found.update((alias.name, home) for alias in line.names)
        return found

    def getter(name: str) -> Any:
        if name not in homes():
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if sys.platform == "win32":
            raise ImportError(UNSUPPORTED)
        value = getattr(import_module(homes()[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return getter, lambda: sorted({*homes(), *getattr(sys.modules[package], "__all__", ())})
