"""The tool of this plugin."""

from __future__ import annotations

import functools

from mlx_tools.app import ToolRequest, hookimpl
from mlx_tools.errors import require_items
from mlx_tools.plugins.command.run_command import disabled_reason, run_command
from mlx_tools.tools import Tool, disable_tool


@hookimpl
def tools(request: ToolRequest) -> list[Tool]:
    """Return ``run_command``."""
    roots, options = request.roots, request.options
    programs = require_items("commands", options.get("commands"), "give a list of programs")
    made = run_command(roots, programs, folders=options.get("program_folders", ()))
    return [disable_tool(made, functools.partial(disabled_reason, roots))]
