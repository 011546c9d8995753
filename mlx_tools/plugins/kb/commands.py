"""The command of this plugin."""

from __future__ import annotations

from mlx_tools.app import Command, hookimpl


@hookimpl
def commands() -> list[Command]:
    """Return ``kb``."""
    text = "Add files to the knowledge base, search it, list and remove what is in it."
    return [Command("kb", text, "mlx_tools.plugins.kb.command:app")]
