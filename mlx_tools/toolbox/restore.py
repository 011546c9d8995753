"""Brings back what the calls of a session replaced, deleted and made.

Before a built-in tool changes a file, it keeps the old content (`mlx_tools.store.artifacts`) and
writes down what the file will hold. So it can be told, whatever happened in between, whether a file
still is what the run left: only such a file is touched here, by the same walk that follows no
link, and by the same replacing that is whole or not at all (`mlx_tools.store.changes`).
"""

from __future__ import annotations

import contextlib
import os
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
    open_present,
    place_of,
    state_of,
    write_file,
)
from mlx_tools.transcript import Header, NestedRecord, UserRecord

Action = Literal["restore", "bring_back", "remove"]
"""A file gets its old content again, comes back, or goes since the run made it."""

Status = Literal["due", "undone", "refused"]

_FAULTS: Final = (PathRefused, WrongFileKind, PathAbsent, UsageError, OSError)
_NOT_LEFT: Final = "it is no longer what the run left"


class UndoStep(Struct, frozen=True):
    """One change, and what is to become of it: ``reason`` says why it was refused."""

    session: str
    change: Change
    status: Status
    reason: str = ""

    @property
    def action(self) -> Action:
        if self.change.before == ABSENT:
            return "remove"
        return "bring_back" if self.change.after == ABSENT else "restore"

    def to_json(self) -> dict[str, Any]:
        return {
            "session": self.session,
            "path": self.change.path,
            "action": self.action,
            "status": self.status,
            "reason": self.reason or None,
        }


class Undo:
    """All that can be undone of one session and of the runs within its calls.

    Use it with ``with``: no other process is at the sessions meanwhile, be it to undo the same.
    ``own`` is a session that this process is at. Raises `TranscriptError` where another one is.
    """

    def __init__(self, store: SessionStore, session: str, session_id: str = "") -> None:
        self._store = store
        self._session = session
        self._session_id = session_id
        self._stores = {one: _undo_of(store, one) for one in _session_tree(store, session)}
        self._locked_sessions = contextlib.ExitStack()

    def __enter__(self) -> Undo:
        with contextlib.ExitStack() as held:
            for session in self._stores.keys() - {self._session_id}:
                held.enter_context(self._store.held(session))
            self._locked_sessions = held.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._locked_sessions.close()

    def steps(self, *, of_question: bool = False) -> list[UndoStep]:
        """The changes to undo, the newest change first; what never came to pass is left out.

        With ``of_question`` only those since the last question that led to one that is due; all
        where none is.
        """
        found = [
            (session, change)
            for session, store in self._stores.items()
            for change in store.changes()
        ]
        states: dict[str, str] = {}
        steps = []
        for session, change in sorted(found, key=lambda one: one[1].key, reverse=True):
            try:
                now = states.get(change.path) or _state(change)
            except _FAULTS as error:
                steps.append(UndoStep(session, change, "refused", _words(error)))
                continue
            if now == change.after:
                steps.append(UndoStep(session, change, "due"))
                states[change.path] = change.before
            elif now == change.before:  # it was not made, or was undone before
                states[change.path] = now
                self._stores[session].forget(change.key)
            else:
                steps.append(UndoStep(session, change, "refused", _NOT_LEFT))
        due = next((step.change.at for step in steps if step.status == "due"), None)
        if not of_question or due is None:
            return steps
        asked = max((at for at in self._question_times() if at <= due), default=0.0)
        return [step for step in steps if step.change.at >= asked]

    def _question_times(self) -> Iterator[float]:
        """When the questions of the session were asked."""
        with contextlib.suppress(TranscriptError, ValueError):
            for record in self._store.records(self._session):
                if isinstance(record, UserRecord) and record.at:
                    yield datetime.fromisoformat(record.at).timestamp()

    def undo(self, step: UndoStep) -> UndoStep:
        """Undoes one step that is due, and returns what became of it. Its copy is gone then."""
        store, change = self._stores[step.session], step.change
        try:
            old = store.old(change.key)
            if change.before != ABSENT and state_of(old) != change.before:
                raise WrongFileKind("what was kept of it is gone or damaged")
            with _place(change) as place:
                new = change.after == ABSENT
                content = None if change.before == ABSENT else old
                write_file(
                    place, content, new=new, expected=change.after, mode=change.mode if new else 0
                )
        except _FAULTS as error:
            return replace(step, status="refused", reason=_words(error))
        store.forget(change.key)
        return replace(step, status="undone")


def outermost(store: SessionStore, session: str) -> str:
    """The session whose call the run of this one stands within, however deep; else this one."""
    known = set(store.ids())
    while session in known:
        known.remove(session)
        try:
            header = next(iter(store.records(session)), None)
        except TranscriptError:
            break
        parent = header.parent.partition("/")[0] if isinstance(header, Header) else ""
        session = parent if parent in known else session
    return session


def undoable(store: SessionStore) -> str | None:
    """The newest session that has something kept, None where none has."""
    return next((one for one in store.ids() if not _undo_of(store, one).empty), None)


def _undo_of(store: SessionStore, session: str) -> UndoStore:
    """The copies of a session, however old: what has expired was removed when a session began."""
    return store.undo(session, keep=inf)


def _session_tree(store: SessionStore, session: str) -> list[str]:
    """The session, and those of the runs within its calls."""
    known, found, waiting = set(store.ids()), [], [session]
    while waiting:
        one = waiting.pop()
        if one not in known:
            continue
        known.remove(one)
        found.append(one)
        with contextlib.suppress(TranscriptError):  # what it kept can be undone all the same
            records = store.records(one)
            waiting += [record.session for record in records if isinstance(record, NestedRecord)]
    return found


@contextlib.contextmanager
def _place(change: Change) -> Iterator[Place]:
    """The place of the file. Raises what the walk raises, and Refused where the folder that it was
    found under is another one by now."""
    with contextlib.closing(Root(RootName(change.root, writable=True))) as root:
        if str(root.path) != change.root or root.identity[1] != change.inode:
            raise PathRefused(f"{change.root} is another folder by now")
        parts = root.parts("/".join(change.names), writing=True)
        with place_of(root, parts or (), {}) as place:
            yield place


def _state(change: Change) -> str:
    """The state of the file now."""
    with _place(change) as place:
        fd = open_present(place)
        try:
            return state_of(fd)
        finally:
            if fd is not None:
                os.close(fd)


def _words(error: BaseException) -> str:
    return getattr(error, "strerror", None) or getattr(error, "message", None) or str(error)
