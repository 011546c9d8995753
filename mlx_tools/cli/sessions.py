"""`mlx-tools sessions` and `mlx-tools store`.

They list, show, continue and remove sessions, and copy all that is stored between files and a
database.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from math import inf
from typing import Annotated, Any, Final

import typer

from mlx_tools.app import build_steps, collect, find_store_kind
from mlx_tools.cli import inputs, options
from mlx_tools.cli.call_text import escape_line, escape_name, format_value
from mlx_tools.cli.completion import session_ids
from mlx_tools.cli.options import AsJson, AsJsonLines, Yes, argument, option
from mlx_tools.cli.output import (
    amount,
    complain,
    count_columns,
    count_noun,
    cut,
    join_columns,
    note,
    print_json,
    print_prose,
    print_text,
    progress_bar,
    progress_counter,
    stdout,
)
from mlx_tools.cli.root import fails_as_json
from mlx_tools.cli.saved_sessions import describe_status, open_user_store
from mlx_tools.errors import TranscriptError, UsageError
from mlx_tools.paths import expand_user
from mlx_tools.store import (
    CopyReport,
    ListedSession,
    SessionStatus,
    SessionStore,
    TranscriptStore,
    copy_store,
    to_json,
)
from mlx_tools.transcript import PREVIEW_CHARS, Record

app = typer.Typer(add_completion=False)
store_app = typer.Typer(add_completion=False)

DEFAULT_LIMIT: Final = 50
_DAY: Final = 86_400.0


SessionId = Annotated[
    str,
    argument("ID", "The session's id, the beginning of it, or last.", autocompletion=session_ids),
]


@app.command(name="list")
def list_sessions(
    as_lines: AsJsonLines = False,
    limit: Annotated[int, option("--limit N", "How many sessions at most.", min=1)] = DEFAULT_LIMIT,
) -> None:
    """List the sessions, the one first that was last written to."""
    store, now = open_user_store(), _now()
    ids = store.by_last_update(limit)
    for session in ids:
        listed = store.describe(session)
        if as_lines:
            print_json(_as_json(listed))
        else:
            print_text(row(listed, now, count_columns(stdout())))
    if not ids:
        note("there are no sessions yet")
    if len(ids) == limit and (left := store.count() - limit) > 0:
        note(f"{count_noun(left, 'older session')} more (--limit)")


@app.command()
def show(
    session: SessionId,
    as_lines: Annotated[
        bool, option("--json", "Print its records, one JSON object a line.")
    ] = False,
) -> None:
    """Show what happened in a session."""
    store = open_user_store()
    session = store.find(session)
    records = store.records(session)
    if as_lines:
        for record in records:
            print_json(to_json(record))
        return
    listed = store.describe(session)
    try:
        lines = [*title(listed), *conversation(records), *waiting(listed.status)]
    except (AttributeError, TypeError, ValueError):
        raise TranscriptError(
            f"the transcript of {session} is damaged: a record has a wrong value",
            hint=f"mlx-tools sessions show {session} --json prints it as it is",
        ) from None
    for colour, line in lines:
        indent = line[: len(line) - len(line.lstrip(" "))]
        print_prose(line, indent + "  ", colour=colour)


@app.command()
@options.with_settings("backend.url", "backend.api_key")
@fails_as_json
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
        bool, option("--approve-all", "Approve all calls that wait, except calls in doubt.")
    ] = False,
    deny: Annotated[
        list[str] | None, option("--deny CALL", "Refuse this call. May be repeated.")
    ] = None,
    reason: Annotated[str, option("--reason TEXT", "Why, for the model to read.")] = "",
    edit: Annotated[
        tuple[str, str] | None, option("--edit CALL JSON", "Let it run with these arguments.")
    ] = None,
    as_json: AsJson = False,
    *,
    options_given: options.Options,
) -> int:
    """Go on with a session that is paused or was broken off.

    At a terminal, talk on in any session.
    """
    from mlx_tools.cli.resume import read_approvals, resume_session

    approvals = read_approvals(
        approve or (), approve_all, deny or (), reason, [edit] if edit else ()
    )
    return resume_session(session, approvals, options_given, as_json=as_json)


@app.command()
def delete(
    sessions: Annotated[
        list[str],
        argument(
            "ID…",
            "The sessions: their ids, the beginnings of these, or last.",
            autocompletion=session_ids,
        ),
    ],
    paused: Annotated[
        bool,
        option(
            "--paused", "Also those that have not ended: paused, interrupted, in doubt, damaged."
        ),
    ] = False,
    yes: Yes = False,
) -> None:
    """Remove these sessions, with all that they keep."""
    store = open_user_store()
    listings = [store.describe(session) for session in dict.fromkeys(map(store.find, sessions))]
    for listed in listings:
        state = listed.status.state
        if state == "running":
            raise UsageError(f"{listed.session} is in use by another process", hint="end that")
        if not (listed.status.is_finished or paused):
            raise UsageError(
                f"{listed.session} has not ended: {describe_status(listed.status)}",
                hint="--paused removes it all the same",
            )
    _remove(store, listings, force=paused, yes=yes)


@app.command()
def prune(
    older_than: Annotated[
        float | None, option("--older-than DAYS", "Only those not written to for DAYS days.", min=0)
    ] = None,
    keep: Annotated[int, option("--keep N", "Leave the newest N sessions.", min=0)] = 0,
    yes: Yes = False,
) -> None:
    """Remove sessions that have ended."""
    store = open_user_store()
    sessions = store.by_last_update()[keep:]
    limit = inf if older_than is None else time.time() - older_than * _DAY
    if older_than is not None:  # only these are read, which takes much longer
        sessions = [session for session in sessions if store.updated(session) < limit]
    listings = []
    with progress_counter("reading sessions", len(sessions)) as step:
        for listed in map(store.describe, sessions):
            step()
            if listed.status.is_finished and listed.updated < limit:
                listings.append(listed)
    _remove(store, listings, force=False, yes=yes)


def _remove(
    store: SessionStore, sessions: Sequence[ListedSession], *, force: bool, yes: bool
) -> None:
    """Remove sessions, after a confirmation."""
    if sessions and not yes:
        for listed in sessions:
            print(row(listed, _now(), count_columns(sys.stderr)), file=sys.stderr)
        texts = {
            "warning": "nothing was removed",
            "no_terminal_hint": f"{_sum(sessions)} would be removed, and ",
        }
        hint = "--yes removes them"
        if not inputs.confirm(f"Remove {_sum(sessions)}?", yes, hint=hint, **texts):
            return
    store.sweep()
    removed = []
    for listed in sessions:
        if store.remove(listed.session, force=force):
            removed.append(listed)
            status = listed.status
            print_text(f"removed {listed.session}  {status.state}  {gist(status)}".rstrip())
        else:
            note(f"{listed.session} is in use, and stays")
    complain(f"removed {_sum(removed)}", kind="done")


def _sum(sessions: Sequence[ListedSession]) -> str:
    size = sum(listed.size for listed in sessions)
    return f"{count_noun(len(sessions), 'session')} ({amount(size)})"


def _now() -> datetime:
    """Return the time in this machine's zone."""
    return datetime.now().astimezone()


