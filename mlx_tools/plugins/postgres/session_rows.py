"""Sessions in a PostgreSQL database.

Each session is a row; its records, its blobs and the access list of its run are rows of other
tables. An open session holds a lock on a connection of its own, which the database drops with that
connection, however it ends. Each record is written only while the session's row names its writer.
So a session whose connection was lost is written to no more, and another process may go on with it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, Final

from mlx_tools.errors import StorageError, TranscriptError, UsageError
from mlx_tools.plugins.postgres.postgres import (
    PostgresDatabase,
    PostgresTables,
    database,
    is_locked,
    lock_key,
)
from mlx_tools.store import (
    NAME,
    BlobStore,
    ConsumedApprovals,
    SessionFiles,
    SessionInUse,
    SessionPart,
    SessionStore,
    StoredRunPermit,
    StoreKeys,
    Transcript,
    check_part,
    encode,
    is_session_id,
    make_session_id,
    parse,
)
from mlx_tools.transcript import Record

if TYPE_CHECKING:
    from mlx_tools.plugins.postgres.postgres import Connection
    from mlx_tools.store import FileFormat, Tables

_log = logging.getLogger(__name__)
_APPEND: Final = (
    "WITH own AS (UPDATE sessions SET updated = DEFAULT, size = size + %s"
    " WHERE id = %s AND writer = %s RETURNING id)"
    " INSERT INTO records (session, number, line) SELECT id, %s, %b FROM own"
)
_PART_TABLES: Final = ("records", "kept", "access_lists")
_KEEP_KEY: Final = "INSERT INTO secrets VALUES ('approvals', %b) ON CONFLICT DO NOTHING"
_CONSUME: Final = "INSERT INTO used VALUES (%s) ON CONFLICT DO NOTHING"


class PostgresStore(SessionStore):
    """The sessions in the database at ``address``, as libpq takes it.

    The other arguments are those of `SessionStore`; times are those of the database's clock. Raises
    `UsageError` if the address is not valid.
    """

    def __init__(self, address: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._database = database(address)
        self.place, self.dsn = self._database.place, self._database.address_within

    def check(self) -> None:
        with self._database.connection() as db, db.transaction(force_rollback=True):
            db.execute("INSERT INTO kept (session, kind, key, data) VALUES ('', '', '', 'x')")

    @property
    def secret(self) -> bytes:
        if (made := self._stored_secret()) is None:
            self._database.execute(_KEEP_KEY, (secrets.token_bytes(32),))
            made = self._stored_secret()
        return made or b""

    def _stored_secret(self) -> bytes | None:
        query = "SELECT value FROM secrets WHERE name = 'approvals'"
        row = self._database.execute(query).fetchone()
        return bytes(row[0]) if row else None

    def create(self) -> SessionFiles:
        session = make_session_id()
        with self._database.connection() as db:
            db.execute("DELETE FROM kept WHERE at < %s", (_now(db) - self.keep,))
            db.execute("INSERT INTO sessions (id) VALUES (%s)", (session,))
        return self.open(session)

    def open(self, session: str | os.PathLike[str]) -> SessionFiles:
        name = self._get_record_id(session)
        return self._files(name, TranscriptRows(self._database, name))

    def read(self, session: str | os.PathLike[str]) -> SessionFiles:
        name = self._get_record_id(session)
        with self._database.connection() as db:
            if not _exists(db, name):
                raise _unknown_session(name)
            return self._files(name, Transcript(_records(db, name)[0]))

    def _get_record_id(self, session: str | os.PathLike[str]) -> str:
        text = os.fspath(session)
        if not isinstance(session, str) or not is_session_id(text):
            raise UsageError(f"{text!r} is no session of {self.place}", hint="give its id")
        return text

    def _open_blobs(
        self, session_key: str | os.PathLike[str], kind: str, keep: float, max_bytes: int
    ) -> BlobRows:
        return BlobRows(self._database, os.fspath(session_key), kind, keep, max_bytes)

    def _access(self, session_key: str | os.PathLike[str]) -> RunPermitRow:
        return RunPermitRow(self.watched, database=self._database, session=os.fspath(session_key))

    @property
    def _consumed_approvals(self) -> ConsumedApprovalRows:
        return ConsumedApprovalRows(self._database)

    # --- looking ---

    def ids(self) -> list[str]:
        return self._ids("ORDER BY id DESC")

    def by_last_update(self, limit: int | None = None) -> list[str]:
        return self._ids("ORDER BY updated DESC, id DESC LIMIT %s", limit)

    def count(self) -> int:
        row = self._database.execute("SELECT count(*) FROM sessions").fetchone()
        return int(row[0]) if row else 0

    def matching_ids(self, begin: str) -> list[str]:
        return self._ids("WHERE starts_with(id, %s) ORDER BY id DESC", begin)

    def _ids(self, clause: str, *values: object) -> list[str]:
        query = f"SELECT id FROM sessions {clause}"  # noqa: S608 (constants)
        return [session for (session,) in self._database.execute(query, values).fetchall()]

    def size(self, session: str) -> int:
        return int(self._row(session)[0])

    def updated(self, session: str) -> float:
        return float(self._row(session)[1])

    def _row(self, session: str) -> tuple[Any, ...]:
        query = "SELECT size, updated FROM sessions WHERE id = %s"
        return self._database.execute(query, (session,)).fetchone() or (-1, 0.0)

    def tables(self, form: FileFormat) -> Tables:
        return PostgresTables(self._database, form)

    def records(self, session: str) -> list[Record]:
        with self._database.connection() as db:
            found = _records(db, session)[0]
            if not found:
                _require_session(db, session)
            return found

    def size_bytes(self, session: str) -> int:
        query = "SELECT coalesce(sum(octet_length(data)), 0) FROM kept WHERE session = %s"
        (kept,) = self._database.execute(query, (session,)).fetchone() or (0,)
        return max(self.size(session), 0) + int(kept)

    # --- the sessions themselves ---

    def _delete(self, session: str) -> bool:
        with self._database.connection() as db, db.transaction():
            gone = db.execute("DELETE FROM sessions WHERE id = %s", (session,)).rowcount
            for table in _PART_TABLES:
                query = f"DELETE FROM {table} WHERE session = %s"  # noqa: S608 (constants)
                db.execute(query, (session,))
        return bool(gone)

    @contextlib.contextmanager
    def hold(self, session: str) -> Iterator[None]:
        with self._hold_lock(session) as db:
            _require_session(db, session)
            yield

    def in_use(self, session: str) -> bool:
        with self._database.connection() as db:
            return is_locked(db, session) or not _exists(db, session)

    # --- as it is kept: for a copy ---

    @contextlib.contextmanager
    def lock_for_import(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            try:
                # An advisory lock like a session's, so that a broken connection frees it.
                stack.enter_context(self._hold_lock(" copy"))  # no session is called so
            except SessionInUse:
                raise StorageError(
                    f"another copy into {self.place} is under way", hint="wait for it to end"
                ) from None
            yield

    def keys(self) -> StoreKeys:
        used = self._database.execute("SELECT digest FROM used ORDER BY ctid").fetchall()
        return StoreKeys(self._stored_secret(), [digest for (digest,) in used])

    def import_keys(self, keys: StoreKeys) -> None:
        with self._database.connection() as db, db.transaction():
            if keys.secret is not None:
                db.execute(_KEEP_KEY, (keys.secret,))
            db.cursor().executemany(_CONSUME, [(digest,) for digest in keys.consumed_approvals])

    def parts(self, session: str) -> Iterator[SessionPart]:
        with self._database.connection() as db:
            query = "SELECT updated FROM sessions WHERE id = %s"
            if (row := db.execute(query, (session,)).fetchone()) is None:
                raise TranscriptError(f"there is no session {session}")
            yield SessionPart(
                NAME, row[0], b"".join(b"%b\n" % line for line in _lines(db, session))
            )
            query = "SELECT kind, key, at FROM kept WHERE session = %s ORDER BY kind, key"
            for kind, key, at in db.execute(query, (session,)).fetchall():
                query = "SELECT data FROM kept WHERE session = %s AND kind = %s AND key = %s"
                for (data,) in db.execute(query, (session, kind, key), binary=True).fetchall():
                    yield SessionPart(f"{kind}/{key}", at, data)

    def import_session(self, session: str, parts: Iterable[SessionPart]) -> int:
        size = 0
        with self._database.connection() as db, db.transaction():
            db.execute("INSERT INTO sessions (id) VALUES (%s)", (session,))
            for part in parts:
                size += len(part.data)
                _keep_part(db, session, check_part(session, part))
        return size

    @contextlib.contextmanager
    def _hold_lock(self, session: str) -> Iterator[Connection]:
        with self._database.connection() as db:
            _lock(db, session)
            try:
                yield db
            finally:
                try:
                    _unlock(db, session)
                except Exception as error:  # with the connection it is gone anyway
                    _log.info("a lock was not released: %s", type(error).__name__)


def _now(db: Connection) -> float:
    """Return the time by the database's clock, in seconds since 1970."""
    row = db.execute("SELECT extract(epoch FROM clock_timestamp())::float8").fetchone()
    return float(row[0]) if row else 0.0


