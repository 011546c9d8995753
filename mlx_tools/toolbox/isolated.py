"""The process that works on untrusted input, isolated from the environment.

``python -I isolated.py MODULE FUNCTION PACKAGE FOLDER``. With ``-I`` Python ignores ``PYTHONPATH``
and the working directory. So mlx_tools is loaded from the place of this file, and no other package
is loaded from there. Other packages are searched in ``FOLDER`` last. The function's arguments are
read from standard input, as a JSON object, and its result is printed as JSON.
`mlx_tools.toolbox.worker` starts this process.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.machinery
import importlib.util
import json
import os
import resource
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

OUT_OF_MEMORY = 70
"""The exit code of a process that needs more memory than its limit."""

_EXHAUSTED = (MemoryError, RecursionError, SystemError)
"""Exceptions of Python if memory is short: SystemError if it cannot even make an exception."""

_MEMORY_INTERVAL = 0.02
"""Seconds between two checks of the used memory."""


class Problem(Exception):
    """The function cannot do the request; the message says why."""


def main(module: str, function: str, package: str, folder: str) -> None:
    """Print the result of the function, or its ``problem``.

    A hostile file can raise anything. The package that the function needs is imported while files
    may still be written, because Python then stores it compiled, which loads faster.
    """
    package_folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120
    spec = importlib.machinery.PathFinder.find_spec("mlx_tools", [os.path.dirname(package_folder)])  # noqa: PTH120
    assert spec is not None and spec.loader is not None
    sys.modules["mlx_tools"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules["mlx_tools"])
    sys.modules["mlx_tools.toolbox.isolated"] = sys.modules["__main__"]
    sys.path.append(folder)
    os.environ["HF_HUB_OFFLINE"] = os.environ["TRANSFORMERS_OFFLINE"] = "1"
    if sys.platform == "linux":  # there MLX compiles by writing files, which is forbidden here
        os.environ["MLX_DISABLE_COMPILE"] = "1"
    try:
        with contextlib.redirect_stdout(sys.stderr):  # output of libraries is no answer
            work = getattr(importlib.import_module(module), function)
            importlib.import_module(package)
            request = json.load(sys.stdin.buffer)
            _set_limits(**request.pop("limits"))
            answer = _answer(work, request)
        text = json.dumps(answer, ensure_ascii=False)
    except _EXHAUSTED:
        os._exit(OUT_OF_MEMORY)
    sys.stdout.buffer.write(text.encode("utf-8", "replace"))


def _answer(work: Callable[..., dict[str, Any]], request: dict[str, Any]) -> dict[str, Any]:
    try:
        return work(**request)
    except _EXHAUSTED:
        raise
    except Problem as problem:
        return {"problem": str(problem)}
    except Exception as error:
        return {"problem": f"{type(error).__name__}: {error}"[:300]}


def _set_limits(cpu_seconds: int, memory_mb: int) -> None:
    """Limit this process, and forbid it to write files.

    A process that exceeds its limits ends by a signal, by MemoryError, or at once.
    """
    max_bytes = memory_mb * 1_000_000
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        # At the soft limit the process gets SIGXCPU, which a library may catch. At the hard limit,
        # a second later, it is killed.
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds + 1))
    if sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_AS, (max_bytes, max_bytes))
        return
    max_bytes += _measure_peak_memory()  # macOS does not enforce the limit, so this thread does

    def watch() -> None:
        while _measure_peak_memory() < max_bytes:
            time.sleep(_MEMORY_INTERVAL)
        os._exit(OUT_OF_MEMORY)

    threading.Thread(target=watch, daemon=True).start()


def _measure_peak_memory() -> int:
    """Return the maximum of memory used so far, in bytes (macOS reports bytes)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


if __name__ == "__main__":
    main(*sys.argv[1:])
