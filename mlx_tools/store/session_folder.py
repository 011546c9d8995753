"""A store of sessions in a folder.

Each session is a folder with its transcript, its artifacts and its access list.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mlx_tools.errors import (
    StorageError,
    TranscriptError,
    UsageError,
    require_path,
    translate_os_error,
    wrong_argument,
)
from mlx_tools.macos import sync_fully
from mlx_tools.paths import (
    check_regular,
    drafted,
    expand_user,
    other_folder_hint,
    private_dir,
    read_regular,
)
from mlx_tools.store.access_list import ACCESS_FILE, ConsumedApprovalsFile, RunPermitFile
from mlx_tools.store.artifacts import (
    ARTIFACTS,
    KEEP_SECONDS,
    MAX_BYTES,
    UNDO_FOLDER,
    BlobFiles,
    Sweeper,
)
from mlx_tools.store.session_store import (
    SESSION,
    SessionFiles,
    SessionPart,
    SessionStore,
    SessionSummary,
    StoreKeys,
    check_part,
    is_session_id,
    make_session_id,
    summarize,
)
from mlx_tools.store.transcript import (
    MAX_TRANSCRIPT,
    NAME,
    NO_FILE,
    FileState,
    SessionInUse,
    Transcript,
    TranscriptFile,
    get_file_state,
    load,
    parse,
)
from mlx_tools.transcript import Record

if TYPE_CHECKING:
    from mlx_tools.store.session_index import SessionIndex
    from mlx_tools.store.tables import FileFormat, Tables

SECRET_BYTES: Final = 32
"""Bytes of the key of approvals: as many as a SHA-256 digest has."""

_REMOVED: Final = ".removed-"
"""The beginning of the folder's name while a session is being removed."""
_IMPORTED: Final = ".taken-in-"
"""The beginning of the folder's name while a session is being imported."""

_QUICKLY_SUMMARIZED: Final = 1 << 20
"""The size of the largest transcript that is summarized on each close, which takes 10 ms.

A larger transcript is summarized when its summary is needed."""


