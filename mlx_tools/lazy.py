"""A package's names, each imported when it is first used, so that the package itself costs nothing
to import.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any


def names_of(
    package: str, modules: Mapping[str, Iterable[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of a package (PEP 562).

    ``modules`` says which public names stand in each of its modules. The first raises
    `AttributeError` for any other name.
    """
    homes = {name: module for module, names in modules.items() for name in names}

    def getter(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f"{package}.{homes[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    return getter, lambda: sorted({*homes, *getattr(sys.modules[package], "__all__", ())})
