"""A folder of notes: plain Markdown files that a person can open, edit and add to.

A note that a model writes is a new file, never a change to one. It begins with a head that says
when it was written and in which session (`mlx_tools.toolbox.note_text`): where a note came
from stays known to whoever finds it later. Everything is opened by a walk from the folder that
follows no link (`mlx_tools.store.roots`).
"""

from __future__ import annotations

import contextlib
import os
import stat
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Final

from mlx_tools.errors import UsageError
from mlx_tools.paths import private_dir
from mlx_tools.store.artifacts import UndoStore
from mlx_tools.store.changes import Taken, place_of, put, status_of
from mlx_tools.store.roots import Absent, Refused, Root, RootName, Unfit, folded
from mlx_tools.toolbox.file_changes import told_of_change
from mlx_tools.toolbox.note_text import ENDING, Note, has_a_title, head_of, note_of, note_stem
from mlx_tools.toolbox.text_files import decoded, encoded, one_line, up_to
from mlx_tools.tools import ToolError

ENDINGS: Final = (ENDING, ".markdown")
"""What a file's name ends in that is taken for a note."""

MAX_NOTES: Final = 20_000
MAX_ENTRIES: Final = 200_000
MAX_DEPTH: Final = 16
MAX_NOTE_BYTES: Final = 200_000
MAX_TOTAL_BYTES: Final = 64_000_000
"""What a search looks at: a folder of any size takes bounded time and memory."""

MAX_SAME: Final = 9_999
"""Notes of one title; the next is refused."""

NO_FOLDER: Final = "no folder for notes was named"


@dataclass(slots=True)
class FoundNotes:
    """The notes of a folder; ``unread`` counts those that were not looked at."""

    notes: list[Note] = field(default_factory=list)
    unread: int = 0


