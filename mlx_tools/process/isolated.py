"""Runs a module of this package in a Python that is shut off from the environment.

``python -I isolated.py MODULE FOLDER``: with ``-I`` neither ``PYTHONPATH`` nor the working
directory counts, so the package is loaded from where this file stands, and nothing else comes from
there; ``FOLDER`` is where further packages are looked for last. The module reads a JSON object from
standard input and prints one (`serve`); one that needs more memory than it may have
ends with `OUT_OF_MEMORY`.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import os
import resource
import runpy
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

OUT_OF_MEMORY = 70
_LOOK = 0.02
"""Seconds between two looks at the memory that is used."""


class Problem(Exception):
    """What is asked for cannot be done; says why."""


Task = Callable[[dict[str, Any]], dict[str, Any]]


def serve(task: Task, *needed: str) -> None:
    """Print what ``task`` makes of the question. Modules that are ``needed`` are imported while
    files may still be written: compiled, they come quicker."""
    for name in needed:
        importlib.import_module(name)
    text = json.dumps(task(_question()), ensure_ascii=False)
    sys.stdout.buffer.write(text.encode("utf-8", "replace"))


def or_problem(task: Task) -> Task:
    """The task, whose answer is a ``problem`` where it raises one: a stranger's file can raise
    anything."""

    def tried(asked: dict[str, Any]) -> dict[str, Any]:
        try:
            return task(asked)
        except (MemoryError, RecursionError):
            raise
        except Problem as problem:
            return {"problem": str(problem)}
        except Exception as error:
            return {"problem": f"{type(error).__name__}: {error}"[:300]}

    return tried


def _question() -> dict[str, Any]:
    """The question, once this process is held to the question's ``limits``: ``cpu_seconds`` and
    ``memory_mb``, and to write no file. What goes beyond ends it, by a signal, by MemoryError, or
    at once."""
    asked: dict[str, Any] = json.load(sys.stdin.buffer)
    limits = asked["limits"]
    cpu, most = int(limits["cpu_seconds"]), int(limits["memory_mb"]) * 1_000_000
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu + 1))
    if sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    else:  # macOS does not hold a process to that limit
        most += _used()

        def watch() -> None:
            while _used() < most:
                time.sleep(_LOOK)
            os._exit(OUT_OF_MEMORY)

        threading.Thread(target=watch, daemon=True).start()
    return asked


def _used() -> int:
    """The most memory that was used up to now, in bytes (macOS counts it so)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def main() -> None:
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
