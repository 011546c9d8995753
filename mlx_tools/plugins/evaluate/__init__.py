"""Benchmarks of tool use: questions of the Berkeley leaderboard, and whole runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlx_tools.lazy import attach_names

if TYPE_CHECKING:
    from mlx_tools.plugins.evaluate.bfcl_data import (
        CATEGORIES,
        PACKAGE,
        VERSION,
        Half,
        ensure_wheel,
        find_wheel_path,
        load_items,
        run_bfcl,
        sample,
    )
    from mlx_tools.plugins.evaluate.tasks import FILE, load_tasks, run_tasks

__getattr__, __dir__ = attach_names(
    globals(),
    {
        "bfcl_data": (
            "CATEGORIES",
            "PACKAGE",
            "VERSION",
            "Half",
            "ensure_wheel",
            "load_items",
            "run_bfcl",
            "sample",
            "find_wheel_path",
        ),
        "tasks": ("FILE", "load_tasks", "run_tasks"),
    },
)
