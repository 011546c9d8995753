"""The command of this plugin."""

from __future__ import annotations

from mlx_tools.app import Command, hookimpl


@hookimpl
def commands() -> list[Command]:
    """Return ``tools bind``."""
    text = "Bind the operations of an OpenAPI document as tools."
    return [Command("tools bind", text, "mlx_tools.plugins.openapi.command:app")]
