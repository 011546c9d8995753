"""Measurements of tool use: the Berkeley leaderboard's questions, and whole runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlx_tools.lazy import names_of

if TYPE_CHECKING:
    from mlx_tools.evaluate.bfcl_data import (
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
    from mlx_tools.evaluate.probe import (
        STRATEGIES,
        Cell,
        ProbeResult,
        list_styles,
        load_questions,
        make_verdict,
        measure,
    )
    from mlx_tools.evaluate.results import Result, Results, describe_run, format_table, summarise
    from mlx_tools.evaluate.tasks import FILE, load_tasks, run_tasks

__getattr__, __dir__ = names_of(
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
        "probe": (
            "STRATEGIES",
            "Cell",
            "ProbeResult",
            "load_questions",
            "make_verdict",
            "measure",
            "list_styles",
        ),
        "results": ("Result", "Results", "describe_run", "summarise", "format_table"),
        "tasks": ("FILE", "load_tasks", "run_tasks"),
    },
)
