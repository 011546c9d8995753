"""What the scripts of this folder share: limits that one sets for itself before it looks at what it
was given, and how it answers."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import sys
import threading
import time
from typing import Any

from mlx_tools.process.isolated import OUT_OF_MEMORY

_LOOK = 0.02
"""Seconds between two looks at the memory that is used."""


def set_limits(limits: dict[str, Any]) -> None:
    """Holds this process to ``cpu_seconds`` and ``memory_mb``, and lets it write no file. What goes
    beyond ends it, by a signal, by MemoryError, or at once."""
    cpu, most = int(limits["cpu_seconds"]), int(limits["memory_mb"]) * 1_000_000
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu + 1))
    if sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    else:  # macOS does not hold a process to that limit
        threading.Thread(target=_watch, args=(_used() + most,), daemon=True).start()


def answer(value: dict[str, Any]) -> None:
    """Prints what a script came to."""
    text = json.dumps(value, ensure_ascii=False)
    sys.stdout.buffer.write(text.encode("utf-8", "replace"))


def _watch(most: int) -> None:
    while _used() < most:
        time.sleep(_LOOK)
    os._exit(OUT_OF_MEMORY)


def _used() -> int:
    """The most memory that was used up to now, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
