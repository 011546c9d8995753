"""The commands of this plugin."""

from __future__ import annotations

from mlx_tools.app import Command, hookimpl

_PLACE = "mlx_tools.plugins.folders.command"


@hookimpl
def commands() -> list[Command]:
    """Return ``tools new``, ``tools add`` and ``tools trust``."""
    return [
        Command(
            "tools new",
            "Write a new tool to begin with: a folder that works, with a test.",
            f"{_PLACE}:new_app",
        ),
        Command(
            "tools add",
            "Add the tool in a folder, or each in it: its files are copied and trusted.",
            f"{_PLACE}:add_app",
        ),
        Command(
            "tools trust",
            "Trust the present files of a tool in the tools folder.",
            f"{_PLACE}:trust_app",
        ),
    ]
