"""The command of this plugin."""

from __future__ import annotations

from mlx_tools.app import Command, hookimpl


@hookimpl
def commands() -> list[Command]:
    """Return ``eval``."""
    text = "Measure how well a model calls tools."
    return [Command("eval", text, "mlx_tools.plugins.evaluate.command:app")]
