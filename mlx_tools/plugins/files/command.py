"""`mlx-tools undo`, and its parts that `/undo` in a chat uses."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Final

import typer

from mlx_tools.cli import inputs
from mlx_tools.cli.call_text import escape_line
from mlx_tools.cli.options import AsJson, Yes
from mlx_tools.cli.output import complain, count_noun, note, print_json, print_text
from mlx_tools.cli.saved_sessions import open_user_store
from mlx_tools.cli.sessions import SessionId
from mlx_tools.errors import EXIT_OK, EXIT_STOPPED
from mlx_tools.plugins.files.restore import Undo, UndoStep, find_outermost, find_undoable
from mlx_tools.store import LAST

app = typer.Typer(add_completion=False)

_DO: Final = {
    "restore": ("restore", "restored"),
    "bring_back": ("bring back", "brought back"),
    "remove": ("remove", "removed"),
}


@app.command()
def undo(session: SessionId = LAST, yes: Yes = False, as_json: AsJson = False) -> int:
    """Undo the changes of a session, newest first, unless a file changed since."""
    store, requested = open_user_store(), session
    session = store.find(requested)
    session = find_outermost(store, session) if requested == LAST else session
    with Undo(store, session) as undoing:
        steps = undoing.list_steps()
        steps_done = _undo_steps(undoing, steps, yes=yes, hint="--yes undoes what can be undone")
    if steps_done is None:
        return EXIT_OK
    undone = sum(step.status == "undone" for step in steps_done)
    refused = len(steps_done) - undone
    if as_json:
        changes = [step.to_json() for step in steps_done]
        print_json({"session": session, "changes": changes, "undone": undone, "refused": refused})
    else:
        _print_steps(steps_done)
        if not steps_done:
            undoable_session = find_undoable(store)
            hint = (
                f"; mlx-tools undo {undoable_session} would" if undoable_session is not None else ""
            )
            note(f"the session {session} left nothing that can be undone{hint}")
    if refused:
        complain(f"{count_noun(refused, 'change')} of {len(steps_done)} could not be undone")
    return EXIT_STOPPED if refused else EXIT_OK


def undo_question(sessions: Sequence[str], present: str) -> bool:
    """Undo the changes of a chat's last question that the user agrees to.

    If all changes of a session are refused, this is reported, and the session before it is undone.

    Args:
        sessions: the sessions of the chat, the newest last.
        present: the session that this process uses.

    Returns:
        False if there is nothing to undo.
    """
    store, found = open_user_store(), False
    for session in reversed(sessions):
        with Undo(store, session, session_id=present) as undoing:
            steps = undoing.list_steps(of_question=True)
            hint = f"mlx-tools undo {session} --yes"
            _print_steps(_undo_steps(undoing, steps, hint=hint) or ())
            found = found or bool(steps)
            if any(step.status == "due" for step in steps):
                break
    return found


def _undo_steps(
    undoing: Undo, steps: Sequence[UndoStep], *, yes: bool = False, hint: str
) -> list[UndoStep] | None:
    """Undo the changes that the user agrees to, and return all with their status.

    None if the user declines. Raises `UsageError` with the ``hint`` if there is no terminal.
    """
    due = count_noun(sum(step.status == "due" for step in steps), "change")
    if not yes and any(step.status == "due" for step in steps):
        for step in steps:
            print(_describe_change(step), file=sys.stderr)
        alone, undone = f"{due} would be undone, and ", "nothing was undone"
        if not inputs.confirm(
            f"Undo {due}?", yes, warning=undone, no_terminal_hint=alone, hint=hint
        ):
            return None
    return [undoing.undo(step) if step.status == "due" else step for step in steps]


def _print_steps(steps: Iterable[UndoStep]) -> None:
    """Print a line about each change."""
    for step in steps:
        print_text(_describe_change(step))


def _describe_change(step: UndoStep) -> str:
    """Describe a step in a line: the change that will be made to the file, or was."""
    will, did = _DO[step.action]
    path = escape_line(step.change.path)
    if step.status == "refused":
        return f"cannot {will} {path}: {escape_line(step.reason)}"
    return f"{did if step.status == 'undone' else will} {path}"
