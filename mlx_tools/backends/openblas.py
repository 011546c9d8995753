"""OpenBLAS for MLX's Linux build, which links a reference BLAS: with it a prompt is read about ten
times as fast. macOS has its own."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from mlx_tools.process import clean


def find_openblas(platform: str = sys.platform) -> str | None:
    """OpenBLAS as the loader finds it, on Linux; None elsewhere, or where it is not installed."""
    if not platform.startswith("linux"):
        return None
    import ctypes.util

    patterns = ("libopenblas*.so*", "*-linux-gnu/libopenblas*.so*")
    folders = map(Path, ("/usr/lib", "/usr/lib64", "/usr/local/lib", "/lib"))
    files = (str(file) for folder in folders for name in patterns for file in folder.glob(name))
    return ctypes.util.find_library("openblas") or next(files, None)


def slow_without(library: str | None) -> str:
    """A line for a person where MLX would need what was not found, else nothing."""
    if library is not None or not sys.platform.startswith("linux"):
        return ""
    return (
        "OpenBLAS is not installed: reading a prompt takes about ten times as long "
        "(on Debian or Ubuntu: apt install libopenblas0-pthread)"
    )


def load_openblas(find: Callable[[], str | None]) -> str:
    """Load it into this process, before MLX itself is imported.

    A library whose names are made known to the whole process before MLX is loaded comes first when
    MLX looks for them, as with ``LD_PRELOAD``. NumPy's own build has another name, and is of no
    use. Returns a line for a person where this cannot be done, and elsewhere nothing.
    """
    try:
        if "/libopenblas" in Path("/proc/self/maps").read_text(encoding="utf-8"):
            return ""
    except OSError:
        pass  # there is no such file here
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
