"""The parts of commands that start the program with each session of the user."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from mlx_tools.cli.output import complain, note
from mlx_tools.errors import EXIT_OK, EXIT_STOPPED

if TYPE_CHECKING:
    from mlx_tools.app import Autostart


def note_left_out(autostart: Autostart) -> None:
    """Name the variables of the shell that an installed program does not get."""
    if names := autostart.left_out:
        note(f"it does not get {', '.join(names)}, which hold secrets: name them in your file")


def tell_left(remaining: list[str]) -> int:
    """Show the user the steps that the system refused, to be done by hand."""
    for command in remaining:
        complain(f"this did not work; do it by hand: {command}", kind="warning")
    return EXIT_STOPPED if remaining else EXIT_OK


def program() -> list[str]:
    """Return the command line that starts this very program, from any folder."""
    script = Path(sys.argv[0])
    if script.name == "mlx-tools":
        return [str(script.absolute())]
    if zipfile.is_zipfile(script):  # started by `python mlx-tools.pyz`
        return [sys.executable, str(script.absolute())]
    return [sys.executable, "-P", "-m", "mlx_tools"]
