"""The part of commands that undoes what a session's calls changed."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Final

from mlx_tools.cli import inputs
from mlx_tools.cli.call_text import in_words
from mlx_tools.cli.output import count_noun, print_text
from mlx_tools.toolbox import Undo, UndoStep

_DO: Final = {
    "restore": ("restore", "restored"),
    "bring_back": ("bring back", "brought back"),
    "remove": ("remove", "removed"),
}


def undo_steps(
    undoing: Undo, steps: Sequence[UndoStep], *, yes: bool = False, hint: str
) -> list[UndoStep] | None:
    """Undo the changes that the user agrees to; return what became of each.

    None if that is not wanted. Raises `UsageError` with the ``hint`` where nobody can be asked.
    """
    due = count_noun(sum(step.status == "due" for step in steps), "change")
    if not yes and any(step.status == "due" for step in steps):
        for step in steps:
            print(_change(step), file=sys.stderr)
        alone, undone = f"{due} would be undone, and ", "nothing was undone"
        if not inputs.confirm(
            f"Undo {due}?", yes, warning=undone, no_terminal_hint=alone, hint=hint
        ):
            return None
    return [undoing.undo(step) if step.status == "due" else step for step in steps]


def tell_undone(steps: Iterable[UndoStep]) -> None:
    """Print what became of changes."""
    for step in steps:
        print_text(_change(step))


def _change(step: UndoStep) -> str:
    """One line for a step: what will become of the file, or what has."""
    will, did = _DO[step.action]
    path = in_words(step.change.path)
    if step.status == "refused":
        return f"cannot {will} {path}: {in_words(step.reason)}"
    return f"{did if step.status == 'undone' else will} {path}"
