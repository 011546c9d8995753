"""Continues a saved session.

Its transcript has the settings; the command line only narrows or decides. If the configuration has
changed since the session was begun, it can only take power away.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Final

from mlx_tools.app import (
    RunOptions,
    SavedSession,
    collect,
    config,
    find_header,
    make_options,
    session_store,
    working_directory,
)
from mlx_tools.cli import options
from mlx_tools.cli.call_text import escape_line, home_path
from mlx_tools.cli.output import count_noun, cut, note, warn_all
from mlx_tools.errors import TranscriptError, UsageError
from mlx_tools.policy import Policy, restriction
from mlx_tools.store import RootName, SessionStatus, SessionStore
from mlx_tools.transcript import Header

_GO_WITH: Final = frozenset(
    (
        *("backend.url", "backend.api_key", "policy.allow", "policy.dry_run"),
        *("policy.local_only", "policy.approve"),
    )
)
"""The options that a session can be continued with.

They name its server's present address and the approver, or take power away for the time being.
"""

_MAX_SESSIONS: Final = 200
"""Sessions that are searched for this folder's last conversation: each costs a look into the index,
and 200 of them less than a tenth of a second."""


def open_user_store() -> SessionStore:
    """Open the store of the user's sessions."""
    loaded = config.load()
    warn_all(loaded.warnings)
    return session_store(loaded)


def resolve_session(
    session: str | None, last: bool, options_given: options.Options
) -> SavedSession:
    """Return the named session, or the last conversation, to continue.

    Raises:
        UsageError: there is none, or an option would change the session. An option with the value
            that the session was begun with is fine.
    """
    if session is not None and last:
        raise UsageError("--continue and --session name two sessions", hint="leave one out")
    saved = load_session(find_last_conversation() if session is None else session, options_given)
    recorded = make_options(saved.header)
    for key, value in options_given.items():
        if key not in _GO_WITH and _plain(key, value) != _plain(key, recorded.get(key)):
            raise UsageError(
                f"{config.table()[key].setting.flag} cannot change a saved session",
                hint="leave it out: a session keeps its own; chat -c --model NAME, and /root and "
                "/system in chat, continue with another",
            )
    return saved


def _plain(key: str, value: object) -> object:
    """Return the value of an option in the form that a header has."""
    if key == "tools.roots" and isinstance(value, Sequence):
        return sorted(RootName.parse(str(root)).absolute() for root in value)
    return str(value)


def refuse_options(**options: object) -> None:
    """Raise `UsageError` for a given option that no saved session can take."""
    for name, value in options.items():
        if value:
            raise UsageError(
                f"--{name.replace('_', '-')} cannot change a saved session",
                hint="leave it out: a session keeps its own",
            )


def find_last_conversation() -> str:
    """Return the id of a person's last conversation in this folder, else anywhere.

    Sessions of jobs, of a gateway's clients and of runs within a call do not count.

    Raises:
        UsageError: there is no conversation.
    """
    store = open_user_store()
    tables = [table for table in collect("tables") if table.owner is not None]
    owners = [table.owner(store) for table in tables]
    here, last = working_directory(), ""
    for number, session in enumerate(_by_last_update(store)):
        if last and (number >= _MAX_SESSIONS or not here):
            break
        try:
            summary = store.summary(session)
        except TranscriptError:
            note(f"{session} cannot be read, and is left out: mlx-tools sessions show {session}")
            continue
        if last and summary.folder != here:
            continue
        is_own = summary.status.questions and not summary.parent
        if is_own and not any(owns(session) for owns in owners):
            last = last or session
            if summary.folder == here:
                return session
    if last:
        return last
    raise UsageError("there is no conversation to go on with", hint='mlx-tools ask "QUESTION"')


def _by_last_update(store: SessionStore) -> Iterator[str]:
    """Yield ids, the one first that was last written to."""
    yield from (first := store.by_last_update(_MAX_SESSIONS))
    if len(first) == _MAX_SESSIONS:
        yield from store.by_last_update()[_MAX_SESSIONS:]


def describe_resumed(header: Header) -> str:
    """Return in words which session is continued, and its folder if it is another one."""
    is_elsewhere = header.folder not in ("", working_directory())
    of_folder = f" of {home_path(header.folder)}" if is_elsewhere else ""
    return f"going on with {header.session}{of_folder}"


def tell_resumed(saved: SavedSession) -> None:
    """Note which session is continued, and its first question."""
    question = " ".join(open_user_store().summary(saved.header.session).status.question.split())
    note(f"{describe_resumed(saved.header)}: {cut(escape_line(question), 60)}")


def load_session(session: str, options_given: options.Options) -> SavedSession:
    """Read a session without holding it, and find how its header says to go on."""
    store = open_user_store()
    place = session if os.sep in session else store.find(session)
    records = store.read(place).transcript
    header = find_header(place, records, store.secret)
    begun = make_options(header)
    run = options.run_options({**begun, **options_given})
    other = None
    if "backend.url" in begun and "backend.url" not in options_given:
        # The address of the model is no part of what was approved. An address in this command's
        # environment comes first, and the user's file is used if the recorded address does not
        # answer.
        origins = config.load().origins.get("backend.url", ())
        kind = origins[-1].kind if origins else ""
        if kind in ("environment", "user"):
            elsewhere = {key: value for key, value in begun.items() if key != "backend.url"}
            other = options.run_options({**elsewhere, **options_given})
        if other is not None and kind == "environment":
            run, other = other, run
    return SavedSession(place, header, run, note, _narrowing_policy(run, options_given), other)


def _narrowing_policy(run: RunOptions, options_given: options.Options) -> Policy | None:
    """Return the policy that these options narrow the session's policy by."""
    own = run.configuration.settings.policy
    allow = own.allow if "policy.allow" in options_given and own.allow is not None else ("*",)
    switches = ("local_only", "dry_run")
    rules = {
        one: True for one in switches if f"policy.{one}" in options_given and getattr(own, one)
    }
    return restriction(allow, **rules) if rules or allow != ("*",) else None


def describe_status(status: SessionStatus) -> str:
    """Return the state of a session, or how it ended, in words."""
    text: str = status.state
    if status.state == "stopped":
        text += f": {escape_line(status.reason).replace('_', ' ')}"
    elif status.pending:
        text += f": {count_noun(len(status.pending), 'approval')} due"
    if status.in_doubt:
        text += f", {count_noun(len(status.in_doubt), 'call')} in doubt"
    return text
