"""Undoes the changes of a session: files that were replaced, deleted or created.

Before a built-in tool changes a file, it stores the old content (`mlx_tools.store.artifacts`) and
the new content's digest. The digest shows whether the file has changed since. Only an unchanged
file is restored. Links are not followed, and a file is replaced completely or not at all
(`mlx_tools.store.changes`).
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from datetime import datetime
from math import inf
from typing import Any, Final, Literal

from msgspec import Struct

from mlx_tools.errors import TranscriptError, UsageError
from mlx_tools.messages import replace
from mlx_tools.store import (
    ABSENT,
    Change,
    PathAbsent,
    PathRefused,
    Place,
    Root,
    RootName,
    SessionStore,
    UndoStore,
    WrongFileKind,
    digest_content,
    open_place,
    open_present,
    write_file,
)
from mlx_tools.transcript import Header, NestedRecord, UserRecord

Action = Literal["restore", "bring_back", "remove"]
"""A file gets its old content, is created again, or is removed because the run created it."""

Status = Literal["due", "undone", "refused"]

_FAULTS: Final = (PathRefused, WrongFileKind, PathAbsent, UsageError, OSError)
_NOT_LEFT: Final = "it has changed since the run"


class UndoStep(Struct, frozen=True):
    """One change, and the status of its undo."""

    session: str
    change: Change
    status: Status
    reason: str = ""
    """The reason why it was refused."""

    @property
    def action(self) -> Action:
        if self.change.old_state == ABSENT:
            return "remove"
        return "bring_back" if self.change.new_state == ABSENT else "restore"

    def to_json(self) -> dict[str, Any]:
        return {
            "session": self.session,
            "path": self.change.path,
            "action": self.action,
            "status": self.status,
            "reason": self.reason or None,
        }


class Undo:
    """All changes of one session and of its nested runs that can be undone.

    Use it with ``with``: it locks the sessions, so that no other process can use them meanwhile or
    undo the same changes.

    Args:
        store: the store of the sessions.
        session: the session.
        session_id: a session that this process has locked already.

    Raises:
        TranscriptError: another process uses one of the sessions.
    """

    def __init__(self, store: SessionStore, session: str, session_id: str = "") -> None:
        self._store = store
        self._session = session
        self._session_id = session_id
        self._stores = {name: _open_undo(store, name) for name in _list_sessions(store, session)}
        self._locked_sessions = contextlib.ExitStack()

    def __enter__(self) -> Undo:
        with contextlib.ExitStack() as stack:
            for session in self._stores.keys() - {self._session_id}:
                stack.enter_context(self._store.hold(session))
            self._locked_sessions = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._locked_sessions.close()

    def list_steps(self, *, of_question: bool = False) -> list[UndoStep]:
        """Return the changes to undo, newest first, without those that were never made.

        With ``of_question``, return only the changes since the last question with a change that can
        be undone; all changes if there is none.
        """
        changes = [
            (session, change)
            for session, store in self._stores.items()
            for change in store.changes()
        ]
        states: dict[str, str] = {}
        steps = []
        for session, change in sorted(changes, key=lambda pair: pair[1].key, reverse=True):
            try:
                now = states.get(change.path) or _read_state(change)
            except _FAULTS as error:
                steps.append(UndoStep(session, change, "refused", _describe_error(error)))
                continue
            if now == change.new_state:
                steps.append(UndoStep(session, change, "due"))
                states[change.path] = change.old_state
            elif now == change.old_state:  # it was never made, or was undone before
                states[change.path] = now
                self._stores[session].forget(change.key)
            else:
                steps.append(UndoStep(session, change, "refused", _NOT_LEFT))
        due = next((step.change.saved_at for step in steps if step.status == "due"), None)
        if not of_question or due is None:
            return steps
        asked_at = max(
            (asked_time for asked_time in self._iter_question_times() if asked_time <= due),
            default=0.0,
        )
        return [step for step in steps if step.change.saved_at >= asked_at]

    def _iter_question_times(self) -> Iterator[float]:
        """Yield the times at which the session's questions were asked."""
        with contextlib.suppress(TranscriptError, ValueError):
            for record in self._store.records(self._session):
                if isinstance(record, UserRecord) and record.recorded_at:
                    yield datetime.fromisoformat(record.recorded_at).timestamp()

    def undo(self, step: UndoStep) -> UndoStep:
        """Undo one step that is due, delete its stored copy, and return its new status."""
        store, change = self._stores[step.session], step.change
        try:
            old = store.read_old_content(change.key)
            if change.old_state != ABSENT and digest_content(old) != change.old_state:
                raise WrongFileKind("its stored old content is gone or damaged")
            with _open_place(change) as place:
                is_new = change.new_state == ABSENT
                content = None if change.old_state == ABSENT else old
                write_file(
                    place,
                    content,
                    new=is_new,
                    expected=change.new_state,
                    mode=change.mode if is_new else 0,
                )
        except _FAULTS as error:
            return replace(step, status="refused", reason=_describe_error(error))
        if content is None:
            _remove_new_folders(change)
        store.forget(change.key)
        return replace(step, status="undone")


