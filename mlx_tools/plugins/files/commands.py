"""The command of this plugin."""

from __future__ import annotations

from mlx_tools.app import Command, hookimpl


@hookimpl
def commands() -> list[Command]:
    """Return ``undo``."""
    text = "Take back what a session's calls changed."
    return [Command("undo", text, "mlx_tools.plugins.files.command:app")]
