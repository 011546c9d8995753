"""``notes_create`` writes a new note, and never over one that is there; ``notes_search`` finds
notes by their words, the best match first, and shows where they match.

Notes are ranked as the knowledge base ranks documents, in an index that is made in memory for each
search: what a person changes is found at once.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from mlx_tools.messages import Effects
from mlx_tools.toolbox.notes import FoundNotes, Note, Notes, body_of
from mlx_tools.toolbox.text_files import encoded, one_line, unified_diff
from mlx_tools.tools import Preview, Tool, current_context, words_of

MAX_HITS: Final = 5
MAX_MATCHES: Final = 1_000
"""Notes that are told apart by how well they match."""

MAX_WORDS: Final = 1_000_000
"""Different words that are told apart before any is indexed, which takes memory for each."""

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
        context = current_context()
        expected = context.expected
        name, size = notes.create(
            arguments["title"],
            arguments["content"],
            session=context.session,
            expected=expected.removeprefix(_NEW) if expected is not None else None,
            given_up=lambda: context.cancelled,
            undo=context.undo,
        )
        return words.notices["made"].format(name=name, size=size)

    def preview(arguments: Mapping[str, Any]) -> Preview:
        name = notes.free_name(arguments["title"])
        body = body_of(arguments["title"], arguments["content"])
        encoded(body)
        return Preview(unified_diff("", body, "/dev/null", name), f"{_NEW}{name}")

    return Tool(words.spec(_WRITES), run, preview=preview)


def notes_search(notes: Notes) -> Tool:
    """The tool that finds these notes."""
    words = words_of("notes_search")

    def run(arguments: Mapping[str, Any]) -> str:
        context = current_context()

        def given_up() -> bool:
            return context.cancelled

        found = notes.read_all(given_up)
        hits = ranked(found.notes, str(arguments["query"]), given_up)
        return _shown(found, hits, words.notices)

    return Tool(words.spec(_READS, private=True), run)


def ranked(
    notes: Sequence[Note], query: str, given_up: Callable[[], bool] = lambda: False
) -> list[tuple[Note, str]]:
    """The notes that match, the best first, each with the part of its text in which most of what
    was asked stands; of equal ones the one that was changed last. What is no word, such as a
    smiley, is found where it stands in a note as it was asked for. ``given_up`` is asked before
    each note."""
    from mlx_tools.toolbox.kb.database import Database, FileRow
    from mlx_tools.toolbox.kb.documents import Document
    from mlx_tools.toolbox.kb.passages import passages
    from mlx_tools.toolbox.kb.query import TermMatcher
    from mlx_tools.toolbox.kb.search import PassageRanking, indexed_for, snippet

    words: set[str] = set()
    for note in notes:
        if given_up():
            return []
        if len(words) < MAX_WORDS:
            words.update(f"{note.title} {note.path} {note.text}".split())
    words_of = indexed_for(query, words)
    with Database(None, words_of=words_of) as database, database.transaction(write=True):
        corpus = database.make_corpus("notes", "")
        for number, note in enumerate(notes):
            if given_up():
                return []
            key = str(number)
            document = Document(note.title, note.text, tuple(passages(note.text, "markdown")))
            database.put(corpus, FileRow(key, 0, "", key.encode(), ""), note.path, document)
        ranking = PassageRanking(database, query, None)
        scores: dict[int, float] = {}
        if ranking.query.wanted:
            for row in ranking.best(MAX_MATCHES):
                scores.setdefault(int(row.path), round(row.score, 6))
        else:
            scores = {number: 0.0 for number, note in enumerate(notes) if query in note.text}
    best = [(score, notes[number]) for number, score in scores.items()]
    best.sort(key=lambda pair: (-pair[0], -pair[1].modified, pair[1].path))
    matcher = TermMatcher(ranking.query.wanted)
    return [
        (note, snippet(_body(note), matcher, SNIPPET_CHARS)[1] if place < MAX_HITS else "")
        for place, (_, note) in enumerate(best)
    ]


def _body(note: Note) -> str:
    """The text without the heading that repeats its title."""
    return unicodedata.normalize("NFC", note.text).removeprefix(f"# {note.title}\n").strip()


def _shown(found: FoundNotes, hits: Sequence[tuple[Note, str]], notices: Mapping[str, str]) -> str:
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
        lines.append(notices["none"] if found.notes else notices["empty"])
    if len(hits) > MAX_HITS:
        lines.append(notices["more"].format(count=len(hits) - MAX_HITS))
    if found.unread:
        lines.append(notices["unread"].format(count=found.unread))
    return "\n".join(lines)