def _lock(db: Connection, session: str) -> None:
    row = db.execute("SELECT pg_try_advisory_lock(%s)", (lock_key(session),)).fetchone()
    if row != (True,):
        raise SessionInUse(session)


def _unlock(db: Connection, session: str) -> None:
    db.execute("SELECT pg_advisory_unlock(%s)", (lock_key(session),))


def _exists(db: Connection, session: str) -> bool:
    return db.execute("SELECT FROM sessions WHERE id = %s", (session,)).fetchone() is not None


def _require_session(db: Connection, session: str) -> None:
    if not _exists(db, session):
        raise TranscriptError(f"there is no session {session}")


def _unknown_session(session: str) -> UsageError:
    return UsageError(f"there is no session {session!r}", hint="mlx-tools sessions list")


def _records(db: Connection, session: str) -> tuple[list[Record], int]:
    """Return the records of a session and their number. Raise `TranscriptError`."""
    lines = _lines(db, session)
    return parse(b"".join(b"%b\n" % line for line in lines))[0], len(lines)


def _lines(db: Connection, session: str) -> list[bytes]:
    query = "SELECT line FROM records WHERE session = %s ORDER BY number"
    return [line for (line,) in db.execute(query, (session,), binary=True).fetchall()]


def _keep_part(db: Connection, session: str, part: SessionPart) -> None:
    if part.name != NAME:
        kind, _, key = part.name.partition("/")
        query = "INSERT INTO kept (session, kind, key, at, data) VALUES (%s, %s, %s, %s, %b)"
        db.execute(query, (session, kind, key, part.written_at, part.data))
    else:
        lines = [(session, at, line) for at, line in enumerate(part.data.split(b"\n")[:-1])]
        query = "INSERT INTO records (session, number, line) VALUES (%s, %s, %b)"
        db.cursor().executemany(query, lines)
        query = "UPDATE sessions SET updated = %s, size = %s WHERE id = %s"
        db.execute(query, (part.written_at, len(part.data), session))


