"""The command of this plugin."""

from __future__ import annotations

from mlx_tools.app import Command, hookimpl


@hookimpl
def commands() -> list[Command]:
    """Return ``serve page``."""
    text = "Print the page's address, with its key."
    return [Command("serve page", text, "mlx_tools.plugins.page.command:app")]
