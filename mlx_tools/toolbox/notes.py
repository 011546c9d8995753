"""A folder of notes: plain Markdown files that a person can open, edit and add to.

A note that a model writes is a new file, never a change to one. It begins with a head, YAML between
two lines ``---`` as editors of notes know it, that says when the note was written and in which
session: where a note came from stays known to whoever finds it later. What other programs or people
put into a head is part of the text. Everything is opened by a walk from the folder that follows no
link.
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
from mlx_tools.prompt import Bm25
from mlx_tools.store import (
    NameTaken,
    PathRefused,
    Root,
    RootName,
    folded,
    place_of,
    status_of,
    write_file,
)
from mlx_tools.toolbox.file_reading import tool_errors
from mlx_tools.toolbox.text_diff import unified_diff
from mlx_tools.toolbox.text_files import decode_text, encode_text, one_line
from mlx_tools.tools import Preview, Tool, ToolContext, ToolError, current_context, words_of

ENDING: Final = ".md"
ENDINGS: Final = (ENDING, ".markdown")
"""What a file's name ends in that is taken for a note."""

MAX_NOTES: Final = 20_000
MAX_NOTE_BYTES: Final = 200_000
MAX_ENTRIES: Final = 200_000
MAX_TOTAL_BYTES: Final = 64_000_000
"""What a search looks at: a folder of any size takes bounded time and memory."""

MAX_SAME: Final = 9_999
"""Notes of one title; the next is refused."""

MAX_TITLE_CHARS: Final = 500
MAX_ORIGIN_CHARS: Final = 100
"""What is taken of a title and of a session's name: anybody may write anything into a file."""

NO_FOLDER: Final = "no folder for notes was named"

_WRITER: Final = "mlx-tools"
_SESSION: Final = ", session "
_FIELD: Final = re.compile(r"^(created|by):[ \t]+(.*)$", re.MULTILINE)


class Note(Struct, frozen=True):
    """A note as it was found. ``path`` is relative to the folder; ``created`` is what its head
    says, empty where it has none of ours: a person wrote it. ``modified`` is in seconds since 1970.
    """

    path: str
    title: str
    text: str
    created: str = ""
    session: str = ""
    modified: float = 0.0


def note_of(path: str, text: str, modified: float = 0.0) -> Note:
    """A note's file, read.

    Its title is the one that its head names, or its first heading, or the file's name. The text is
    what stands below our head; what else stands in a head is kept in front of it.
    """
    from mlx_tools.toolbox.kb.documents import front_matter, title_of

    title = title_of(text) or PurePath(path).stem
    head, body = front_matter(text)
    fields = {key: value.strip() for key, value in _FIELD.findall(head)}
    by, _, session = fields.get("by", "").partition(_SESSION)
    created = fields.get("created", "") if by == _WRITER else ""
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
    """The notes of a folder; ``unread`` counts those that were not looked at."""

    notes: Sequence[Note] = ()
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
        self.folder = None if folder is None else expand_user(folder).absolute()
        self._now = now

    def free_name(self, title: str) -> str:
        """The name that a new note of this title would get: that of no other, however case and
        accents are compared."""
        heading = _heading(title)
        if self.folder is None or not os.path.lexists(self.folder):
            return _free_name(heading, set())
        with self._open_folder(self.folder) as root:
            return _free_name(heading, _names(root))

    def create(
        self, title: str, content: str, context: ToolContext | None = None
    ) -> tuple[str, int]:
        """Writes a new note for a call, the present one. Returns its file's name and its size in
        bytes.

        Where there is one of the same name it gets a number; under another name than was approved
        nothing is written.
        """
        context = context or current_context()
        heading, created = _heading(title), self._now().isoformat(timespec="seconds")
        where = f"{_SESSION}{context.session}" if context.session else ""
        head = f"---\ncreated: {created}\nby: {_WRITER}{where}\n---\n\n"
        raw = encode_text(head + body_of(title, content))
        if self.folder is None:
            raise ToolError(NO_FOLDER)
        with self._open_folder(self.folder, make=True) as root, tool_errors("it cannot be written"):
            taken = _names(root)
            while True:
                name = _free_name(heading, taken)
                if context.expected not in (None, f"{_NEW}{name}"):
                    raise PathRefused("there is a note of this name by now; nothing was written")
                with place_of(root, root.parts(name, writing=True) or (), {}) as place:
                    try:
                        write_file(
                            place,
                            raw,
                            new=True,
                            expected=None,
                            given_up=lambda: bool(context.cancelled),
                            undo=context.undo,
                        )
                    except (PathRefused, NameTaken):
                        if status_of(place.folder, name) is None or context.cancelled:
                            raise
                        taken.add(folded(name))  # another was quicker: the next number
                        continue
                return name, len(raw)

    def read_all(self, given_up: Callable[[], bool] = lambda: False) -> NoteSearch:
        """All notes in the folder and the folders below it, in the order of their paths.

        Hidden files and folders, links, files with several names, and what is no text are left out.
        """
        from mlx_tools.toolbox.kb.walk import WalkStart, files_of

        notes: list[Note] = []
        unread = size = 0
        if self.folder is None or not os.path.lexists(self.folder):
            return NoteSearch()
        try:
            start = WalkStart.named(self.folder)
        except UsageError as error:
            raise ToolError(f"the notes cannot be opened: {error.message}") from None
        if start.only:
            raise ToolError(f"the notes cannot be opened: {self.folder} is no folder")
        for file in files_of(start, lambda path, reason: None, MAX_ENTRIES, given_up):
            if given_up():
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
            notes.append(note_of(path, text, status.st_mtime))
        return NoteSearch(sorted(notes, key=lambda note: note.path), unread)

    @contextlib.contextmanager
    def _open_folder(self, folder: Path, *, make: bool = False) -> Iterator[Root]:
        """The folder, held open."""
        try:
            if make:
                private_dir(folder)
            root = Root(RootName(str(folder), writable=True))
        except UsageError as error:
            raise ToolError(f"the notes cannot be opened: {error.message}") from None
        with contextlib.closing(root):
            yield root


