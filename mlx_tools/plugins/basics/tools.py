"""The tools of this plugin."""

from __future__ import annotations

from mlx_tools.app import ToolRequest, hookimpl
from mlx_tools.plugins.basics import calculator, clock, format_xml
from mlx_tools.tools import Tool


@hookimpl
def tools(request: ToolRequest) -> list[Tool]:
    """Return ``calculator``, ``clock`` and ``format_xml``."""
    return [calculator(), clock(), format_xml()]
