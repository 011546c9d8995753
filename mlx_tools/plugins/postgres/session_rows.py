"""Sessions in a PostgreSQL database.

A session is a row. Its records, its blobs and the access list of its run are rows of other tables.
An open session holds an advisory lock on a connection of its own, and the database releases the
lock when that connection ends. After a lost connection another process may open the session. The
first process may not know that yet. So the session's row has the number of its writer, and a record
is inserted only while this number is still the same.
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
    get_database,
    is_locked,
    make_lock_key,
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
"""Appends a record if the session's row still has the number of this writer."""
_PART_TABLES: Final = ("records", "kept", "access_lists")
"""The other tables with rows of a session. ``kept`` has its blobs."""
_INSERT_KEY: Final = "INSERT INTO secrets VALUES ('approvals', %b) ON CONFLICT DO NOTHING"
_CONSUME: Final = "INSERT INTO used VALUES (%s) ON CONFLICT DO NOTHING"
"""Marks an approval as consumed. It inserts no row if that was done before."""


class PostgresStore(SessionStore):
    """A store of sessions in a PostgreSQL database.

    Times are from the database's clock.

    Args:
        address: the database's address, in the form of libpq.
        kwargs: the arguments of `SessionStore`.

    Raises:
        UsageError: the address is not valid.
    """

    def __init__(self, address: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._database = get_database(address)
        self.place, self.dsn = self._database.place, self._database.queue_address

    def check(self) -> None:
        with self._database.connection() as db, db.transaction(force_rollback=True):
            db.execute("INSERT INTO kept (session, kind, key, data) VALUES ('', '', '', 'x')")

    @property
    def secret(self) -> bytes:
        if (secret := self._read_secret()) is None:
            self._database.execute(_INSERT_KEY, (secrets.token_bytes(32),))
            # Read again, because another process may have inserted one first.
            secret = self._read_secret()
        return secret or b""

    def _read_secret(self) -> bytes | None:
        query = "SELECT value FROM secrets WHERE name = 'approvals'"
        row = self._database.execute(query).fetchone()
        return bytes(row[0]) if row else None

    def create(self) -> SessionFiles:
        session = make_session_id()
        with self._database.connection() as db:
            db.execute("DELETE FROM kept WHERE at < %s", (_read_clock(db) - self.keep,))
            db.execute("INSERT INTO sessions (id) VALUES (%s)", (session,))
        return self.open(session)

    def open(self, session: str | os.PathLike[str]) -> SessionFiles:
        name = self._check_id(session)
        return self._files(name, TranscriptRows(self._database, name))

    def read(self, session: str | os.PathLike[str]) -> SessionFiles:
        name = self._check_id(session)
        with self._database.connection() as db:
            if not _exists(db, name):
                raise _make_unknown_error(name)
            return self._files(name, Transcript(_read_records(db, name)[0]))

    def _check_id(self, session: str | os.PathLike[str]) -> str:
        """Return the id of a session. Raises `UsageError` for a path and for another text."""
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

    # --- reading ---

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
        """Return the ids of the sessions that a clause selects, in its order."""
        query = f"SELECT id FROM sessions {clause}"  # noqa: S608 (constants)
        return [session for (session,) in self._database.execute(query, values).fetchall()]

    def size(self, session: str) -> int:
        return int(self._row(session)[0])

    def updated(self, session: str) -> float:
        return float(self._row(session)[1])

    def _row(self, session: str) -> tuple[Any, ...]:
        """Return the size of a session and its last update; -1 and 0 if it does not exist."""
        query = "SELECT size, updated FROM sessions WHERE id = %s"
        return self._database.execute(query, (session,)).fetchone() or (-1, 0.0)

    def tables(self, form: FileFormat) -> Tables:
        return PostgresTables(self._database, form)

    def records(self, session: str) -> list[Record]:
        with self._database.connection() as db:
            records = _read_records(db, session)[0]
            if not records:
                _require_session(db, session)
            return records

    def size_bytes(self, session: str) -> int:
        query = "SELECT coalesce(sum(octet_length(data)), 0) FROM kept WHERE session = %s"
        (blob_bytes,) = self._database.execute(query, (session,)).fetchone() or (0,)
        return max(self.size(session), 0) + int(blob_bytes)

    # --- deleting and locking ---

    def _delete(self, session: str) -> bool:
        with self._database.connection() as db, db.transaction():
            count = db.execute("DELETE FROM sessions WHERE id = %s", (session,)).rowcount
            for table in _PART_TABLES:
                query = f"DELETE FROM {table} WHERE session = %s"  # noqa: S608 (constants)
                db.execute(query, (session,))
        return bool(count)

    @contextlib.contextmanager
    def hold(self, session: str) -> Iterator[None]:
        with self._hold_lock(session) as db:
            _require_session(db, session)
            yield

    def in_use(self, session: str) -> bool:
        with self._database.connection() as db:
            return is_locked(db, session) or not _exists(db, session)

    # --- copying, in the form in which it is stored ---

    @contextlib.contextmanager
    def lock_for_import(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            try:
                # An advisory lock as of a session, so that the end of the connection releases it.
                # No session has this id.
                stack.enter_context(self._hold_lock(" copy"))
            except SessionInUse:
                raise StorageError(
                    f"another copy into {self.place} is running", hint="wait for it to end"
                ) from None
            yield

    def keys(self) -> StoreKeys:
        rows = self._database.execute("SELECT digest FROM used ORDER BY ctid").fetchall()
        return StoreKeys(self._read_secret(), [digest for (digest,) in rows])

    def import_keys(self, keys: StoreKeys) -> None:
        with self._database.connection() as db, db.transaction():
            if keys.secret is not None:
                db.execute(_INSERT_KEY, (keys.secret,))
            db.cursor().executemany(_CONSUME, [(digest,) for digest in keys.consumed_approvals])

    def parts(self, session: str) -> Iterator[SessionPart]:
        with self._database.connection() as db:
            query = "SELECT updated FROM sessions WHERE id = %s"
            if (row := db.execute(query, (session,)).fetchone()) is None:
                raise TranscriptError(f"there is no session {session}")
            yield SessionPart(
                NAME, row[0], b"".join(b"%b\n" % line for line in _read_lines(db, session))
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
                _insert_part(db, session, check_part(session, part))
        return size

    @contextlib.contextmanager
    def _hold_lock(self, session: str) -> Iterator[Connection]:
        """Hold the lock of a session in the block.

        Raises:
            SessionInUse: another process holds it.
        """
        with self._database.connection() as db:
            _lock(db, session)
            try:
                yield db
            finally:
                try:
                    _unlock(db, session)
                except Exception as error:  # the end of the connection releases it too
                    _log.info("a lock was not released: %s", type(error).__name__)


def _read_clock(db: Connection) -> float:
    """Return the time of the database's clock, in seconds since 1970."""
    row = db.execute("SELECT extract(epoch FROM clock_timestamp())::float8").fetchone()
    return float(row[0]) if row else 0.0


def _lock(db: Connection, session: str) -> None:
    row = db.execute("SELECT pg_try_advisory_lock(%s)", (make_lock_key(session),)).fetchone()
    if row != (True,):
        raise SessionInUse(session)


def _unlock(db: Connection, session: str) -> None:
    db.execute("SELECT pg_advisory_unlock(%s)", (make_lock_key(session),))


def _exists(db: Connection, session: str) -> bool:
    return db.execute("SELECT FROM sessions WHERE id = %s", (session,)).fetchone() is not None


def _require_session(db: Connection, session: str) -> None:
    if not _exists(db, session):
        raise TranscriptError(f"there is no session {session}")


def _make_unknown_error(session: str) -> UsageError:
    return UsageError(f"there is no session {session!r}", hint="mlx-tools sessions list")


def _read_records(db: Connection, session: str) -> tuple[list[Record], int]:
    """Return the records of a session, and the number of their lines.

    Raises:
        TranscriptError: the records are damaged.
    """
    lines = _read_lines(db, session)
    return parse(b"".join(b"%b\n" % line for line in lines))[0], len(lines)


def _read_lines(db: Connection, session: str) -> list[bytes]:
    query = "SELECT line FROM records WHERE session = %s ORDER BY number"
    return [line for (line,) in db.execute(query, (session,), binary=True).fetchall()]


def _insert_part(db: Connection, session: str, part: SessionPart) -> None:
    if part.name != NAME:
        kind, _, key = part.name.partition("/")
        query = "INSERT INTO kept (session, kind, key, at, data) VALUES (%s, %s, %s, %s, %b)"
        db.execute(query, (session, kind, key, part.written_at, part.data))
    else:
        lines = [(session, index, line) for index, line in enumerate(part.data.split(b"\n")[:-1])]
        query = "INSERT INTO records (session, number, line) VALUES (%s, %s, %b)"
        db.cursor().executemany(query, lines)
        query = "UPDATE sessions SET updated = %s, size = %s WHERE id = %s"
        db.execute(query, (part.written_at, len(part.data), session))


class TranscriptRows(Transcript):
    """A transcript in a database. A record is stored before it takes effect.

    The session is locked on a connection of its own until the transcript is closed. After that
    connection is lost, no record can be appended.

    Raises:
        UsageError: there is no such session.
        TranscriptError: it is damaged, or another process has it open.
    """

    def __init__(self, database: PostgresDatabase, session: str) -> None:
        super().__init__()
        self._database, self._session = database, session
        self._connection: Connection | None = database.acquire()
        try:
            with database.translate_errors():
                self._load(self._connection)
        except BaseException:
            self.close()
            raise

    def _load(self, db: Connection) -> None:
        if not _exists(db, self._session):
            raise _make_unknown_error(self._session)
        _lock(db, self._session)
        # From here on a process that had the lock, and lost it with its connection, can append
        # nothing.
        query = "UPDATE sessions SET writer = writer + 1 WHERE id = %s RETURNING writer"
        row = db.execute(query, (self._session,)).fetchone()
        if row is None:  # another process has removed it
            raise _make_unknown_error(self._session)
        self._writer = int(row[0])
        records, self._count = _read_records(db, self._session)
        self.extend(records)

    def append(self, record: Record) -> None:
        """Write a record, then add it to the list.

        Raises:
            StorageError: the record was not written. If the connection was lost, it is unknown
                whether it was written.
        """
        if self._connection is None:
            raise TranscriptError(f"the transcript of {self._session} is closed")
        line = encode(record).encode()
        values = (len(line) + 1, self._session, self._writer, self._count, line)
        try:
            with self._database.translate_errors():
                # In one statement, so that no other process can become the writer in between.
                inserted_count = self._connection.execute(_APPEND, values).rowcount
        except StorageError as error:
            error.message = f"the transcript of {self._session} cannot be written: {error.message}"
            # It is unknown whether the line was committed, so the next record has no safe number.
            if self._connection.closed:
                self.close()
            raise
        if not inserted_count:
            self.close()
            raise StorageError(
                f"the session {self._session} was removed, or another process has opened it"
            )
        self._count += 1
        super().append(record)

    def close(self) -> None:
        super().close()
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                _unlock(connection, self._session)
            except Exception as error:  # a lost connection has released the lock
                _log.info("a lock was not released: %s", type(error).__name__)
                connection.close()
            self._database.release(connection)


@dataclass(eq=False)
class BlobRows(BlobStore):
    """The blobs of one kind of a session."""

    database: PostgresDatabase
    session: str
    kind: str
    keep: float
    """Seconds after which a blob expires."""
    max_bytes: int
    """The bytes of all blobs together. The oldest are deleted first."""

    def write(self, key: str, data: bytes, *, durable: bool = False) -> None:
        own_blobs = (self.session, self.kind)
        try:
            with self.database.connection() as db, db.transaction():
                db.execute(
                    "INSERT INTO kept (session, kind, key, data) VALUES (%s, %s, %s, %b)"
                    " ON CONFLICT (session, kind, key) DO UPDATE"
                    " SET at = excluded.at, data = excluded.data",
                    (*own_blobs, key, data),
                )
                # The database's clock also wrote ``at``; clocks of other machines may differ.
                expire = "DELETE FROM kept WHERE session = %s AND kind = %s AND at < %s"
                db.execute(expire, (*own_blobs, _read_clock(db) - self.keep))
                db.execute(
                    "DELETE FROM kept WHERE session = %s AND kind = %s AND key IN (SELECT key FROM"
                    " (SELECT key, sum(octet_length(data)) OVER (ORDER BY key = %s DESC, at DESC,"
                    " key) AS bytes FROM kept WHERE session = %s AND kind = %s) AS own"
                    " WHERE bytes > %s AND key <> %s)",
                    (*own_blobs, key, *own_blobs, self.max_bytes, key),
                )
        except StorageError as error:
            raise OSError(0, error.message) from error

    def read(self, key: str) -> bytes | None:
        if not re.fullmatch(r"[0-9a-f]{32}", key, re.ASCII):
            return None
        with contextlib.suppress(StorageError), self.database.connection() as db:
            query = "SELECT at, data FROM kept WHERE session = %s AND kind = %s AND key = %s"
            row = db.execute(query, (self.session, self.kind, key), binary=True).fetchone()
            is_expired = row is None or row[0] < _read_clock(db) - self.keep
            return None if row is None or is_expired else bytes(row[1])
        return None

    def names(self) -> list[str]:
        query = "SELECT key FROM kept WHERE session = %s AND kind = %s"
        cursor = self.database.execute(query, (self.session, self.kind))
        return [key for (key,) in cursor.fetchall()]

    def forget(self, key: str) -> None:
        query = "DELETE FROM kept WHERE session = %s AND kind = %s AND key = %s"
        with contextlib.suppress(StorageError):
            self.database.execute(query, (self.session, self.kind, key))


@dataclass(eq=False)
class RunPermitRow(StoredRunPermit):
    """The access list of a session's run, in a row."""

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
    """The consumed approvals, each in a row."""

    database: PostgresDatabase

    def take(self, digest: str) -> bool:
        return self.database.execute(_CONSUME, (digest,)).rowcount == 1