def body_of(title: str, content: str) -> str:
    """A note without its head: the title as a heading, and the content as it is."""
    end = "" if content.endswith("\n") else "\n"
    return f"# {_heading(title)}\n\n{content}{end}"


def _heading(title: str) -> str:
    """The title on one line. Raises ToolError for one that nobody could see."""
    if all(unicodedata.category(c)[0] in "CZ" for c in title):
        raise ToolError("the title is empty", code="invalid_arguments")
    return one_line(" ".join(title.split()))


def _names(root: Root) -> set[str]:
    """All names in the folder itself, as file systems compare them that ignore case."""
    try:
        with os.scandir(root.fd) as entries:
            return {folded(entry.name) for entry in entries}
    except OSError as error:
        raise ToolError(f"the notes cannot be listed: {error.strerror}") from None


def _free_name(heading: str, taken_names: set[str]) -> str:
    stem = note_stem(heading)
    for number in range(1, MAX_SAME + 1):
        name = f"{stem}{ENDING}" if number == 1 else f"{stem} {number}{ENDING}"
        if folded(name) not in taken_names:
            return name
    raise ToolError(f"there are {MAX_SAME} notes of this title; choose another")


# --- the name of its file -----------------------------------------------------------------------

_MAX_CHARS: Final = 100
_MAX_BYTES: Final = 180
"""What a title may take of a name, which has 255 bytes: there is room for a number and the ending,
also where a file system takes accents apart."""

_NAMELESS: Final = "note"
"""The name of a note whose title has nothing that a name may hold."""

_DIVIDING: Final = frozenset('/\\:*?"<>|')
"""What divides paths or names streams, and what Windows has in no name."""

_EDGES: Final = " .-~_"
"""Not at either end: hidden files, options, home folders, names that differ in nothing visible."""


def note_stem(title: str) -> str:
    """The file's name without its ending: what of the title a name may hold, shortened.

    Characters that divide or steer become spaces, those that nobody sees are left out. The same
    title always gives the same name; different ones may share it.
    """
    text = unicodedata.normalize("NFC", title)
    if text.casefold().endswith(ENDING):
        text = text[: -len(ENDING)]
    words = "".join(map(_allowed, text)).split()
    raw = " ".join(words).strip(_EDGES)[:_MAX_CHARS].encode()[:_MAX_BYTES]
    return raw.decode(errors="ignore").rstrip(_EDGES) or _NAMELESS


def _allowed(character: str) -> str:
    category = unicodedata.category(character)
    if category in ("Cf", "Cs", "Co", "Cn"):
        return ""
    return " " if category[0] in "CZ" or character in _DIVIDING else character


# --- the tools ------------------------------------------------------------------------------------

# ``notes_create`` writes a new note, and never over one that is there; ``notes_search`` finds
# notes by their words, the best match first, and shows where they match.
#
# Notes are ranked by BM25 over terms as the knowledge base has them. Nothing is kept: what a
# person changes is found at once, and only words that may be asked for are looked into.


MAX_HITS: Final = 5
HEAD_WEIGHT: Final = 3
"""A word of a note's title or path counts as if it stood so often in its text."""

WORD_CHARS: Final = 6
"""Characters of a word and the space behind it, about."""

SNIPPET_CHARS: Final = 600
"""A note that is no longer is shown whole."""

_WRITES: Final[Effects] = frozenset(("write",))
_READS: Final[Effects] = frozenset(("read",))
_NEW: Final = "new note "
_INDENT: Final = "   "


