"""OpenTelemetry spans of runs, for programs that record spans.

It needs the extra ``telemetry``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlx_tools.lazy import attach_names

if TYPE_CHECKING:
    from mlx_tools.plugins.telemetry.spans import trace_run

__getattr__, __dir__ = attach_names(globals(), {"spans": ("trace_run",)})
