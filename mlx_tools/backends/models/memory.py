"""Which model suits this machine's memory."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final, NamedTuple

from mlx_tools.backends.models.embedded import DEFAULT_MODEL

GB: Final = 10**9


class Suggestion(NamedTuple):
    """A model, its weights in bytes, and one line that says why it suits."""

    name: str
    weights: int
    line: str


_METAL: Final = (
    # weights in GB, model: 4-bit versions published for MLX, all of one family that calls tools
    (0.4, "mlx-community/Qwen3-0.6B-4bit"),
    (1.0, "mlx-community/Qwen3-1.7B-4bit"),
    (2.3, "mlx-community/Qwen3-4B-4bit"),
    (4.7, "mlx-community/Qwen3-8B-4bit"),
    (8.4, "mlx-community/Qwen3-14B-4bit"),
    (17.2, "mlx-community/Qwen3-30B-A3B-4bit"),
    (132.3, "mlx-community/Qwen3-235B-A22B-4bit"),
)

SHARE: Final = 0.4
"""Of the memory, for weights: macOS lets the GPU hold about two thirds, and the key-value cache
and other programs need their part."""


def memory_bytes() -> int | None:
    """This machine's memory, or what a container allows of it; None where it cannot be told."""
    try:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return None
    limit = Path("/sys/fs/cgroup/memory.max")
    try:
        allowed = int(limit.read_text())
    except (OSError, ValueError):
        return total
    return min(total, allowed)


def suggest_model(memory: int | None, platform: str = sys.platform) -> Suggestion:
    """The largest model that leaves room for the rest, for ``memory`` bytes of it.

    Without Metal (any platform but macOS) only small models are quick enough to talk to.
    """
    share = SHARE * (memory or 0)
    known = f"{(memory or 0) / GB:.0f} GB of memory" if memory else "memory of unknown size"
    if platform != "darwin":
        fits = [entry for entry in _METAL[:2] if entry[0] * GB <= share]
        where = f"{known} and no Metal"
    else:
        fits = [entry for entry in _METAL if entry[0] * GB <= share]
        where = known
    if not fits:
        return Suggestion(
            DEFAULT_MODEL,
            GB // 2,
            f"for {where}: mlx-tools models pull {DEFAULT_MODEL} (a demonstration model)",
        )
    size, name = fits[-1]
    line = f"for {where}: mlx-tools models pull {name} ({size:g} GB)"
    return Suggestion(name, int(size * GB), line)
