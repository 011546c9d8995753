"""OpenBLAS for MLX on Linux.

MLX's Linux build uses a slow reference BLAS; with OpenBLAS it reads prompts about ten times as
fast. macOS has a fast BLAS itself.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from mlx_tools.process import clean


def find_openblas(platform: str = sys.platform) -> str | None:
    """Return the name or path of OpenBLAS, None if absent or not on Linux."""
    if not platform.startswith("linux"):
        return None
    import ctypes.util

    patterns = ("libopenblas*.so*", "*-linux-gnu/libopenblas*.so*")
    folders = map(Path, ("/usr/lib", "/usr/lib64", "/usr/local/lib", "/lib"))
    files = (str(file) for folder in folders for name in patterns for file in folder.glob(name))
    return ctypes.util.find_library("openblas") or next(files, None)


def slow_without(library: str | None) -> str:
    """Return a line for a person if OpenBLAS is missing on Linux, otherwise empty."""
    if library is not None or not sys.platform.startswith("linux"):
        return ""
    return (
        "OpenBLAS is not installed: reading a prompt takes about ten times as long "
        "(on Debian or Ubuntu: apt install libopenblas0-pthread)"
    )


def load_openblas(find: Callable[[], str | None]) -> str:
    """Load OpenBLAS into this process, before MLX is imported.

    It is loaded with global names, so that MLX finds its functions first, as with ``LD_PRELOAD``.
    NumPy's own OpenBLAS has other names, and cannot be used.

    Returns:
        A line for a person if it cannot be loaded, otherwise an empty text.
    """
    try:
        if "/libopenblas" in Path("/proc/self/maps").read_text(encoding="utf-8"):
            return ""
    except OSError:
        pass  # not Linux: the file does not exist
    library = find()
    if library is None:
        return slow_without(library)
    if "mlx.core" in sys.modules:
        return (
            "MLX was imported before OpenBLAS could be loaded: reading a prompt takes about ten "
            f"times as long (start Python with LD_PRELOAD={library})"
        )
    import ctypes

    try:
        ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        return f"OpenBLAS cannot be loaded: {clean(str(error))}"
    return ""
