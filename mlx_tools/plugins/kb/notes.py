"""A folder of notes: plain Markdown files that a person can open, edit and add to.

A model can only write new notes, and not change existing ones. Such a note begins with front
matter, which is YAML between two lines ``---``, and is usual in editors of notes. It has the time
and the session, so that the origin of a note stays known. Front matter of other programs or people
is part of the text. All files are opened from the folder on, without following links.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path, PurePath
from typing import Any, Final, NamedTuple

from msgspec import Struct

from mlx_tools.errors import UsageError
from mlx_tools.messages import Effects
from mlx_tools.paths import expand_user, private_dir
from mlx_tools.plugins.kb.bm25 import Bm25
from mlx_tools.store import (
    NameTaken,
    PathRefused,
    Root,
    RootName,
    fold_name,
    get_status,
    open_place,
    write_file,
)
from mlx_tools.toolbox import decode_text, encode_content, one_line, tool_errors, unified_diff
from mlx_tools.tools import Preview, Tool, ToolContext, ToolError, current_context, load_words

ENDING: Final = ".md"
ENDINGS: Final = (ENDING, ".markdown")
"""Endings of the names of notes."""

MAX_NOTES: Final = 20_000
MAX_NOTE_BYTES: Final = 200_000
MAX_ENTRIES: Final = 200_000
MAX_TOTAL_BYTES: Final = 64_000_000
"""Limits of a search, so that any folder takes limited time and memory."""

MAX_SAME: Final = 9_999
"""Notes with the same title. A further one is refused."""

MAX_TITLE_CHARS: Final = 500
MAX_ORIGIN_CHARS: Final = 100
"""Characters of a title and of a session's name. A file may have longer ones."""

NO_FOLDER: Final = "no folder for notes was named"

_WRITER: Final = "mlx-tools"
_SESSION: Final = ", session "
_FIELD: Final = re.compile(r"^(created|by):[ \t]+(.*)$", re.MULTILINE)


class Note(Struct, frozen=True):
    """A note."""

    path: str
    """The path relative to the folder."""
    title: str
    text: str
    created: str = ""
    """The time in our front matter. Empty if a person wrote the note."""
    session: str = ""
    modified: float = 0.0
    """Seconds since 1970."""


def parse_note(path: str, text: str, modified: float = 0.0) -> Note:
    """Parse the file of a note.

    Its title is that of the front matter, the first heading, or the file's name. The text begins
    after our front matter, but includes other front matter.
    """
    from mlx_tools.plugins.kb.documents import find_title, split_front_matter

    title = find_title(text) or PurePath(path).stem
    head, body = split_front_matter(text)
    fields = {key: value.strip() for key, value in _FIELD.findall(head)}
    author, _, session = fields.get("by", "").partition(_SESSION)
    created = fields.get("created", "") if author == _WRITER else ""
    if created:
        lines = head.splitlines(keepends=True)
        head = "".join(line for line in lines if not line.startswith(("created:", "by:")))
    body = body.lstrip("\r\n")
    return Note(
        path,
        title[:MAX_TITLE_CHARS],
        f"---\n{head}---\n\n{body}" if head.strip() else body,
        created[:MAX_ORIGIN_CHARS],
        session[:MAX_ORIGIN_CHARS] if created else "",
        modified,
    )


class NoteSearch(NamedTuple):
    """The notes of a folder, and the number of notes that were not read."""

    notes: Sequence[Note] = ()
    unread: int = 0


