"""Reads files by lines and lists folders below some roots."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from mlx_tools.macos import permission_hint
from mlx_tools.store import (
    PathAbsent,
    PathPatterns,
    PathRefused,
    PathUnlisted,
    Root,
    WrongFileKind,
    check_patterns,
    state_of,
)
from mlx_tools.toolbox.file_names import Place, did_you_mean, equal_names, escape_path
from mlx_tools.toolbox.known_files import count_lines, note_lines
from mlx_tools.toolbox.path_globs import expanded_globs
from mlx_tools.toolbox.text_files import MAX_BYTES, decode_text, kind_of, one_line, up_to
from mlx_tools.toolbox.tree_walk import Entry, TreeWalk
from mlx_tools.tools import ToolError, current_context

MAX_ENTRIES: Final = 1_000
MAX_SCANNED: Final = 100_000
"""Entries of one folder that are looked at, so that a folder of millions takes bounded time."""

MAX_BYTES_BY_LINES: Final = 20_000_000
"""Of a file whose lines are counted: some 400,000 lines."""

_NOTICE_CHARS: Final = 150  # that stay free for the notice which lines are shown
_MOST_NAMED: Final = 5  # ignored folders that a list names


class FileReader:
    """Reads and lists what is below some roots. All methods raise ToolError."""

    def __init__(self, roots: Sequence[Root], notices: Mapping[str, str]) -> None:
        self._roots = roots
        self._notices = notices

    def read(self, path: str, from_line: int | None = None, lines: int | None = None) -> str:
        """The text of a file, or some of its lines, counted from 1; of any other file its kind.

        Without numbers a text is given whole, up to `MAX_BYTES`, or up to the last line that the
        model is shown whole. If that is a part, a notice says which lines of how many it has.
        """
        fd, root, names = open_first(self._roots, path, Root.open_file)
        try:
            size = os.fstat(fd).st_size
            content = up_to(fd, MAX_BYTES_BY_LINES + 1)
        finally:
            os.close(fd)
        size, room = max(size, len(content)), current_context().shown_chars
        is_whole = from_line is None and lines is None and room is None
        most = MAX_BYTES if is_whole else MAX_BYTES_BY_LINES
        is_cut = len(content) > most
        try:
            text = decode_text(content[:most], path, whole=not is_cut)
        except ToolError:
            kind = kind_of(content, path)
            return self._notices["binary"].format(path=one_line(path), kind=kind, size=size)
        cut = self._notices["cut"].format(kept=most, size=size) if is_cut else ""
        state, total = state_of(content), count_lines(text)
        if is_whole or (from_line is None and lines is None and len(text) <= (room or 0)):
            note_lines(root, names, state, 1, total, total, is_cut=is_cut)
            return text + cut + self._other_name(root, path, names, text)
        first = from_line or 1
        shown, last = self._some_lines(text, path, (first, lines), total, room)
        too_long = room is not None and len(shown) > room
        note_lines(root, names, state, first, last, total, is_cut=is_cut or too_long)
        return shown + cut + self._other_name(root, path, names, shown)

    def _other_name(self, root: Root, path: str, names: Sequence[str], text_before: str) -> str:
        """A notice if what was opened has another name than was asked for."""
        if root.parts(path) == tuple(names):
            return ""
        end = "" if not text_before or text_before.endswith("\n") else "\n"
        return end + self._notices["other_name"].format(path=escape_path(names))

    def _some_lines(
        self, text: str, path: str, line_range: tuple[int, int | None], total: int, room: int | None
    ) -> tuple[str, int]:
        """Lines of a text, in so many characters, with the number of the last of them.
        ``line_range`` are the first line and how many at most."""
        separator = "\r" if "\r" in text and "\n" not in text else "\n"
        first, lines = line_range
        if first > total:
            raise ToolError(f"{one_line(path)} has {total} lines, so none has the number {first}")
        start = 0
        for _ in range(first - 1):
            start = text.index(separator, start) + 1
        stop, last = start, first - 1
        while stop < len(text) and (lines is None or last - first + 1 < lines):
            end = text.find(separator, stop) + 1 or len(text)
            if room is not None and end - start > room - _NOTICE_CHARS and last >= first:
                break
            stop, last = end, last + 1
        shown = text[start:stop]
        if first == 1 and stop == len(text):
            return shown, last
        place = {"first": first, "last": last, "total": total, "next": last + 1}
        notice = self._notices["lines" if last < total else "last_lines"].format(**place)
        return f"{shown}{notice}" if shown.endswith(separator) else f"{shown}\n{notice}", last

    def list(self, path: str) -> str:
        """The entries of a folder in order, one a line."""
        if len(self._roots) > 1 and path in ("", ".", "./"):
            return "\n".join(f"{root.path}/" for root in self._roots)
        fd, root, parts = open_first(self._roots, path, Root.open_listing)
        try:
            with os.scandir(fd) as found:
                entries = itertools.islice(found, MAX_SCANNED + 1)
                first = heapq.nsmallest(MAX_ENTRIES + 1, _lines(root, parts, entries))
        except OSError as error:
            raise ToolError(f"{path}: {error.strerror}") from None
        finally:
            os.close(fd)
        if not first:
            return self._notices["empty"]
        if len(first) > MAX_ENTRIES:
            first[MAX_ENTRIES:] = [self._notices["more"].format(kept=MAX_ENTRIES)]
        return "\n".join(first) + self._other_name(root, path, parts, "…")

    def find(self, path: str, pattern: str) -> str:
        """The files and folders below a folder whose paths fit a pattern, with their sizes.

        Folders that a ``.gitignore`` names are left out, and named in a notice.
        """
        patterns = path_patterns(expanded_globs(pattern), "pattern")
        context = current_context()
        everywhere = len(self._roots) > 1 and path in ("", ".", "./")
        places: list[tuple[Root, Sequence[str]]] = [(root, ()) for root in self._roots]
        if not everywhere:
            fd, root, parts = open_first(self._roots, path, Root.open_listing)
            os.close(fd)
            places = [(root, parts)]
        found: list[str] = []
        remarks: list[str] = []
        for root, names in places:
            walk = _pattern_walk(root, patterns, len(names), lambda: context.cancelled)
            with tool_errors("the folder cannot be listed"):
                fitting = (
                    _describe_entry(root, entry, is_absolute=len(self._roots) > 1)
                    for entry in walk.below(names)
                    if patterns.fit(entry.path.split("/")[len(names) :])
                )
                found += itertools.islice(fitting, MAX_ENTRIES + 1 - len(found))
            remarks += self._ignored(walk.ignored_folders)
        if len(found) > MAX_ENTRIES:
            found[MAX_ENTRIES:] = [self._notices["more"].format(kept=MAX_ENTRIES)]
        return "\n".join((*(found or [self._notices["no_match"]]), *remarks))

    def _ignored(self, folders: Sequence[str]) -> Iterator[str]:
        if folders:
            names = ", ".join(f"{one_line(folder)}/" for folder in folders[:_MOST_NAMED])
            names += ", …" if len(folders) > _MOST_NAMED else ""
            yield self._notices["ignored"].format(folders=names)


def _pattern_walk(
    root: Root, patterns: PathPatterns, depth: int, gives_up: Callable[[], bool]
) -> TreeWalk:
    """A walk that enters only folders below which a pattern may fit."""

    def leads_on(names: Sequence[str]) -> bool:
        return patterns.lead_on(names[depth:])

    return TreeWalk(root, gives_up, enters=leads_on, with_ignored_files=True)


def _describe_entry(root: Root, entry: Entry, *, is_absolute: bool) -> str:
    """An entry for a list: its path, and its size or its kind."""
    path = one_line(str(root.path / entry.path) if is_absolute else entry.path)
    if entry.is_folder:
        return f"{path}/"
    if entry.is_link:
        return f"{path}@"
    with contextlib.suppress(OSError):
        size = os.stat(entry.name, dir_fd=entry.parent, follow_symlinks=False).st_size
        return f"{path} ({size} bytes)"
    return path


def path_patterns(patterns: Sequence[str], argument: str) -> PathPatterns:
    """Patterns of paths, of an argument of a call. Raises ToolError for what is none."""
    patterns = [one.removeprefix("./") for one in patterns]
    try:
        check_patterns(patterns)
    except ValueError as error:
        raise ToolError(f"{argument}: {error}", code="invalid_arguments") from None
    return PathPatterns(patterns)


def open_below(roots: Sequence[Root], path: str) -> int:
    """A descriptor of a file in the first root that has something at the path. Raises
    ToolError."""
    return open_first(roots, path, Root.open_file)[0]


def open_first(
    roots: Sequence[Root], path: str, open_path: Callable[[Root, Sequence[str]], int]
) -> tuple[int, Root, Sequence[str]]:
    """A descriptor in the first root that has something at the path, that root, and the names below
    it. If none has, but one entry is equal (`equal_names`), it is that one. Raises ToolError."""
    fault: Exception | None = None
    absent: list[Place] = []
    for root in roots:
        try:
            parts = root.parts(path)
            if parts is not None:
                absent.append((root, parts))
                return open_path(root, parts), root, parts
        except (PathUnlisted, WrongFileKind, PathAbsent) as error:  # another root may have it
            fault = error if fault is None or isinstance(fault, PathAbsent) else fault
        except PathRefused as error:
            raise ToolError(str(error), code="not_allowed") from None
    if isinstance(fault, PathUnlisted):
        raise ToolError(str(fault), code="not_allowed")
    if isinstance(fault, PathAbsent):
        for root, asked in absent:
            names = equal_names(root, asked)
            if names is not None:
                with tool_errors("it cannot be opened"):
                    root.parts("/".join(names))  # refuses private names
                    return open_path(root, names), root, names
        raise ToolError(f"{fault}{did_you_mean(absent)}")
    if fault is not None:
        raise ToolError(str(fault))
    raise ToolError("the path lies outside the folders that may be seen", code="not_allowed")


def _lines(
    root: Root, ancestors: Sequence[str], entries: Iterable[os.DirEntry[str]]
) -> Iterator[str]:
    """The names of the entries that may be seen, or lead to such, each with what it is; a character
    that would break the line is escaped."""
    for entry in entries:
        mark = ""
        with contextlib.suppress(OSError):
            folder = entry.is_dir(follow_symlinks=False)
            mark = "/" if folder else "@" if entry.is_symlink() else ""
        names = (*ancestors, entry.name)
        if root.patterns.fit(names) or (mark == "/" and root.patterns.lead_on(names)):
            yield one_line(entry.name) + mark


@contextlib.contextmanager
def tool_errors(error_context: str = "the file cannot be changed") -> Iterator[None]:
    """Makes of what a walk and a change raise what a model reads; ``error_context`` is said of what
    the system raises."""
    try:
        yield
    except PathRefused as error:
        raise ToolError(str(error), code="not_allowed") from None
    except (WrongFileKind, PathAbsent) as error:
        raise ToolError(str(error)) from None
    except OSError as error:
        hint = permission_hint(error, error.filename or ".")
        raise ToolError(
            f"{error_context}: {error.strerror}{f' ({hint})' if hint else ''}"
        ) from None
