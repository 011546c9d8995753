"""``search_files``: searches text files below the roots for a regular expression."""

from __future__ import annotations

import codecs
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from time import monotonic
from typing import Any, Final

from mlx_tools.macos import is_dataless
from mlx_tools.messages import Effects
from mlx_tools.plugins.files.line_pattern import LinePattern
from mlx_tools.plugins.files.path_globs import expand_glob
from mlx_tools.plugins.files.reading import parse_patterns
from mlx_tools.store import PathAbsent, PathPatterns, PathRefused, Root, WrongFileKind
from mlx_tools.toolbox import Entry, TreeWalk, one_line, open_first, tool_errors
from mlx_tools.tools import Tool, Words, current_context, load_words

EFFECTS: Final[Effects] = frozenset(("read",))
MAX_RESULTS: Final = 200
"""Lines that are shown. A pattern that matches more is too general."""
MAX_RESULT_CHARS: Final = 400
"""Characters of a line that are shown."""
MAX_SECONDS: Final = 20.0
"""Seconds for one search: some 500,000 files. A shorter time limit of the call applies too."""

MAX_SEARCHED_BYTES: Final = 100_000_000
"""Bytes of one file that are searched."""

_FIRST_BYTES: Final = 1 << 16  # most files have no more, and a smaller buffer is quicker
_PIECE_BYTES: Final = 1 << 20
_MAX_LINE_BYTES: Final = 1 << 23
_MIN_TEXT: Final = 100  # characters of a line that are shown after a long path
_UTF16: Final = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def search_files(roots: Sequence[Root], clock: Callable[[], float] = monotonic) -> Tool:
    """Return the tool for these roots. ``clock`` returns seconds."""
    words = load_words("search_files")

    def run(arguments: Mapping[str, Any]) -> str:
        return _Search(roots, words, arguments, clock).run()

    return Tool(words.spec(EFFECTS, private=True), run)


