"""Measurements of tool use: the Berkeley leaderboard's questions, and whole runs."""

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
        load_items,
        run_bfcl,
        sample,
        wheel_path,
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
            "wheel_path",
        ),
        "tasks": ("FILE", "load_tasks", "run_tasks"),
    },
)