class TranscriptRows(Transcript):
    """A transcript in a database, which stores each record before anybody acts on it.

    It is held on a connection of its own until it is closed. Once that connection is lost, nothing
    is written any more. Raises `UsageError` if there is no such session, `TranscriptError` if it is
    damaged or in use.
    """

    def __init__(self, database: PostgresDatabase, session: str) -> None:
        super().__init__()
        self._database, self._session = database, session
        self._connection: Connection | None = database.take()
        try:
            with database.translate_errors():
                self._load(self._connection)
        except BaseException:
            self.close()
            raise

    def _load(self, db: Connection) -> None:
        if not _exists(db, self._session):
            raise _unknown_session(self._session)
        _lock(db, self._session)
        # From here on the writer before us, whose lock was lost with its connection, appends
        # nothing.
        query = "UPDATE sessions SET writer = writer + 1 WHERE id = %s RETURNING writer"
        row = db.execute(query, (self._session,)).fetchone()
        if row is None:  # it was removed meanwhile
            raise _unknown_session(self._session)
        self._writer = int(row[0])
        records, self._count = _records(db, self._session)
        self.extend(records)

    def append(self, record: Record) -> None:
        """Write a record, then add it.

        Raises:
            StorageError: the record was not written and does not count. If the connection was lost,
                nobody knows whether it was written.
        """
        if self._connection is None:
            raise TranscriptError(f"the transcript of {self._session} is closed")
        line = encode(record).encode()
        own = (len(line) + 1, self._session, self._writer, self._count, line)
        try:
            with self._database.translate_errors():
                # One statement: the row's writer is checked and the line inserted, or neither.
                written = self._connection.execute(_APPEND, own).rowcount
        except StorageError as error:
            error.message = f"the transcript of {self._session} cannot be written: {error.message}"
            # Whether the line was committed is unknown: nothing more may be appended to this list.
            if self._connection.closed:
                self.close()
            raise
        if not written:
            self.close()
            raise StorageError(f"the session {self._session} was removed, or is another's now")
        self._count += 1
        super().append(record)

    def close(self) -> None:
        super().close()
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                _unlock(connection, self._session)
            except Exception as error:  # it was lost, and the lock with it
                _log.info("a lock was not released: %s", type(error).__name__)
                connection.close()
            self._database.give(connection)


