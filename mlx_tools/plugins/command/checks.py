"""The check of this plugin: the sandbox of ``run_command``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from mlx_tools.app import Check, hookimpl
from mlx_tools.plugins.command.sandbox import try_sandbox

if TYPE_CHECKING:
    from mlx_tools.app import Configuration


@hookimpl
def checks(configuration: Configuration) -> list[Check]:
    """Return the check of the sandbox."""
    return [check_sandbox()]


def check_sandbox(
    platform: str = sys.platform, *, find: Callable[[str], tuple[str, str]] = try_sandbox
) -> Check:
    """Check that programs can be confined, by a trial run of the sandbox."""
    name, fault = find(platform)
    if fault:
        return Check("sandbox", "warn", fault, "run_command stays off; all other tools work")
    return Check("sandbox", "ok", f"{name} was tried: it keeps programs to their folder")
