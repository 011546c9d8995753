"""`mlx-tools sessions`: which sessions are kept, what happened in one, and removing old ones."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Final

import typer

from mlx_tools.app.own_output import ours
from mlx_tools.cli.columns import columns_of
from mlx_tools.cli.output import (
    amount,
    complain,
    counted,
    note,
    print_json,
    print_prose,
    print_text,
)
from mlx_tools.cli.session_text import as_json, conversation, gist, row, title, waiting
from mlx_tools.errors import EXIT_OK, TranscriptError, UsageError
from mlx_tools.paths import state_dir
from mlx_tools.store.session_list import LAST, ListedSession, SessionFolder
from mlx_tools.store.transcript import to_json

app = typer.Typer(
    help="List and show the sessions that are kept, go on with one, remove old ones.",
    add_completion=False,
)

DEFAULT_LIMIT: Final = 50
_DAY: Final = 86_400.0


def session_folder() -> SessionFolder:
    """The folder of the user's sessions."""
    return SessionFolder(state_dir() / "sessions")


def _complete(incomplete: str) -> list[str]:
    return [i for i in (*session_folder().ids(), LAST) if i.startswith(incomplete)]


SessionId = Annotated[
    str,
    typer.Argument(
        metavar="ID",
        help="The session's id, the beginning of it, or last.",
        autocompletion=_complete,
    ),
]


@app.command(name="list", help="List the sessions, the newest first.")
def list_sessions(
    as_lines: Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")] = False,
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", min=1, help="How many sessions at most.")
    ] = DEFAULT_LIMIT,
) -> None:
    """Print a line a session."""
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


@app.command(help="Show what happened in a session.")
def show(
    session: SessionId,
    as_lines: Annotated[
        bool, typer.Option("--json", help="Print its records, one JSON object a line.")
    ] = False,
) -> None:
    """Print a session for a person, or its records for a program."""
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


@app.command(help="Go on with a session that is paused, or that was broken off.")
def resume(
    session: SessionId,
    approve: Annotated[
        list[str] | None,
        typer.Option(
            "--approve",
            metavar="CALL[=DIGEST]",
            help="Let this call run, as it was shown (with that digest). May be repeated.",
        ),
    ] = None,
    approve_all: Annotated[
        bool, typer.Option("--approve-all", help="All that wait, but none that is in doubt.")
    ] = False,
    deny: Annotated[
        list[str] | None,
        typer.Option("--deny", metavar="CALL", help="Refuse this call. May be repeated."),
    ] = None,
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="Why, for the model to read.")
    ] = "",
    edit: Annotated[
        tuple[str, str] | None,
        typer.Option("--edit", metavar="CALL JSON", help="Let it run with these arguments."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the outcome as JSON.")] = False,
) -> int:
    """Resume, and return the exit code of how the run ended."""
    from mlx_tools.cli.resume import approvals_of, resume_session

    said = approvals_of(approve or (), approve_all, deny or (), reason, [edit] if edit else ())
    return resume_session(session, said, as_json=as_json)


@app.command(help="Remove sessions that have ended.")
def prune(
    older_than: Annotated[
        float | None,
        typer.Option(
            "--older-than", metavar="DAYS", min=0, help="Only those not written to for DAYS days."
        ),
    ] = None,
    keep: Annotated[
        int, typer.Option("--keep", metavar="N", min=0, help="Leave the newest N sessions.")
    ] = 0,
    paused: Annotated[
        bool,
        typer.Option(
            "--paused",
            help="Also those that have not ended: paused, interrupted, in doubt, damaged.",
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be removed, and remove nothing.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> int:
    """Remove sessions, and print a line for each."""
    folder = session_folder()
    chosen = _chosen(folder, older_than, keep, paused)
    if dry_run:
        _tell(chosen, "would remove")
        return EXIT_OK
    if chosen and not yes and not _agreed(chosen):
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


def _chosen(
    folder: SessionFolder, older_than: float | None, keep: int, whatever: bool
) -> list[ListedSession]:
    """The sessions that may go, the newest first. One that a process is at never may."""
    limit = None if older_than is None else time.time() - older_than * _DAY
    return [
        listed
        for listed in map(folder.listed, folder.ids()[keep:])
        if (listed.standing.ended or (whatever and listed.standing.state != "running"))
        and (limit is None or listed.updated < limit)
    ]


def _agreed(chosen: Sequence[ListedSession]) -> bool:
    """Whether the user wants it. Raises `UsageError` where nobody can be asked."""
    from mlx_tools.app.wiring import at_terminal  # it brings all that a run needs
    from mlx_tools.cli.inputs import said_yes

    if not at_terminal():
        raise UsageError(
            f"{_sum(chosen)} would be removed, and nobody is here to be asked",
            hint="--yes removes them, --dry-run lists them",
        )
    for listed in chosen:
        print(row(listed, _columns(sys.stderr)), file=sys.stderr)
    return said_yes(f"Remove {_sum(chosen)}?")


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