# --- the store ---------------------------------------------------------------------------------

_PLACE: Final = "a folder, as MLX_TOOLS_STATE_DIR names one, or postgresql://USER@HOST/NAME."


@store_app.callback()
def _store() -> None:
    """Copy what is kept, between files and a database."""


@store_app.command()
def copy(
    source: Annotated[str, argument("FROM", f"Where it is kept: {_PLACE}")],
    target: Annotated[str, argument("TO", f"Where it goes, empty or nothing else: {_PLACE}")],
) -> None:
    """Copy all sessions, with all that they keep, the schedule and the gateway's runs.

    One that was broken off goes on when it is started again. Nothing that is there is changed.
    """
    old_store, new_store = _open_store(source), _open_store(target)
    if old_store.place == new_store.place and old_store.dsn == new_store.dsn:
        raise UsageError("FROM and TO are the same")
    forms = tuple(table.form for table in collect("tables"))
    with progress_bar("copying") as report:
        report_of_copy = copy_store(old_store, new_store, forms, report)
    print_text(f"copied {_describe_copy(report_of_copy)} to {new_store.place}")
    if report_of_copy.left_out:
        note(f"left out, as they hold no transcript: {', '.join(report_of_copy.left_out)}")


def _open_store(location: str) -> SessionStore:
    if "://" in location:
        return find_store_kind(location).open(location)
    folder = expand_user(location).absolute()
    if folder.name == "sessions" and not (folder / "sessions").exists():
        raise UsageError(f"{location} is the folder of sessions", hint="give the one that it is in")
    return TranscriptStore(folder / "sessions")


def _describe_copy(report: CopyReport) -> str:
    rows = {name: sum(tables.values()) for name, tables in report.tables.items()}
    parts = [
        f"{count_noun(report.sessions, 'session')} ({amount(report.bytes)})",
        *([f"{report.present_sessions} more were there"] if report.present_sessions else []),
        count_noun(report.approvals, "used approval"),
        *(f"{count_noun(n, 'row')} of {name}" for name, n in rows.items()),
    ]
    return ", ".join(parts)


# --- a session in words ---------------------------------------------------------------------------
# Text of a model, a tool or a file is escaped, so that no terminal obeys it, and indented below a
# heading line of mlx-tools.

