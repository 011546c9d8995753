"""The check of this plugin: the automatic start of ``schedule run``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlx_tools.app import Autostart, Check, check_autostart, hookimpl

if TYPE_CHECKING:
    from mlx_tools.app import Configuration


@hookimpl
def checks(configuration: Configuration) -> list[Check]:
    """Return the check of the automatic start, if it is installed."""
    return check_autostart(Autostart(name="schedule", interval=5))