class Notes:
    """The notes in ``folder``, which is created with the first one.

    Methods raise `ToolError`.

    Args:
        folder: the folder, None without notes.
        now: returns the time with its zone.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str] | None,
        now: Callable[[], datetime] = lambda: datetime.now().astimezone(),
    ) -> None:
        self.folder = None if folder is None else expand_user(folder).absolute()
        self._now = now

    def find_free_name(self, title: str) -> str:
        """Return the name that a new note with this title would get.

        It differs from all other names, even if case and accents are ignored.
        """
        heading = _make_heading(title)
        if self.folder is None or not os.path.lexists(self.folder):
            return _find_free_name(heading, set())
        with self._open_folder(self.folder) as root:
            return _find_free_name(heading, _list_names(root))

    def create(
        self, title: str, content: str, context: ToolContext | None = None
    ) -> tuple[str, int]:
        """Write a new note, and return its file's name and its size in bytes.

        If the name is taken, it gets a number. A note is never written under another name than the
        approved one.
        """
        context = context or current_context()
        heading, created = _make_heading(title), self._now().isoformat(timespec="seconds")
        origin = f"{_SESSION}{context.session}" if context.session else ""
        head = f"---\ncreated: {created}\nby: {_WRITER}{origin}\n---\n\n"
        raw = encode_content(head + make_body(title, content))
        if self.folder is None:
            raise ToolError(NO_FOLDER)
        with self._open_folder(self.folder, make=True) as root, tool_errors("it cannot be written"):
            taken_names = _list_names(root)
            while True:
                name = _find_free_name(heading, taken_names)
                if context.expected not in (None, f"{_NEW}{name}"):
                    raise PathRefused("another note took this name; nothing was written")
                with open_place(root, root.split(name, writing=True) or (), {}) as place:
                    try:
                        write_file(
                            place,
                            raw,
                            new=True,
                            expected=None,
                            is_cancelled=lambda: bool(context.cancelled),
                            undo=context.undo,
                        )
                    except (PathRefused, NameTaken):
                        # refused for another reason than a name that was taken meanwhile
                        if get_status(place.folder, name) is None or context.cancelled:
                            raise
                        taken_names.add(fold_name(name))  # another program took it: the next number
                        continue
                return name, len(raw)

    def read_all(self, should_stop: Callable[[], bool] = lambda: False) -> NoteSearch:
        """Return all notes below the folder, in the order of their paths.

        Hidden files and folders, links, files with several names, and binary files are left out.
        """
        from mlx_tools.plugins.kb.walk import WalkStart, walk_files

        notes: list[Note] = []
        unread = size = 0
        if self.folder is None or not os.path.lexists(self.folder):
            return NoteSearch()
        try:
            start = WalkStart.from_path(self.folder)
        except UsageError as error:
            raise ToolError(f"the notes cannot be opened: {error.message}") from None
        if start.only:
            raise ToolError(f"the notes cannot be opened: {self.folder} is no folder")
        for file in walk_files(start, lambda path, reason: None, MAX_ENTRIES, should_stop):
            if should_stop():
                break
            if not file.parts[-1].casefold().endswith(ENDINGS):
                continue
            try:
                if len(notes) >= MAX_NOTES or size >= MAX_TOTAL_BYTES:
                    raise ToolError("there are too many")
                raw, status = file.read(MAX_NOTE_BYTES)
                if status.st_nlink > 1:
                    raise ToolError("it has another name, which may be anywhere")
                text = decode_text(raw, file.parts[-1], whole=len(raw) < MAX_NOTE_BYTES)
            except (OSError, ToolError):
                unread += 1
                continue
            size += len(raw)
            path = unicodedata.normalize("NFC", "/".join(file.parts))
            notes.append(parse_note(path, text, status.st_mtime))
        return NoteSearch(sorted(notes, key=lambda note: note.path), unread)

    @contextlib.contextmanager
    def _open_folder(self, folder: Path, *, make: bool = False) -> Iterator[Root]:
        """Yield the folder, held open."""
        try:
            if make:
                private_dir(folder)
            root = Root(RootName(str(folder), writable=True))
        except UsageError as error:
            raise ToolError(f"the notes cannot be opened: {error.message}") from None
        with contextlib.closing(root):
            yield root


def make_body(title: str, content: str) -> str:
    """Return a note without front matter: the title as a heading, and the content."""
    end = "" if content.endswith("\n") else "\n"
    return f"# {_make_heading(title)}\n\n{content}{end}"


def _make_heading(title: str) -> str:
    """Return the title on one line. Raises ToolError if it is invisible."""
    if all(unicodedata.category(c)[0] in "CZ" for c in title):
        raise ToolError("the title is empty", code="invalid_arguments")
    return one_line(" ".join(title.split()))


def _list_names(root: Root) -> set[str]:
    """Return all names in the folder, in the form of file systems that ignore case."""
    try:
        with os.scandir(root.fd) as entries:
            return {fold_name(entry.name) for entry in entries}
    except OSError as error:
        raise ToolError(f"the notes cannot be listed: {error.strerror}") from None


def _find_free_name(heading: str, taken_names: set[str]) -> str:
    stem = make_stem(heading)
    for number in range(1, MAX_SAME + 1):
        name = f"{stem}{ENDING}" if number == 1 else f"{stem} {number}{ENDING}"
        if fold_name(name) not in taken_names:
            return name
    raise ToolError(f"there are {MAX_SAME} notes of this title; choose another")


# --- the name of its file -----------------------------------------------------------------------

_MAX_CHARS: Final = 100
_MAX_BYTES: Final = 180
"""Limits of a title in a file's name, which may have 255 bytes. They leave room for a number and
the ending, even if a file system decomposes accents."""

_NAMELESS: Final = "note"
"""The name of a note if no character of its title is allowed in a name."""

_DIVIDING: Final = frozenset('/\\:*?"<>|')
"""Characters that divide paths or name streams, or that Windows forbids in names."""

_EDGES: Final = " .-~_"
"""Characters that a name must not begin or end with. They would make it a hidden file, an option, a
home folder, or a name that looks like another."""


def make_stem(title: str) -> str:
    """Return the name of the file without its ending: the allowed part of the title.

    Dividing and control characters become spaces, and invisible ones are left out. The same title
    always gives the same name, which other titles may share.
    """
    text = unicodedata.normalize("NFC", title)
    if text.casefold().endswith(ENDING):
        text = text[: -len(ENDING)]
    words = "".join(map(_replace_character, text)).split()
    raw = " ".join(words).strip(_EDGES)[:_MAX_CHARS].encode()[:_MAX_BYTES]
    return raw.decode(errors="ignore").rstrip(_EDGES) or _NAMELESS


def _replace_character(character: str) -> str:
    category = unicodedata.category(character)
    if category in ("Cf", "Cs", "Co", "Cn"):
        return ""
    return " " if category[0] in "CZ" or character in _DIVIDING else character


# --- the tools ------------------------------------------------------------------------------------

# ``notes_create`` writes a new note, and never replaces one. ``notes_search`` finds notes by their
# words, the best match first, and shows the matching part.
#
# Notes are ranked by BM25 over the same terms as in the knowledge base. There is no index, so a
# person's changes are found at once. Only words that may match the query are analysed.


MAX_HITS: Final = 5
HEAD_WEIGHT: Final = 3
"""The weight of a word in a note's title or path, compared with its text. A choice: a word in the
title is mostly what the note is about."""

WORD_CHARS: Final = 6
"""The average number of characters of a word and the space after it."""

SNIPPET_CHARS: Final = 600
"""Characters of a note that is shown completely."""

_WRITES: Final[Effects] = frozenset(("write",))
_READS: Final[Effects] = frozenset(("read",))
_NEW: Final = "new note "
_INDENT: Final = "   "


def notes_create(notes: Notes) -> Tool:
    """Return the tool that writes these notes."""
    words = load_words("notes_create")

    def run(arguments: Mapping[str, Any]) -> str:
        name, size = notes.create(arguments["title"], arguments["content"])
        return words.notices["made"].format(name=name, size=size)

    def preview(arguments: Mapping[str, Any]) -> Preview:
        name = notes.find_free_name(arguments["title"])
        body = make_body(arguments["title"], arguments["content"])
        encode_content(body)
        diff = unified_diff("", body, "/dev/null", name)
        return Preview(diff.text, f"{_NEW}{name}", counts=diff.counts, omitted=diff.omitted)

    return Tool(words.spec(_WRITES), run, preview=preview)


def notes_search(notes: Notes) -> Tool:
    """Return the tool that finds these notes."""
    words = load_words("notes_search")

    def run(arguments: Mapping[str, Any]) -> str:
        context = current_context()

        def should_stop() -> bool:
            return context.cancelled

        search = notes.read_all(should_stop)
        hits = rank_notes(search.notes, str(arguments["query"]), should_stop)
        return _show_search(search, hits, words.notices)

    return Tool(words.spec(_READS, private=True), run)


def rank_notes(
    notes: Sequence[Note], query: str, should_stop: Callable[[], bool] = lambda: False
) -> list[tuple[Note, str]]:
    """Return the matching notes, best first, each with the best part of its text.

    Of equal matches the most recently changed note is first. A query without words, such as a
    smiley, is searched as a text. ``should_stop`` is called before each note.
    """
    from mlx_tools.plugins.kb.query import QueryTerm, TermMatcher, build_query
    from mlx_tools.plugins.kb.search import make_snippet

    roots = tuple(query_term.root for query_term in build_query(query, lambda _: 0).terms)
    counts = [*_count_terms(notes, roots, should_stop)]
    if len(counts) < len(notes):
        return []
    known_terms = set().union(*counts)

    def holding(wanted_term: QueryTerm) -> int:
        matching = {term for term in known_terms if wanted_term.matches(term)}
        return sum(not matching.isdisjoint(count) for count in counts)

    query_terms = build_query(query, holding).terms
    matches = {
        term: [query_term.expression for query_term in query_terms if query_term.matches(term)]
        for term in known_terms
    }
    texts = []
    for note, count in zip(notes, counts, strict=True):
        # the empty term, which no query has, stands for the length of the text
        text = Counter({"": len(note.text) // WORD_CHARS})
        for term, times in count.items():
            text.update(dict.fromkeys(matches[term], times))
        texts.append(text)
    scores = Bm25(texts).scores({query_term.expression for query_term in query_terms})
    ranked = [
        (round(score, 6), note)
        for score, note in zip(scores, notes, strict=True)
        if score > 0 or (not query_terms and query in note.text)
    ]
    ranked.sort(key=lambda pair: (-pair[0], -pair[1].modified, pair[1].path))
    matcher = TermMatcher(query_terms)
    return [
        (
            note,
            make_snippet(_strip_heading(note), matcher, SNIPPET_CHARS)[1]
            if place < MAX_HITS
            else "",
        )
        for place, (_, note) in enumerate(ranked)
    ]


def _count_terms(
    notes: Iterable[Note], roots: tuple[str, ...], should_stop: Callable[[], bool]
) -> Iterator[Counter[str]]:
    """Yield the terms of each note that begin with one of ``roots``, and their counts.

    Only words that may match are analysed, each once.
    """
    from mlx_tools.plugins.kb.query import fold_text, iter_terms

    parts = [*map(fold_text, roots)]

    @functools.lru_cache(maxsize=65_536)
    def split_matching(word: str) -> list[str]:
        return [term for term in iter_terms(word) if term.startswith(roots)]

    for note in notes:
        if should_stop():
            return
        count: Counter[str] = Counter()
        head = f"{note.title} {note.path}"
        whole = fold_text(f"{head} {note.text}")
        if any(part in whole for part in parts):
            words = Counter(note.text.split() + HEAD_WEIGHT * head.split())
            for word, times in words.items():
                for term in split_matching(word):
                    count[term] += times
        yield count


def _strip_heading(note: Note) -> str:
    """Return the text without the heading that repeats its title."""
    return unicodedata.normalize("NFC", note.text).removeprefix(f"# {note.title}\n").strip()


def _show_search(
    search: NoteSearch, hits: Sequence[tuple[Note, str]], notices: Mapping[str, str]
) -> str:
    """Return the result of a search: file, title, origin and text of each note.

    Texts are indented, so that a text cannot look like another note.
    """
    lines = []
    for number, (note, text) in enumerate(hits[:MAX_HITS], start=1):
        path, title = one_line(note.path, marks=True), one_line(note.title, marks=True)
        lines.append(notices["hit"].format(number=number, path=path, title=title))
        if note.created:
            created, session = (
                one_line(value, marks=True) for value in (note.created, note.session)
            )
            lines.append(
                _INDENT + notices["origin"].format(created=created, session=session or "-")
            )
        lines += [_INDENT + line for line in text.splitlines()]
    if not hits:
        lines.append(notices["none"] if search.notes else notices["empty"])
    if len(hits) > MAX_HITS:
        lines.append(notices["more"].format(count=len(hits) - MAX_HITS))
    if search.unread:
        lines.append(notices["unread"].format(count=search.unread))
    return "\n".join(lines)
