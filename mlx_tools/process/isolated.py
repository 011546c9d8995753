"""Runs a module of this package in a Python that is shut off from the environment.

``python -I isolated.py MODULE FOLDER``: with ``-I`` neither ``PYTHONPATH`` nor the working
directory counts, so the package is loaded from where this file stands, and nothing else comes from
there; ``FOLDER`` is where further packages are looked for last. A module that needs more memory
than it may have ends with `OUT_OF_MEMORY`.
"""

from __future__ import annotations

import importlib.util
import os
import runpy
import sys

OUT_OF_MEMORY = 70


def main() -> None:
    """Loads the package, and runs the module."""
    folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120
    spec = importlib.util.spec_from_file_location(
        "mlx_tools",
        os.path.join(folder, "__init__.py"),  # noqa: PTH118 - pathlib takes longer than all of this
        submodule_search_locations=[folder],
    )
    assert spec is not None and spec.loader is not None
    package = sys.modules["mlx_tools"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(package)
    sys.path.append(sys.argv[2])
    try:
        runpy.run_module(sys.argv[1], run_name="__main__")
    except (MemoryError, RecursionError):
        os._exit(OUT_OF_MEMORY)


if __name__ == "__main__":
    main()
