"""`mlx-tools undo`: brings back what the calls of a session replaced, deleted and made."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, Final

import typer

from mlx_tools.cli.escape import in_words
from mlx_tools.cli.output import complain, counted, note, print_json, print_text
from mlx_tools.cli.sessions import SessionId, session_folder
from mlx_tools.errors import EXIT_OK, EXIT_STOPPED, UsageError
from mlx_tools.store.session_list import LAST
from mlx_tools.toolbox.restore import Undo, UndoStep, outermost, undoable

app = typer.Typer(add_completion=False)

_DO: Final = {
    "restore": ("restore", "restored"),
    "bring_back": ("bring back", "brought back"),
    "remove": ("remove", "removed"),
}


@app.command(help="Bring back what a session's calls replaced, deleted and made.")
def undo(
    session: SessionId = LAST,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> int:
    """Undo the changes of a session that are still as it left them, the newest first."""
    folder, given = session_folder(), session
    session = folder.find(given)
    session = outermost(folder, session) if given == LAST else session
    with Undo(folder, session) as undoing:
        steps = undoing.steps()
        due = [step for step in steps if step.status == "due"]
        if due and not yes and not _agreed(steps, len(due)):
            note("nothing was undone")
            return EXIT_OK
        ended = [undoing.undo(step) if step.status == "due" else step for step in steps]
    undone = sum(step.status == "undone" for step in ended)
    refused = len(ended) - undone
    if as_json:
        changes = [step.to_json() for step in ended]
        print_json({"session": session, "changes": changes, "undone": undone, "refused": refused})
    else:
        for step in ended:
            print_text(_row(step))
        if not ended:
            note(_nothing(session))
    if refused:
        complain(f"{counted(refused, 'change')} of {len(ended)} could not be undone")
    return EXIT_STOPPED if refused else EXIT_OK


def _agreed(steps: Sequence[UndoStep], due: int) -> bool:
    """Lists the steps, and asks. Raises `UsageError` where nobody can be asked."""
    from mlx_tools.app.wiring import at_terminal  # it brings all that a run needs
    from mlx_tools.cli.inputs import said_yes

    for step in steps:
        print(_row(step), file=sys.stderr)
    if not at_terminal():
        raise UsageError(
            f"{counted(due, 'change')} would be undone, and nobody is here to be asked",
            hint="--yes undoes what can be undone",
        )
    return said_yes(f"Undo {counted(due, 'change')}?")


def _row(step: UndoStep) -> str:
    """A step on one line: what will become of the file, or what has."""
    will, did = _DO[step.action]
    path = in_words(step.change.path)
    if step.status == "refused":
        return f"cannot {will} {path}: {in_words(step.reason)}"
    return f"{did if step.status == 'undone' else will} {path}"


def _nothing(session: str) -> str:
    """That there is nothing to undo, and where there is something."""
    other = undoable(session_folder())
    hint = f"; mlx-tools undo {other} would" if other is not None else ""
    return f"the session {session} left nothing that can be undone{hint}"