class _Search:
    """One call of the tool."""

    def __init__(
        self,
        roots: Sequence[Root],
        words: Words,
        arguments: Mapping[str, Any],
        clock: Callable[[], float],
    ) -> None:
        self._roots, self._notices, self._clock = roots, words.notices, clock
        self._path = arguments.get("path") or "."
        self._glob = arguments.get("glob") or ""
        self._globs = _parse_glob(self._glob)
        self._pattern = LinePattern(
            arguments["pattern"], ignore_case=arguments.get("ignore_case") is True
        )
        self._context = current_context()
        seconds = self._context.timeout
        seconds_allowed = MAX_SECONDS if seconds is None else min(0.8 * seconds, MAX_SECONDS)
        self._deadline = clock() + seconds_allowed
        self._room = self._context.shown_chars
        self._results: list[str] = []
        self._files = self._unreadable = self._partial = 0
        self._is_over = False  # True once a match found no room
        self._is_late = False

    def run(self) -> str:
        """Return the matching lines, and notices about the search."""
        everywhere = len(self._roots) > 1 and self._path in (".", "./")
        places = [(root, ()) for root in self._roots] if everywhere else [self._find_place()]
        for root, parts in places:
            self._search(root, parts)
            if self._is_over or self._is_late:
                break
        return "\n".join((*self._results, *self._iter_notices()))

    def _find_place(self) -> tuple[Root, tuple[str, ...]]:
        """Return the root and the names of the file or folder to search."""
        fd, root, parts = open_first(self._roots, self._path, _open_either)
        os.close(fd)
        return root, tuple(parts)

    def _search(self, root: Root, parts: tuple[str, ...]) -> None:
        """Search all files below a folder, or one file."""
        walk = TreeWalk(
            root, self._should_stop, enters=lambda names: self._may_match_below(names, parts)
        )
        with tool_errors("the folder cannot be searched"):
            try:
                for entry in walk.iter_entries(parts):
                    if entry.is_folder or not self._is_wanted(entry, len(parts)):
                        continue
                    self._search_entry(root, entry)
                    if self._is_over or self._should_stop():
                        break
            except WrongFileKind:  # a file
                self._search_file(root, parts)
        self._unreadable += walk.unreadable
        self._is_late |= not walk.is_complete

    def _should_stop(self) -> bool:
        if self._clock() > self._deadline or self._context.cancelled:
            self._is_late = True
        return self._is_late

    def _may_match_below(self, names: Sequence[str], parts: Sequence[str]) -> bool:
        """Return whether the glob may match a file below a folder."""
        globs = self._globs
        return globs is None or globs.match_below(names[len(parts) :]) or globs.match_below(names)

    def _is_wanted(self, entry: Entry, depth: int) -> bool:
        """Return whether the glob matches the path, below the folder or below the root."""
        if self._globs is None:
            return True
        names = entry.path.split("/")
        return self._globs.match(names[depth:]) or self._globs.match(names)

    def _search_entry(self, root: Root, entry: Entry) -> None:
        try:
            fd = root.open_listed(entry.parent, entry.name)
        except (PathRefused, WrongFileKind, PathAbsent):
            self._unreadable += 1
            return
        try:
            self._search_open(root, fd, entry.path)
        finally:
            os.close(fd)

    def _search_file(self, root: Root, parts: tuple[str, ...]) -> None:
        fd = root.open_file(parts)
        try:
            self._search_open(root, fd, "/".join(parts))
        finally:
            os.close(fd)

    def _search_open(self, root: Root, fd: int, path: str) -> None:
        """Search one open file, piece by piece. A NUL byte means that it is binary."""
        self._files += 1
        self._pattern.has_skipped_text = False
        before = 0
        try:
            if is_dataless(os.fstat(fd)):  # reading would download it from iCloud
                self._unreadable += 1
                return
            has_rest = False
            for text in _iter_texts(fd):
                if text is None:
                    has_rest = True
                    break
                for number, line in self._pattern.find_lines(text, self._should_stop):
                    self._add(root, path, before + number + 1, line)
                    if self._is_over:
                        return
                if self._should_stop():
                    return
                before += text.count("\n")
            self._partial += has_rest or self._pattern.has_skipped_text
        except OSError:
            self._unreadable += 1

    def _add(self, root: Root, path: str, number: int, line: str) -> None:
        shown = str(root.path / path) if len(self._roots) > 1 else path
        head = f"{one_line(shown)}:{number}: "
        room = max(MAX_RESULT_CHARS - len(head), _MIN_TEXT)
        result = head + (line if len(line) <= room else self._cut_excerpt(line, room))
        if self._room is not None:
            self._room -= len(result) + 1
        # Some 300 characters are left for the notices.
        full = self._room is not None and self._room < 300 and self._results
        if len(self._results) == MAX_RESULTS or full:
            self._is_over = True
            return
        self._results.append(result)

    def _cut_excerpt(self, line: str, room: int) -> str:
        """Return the part of a long line around its first match."""
        end = self._pattern.find_match_end(line)
        start = max(min(end - room // 2, len(line) - room + 1), 0)
        if not start:
            return line[: room - 1] + "…"
        last = start + room - 2
        return f"…{line[start:last]}" + ("…" if last < len(line) else "")

    def _iter_notices(self) -> Iterator[str]:
        notices = self._notices
        if not self._results:
            yield notices["none"].format(files=self._files)
        if self._is_over:
            yield notices["more"].format(kept=len(self._results))
        if self._is_late:
            yield notices["late"].format(files=self._files)
        if self._pattern.reason:
            yield notices["plain"].format(reason=self._pattern.reason)
        if self._partial:
            yield notices["partial"].format(count=self._partial)
        if self._unreadable:
            yield notices["unreadable"].format(count=self._unreadable)


def _open_either(root: Root, parts: Sequence[str]) -> int:
    """Open a folder or a file."""
    try:
        return root.open_listing(parts)
    except WrongFileKind:
        return root.open_file(parts)


def _parse_glob(glob: str) -> PathPatterns | None:
    """Return a glob's patterns; one without a ``/`` matches in any folder."""
    if not glob:
        return None
    patterns = [pattern if "/" in pattern else f"**/{pattern}" for pattern in expand_glob(glob)]
    patterns = [f"{pattern}**" if pattern.endswith("/") else pattern for pattern in patterns]
    return parse_patterns(patterns, "glob")


def _iter_texts(fd: int) -> Iterator[str | None]:
    """Yield the text of a file in pieces of complete lines, until a NUL byte.

    If a part of a text is left out, None comes last.
    """
    content = os.read(fd, _FIRST_BYTES)
    if content.startswith(_UTF16):
        while len(content) < MAX_SEARCHED_BYTES // 10 and (next_bytes := os.read(fd, _PIECE_BYTES)):
            content += next_bytes
        yield codecs.getincrementaldecoder("utf-16")("replace").decode(content)
        if os.read(fd, 1):
            yield None
        return
    is_last, has_rest = len(content) < _FIRST_BYTES, False
    content, remaining, bytes_read = content.removeprefix(codecs.BOM_UTF8), b"", 0
    while content and b"\0" not in content:
        bytes_read += len(content)
        if bytes_read > MAX_SEARCHED_BYTES:
            is_last, has_rest = True, bool(os.read(fd, 1))
        content, remaining = remaining + content, b""
        stop = len(content) if is_last else content.rfind(b"\n") + 1
        if stop or len(content) < _MAX_LINE_BYTES:  # a longer line is cut, its rest is a new line
            content, remaining = content[:stop], content[stop:]
        if content:
            yield content.decode("utf-8", "replace")
        if is_last:
            if has_rest:
                yield None
            return
        content = os.read(fd, _PIECE_BYTES)
        is_last = len(content) < _PIECE_BYTES
    if remaining and not content:
        yield remaining.decode("utf-8", "replace")
    if content and bytes_read:  # a NUL byte after text
        yield None
