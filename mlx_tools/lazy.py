"""Names of packages that are imported at their first use; the version.

So a package itself costs nothing to import.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, Final

VERSION: Final = "0.1.0"
"""The version of mlx-tools. It is here since every module may import this one."""

UNSUPPORTED: Final = (
    "Windows is not supported (in WSL it works: https://learn.microsoft.com/windows/wsl)"
)
"""The message on Windows."""


def attach_names(
    namespace: dict[str, Any], modules: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` for a package (PEP 562).

    A type checker reads the same names from the imports under ``if TYPE_CHECKING``;
    ``tests/test_lazy_names.py`` holds the table to them.

    Args:
        namespace: ``globals()`` of the package. A name is put there once it is imported.
        modules: The names of each module. A module is named from the package on.

    Returns:
        The first function raises `AttributeError` for any other name. On Windows it raises
        `ImportError`: the import would fail there at a module that Windows lacks.
    """
    package = namespace["__name__"]
    module_of = {name: module for module, names in modules.items() for name in names}

    def getter(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if sys.platform == "win32":
            raise ImportError(UNSUPPORTED)
        value = getattr(import_module(f"{package}.{module_of[name]}"), name)
        namespace[name] = value
        return value

    return getter, lambda: sorted({*module_of, *namespace.get("__all__", ())})
