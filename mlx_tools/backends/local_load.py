"""Bringing a model into this process, and before it what makes it quick."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mlx_tools.backends.server_process import NO_OPENBLAS
from mlx_tools.errors import MissingDependency, ModelError
from mlx_tools.process import clean


def arrays() -> Any:
    """MLX's arrays. What its types promise differs from version to version, so none are taken."""
    import mlx.core

    return mlx.core


def load_model(folder: Path) -> tuple[Any, Any]:
    """The model in ``folder`` and its tokenizer, as mlx-lm loads them.

    Raises:
        MissingDependency: mlx-lm is not installed.
        ModelError: the model cannot be loaded.
    """
    if not (folder / "config.json").is_file():
        raise ModelError(
            f"{folder} holds no model", hint="mlx-tools models list shows what is here"
        )
    try:
        from mlx_lm import load
    except ImportError as error:
        raise MissingDependency(
            "a model in this process needs mlx-lm", hint="pip install 'mlx-tools[mlx]'"
        ) from error
    try:
        loaded: Any = load(str(folder))
    except MemoryError:
        raise ModelError(f"the model in {folder} does not fit into memory") from None
    except Exception as error:  # whatever a library makes of files that it cannot read
        raise ModelError(
            f"the model in {folder} cannot be loaded: {clean(str(error)) or type(error).__name__}"
        ) from error
    return loaded[0], loaded[1]


def load_openblas(find: Callable[[], str | None]) -> str:
    """Load OpenBLAS for MLX's Linux build, before MLX itself is imported.

    That build links a reference BLAS. A library whose names are made known to the whole process
    before MLX is loaded comes first when MLX looks for them, as with ``LD_PRELOAD``. Returns a line
    for a person where this cannot be done, and elsewhere nothing.
    """
    if not sys.platform.startswith("linux") or _is_loaded():
        return ""
    found = find()
    if found is None:
        return NO_OPENBLAS
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
