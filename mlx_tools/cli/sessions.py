"""`mlx-tools sessions`: which sessions are kept, what happened in one, going on with it, removing
old ones; and `mlx-tools undo`, which brings back what a session's calls changed."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Final

import typer

from mlx_tools.cli import inputs
from mlx_tools.cli.call_text import in_words
from mlx_tools.cli.options import AsJson, AsJsonLines, Yes, argument, option
from mlx_tools.cli.output import (
    amount,
    columns_of,
    complain,
    counted,
    note,
    ours,
    print_json,
    print_prose,
    print_text,
)
from mlx_tools.cli.session_text import as_json, conversation, gist, row, title, waiting
from mlx_tools.errors import EXIT_OK, EXIT_STOPPED, TranscriptError
from mlx_tools.paths import state_dir
from mlx_tools.store import LAST, ListedSession, SessionFolder, to_json
from mlx_tools.toolbox import Undo, UndoStep, outermost, undoable

app = typer.Typer(add_completion=False)
undo_app = typer.Typer(add_completion=False)

DEFAULT_LIMIT: Final = 50
_DAY: Final = 86_400.0


def session_folder() -> SessionFolder:
    """The folder of the user's sessions."""
    return SessionFolder(state_dir() / "sessions")


def _complete(incomplete: str) -> list[str]:
    return [i for i in (*session_folder().ids(), LAST) if i.startswith(incomplete)]


SessionId = Annotated[
    str, argument("ID", "The session's id, the beginning of it, or last.", autocompletion=_complete)
]


@app.command(name="list")
def list_sessions(
    as_lines: AsJsonLines = False,
    limit: Annotated[int, option("--limit N", "How many sessions at most.", min=1)] = DEFAULT_LIMIT,
) -> None:
    """List the sessions, the newest first."""
    folder = session_folder()
    ids = folder.ids()
    for session in ids[:limit]:
        listed = folder.listed(session)
        if as_lines:
            print_json(as_json(listed))
        else:
            print_text(row(listed, _columns(ours())))
    if not ids:
        note("there are no sessions yet")
    if len(ids) > limit:
        note(f"{counted(len(ids) - limit, 'older session')} more (--limit)")


@app.command()
def show(
    session: SessionId,
    as_lines: Annotated[
        bool, option("--json", "Print its records, one JSON object a line.")
    ] = False,
) -> None:
    """Show what happened in a session."""
    folder = session_folder()
    session = folder.find(session)
    records = folder.records(session)
    if as_lines:
        for record in records:
            print_json(to_json(record))
        return
    listed = folder.listed(session)
    try:
        lines = [*title(listed), *conversation(records), *waiting(listed.standing)]
    except (AttributeError, TypeError, ValueError):
        raise TranscriptError(
            f"the transcript {listed.path} is damaged: a record holds what it should not",
            hint=f"mlx-tools sessions show {session} --json prints it as it is",
        ) from None
    for colour, line in lines:
        indent = line[: len(line) - len(line.lstrip(" "))]
        print_prose(line, indent + "  ", colour=colour)


