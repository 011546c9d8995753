"""The check of this plugin: the start of ``schedule run`` at log-in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlx_tools.app import Autostart, Check, check_autostart, hookimpl

if TYPE_CHECKING:
    from mlx_tools.app import Configuration


@hookimpl
def checks(configuration: Configuration) -> list[Check]:
    """Return the check of the start at log-in, none if it was not asked for."""
    return check_autostart(Autostart(name="schedule", interval=5))
