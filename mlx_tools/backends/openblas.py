"""OpenBLAS for MLX's Linux build, which links a reference BLAS: with it a prompt is read about ten
times as fast. macOS has its own."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from mlx_tools.process import clean

NO_OPENBLAS: Final = (
    "OpenBLAS is not installed: reading a prompt takes about ten times as long "
    "(on Debian or Ubuntu: apt install libopenblas0-pthread)"
)
_FOLDERS: Final = ("/usr/lib", "/usr/lib64", "/usr/local/lib", "/lib")


def find_openblas(platform: str = sys.platform) -> str | None:
    """OpenBLAS as the loader finds it, on Linux; None elsewhere, or where it is not installed."""
    if not platform.startswith("linux"):
        return None
    import ctypes.util

    patterns = ("libopenblas*.so*", "*-linux-gnu/libopenblas*.so*")
    files = (
        file for folder in _FOLDERS for pattern in patterns for file in Path(folder).glob(pattern)
    )
    return ctypes.util.find_library("openblas") or next(map(str, files), None)


def slow_without(found: str | None, platform: str = sys.platform) -> str:
    """A line for a person where MLX would need what was not found, else nothing."""
    return NO_OPENBLAS if found is None and platform.startswith("linux") else ""


def load_openblas(find: Callable[[], str | None]) -> str:
    """Load it into this process, before MLX itself is imported.

    A library whose names are made known to the whole process before MLX is loaded comes first when
    MLX looks for them, as with ``LD_PRELOAD``. Returns a line for a person where this cannot be
    done, and elsewhere nothing.
    """
    if _is_loaded():
        return ""
    found = find()
    if found is None:
        return slow_without(found)
    if "mlx.core" in sys.modules:
        return (
            "MLX was imported before OpenBLAS could be loaded: reading a prompt takes about ten "
            f"times as long (start Python with LD_PRELOAD={found})"
        )
    import ctypes

    try:
        ctypes.CDLL(found, mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        return f"OpenBLAS cannot be loaded: {clean(str(error))}"
    return ""


def _is_loaded() -> bool:
    """Whether OpenBLAS is in this process; NumPy's own build, under another name, is of no use."""
    try:
        return "/libopenblas" in Path("/proc/self/maps").read_text(encoding="utf-8")
    except OSError:
        return False