@dataclass(eq=False)
class BlobRows(BlobStore):
    """Blobs of one ``kind`` of a session, which expire after ``keep`` seconds."""

    database: PostgresDatabase
    session: str
    kind: str
    keep: float
    max_bytes: int

    def write(self, key: str, data: bytes, *, durable: bool = False) -> None:
        own = (self.session, self.kind)
        try:
            with self.database.connection() as db, db.transaction():
                db.execute(
                    "INSERT INTO kept (session, kind, key, data) VALUES (%s, %s, %s, %b)"
                    " ON CONFLICT (session, kind, key) DO UPDATE"
                    " SET at = excluded.at, data = excluded.data",
                    (*own, key, data),
                )
                # By the database's clock, which also wrote ``at``: the clients' clocks may differ.
                expired = "DELETE FROM kept WHERE session = %s AND kind = %s AND at < %s"
                db.execute(expired, (*own, _now(db) - self.keep))
                db.execute(
                    "DELETE FROM kept WHERE session = %s AND kind = %s AND key IN (SELECT key FROM"
                    " (SELECT key, sum(octet_length(data)) OVER (ORDER BY key = %s DESC, at DESC,"
                    " key) AS bytes FROM kept WHERE session = %s AND kind = %s) AS own"
                    " WHERE bytes > %s AND key <> %s)",
                    (*own, key, *own, self.max_bytes, key),
                )
        except StorageError as error:
            raise OSError(0, error.message) from error

    def read(self, key: str) -> bytes | None:
        if not re.fullmatch(r"[0-9a-f]{32}", key, re.ASCII):
            return None
        with contextlib.suppress(StorageError), self.database.connection() as db:
            query = "SELECT at, data FROM kept WHERE session = %s AND kind = %s AND key = %s"
            own = (self.session, self.kind, key)
            row = db.execute(query, own, binary=True).fetchone()
            return None if row is None or row[0] < _now(db) - self.keep else bytes(row[1])
        return None

    def names(self) -> list[str]:
        query = "SELECT key FROM kept WHERE session = %s AND kind = %s"
        found = self.database.execute(query, (self.session, self.kind))
        return [key for (key,) in found.fetchall()]

    def forget(self, key: str) -> None:
        query = "DELETE FROM kept WHERE session = %s AND kind = %s AND key = %s"
        with contextlib.suppress(StorageError):
            self.database.execute(query, (self.session, self.kind, key))


@dataclass(eq=False)
class RunPermitRow(StoredRunPermit):
    """An access list in a row."""

    _: KW_ONLY
    database: PostgresDatabase
    session: str

    def _write(self) -> None:
        self.database.execute(
            "INSERT INTO access_lists VALUES (%s, %b)"
            " ON CONFLICT (session) DO UPDATE SET list = excluded.list",
            (self.session, self._list_bytes),
        )

    def _read(self) -> bytes:
        try:
            query = "SELECT list FROM access_lists WHERE session = %s"
            row = self.database.execute(query, (self.session,)).fetchone()
        except StorageError as error:
            raise OSError(0, error.message) from None
        if row is None:
            raise FileNotFoundError
        return bytes(row[0])

    def _remove(self) -> None:
        with contextlib.suppress(StorageError):
            self.database.execute("DELETE FROM access_lists WHERE session = %s", (self.session,))


@dataclass(eq=False)
class ConsumedApprovalRows(ConsumedApprovals):
    """The consumed approvals, a row each."""

    database: PostgresDatabase

    def take(self, digest: str) -> bool:
        return self.database.execute(_CONSUME, (digest,)).rowcount == 1
