"""The command of this plugin."""

from __future__ import annotations

from mlx_tools.app import Command, hookimpl


@hookimpl
def commands() -> list[Command]:
    """Return ``mcp``."""
    text = "Add MCP servers; their tools then work like all others."
    return [Command("mcp", text, "mlx_tools.plugins.mcp.command:app")]