class TranscriptStore(SessionStore):
    """A folder of sessions, which only its owner can read.

    ``folder`` is its path. The other arguments are those of `SessionStore`.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        keep: float = KEEP_SECONDS,
        max_bytes: int = MAX_BYTES,
        keep_all: bool = False,
        watched: Mapping[str, str] | None = None,
    ) -> None:
        if not require_path("the folder of a store", folder, "give its path"):
            raise wrong_argument("the folder of a store", folder, "give its path")
        super().__init__(keep=keep, max_bytes=max_bytes, keep_all=keep_all, watched=watched)
        self.folder = Path(folder)
        self.place = str(self.folder)
        self._sweeper = Sweeper(self.folder, keep, finish=lambda: self.index.check())

    @cached_property
    def index(self) -> SessionIndex:
        """The index of the sessions, so that not every session has to be read."""
        from mlx_tools.store.session_index import SessionIndex  # late: SQLite takes 5 ms to import

        return SessionIndex(self.folder, self.in_use)

    def check(self) -> None:
        with (
            translate_os_error(StorageError, f"{self.folder} cannot be written to", "free it"),
            tempfile.TemporaryFile(dir=private_dir(self.folder)) as file,
        ):
            file.write(b"x" * 4096)
            file.flush()
            sync_fully(file.fileno())

    def create(self) -> SessionFiles:
        self._sweeper.sweep_if_due()
        folder = self.folder / make_session_id()
        hint = "check the folder's permissions and free space" + other_folder_hint(self.folder)
        with translate_os_error(StorageError, f"no session can be kept in {self.folder}", hint):
            self._make()
            self.index.make(folder.name)
        return self._files(folder, TranscriptFile(folder / NAME, on_close=self._update_index))

    def _make(self) -> None:
        for folder in (self.folder.parent, self.folder):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def open(self, session: str | os.PathLike[str]) -> SessionFiles:
        path = self._existing_path(session)
        # A transcript in another folder is not a session of this store: the index has no row of it.
        if path.parent.parent != self.folder:
            return self._files(path.parent, TranscriptFile(path, create=False))
        transcript = TranscriptFile(path, create=False, on_close=self._update_index)
        self.index.open(path.parent.name)  # after the lock, and before anything is written
        return self._files(path.parent, transcript)

    def _update_index(self, transcript: TranscriptFile, status: os.stat_result) -> None:
        """Add a closed session to the index, with its summary if that is computed quickly."""
        assert transcript.path is not None
        summary = None
        # The file is still locked: the next process would have to wait for a long summary.
        if status.st_size <= _QUICKLY_SUMMARIZED:
            # These errors come from records with values that mlx-tools never writes.
            with contextlib.suppress(AttributeError, TypeError, ValueError):
                summary = summarize(transcript)
        self.index.close(transcript.path.parent.name, get_file_state(status), summary)

    def read(self, session: str | os.PathLike[str]) -> SessionFiles:
        path = self._existing_path(session)
        transcript = Transcript(load(path))
        transcript.path = path
        return self._files(path.parent, transcript)

    def _existing_path(self, session: str | os.PathLike[str]) -> Path:
        text = require_path("session", session, SESSION)
        with translate_os_error(TranscriptError, f"{text!r} cannot be read"):
            path = self.find_path(session)
            is_file = path.is_file()
        if not is_file:
            raise UsageError(f"there is no session {text!r}", hint="mlx-tools sessions list")
        return path

    def _open_blobs(
        self, session_key: str | os.PathLike[str], kind: str, keep: float, max_bytes: int
    ) -> BlobFiles:
        return BlobFiles(self._find_folder(session_key) / kind, keep=keep, max_bytes=max_bytes)

    def _access(self, session_key: str | os.PathLike[str]) -> RunPermitFile:
        return RunPermitFile(self.watched, path=self._find_folder(session_key) / ACCESS_FILE)

    def _find_folder(self, session_key: str | os.PathLike[str]) -> Path:
        path = require_path("session_key", session_key, SESSION)
        return self.folder / path if isinstance(session_key, str) else Path(path)

    @property
    def _consumed_approvals(self) -> ConsumedApprovalsFile:
        return ConsumedApprovalsFile(self.folder / "used")

    def _sweep_if_due(self) -> None:
        self._sweeper.sweep_if_due()

    def find_path(self, session: str | os.PathLike[str]) -> Path:
        """Return the path of a transcript, which may be absent.

        An id always leads to a folder of this store; a path is used unchanged.

        Raises:
            UsageError: the text is neither an id nor a path.
        """
        text = require_path("session", session, SESSION)
        if isinstance(session, str) and is_session_id(text):
            return self.folder / text / NAME
        if isinstance(session, os.PathLike) or os.sep in text:
            path = expand_user(text)
            return path / NAME if path.is_dir() else path
        raise UsageError(f"{text!r} is no session", hint=SESSION)

    @property
    def secret(self) -> bytes:
        return self._read_or_make_secret(secrets.token_bytes(SECRET_BYTES))

    def _read_or_make_secret(self, secret: bytes) -> bytes:
        """Return the key of approvals. If there is none, store ``secret`` as the key.

        Raises:
            StorageError: the key can be neither read nor made, or is damaged.
        """
        path = self.folder / "secret"
        with translate_os_error(
            StorageError, f"the key of approvals, {path}, cannot be read or made"
        ):
            self._make()
            if not path.exists():
                # A hard link, not a rename: if two processes make a key, the second must not
                # replace the first one.
                with contextlib.suppress(FileExistsError), drafted(path, secret) as draft:
                    path.hardlink_to(draft)
            return _read_secret(path)

    # --- looking ---

    def ids(self) -> list[str]:
        ids: list[str] = []
        with (
            translate_os_error(TranscriptError, f"the sessions in {self.folder} cannot be listed"),
            contextlib.suppress(FileNotFoundError),
            os.scandir(self.folder) as entries,
        ):
            ids += (
                entry.name
                for entry in entries
                if is_session_id(entry.name) and entry.is_dir(follow_symlinks=False)
            )
        return sorted(ids, reverse=True)

    def by_last_update(self, limit: int | None = None) -> list[str]:
        ids = self.index.by_last_update(limit) if self.folder.is_dir() else []
        if ids is None:
            ids = sorted(self.ids(), key=lambda i: (self.updated(i), i), reverse=True)[:limit]
        return ids

    def count(self) -> int:
        count = self.index.count() if self.folder.is_dir() else 0
        return len(self.ids()) if count is None else count

    def matching_ids(self, begin: str) -> list[str]:
        ids = self.index.matching(begin) if self.folder.is_dir() else []
        if ids is None:
            ids = [session for session in self.ids() if session.startswith(begin)]
        return ids

    def path(self, session: str) -> Path:
        if not is_session_id(session):
            raise wrong_argument("session", session, "give the id of a session")
        return self.folder / session / NAME

    def size(self, session: str) -> int:
        with contextlib.suppress(OSError):
            return self.path(session).lstat().st_size
        return -1

    def updated(self, session: str) -> float:
        with contextlib.suppress(OSError):
            return self.path(session).lstat().st_mtime
        return 0

    def tables(self, form: FileFormat) -> Tables:
        from mlx_tools.store.tables import SqliteTables

        return SqliteTables(self.folder.parent / form.file, form)

    def records(self, session: str) -> list[Record]:
        with (
            translate_os_error(TranscriptError, "the transcript cannot be read"),
            self._file(session) as file,
        ):
            return parse(_read_transcript(file))[0]

    def summary(self, session: str) -> SessionSummary:
        # The state is read before the records: if the file grows in between, the summary counts as
        # out of date.
        state = self._find_state(session)
        summary = self.index.summary(session, state)
        if summary is None:
            summary = summarize(self.records(session))
            self.index.keep([(session, state, summary)])
        return summary

    def summaries(self) -> Iterator[tuple[str, SessionSummary | TranscriptError]]:
        oldest = "\x7f"
        if self.folder.is_dir() and self.index.compare():
            while rows := self.index.summaries(oldest):
                new = []
                for session, summary in rows:
                    if summary is not None:
                        yield session, summary
                        continue
                    state, read = self._read_summary(session)
                    if isinstance(read, SessionSummary):
                        new.append((session, state, read))
                    yield session, read
                self.index.keep(new)
                oldest = rows[-1][0]
            if rows is not None:
                return
        for session in self.ids():
            if session < oldest:
                yield session, self._read_summary(session)[1]

    def _read_summary(self, session: str) -> tuple[FileState, SessionSummary | TranscriptError]:
        """Return a session's summary, and the state of its transcript before reading."""
        try:
            return self._find_state(session), summarize(self.records(session))
        except StorageError:
            raise
        except TranscriptError as error:
            return NO_FILE, error

    def _find_state(self, session: str) -> FileState:
        with translate_os_error(TranscriptError, f"the transcript {session} cannot be opened"):
            return get_file_state(self.path(session).lstat())

    def size_bytes(self, session: str) -> int:
        total = 0
        for base, _, names in os.walk(self.path(session).parent):
            for name in names:
                with contextlib.suppress(OSError):
                    total += os.lstat(f"{base}{os.sep}{name}").st_size
        return total

    def _delete(self, session: str) -> bool:
        renamed = self.folder / f"{_REMOVED}{session}"
        with translate_os_error(TranscriptError, f"the session {session} cannot be removed"):
            try:
                # First another name: a half removed folder must not count as a session.
                self.path(session).parent.rename(renamed)
            except FileNotFoundError:  # another process has removed it
                return False
        shutil.rmtree(renamed, ignore_errors=True)
        if renamed.exists():
            raise TranscriptError(f"not all of the session {session} could be removed: {renamed}")
        return True

    @contextlib.contextmanager
    def hold(self, session: str) -> Iterator[None]:
        with self._file(session) as file:
            if not _try_lock(file, fcntl.LOCK_EX):
                raise SessionInUse(session)
            yield

    def in_use(self, session: str) -> bool:
        try:
            with self._file(session) as file:
                # A shared lock: several processes may check at once.
                return not _try_lock(file, fcntl.LOCK_SH)
        except TranscriptError:
            return True

    def sweep(self) -> None:
        with contextlib.suppress(OSError):
            for renamed in self.folder.glob(f"{_REMOVED}*"):
                shutil.rmtree(renamed, ignore_errors=True)

    # --- stored bytes, for a copy ---

    @contextlib.contextmanager
    def lock_for_import(self) -> Iterator[None]:
        with self._lock_store():
            self._make()
            # The folder itself is locked: no lock file is left behind, and the lock ends with the
            # process.
            folder = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if not _try_lock(folder, fcntl.LOCK_EX):
                raise StorageError(
                    f"another copy into {self.folder} is under way", hint="wait for it to end"
                )
            for draft in self.folder.glob(f"{_IMPORTED}*"):  # of a copy that was killed
                shutil.rmtree(draft, ignore_errors=True)
            yield
            # One sync for all files of all sessions: an fsync each would take far longer.
            os.sync()
        finally:
            os.close(folder)

    def keys(self) -> StoreKeys:
        with self._lock_store():
            path = self.folder / "secret"
            secret = _read_secret(path) if path.exists() else None
            return StoreKeys(secret, self._consumed_approvals.all())

    def import_keys(self, keys: StoreKeys) -> None:
        if keys.secret is not None:
            self._read_or_make_secret(keys.secret)
        if keys.consumed_approvals:
            self._consumed_approvals.take_all(keys.consumed_approvals)

    def parts(self, session: str) -> Iterator[SessionPart]:
        folder = self.path(session).parent
        with (
            translate_os_error(TranscriptError, f"the transcript of {session} cannot be read"),
            self._file(session) as file,
        ):
            data, at = _read_transcript(file), os.fstat(file).st_mtime
        yield SessionPart(NAME, at, data[: data.rfind(b"\n") + 1])
        for kind in (ARTIFACTS, UNDO_FOLDER):
            for path, written in BlobFiles(folder / kind).all():
                with contextlib.suppress(FileNotFoundError):  # it has expired meanwhile
                    yield SessionPart(
                        f"{kind}/{path.name}", written, read_regular(path, MAX_TRANSCRIPT)
                    )

    def import_session(self, session: str, parts: Iterable[SessionPart]) -> int:
        draft, size = self.folder / f"{_IMPORTED}{session}", 0
        with self._lock_store():
            try:
                for part in parts:
                    size += len(part.data)
                    path = draft / check_part(session, part).name
                    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                    with drafted(path, part.data) as file:
                        os.utime(file, (part.written_at, part.written_at))
                        file.rename(path)
                # All or nothing: until this rename, the folder's name is not a session id.
                draft.rename(self.folder / session)
            finally:
                shutil.rmtree(draft, ignore_errors=True)
        return size

    def _lock_store(self) -> contextlib.AbstractContextManager[None]:
        hint = "check its permissions and free space, and start again: the copy continues"
        return translate_os_error(
            StorageError, f"{self.folder} cannot be copied from or into", hint
        )

    @contextlib.contextmanager
    def _file(self, session: str) -> Iterator[int]:
        path = self.path(session)
        # O_NONBLOCK: a pipe in the file's place must not block the call.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with translate_os_error(TranscriptError, f"the transcript {path} cannot be opened"):
            file = os.open(path, flags)
        try:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                raise TranscriptError(f"the transcript {path} is not a regular file")
            yield file
        finally:
            os.close(file)


def _read_transcript(file: int) -> bytes:
    """Return the bytes of an open transcript. Raise OSError if it is too large."""
    check_regular(file, MAX_TRANSCRIPT)
    with os.fdopen(os.dup(file), "rb") as reader:
        return reader.read()


def _try_lock(file: int, kind: int) -> bool:
    """Take the lock if no other process has it. Return True if it is taken now."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _read_secret(path: Path) -> bytes:
    """Return the key of approvals.

    Raises:
        StorageError: the key is too short: anybody could guess it, and approve calls with it.
        OSError: the key cannot be read.
    """
    key = read_regular(path)
    if len(key) < SECRET_BYTES:
        raise StorageError(
            f"the key of approvals, {path}, is damaged: it has {len(key)} of {SECRET_BYTES} bytes",
            hint="restore it, or move it away (sessions that began with it cannot continue then)",
        )
    return key