@app.command()
def resume(
    session: SessionId,
    approve: Annotated[
        list[str] | None,
        option(
            "--approve CALL[=DIGEST]",
            "Let this call run, as it was shown (with that digest). May be repeated.",
        ),
    ] = None,
    approve_all: Annotated[
        bool, option("--approve-all", "All that wait, but none that is in doubt.")
    ] = False,
    deny: Annotated[
        list[str] | None, option("--deny CALL", "Refuse this call. May be repeated.")
    ] = None,
    reason: Annotated[str, option("--reason TEXT", "Why, for the model to read.")] = "",
    edit: Annotated[
        tuple[str, str] | None, option("--edit CALL JSON", "Let it run with these arguments.")
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Go on with a session that is paused, or that was broken off."""
    from mlx_tools.cli.resume import approvals_of, resume_session

    said = approvals_of(approve or (), approve_all, deny or (), reason, [edit] if edit else ())
    return resume_session(session, said, as_json=as_json)


@app.command()
def prune(
    older_than: Annotated[
        float | None, option("--older-than DAYS", "Only those not written to for DAYS days.", min=0)
    ] = None,
    keep: Annotated[int, option("--keep N", "Leave the newest N sessions.", min=0)] = 0,
    paused: Annotated[
        bool,
        option(
            "--paused", "Also those that have not ended: paused, interrupted, in doubt, damaged."
        ),
    ] = False,
    dry_run: Annotated[
        bool, option("--dry-run", "Say what would be removed, and remove nothing.")
    ] = False,
    yes: Yes = False,
) -> int:
    """Remove sessions that have ended."""
    folder = session_folder()
    limit = None if older_than is None else time.time() - older_than * _DAY
    chosen = [  # one that a process is at never goes
        listed
        for listed in map(folder.listed, folder.ids()[keep:])
        if (listed.standing.ended or (paused and listed.standing.state != "running"))
        and (limit is None or listed.updated < limit)
    ]
    if dry_run:
        _tell(chosen, "would remove")
        return EXIT_OK
    if chosen and not yes and not _remove_agreed(chosen):
        note("nothing was removed")
        return EXIT_OK
    folder.sweep()
    removed = []
    for listed in chosen:
        if folder.remove(listed.session, whatever=paused):
            removed.append(listed)
        else:
            note(f"{listed.session} is in use, and stays")
    _tell(removed, "removed")
    return EXIT_OK


def _remove_agreed(chosen: Sequence[ListedSession]) -> bool:
    if inputs.at_terminal():
        for listed in chosen:
            print(row(listed, _columns(sys.stderr)), file=sys.stderr)
    return inputs.agreed(
        f"Remove {_sum(chosen)}?",
        f"{_sum(chosen)} would be removed, and ",
        "--yes removes them, --dry-run lists them",
    )


def _tell(sessions: Iterable[ListedSession], word: str) -> None:
    told = list(sessions)
    for listed in told:
        known = listed.standing
        print_text(f"{word} {listed.session}  {known.state}  {gist(known)}".rstrip())
    complain(f"{word} {_sum(told)}", kind="done" if word == "removed" else "dry run")


def _sum(sessions: Sequence[ListedSession]) -> str:
    size = sum(listed.size for listed in sessions)
    return f"{counted(len(sessions), 'session')} ({amount(size)})"


def _columns(stream: Any) -> int | None:
    return columns_of(stream) if stream.isatty() else None


# --- undo ---------------------------------------------------------------------------------------

_DO: Final = {
    "restore": ("restore", "restored"),
    "bring_back": ("bring back", "brought back"),
    "remove": ("remove", "removed"),
}


@undo_app.command()
def undo(session: SessionId = LAST, yes: Yes = False, as_json: AsJson = False) -> int:
    """Undo the changes of a session that are still as it left them, the newest first."""
    folder, given = session_folder(), session
    session = folder.find(given)
    session = outermost(folder, session) if given == LAST else session
    with Undo(folder, session) as undoing:
        steps = undoing.steps()
        due = sum(step.status == "due" for step in steps)
        if due and not yes and not _undo_agreed(steps, counted(due, "change")):
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
            print_text(_change(step))
        if not ended:
            other = undoable(folder)
            hint = f"; mlx-tools undo {other} would" if other is not None else ""
            note(f"the session {session} left nothing that can be undone{hint}")
    if refused:
        complain(f"{counted(refused, 'change')} of {len(ended)} could not be undone")
    return EXIT_STOPPED if refused else EXIT_OK


def _undo_agreed(steps: Sequence[UndoStep], due: str) -> bool:
    for step in steps:
        print(_change(step), file=sys.stderr)
    return inputs.agreed(
        f"Undo {due}?", f"{due} would be undone, and ", "--yes undoes what can be undone"
    )


def _change(step: UndoStep) -> str:
    """A step on one line: what will become of the file, or what has."""
    will, did = _DO[step.action]
    path = in_words(step.change.path)
    if step.status == "refused":
        return f"cannot {will} {path}: {in_words(step.reason)}"
    return f"{did if step.status == 'undone' else will} {path}"
