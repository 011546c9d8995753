"""The command of this plugin."""

from __future__ import annotations

from mlx_tools.app import Command, hookimpl


@hookimpl
def commands() -> list[Command]:
    """Return ``worker``."""
    text = "Do the runs of gateways whose sessions are in PostgreSQL."
    return [Command("worker", text, "mlx_tools.plugins.runs.command:app")]
