"""Walks a folder of a root in order, without following links."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from msgspec import Struct

from mlx_tools.store import PathAbsent, PathRefused, PrivateNames, Root, WrongFileKind
from mlx_tools.toolbox.ignore_rules import (
    IGNORE_FILE,
    MAX_IGNORE_BYTES,
    IgnoreRules,
    is_ignored,
)

MAX_DEPTH: Final = 100
"""Nested folders. Each stays open, and a process may have 256 to 1,024 open files."""

MAX_ENTRIES: Final = 1_000_000
"""Entries of a walk. A tree of so many takes over ten seconds."""

_ENTRIES_BETWEEN: Final = 256
"""Entries of one folder between two calls of ``should_stop``. A costly pattern takes some
milliseconds for each entry."""

REPOSITORIES: Final = frozenset((".git", ".hg", ".svn", ".jj", ".bzr"))
"""Folders of version control. Their files are no documents."""


class Entry(Struct, frozen=True):
    """A file or folder."""

    name: str
    path: str
    """The path from the root."""
    parent: int
    """The descriptor of its folder, which is open until the next entry."""
    is_folder: bool
    is_link: bool = False


class TreeWalk:
    """One walk. Afterwards its attributes describe what was left out.

    Args:
        root: the root to walk in.
        should_stop: called at every folder, and within large ones. True ends the walk.
        enters: returns True if entries below a folder are wanted, given the folder's names.
        with_ignored_files: True to include links, and files that a ``.gitignore`` names.
    """

    def __init__(
        self,
        root: Root,
        should_stop: Callable[[], bool],
        *,
        enters: Callable[[Sequence[str]], bool] = lambda names: True,
        with_ignored_files: bool = False,
    ) -> None:
        self._root, self._should_stop, self._enters = root, should_stop, enters
        self._with_ignored_files = with_ignored_files
        self.ignored_folders: list[str] = []
        self.entry_count = 0
        self.unreadable = 0
        self.is_complete = True

    def iter_entries(self, parts: Sequence[str]) -> Iterator[Entry]:
        """Yield the entries below a folder in the order of their paths.

        Raises:
            PathRefused, WrongFileKind, PathAbsent: there is no such folder.
        """
        rules = self._read_rules_above(parts)
        fd = self._root.open_listing(parts)
        yield from self._walk_folder(fd, tuple(parts), rules)

    def _walk_folder(
        self, fd: int, parts: tuple[str, ...], rules: Sequence[IgnoreRules]
    ) -> Iterator[Entry]:
        """Walk one open folder, and close it at the end."""
        prefix = "".join(f"{part}/" for part in parts)
        try:
            entries = self._list_folder(fd)
            if any(name == IGNORE_FILE for name, _ in entries):
                rules = (*rules, *self._read_rules(fd, prefix))
            has_patterns = bool(self._root.patterns)
            private = PrivateNames(parts, self._root.path.name)
            for number, (name, kind) in enumerate(entries, start=1):
                if number % _ENTRIES_BETWEEN == 0 and self._should_stop():
                    self.is_complete = False
                    return
                if name in private or (kind == stat.S_IFDIR and name in REPOSITORIES):
                    continue
                path = prefix + name
                is_folder = kind == stat.S_IFDIR
                if rules and is_ignored(path + "/" if is_folder else path, rules):
                    if is_folder:
                        self.ignored_folders.append(path)
                        continue
                    if not self._with_ignored_files:
                        continue
                if is_folder:
                    yield from self._enter_folder(fd, name, parts, rules, path)
                    if not self.is_complete:
                        return
                    continue
                if kind != stat.S_IFREG and not self._with_ignored_files:
                    continue
                if not has_patterns or self._root.patterns.match((*parts, name)):
                    yield Entry(name, path, fd, False, kind == stat.S_IFLNK)
        finally:
            os.close(fd)

    def _enter_folder(
        self,
        fd: int,
        name: str,
        parts: tuple[str, ...],
        rules: Sequence[IgnoreRules],
        path: str,
    ) -> Iterator[Entry]:
        """Yield a folder within another, and then its entries."""
        names = (*parts, name)
        if not self._root.patterns.match_below(names):
            return
        yield Entry(name, path, fd, True)
        if not self._enters(names):
            return
        if self._should_stop() or self.entry_count > MAX_ENTRIES:
            self.is_complete = False
            return
        try:
            if len(names) > MAX_DEPTH:
                raise WrongFileKind("the folders are too deep")
            below = self._root.enter(fd, name)
        except (PathRefused, WrongFileKind, PathAbsent):
            self.unreadable += 1
            return
        yield from self._walk_folder(below, names, rules)

    def _list_folder(self, fd: int) -> list[tuple[str, int]]:
        """Return the sorted names in a folder with their kinds."""
        entries = []
        try:
            with os.scandir(fd) as scan:
                for entry in scan:
                    kind = 0
                    with contextlib.suppress(OSError):
                        if entry.is_file(follow_symlinks=False):
                            kind = stat.S_IFREG
                        elif entry.is_dir(follow_symlinks=False):
                            kind = stat.S_IFDIR
                        elif entry.is_symlink():
                            kind = stat.S_IFLNK
                    entries.append((entry.name, kind))
                    self.entry_count += 1
                    if self.entry_count > MAX_ENTRIES:
                        self.is_complete = False
                        break
        except OSError:
            self.unreadable += 1
        return sorted(entries)

    def _read_rules_above(self, parts: Sequence[str]) -> tuple[IgnoreRules, ...]:
        """Return the rules of the folders above a folder.

        If they ignore the folder itself, none apply, because a caller that names it wants to see
        it.
        """
        rules: tuple[IgnoreRules, ...] = ()
        prefix = ""
        for number, part in enumerate(parts):
            try:
                fd = self._root.open_folder(parts[:number])
            except (PathRefused, WrongFileKind, PathAbsent):
                return ()
            try:
                rules = (*rules, *self._read_rules(fd, prefix))
            finally:
                os.close(fd)
            prefix += f"{part}/"
            if is_ignored(prefix, rules):
                return ()
        return rules

    def _read_rules(self, fd: int, prefix: str) -> tuple[IgnoreRules, ...]:
        """Return the rules in an open folder; none if they cannot be read."""
        try:
            file = self._root.open_last(fd, IGNORE_FILE)
        except (PathRefused, WrongFileKind, PathAbsent):
            return ()
        try:
            return (IgnoreRules(os.read(file, MAX_IGNORE_BYTES), prefix),)
        except OSError:
            return ()
        finally:
            os.close(file)