class Notes:
    """The notes in ``folder``, which is made when the first is written. Methods raise `ToolError`.

    ``folder`` None has no notes, and none can be written. ``now`` is the time with its zone.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str] | None,
        now: Callable[[], datetime] = lambda: datetime.now().astimezone(),
    ) -> None:
        self.folder = None if folder is None else Path(folder).expanduser().absolute()
        self._now = now

    def free_name(self, title: str) -> str:
        """The name that a new note of this title would get: that of no other, however case and
        accents are compared."""
        with self._opened() as root:
            return _free_name(_heading(title), _names(root))

    def create(
        self,
        title: str,
        content: str,
        *,
        session: str = "",
        expected: str | None = None,
        given_up: Callable[[], bool] = lambda: False,
        undo: UndoStore | None = None,
    ) -> tuple[str, int]:
        """Writes a new note. Returns its file's name and its size in bytes.

        Where there is one of the same name it gets a number. ``expected`` is the name that was
        approved: under another nothing is written. ``given_up`` is asked last of all.
        """
        heading = _heading(title)
        head = head_of(self._now().isoformat(timespec="seconds"), session)
        raw = encoded(head + body_of(title, content))
        with _told():
            if self.folder is None:
                raise Unfit(NO_FOLDER)
            private_dir(self.folder)
        with self._opened() as root, _told():
            if root is None:
                raise Unfit("the folder of notes was removed meanwhile")
            taken = _names(root)
            while True:
                name = _free_name(heading, taken)
                if expected is not None and name != expected:
                    raise Refused(f"there is a note {expected} by now; nothing was written")
                with place_of(root, root.parts(name, writing=True) or (), {}) as place:
                    try:
                        put(place, raw, new=True, expected=None, given_up=given_up, undo=undo)
                    except (Refused, Taken):
                        if status_of(place.folder, name) is None or given_up():
                            raise
                        taken.add(folded(name))  # another was quicker: the next number
                        continue
                return name, len(raw)

    def read_all(self, given_up: Callable[[], bool] = lambda: False) -> FoundNotes:
        """All notes in the folder and the folders below it, in the order of their paths.

        Hidden files and folders, links, and what is no text are left out.
        """
        found = FoundNotes()
        with self._opened() as root:
            if root is not None:
                with contextlib.suppress(OSError):
                    _NotesReader(root, found, given_up).walk(os.dup(root.fd), ())
        found.notes.sort(key=lambda note: note.path)
        return found

    @contextlib.contextmanager
    def _opened(self) -> Iterator[Root | None]:
        """The folder, held open; None where there is none yet."""
        if self.folder is None or not os.path.lexists(self.folder):
            yield None
            return
        try:
            root = Root(RootName(str(self.folder), writable=True))
        except UsageError as error:
            raise ToolError(f"the notes cannot be opened: {error.message}") from None
        try:
            yield root
        finally:
            root.close()


def body_of(title: str, content: str) -> str:
    """A note without its head: the title as a heading, and the content as it is."""
    end = "" if content.endswith("\n") else "\n"
    return f"# {_heading(title)}\n\n{content}{end}"


def _heading(title: str) -> str:
    """The title on one line. Raises ToolError for one that nobody could see."""
    if not has_a_title(title):
        raise ToolError("the title is empty", code="invalid_arguments")
    return one_line(" ".join(title.split()))


def _free_name(heading: str, taken: set[str]) -> str:
    stem = note_stem(heading)
    for number in range(1, MAX_SAME + 1):
        name = f"{stem}{ENDING}" if number == 1 else f"{stem} {number}{ENDING}"
        if folded(name) not in taken:
            return name
    raise ToolError(f"there are {MAX_SAME} notes of this title; choose another")


def _names(root: Root | None) -> set[str]:
    """All names in the folder itself, as file systems compare them that ignore case."""
    if root is None:
        return set()
    try:
        with os.scandir(root.fd) as entries:
            return {folded(entry.name) for entry in entries}
    except OSError as error:
        raise ToolError(f"the notes cannot be listed: {error.strerror}") from None


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """The same with a folder of notes that is none."""
    try:
        with told_of_change("the note cannot be written"):
            yield
    except UsageError as error:
        raise ToolError(error.message) from None


class _NotesReader:
    """Reads what is below a folder, within the bounds."""

    def __init__(self, root: Root, found: FoundNotes, given_up: Callable[[], bool]) -> None:
        self._root = root
        self._found = found
        self._given_up = given_up
        self._entries = 0
        self._bytes = 0

    def walk(self, fd: int, above: tuple[str, ...]) -> None:
        """Reads the folder that ``fd`` holds, which is closed here."""
        try:
            folders = self._files(fd, above)
            for name in folders if len(above) < MAX_DEPTH else ():
                with contextlib.suppress(Refused, Unfit, Absent):
                    self.walk(self._root.enter(fd, name), (*above, name))
        finally:
            os.close(fd)

    def _files(self, fd: int, above: tuple[str, ...]) -> list[str]:
        """Reads the notes of one folder; returns the names of the folders in it."""
        folders, files = [], []
        with os.scandir(fd) as entries:
            for entry in entries:
                self._entries += 1
                if self._entries > MAX_ENTRIES or self._given_up():
                    break
                if entry.name.startswith(".") or entry.is_symlink():
                    continue
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.name)
                elif entry.name.casefold().endswith(ENDINGS):
                    files.append(entry.name)
        for name in sorted(files):
            if self._given_up():
                break
            self._read(fd, name, above)
        return sorted(folders)

    def _read(self, folder: int, name: str, above: tuple[str, ...]) -> None:
        status = status_of(folder, name)
        if status is None or not stat.S_ISREG(status.st_mode):
            return
        if len(self._found.notes) >= MAX_NOTES or self._bytes >= MAX_TOTAL_BYTES:
            self._found.unread += 1
            return
        try:
            fd = self._root.open_last(folder, name)
            try:
                raw = up_to(fd, MAX_NOTE_BYTES)
                modified = os.fstat(fd).st_mtime
            finally:
                os.close(fd)
            text = decoded(raw, name, whole=len(raw) < MAX_NOTE_BYTES)
        except (Refused, Unfit, Absent, ToolError):
            self._found.unread += 1
            return
        self._bytes += len(raw)
        path = unicodedata.normalize("NFC", "/".join((*above, name)))
        self._found.notes.append(note_of(path, text, modified))
