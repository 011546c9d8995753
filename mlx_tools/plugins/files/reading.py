"""Reads files by lines, and lists folders below some roots."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from mlx_tools.plugins.files.known_files import count_lines, record_lines
from mlx_tools.plugins.files.path_globs import expand_glob
from mlx_tools.store import (
    PathPatterns,
    Root,
    check_patterns,
    digest_content,
)
from mlx_tools.toolbox import (
    MAX_TEXT_BYTES,
    Entry,
    TreeWalk,
    decode_text,
    escape_path,
    guess_kind,
    one_line,
    open_first,
    read_up_to,
    tool_errors,
)
from mlx_tools.tools import ToolError, current_context

MAX_ENTRIES: Final = 1_000
"""Entries that a list shows. To see others, a model can give a narrower pattern."""
MAX_SCANNED: Final = 100_000
"""Entries of one folder that are read, so that a folder of millions takes limited time."""

MAX_BYTES_BY_LINES: Final = 20_000_000
"""Bytes of a file whose lines are counted: some 400,000 lines."""

_NOTICE_CHARS: Final = 150  # reserved for the notice with the numbers of the shown lines
_MAX_NAMED: Final = 5  # ignored folders that a list names


class FileReader:
    """Reads files and lists folders below some roots. Methods raise ToolError."""

    def __init__(self, roots: Sequence[Root], notices: Mapping[str, str]) -> None:
        self._roots = roots
        self._notices = notices

    def read(self, path: str, from_line: int | None = None, lines: int | None = None) -> str:
        """Return the text of a file, or some of its lines; of a binary file its kind.

        Lines are counted from 1. Without line numbers the whole text is returned, up to
        `MAX_TEXT_BYTES`, or up to the last line that the model can see. A notice after a part has
        its line numbers and the number of all lines.
        """
        fd, root, names = open_first(self._roots, path, Root.open_file)
        try:
            size = os.fstat(fd).st_size
            content = read_up_to(fd, MAX_BYTES_BY_LINES + 1)
        finally:
            os.close(fd)
        size, room = max(size, len(content)), current_context().shown_chars
        is_whole = from_line is None and lines is None and room is None
        max_bytes = MAX_TEXT_BYTES if is_whole else MAX_BYTES_BY_LINES
        is_cut = len(content) > max_bytes
        try:
            text = decode_text(content[:max_bytes], path, whole=not is_cut)
        except ToolError:
            kind = guess_kind(content, path)
            return self._notices["binary"].format(path=one_line(path), kind=kind, size=size)
        cut_notice = self._notices["cut"].format(kept=max_bytes, size=size) if is_cut else ""
        state, total = digest_content(content), count_lines(text)
        if is_whole or (from_line is None and lines is None and len(text) <= (room or 0)):
            record_lines(root, names, state, 1, total, total, is_cut=is_cut)
            return text + cut_notice + self._note_other_name(root, path, names, text)
        first = from_line or 1
        shown, last = self._select_lines(text, path, (first, lines), total, room)
        too_long = room is not None and len(shown) > room
        record_lines(root, names, state, first, last, total, is_cut=is_cut or too_long)
        return shown + cut_notice + self._note_other_name(root, path, names, shown)

    def _note_other_name(
        self, root: Root, path: str, names: Sequence[str], text_before: str
    ) -> str:
        """Return a notice if the name of the opened file differs from the requested one."""
        if root.split(path) == tuple(names):
            return ""
        end = "" if not text_before or text_before.endswith("\n") else "\n"
        return end + self._notices["other_name"].format(path=escape_path(names))

    def _select_lines(
        self, text: str, path: str, line_range: tuple[int, int | None], total: int, room: int | None
    ) -> tuple[str, int]:
        """Return lines in at most ``room`` characters, and the last line's number.

        ``line_range`` has the number of the first line, and the maximum of lines.
        """
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
        """Return the sorted entries of a folder, one a line."""
        if len(self._roots) > 1 and path in ("", ".", "./"):
            return "\n".join(f"{root.path}/" for root in self._roots)
        fd, root, parts = open_first(self._roots, path, Root.open_listing)
        try:
            with os.scandir(fd) as scan:
                entries = itertools.islice(scan, MAX_SCANNED + 1)
                first = heapq.nsmallest(MAX_ENTRIES + 1, _format_entries(root, parts, entries))
        except OSError as error:
            raise ToolError(f"{path}: {error.strerror}") from None
        finally:
            os.close(fd)
        if not first:
            return self._notices["empty"]
        if len(first) > MAX_ENTRIES:
            first[MAX_ENTRIES:] = [self._notices["more"].format(kept=MAX_ENTRIES)]
        return "\n".join(first) + self._note_other_name(root, path, parts, "…")

    def find(self, path: str, pattern: str) -> str:
        """Return the files and folders below a folder that match a pattern, with sizes.

        Folders that a ``.gitignore`` names are left out and listed in a notice. Other notices
        report entries that could not be read.
        """
        patterns = parse_patterns(expand_glob(pattern), "pattern")
        context = current_context()
        everywhere = len(self._roots) > 1 and path in ("", ".", "./")
        places: list[tuple[Root, Sequence[str]]] = [(root, ()) for root in self._roots]
        if not everywhere:
            fd, root, parts = open_first(self._roots, path, Root.open_listing)
            os.close(fd)
            places = [(root, parts)]
        lines: list[str] = []
        remarks: list[str] = []
        for root, names in places:
            walk = _make_walk(root, patterns, len(names), lambda: context.cancelled)
            with tool_errors("the folder cannot be listed"):
                fitting = (
                    _describe_entry(root, entry, is_absolute=len(self._roots) > 1)
                    for entry in walk.iter_entries(names)
                    if patterns.match(entry.path.split("/")[len(names) :])
                )
                lines += itertools.islice(fitting, MAX_ENTRIES + 1 - len(lines))
            remarks += self._describe_omissions(walk)
        if len(lines) > MAX_ENTRIES:
            lines[MAX_ENTRIES:] = [self._notices["more"].format(kept=MAX_ENTRIES)]
        return "\n".join((*(lines or [self._notices["no_match"]]), *remarks))

    def _describe_omissions(self, walk: TreeWalk) -> Iterator[str]:
        """Yield notices about entries that a walk has left out."""
        if walk.unreadable:
            yield self._notices["unreadable"].format(count=walk.unreadable)
        if not walk.is_complete:
            yield self._notices["incomplete"].format(count=walk.entry_count)
        if folders := walk.ignored_folders:
            names = ", ".join(f"{one_line(folder)}/" for folder in folders[:_MAX_NAMED])
            names += ", …" if len(folders) > _MAX_NAMED else ""
            yield self._notices["ignored"].format(folders=names)


def _make_walk(
    root: Root, patterns: PathPatterns, depth: int, should_stop: Callable[[], bool]
) -> TreeWalk:
    """Return a walk that enters only folders below which a pattern may match."""

    def may_match_below(names: Sequence[str]) -> bool:
        return patterns.match_below(names[depth:])

    return TreeWalk(root, should_stop, enters=may_match_below, with_ignored_files=True)


def _describe_entry(root: Root, entry: Entry, *, is_absolute: bool) -> str:
    """Return an entry for a list: its path, and its size or its kind."""
    path = one_line(str(root.path / entry.path) if is_absolute else entry.path)
    if entry.is_folder:
        return f"{path}/"
    if entry.is_link:
        return f"{path}@"
    with contextlib.suppress(OSError):
        size = os.stat(entry.name, dir_fd=entry.parent, follow_symlinks=False).st_size
        return f"{path} ({size} bytes)"
    return path


def parse_patterns(patterns: Sequence[str], argument: str) -> PathPatterns:
    """Parse patterns of paths from an argument of a call. Raises ToolError."""
    patterns = [pattern.removeprefix("./") for pattern in patterns]
    try:
        check_patterns(patterns)
    except ValueError as error:
        raise ToolError(f"{argument}: {error}", code="invalid_arguments") from None
    return PathPatterns(patterns)


def _format_entries(
    root: Root, ancestors: Sequence[str], entries: Iterable[os.DirEntry[str]]
) -> Iterator[str]:
    """Yield the visible entries with their kind.

    Folders with visible entries are visible too. Characters that would break the line are escaped.
    """
    for entry in entries:
        mark = ""
        with contextlib.suppress(OSError):
            folder = entry.is_dir(follow_symlinks=False)
            mark = "/" if folder else "@" if entry.is_symlink() else ""
        names = (*ancestors, entry.name)
        if root.patterns.match(names) or (mark == "/" and root.patterns.match_below(names)):
            yield one_line(entry.name) + mark
