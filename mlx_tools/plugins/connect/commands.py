"""The command of this plugin."""

from __future__ import annotations

from mlx_tools.app import Command, hookimpl


@hookimpl
def commands() -> list[Command]:
    """Return ``connect``."""
    text = "Set up an agent or editor for serve: print or write its settings."
    return [Command("connect", text, "mlx_tools.plugins.connect.command:app")]