def notes_create(notes: Notes) -> Tool:
    """The tool that writes these notes."""
    words = words_of("notes_create")

    def run(arguments: Mapping[str, Any]) -> str:
        name, size = notes.create(arguments["title"], arguments["content"])
        return words.notices["made"].format(name=name, size=size)

    def preview(arguments: Mapping[str, Any]) -> Preview:
        name = notes.free_name(arguments["title"])
        body = body_of(arguments["title"], arguments["content"])
        encode_text(body)
        diff = unified_diff("", body, "/dev/null", name)
        return Preview(diff.text, f"{_NEW}{name}", counts=diff.counts, omitted=diff.omitted)

    return Tool(words.spec(_WRITES), run, preview=preview)


def notes_search(notes: Notes) -> Tool:
    """The tool that finds these notes."""
    words = words_of("notes_search")

    def run(arguments: Mapping[str, Any]) -> str:
        context = current_context()

        def given_up() -> bool:
            return context.cancelled

        found = notes.read_all(given_up)
        hits = rank_notes(found.notes, str(arguments["query"]), given_up)
        return _show_search(found, hits, words.notices)

    return Tool(words.spec(_READS, private=True), run)


def rank_notes(
    notes: Sequence[Note], query: str, given_up: Callable[[], bool] = lambda: False
) -> list[tuple[Note, str]]:
    """The notes that match, the best first, each with the part of its text in which most of what
    was asked stands; of equal ones the one that was changed last. What is no word, such as a
    smiley, is found where it stands in a note as it was asked for. ``given_up`` is asked before
    each note.
    """
    from mlx_tools.toolbox.kb.query import QueryTerm, TermMatcher, query_of
    from mlx_tools.toolbox.kb.search import snippet

    roots = tuple(one.root for one in query_of(query, lambda _: 0).wanted)
    counts = [*_counts(notes, roots, given_up)]
    if len(counts) < len(notes):
        return []
    said = set().union(*counts)

    def holding(wanted_term: QueryTerm) -> int:
        matching = {term for term in said if wanted_term.matches(term)}
        return sum(not matching.isdisjoint(count) for count in counts)

    wanted = query_of(query, holding).wanted
    matches = {term: [one.expression for one in wanted if one.matches(term)] for term in said}
    texts = []
    for note, count in zip(notes, counts, strict=True):
        text = Counter({"": len(note.text) // WORD_CHARS})  # nobody asks for it: it makes a length
        for term, times in count.items():
            text.update(dict.fromkeys(matches[term], times))
        texts.append(text)
    scores = Bm25(texts).scores({one.expression for one in wanted})
    found = [
        (round(score, 6), note)
        for score, note in zip(scores, notes, strict=True)
        if score > 0 or (not wanted and query in note.text)
    ]
    found.sort(key=lambda pair: (-pair[0], -pair[1].modified, pair[1].path))
    matcher = TermMatcher(wanted)
    return [
        (note, snippet(_body(note), matcher, SNIPPET_CHARS)[1] if place < MAX_HITS else "")
        for place, (_, note) in enumerate(found)
    ]


def _counts(
    notes: Iterable[Note], roots: tuple[str, ...], given_up: Callable[[], bool]
) -> Iterator[Counter[str]]:
    """The terms of each note that begin with one of ``roots``, as often as it has them. Only words
    in notes that may match are taken apart, each once."""
    from mlx_tools.toolbox.kb.query import folded, terms

    parts = [*map(folded, roots)]

    @functools.lru_cache(maxsize=65_536)
    def near(word: str) -> list[str]:
        return [term for term in terms(word) if term.startswith(roots)]

    for note in notes:
        if given_up():
            return
        count: Counter[str] = Counter()
        head = f"{note.title} {note.path}"
        whole = folded(f"{head} {note.text}")
        if any(part in whole for part in parts):
            words = Counter(note.text.split() + HEAD_WEIGHT * head.split())
            for word, times in words.items():
                for term in near(word):
                    count[term] += times
        yield count


def _body(note: Note) -> str:
    """The text without the heading that repeats its title."""
    return unicodedata.normalize("NFC", note.text).removeprefix(f"# {note.title}\n").strip()


def _show_search(
    search: NoteSearch, hits: Sequence[tuple[Note, str]], notices: Mapping[str, str]
) -> str:
    """What was found: for each note its file, its title and where it came from, and below that its
    text or a part of it, indented, so that no note can look like another."""
    lines = []
    for number, (note, text) in enumerate(hits[:MAX_HITS], start=1):
        path, title = one_line(note.path, marks=True), one_line(note.title, marks=True)
        lines.append(notices["hit"].format(number=number, path=path, title=title))
        if note.created:
            created, session = (one_line(said, marks=True) for said in (note.created, note.session))
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