QUESTION_CHARS: Final = 60
"""Characters of a question in a list. A choice: a list is for finding a session, not for reading
it."""
_MIN_QUESTION_COLUMNS: Final = 16
"""Columns that the words of a question need beside the rest of a row."""
_PREVIEW_LINES: Final = 8
_COLOURS: Final = {
    **dict.fromkeys(("user", "call", "answer"), "bold"),
    **dict.fromkeys(("model", "policy", "host"), "dim"),
    **dict.fromkeys(("person", "end"), "yellow"),
    "tool": "green",
}

Lines = Iterator[tuple[str, str]]
"""Colours (`mlx_tools.cli.output.COLOURS`, or empty) and lines."""


def row(listing: ListedSession, now: datetime, columns: int | None = None) -> str:
    """Return a session on one line: id, time of the last update, state, question.

    With ``columns`` it takes more lines if it must.
    """
    status = listing.status
    when = "-"
    if listing.updated:
        when = format_time(datetime.fromtimestamp(listing.updated, now.tzinfo), now)
    head, about = f"{listing.session:<24}  {when:<11} ", describe_status(status)
    if (
        columns is not None
        and (room := columns - len(f"{head} {about}  ")) >= _MIN_QUESTION_COLUMNS
    ):
        return f"{head} {about}  {cut(gist(status), room)}".rstrip()
    return join_columns(head, f"{about}  {gist(status)}", columns).rstrip()


def format_time(time: datetime, now: datetime) -> str:
    """Return a time as people write it: ``today 14:02``, ``yesterday``, ``12 Nov``."""
    days = (now.date() - time.date()).days
    if days == 0:
        return f"today {time:%H:%M}"
    if days == 1:
        return "yesterday"
    return f"{time.day} {time:%b}" + (f" {time.year}" if time.year != now.year else "")


def gist(status: SessionStatus) -> str:
    """Return the subject of a session, cut to fit a line."""
    if status.state == "damaged":
        return escape_line(status.reason)
    if not status.question and status.first_call:
        return f"a call of {cut(escape_name(status.first_call), QUESTION_CHARS)}, without a model"
    return cut(escape_line(" ".join(status.question.split())), QUESTION_CHARS)


def title(listing: ListedSession) -> Lines:
    """Yield the lines about a session as a whole."""
    status = listing.status
    reason = f" ({escape_line(status.reason)})" if status.reason else ""
    yield "bold", f"session {listing.session}: {status.state}{reason}"
    created, model = escape_line(status.created) or "-", escape_line(status.model or "-")
    yield "dim", f"made {created}, model {model}"
    if listing.path is not None:
        yield "dim", f"transcript {escape_line(str(listing.path))}"


def conversation(records: Sequence[Record]) -> Lines:
    """Yield the records as a conversation, step by step."""
    for step in build_steps(records, advice=True):
        if step.kind == "setup":
            continue
        if step.kind == "user":
            yield "", ""
        notes = [*step.notes, *([f"at {step.timestamp}"] if step.timestamp else [])]
        line = f"{step.label} {step.title}".strip() + (f" ({', '.join(notes)})" if notes else "")
        line += f": {cut(step.words, PREVIEW_CHARS)}" if step.words else ""
        yield "red" if step.bad else _COLOURS.get(step.kind, ""), escape_line(line)
        for block in step.blocks:
            if block.is_aside:
                continue
            lines = block.text.split("\n")
            if block.fold:
                lines = block.text[:PREVIEW_CHARS].split("\n")[:_PREVIEW_LINES]
            yield from _text("\n".join(lines))
            if block.fold or block.left_out:
                yield "dim", f"  … {block.fold or f'{block.left_out} characters more'}"


def waiting(status: SessionStatus) -> Lines:
    """Yield the calls that a person must decide about, with what an approval needs."""
    for call in status.pending:
        yield "", ""
        yield "bold", f"an approval is due for {escape_line(call.call_id)} {escape_name(call.name)}"
        yield "", f"  {format_value(call.arguments)}"
        yield "", f"  digest {escape_line(call.digest)}"
        yield "", f"  until {escape_line(call.expires_at)}"
    for key in status.in_doubt:
        doubt = "is in doubt: it was started, and may have done its work"
        yield "yellow", f"{escape_line(key)} {doubt}"


def _text(text: str) -> Lines:
    for line in text.split("\n"):
        yield "", f"  {escape_line(line.expandtabs(4))}"


def _as_json(listing: ListedSession) -> dict[str, Any]:
    """Return a session as ``sessions list --json`` prints it: always with all keys."""
    status = listing.status
    return {
        "session": listing.session,
        "created": status.created,
        "updated": datetime.fromtimestamp(listing.updated, UTC).isoformat(timespec="seconds"),
        "state": status.state,
        "ended": describe_status(status),
        "reason": status.reason or None,
        "question": status.question,
        "questions": status.questions,
        "model": status.model,
        "pending": [call.to_json() for call in status.pending],
        "in_doubt": list(status.in_doubt),
        "size_bytes": listing.size,
        "transcript": None if listing.path is None else str(listing.path),
    }