def find_outermost(store: SessionStore, session: str) -> str:
    """Return the outermost session whose call contains the run of this one."""
    seen: set[str] = set()  # a changed transcript may name its own session as its parent
    while session not in seen:
        seen.add(session)
        try:
            header = next(iter(store.records(session)), None)
        except TranscriptError:
            break
        parent = header.parent.partition("/")[0] if isinstance(header, Header) else ""
        session = parent if parent not in seen and store.has(parent) else session
    return session


def find_undoable(store: SessionStore) -> str | None:
    """Return the session last written to that has changes to undo, or None.

    Only sessions are searched that may still have copies: older copies expire.
    """
    oldest = time.time() - store.keep
    for session in store.by_last_update():
        if store.updated(session) < oldest:
            break
        if not _open_undo(store, session).is_empty:
            return session
    return None


def _open_undo(store: SessionStore, session: str) -> UndoStore:
    """Return the stored copies of a session, of any age.

    Expired copies are removed when a session begins, so they need no check here.
    """
    return store.undo(session, keep=inf)


def _list_sessions(store: SessionStore, session: str) -> list[str]:
    """Return the session and those of its nested runs."""
    sessions: dict[str, None] = {}
    pending = [session]
    while pending:
        current = pending.pop()
        if current in sessions or not store.has(current):
            continue
        sessions[current] = None
        with contextlib.suppress(TranscriptError):  # its own changes can still be undone
            records = store.records(current)
            pending += [record.session for record in records if isinstance(record, NestedRecord)]
    return [*sessions]


def _remove_new_folders(change: Change) -> None:
    """Remove the empty folders that were made for a file, the innermost first."""
    names = change.names[:-1]
    with contextlib.suppress(*_FAULTS):
        for depth in range(len(names), max(len(names) - change.new_folders, 0), -1):
            with _open_place(replace(change, names=names[:depth])) as place:
                os.rmdir(place.name, dir_fd=place.folder)


@contextlib.contextmanager
def _open_place(change: Change) -> Iterator[Place]:
    """Yield the place of the file.

    Raises:
        PathRefused: its root is a different folder now. Exceptions of `open_place` pass through.
    """
    with contextlib.closing(Root(RootName(change.root, writable=True))) as root:
        if str(root.path) != change.root or root.identity[1] != change.inode:
            raise PathRefused(f"{change.root} is a different folder now")
        parts = root.split("/".join(change.names), writing=True)
        with open_place(root, parts or (), {}) as place:
            yield place


def _read_state(change: Change) -> str:
    """Return the state of the file now."""
    with _open_place(change) as place:
        fd = open_present(place)
        try:
            return digest_content(fd)
        finally:
            if fd is not None:
                os.close(fd)


def _describe_error(error: BaseException) -> str:
    return getattr(error, "strerror", None) or getattr(error, "message", None) or str(error)
