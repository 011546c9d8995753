"""OpenTelemetry spans of runs, for programs that record spans.

It needs the extra ``telemetry``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlx_tools.lazy import names_of

if TYPE_CHECKING:
    from mlx_tools.plugins.telemetry.spans import trace_run

__getattr__, __dir__ = names_of(globals(), {"spans": ("trace_run",)})
