"""The command of this plugin."""

from __future__ import annotations

from mlx_tools.app import Command, hookimpl


@hookimpl
def commands() -> list[Command]:
    """Return ``schedule``."""
    text = "List, add and remove tasks for later, and run the due ones."
    return [Command("schedule", text, "mlx_tools.plugins.schedule.command:app")]
