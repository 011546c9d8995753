"""``notes_search``: finds notes by their words, the best match first, and shows where they match.

Notes are ranked by BM25 over what `mlx_tools.toolbox.note_words` makes of the query. What is
no word, such as a smiley, is found where it stands in a note as it was asked for.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from mlx_tools.messages import Effects
from mlx_tools.prompt.lexical import Bm25
from mlx_tools.toolbox.note_text import Note
from mlx_tools.toolbox.note_words import Asked, plain, plain_in_place
from mlx_tools.toolbox.notes import FoundNotes, Notes
from mlx_tools.toolbox.text_files import one_line
from mlx_tools.tools import Tool, current_context, words_of

EFFECTS: Final[Effects] = frozenset(("read",))

MAX_HITS: Final = 5
SNIPPET_CHARS: Final = 400
SHORT_CHARS: Final = 600
"""A note that is no longer is shown whole."""

TITLE_WEIGHT: Final = 3
"""A word of the title counts as if it stood so often in the text."""

PHRASE_SCORE: Final = 4.0
WORD_SCORE: Final = 0.5
"""What it adds that all of the query stands in a note as it is, and each of its words."""

_LEAD: Final = 60
_MAX_PLACES: Final = 2_000
_MAX_NEAR: Final = 50
_INDENT: Final = "   "


def notes_search(notes: Notes) -> Tool:
    """The tool for these notes."""
    words = words_of("notes_search")

    def run(arguments: Mapping[str, Any]) -> str:
        context = current_context()

        def given_up() -> bool:
            return context.cancelled

        found = notes.read_all(given_up)
        return _told(found, str(arguments["query"]), words.notices, given_up)

    return Tool(words.spec(EFFECTS, private=True), run)


def ranked(
    notes: Sequence[Note], query: str, given_up: Callable[[], bool] = lambda: False
) -> list[Note]:
    """The notes that match, the best first; of equal ones the one that was changed last.
    ``given_up`` is asked before each note."""
    asked = Asked(query)
    counts, hits = [], []
    for note in notes:
        if given_up():
            return []
        title, text = plain(note.title), plain(note.text)
        held = asked.counts(note.text, text)
        for term, number in asked.counts(note.title, title).items():
            held[term] += TITLE_WEIGHT * number
        counts.append(held)
        hits.append(_literally(f"{title}\n{text}", asked))
    scores = Bm25(counts, [len(note.text) for note in notes]).scores(asked.terms)
    # a word that says nothing counts only beside one that does, or where there is no other
    best = [
        (score + hit, note)
        for score, hit, note in zip(scores, hits, notes, strict=True)
        if score > 0 or hit >= PHRASE_SCORE or (hit > 0 and not asked.terms)
    ]
    best.sort(key=lambda pair: (-pair[0], -pair[1].modified, pair[1].path))
    return [note for _, note in best]


def _literally(text: str, asked: Asked) -> float:
    """What it counts that words of the query stand in a text as they are."""
    there = sum(word in text for word in asked.words)
    phrase = there and there == len(asked.words) and asked.phrase in " ".join(text.split())
    return WORD_SCORE * there + (PHRASE_SCORE if phrase else 0.0)


def snippet(text: str, query: str) -> str:
    """The part of a text in which most of what was asked stands, or its beginning."""
    text = text.strip()
    if len(text) <= SHORT_CHARS:
        return text
    start = _begin(text, _densest(plain_in_place(text), Asked(query).places))
    end = start + SNIPPET_CHARS
    if end < len(text):
        end = max(text.rfind(" ", start + SNIPPET_CHARS // 2, end), text.rfind("\n", start, end))
        end = end if end > start else start + SNIPPET_CHARS
    before, after = "… " if start else "", " …" if end < len(text) else ""
    return f"{before}{text[start:end].strip()}{after}"


def _begin(text: str, place: int) -> int:
    """Where a snippet begins that shows this place: at a line or a word a little before it."""
    start = max(0, place - _LEAD)
    if not start:
        return 0
    line = text.rfind("\n", max(0, start - _LEAD), place)
    space = text.find(" ", start, place)
    return line + 1 if line >= 0 else space + 1 if space >= 0 else start


def _densest(text: str, wanted: re.Pattern[str]) -> int:
    """Where the stretch begins that holds most different words of those wanted; of equal ones the
    shortest, and the first."""
    places = [(m.start(), m.group()) for m in islice(wanted.finditer(text), _MAX_PLACES) if m[0]]
    best, where = (0, 0), 0
    for number, (start, _) in enumerate(places):
        seen: set[str] = set()
        span = 0
        for place, word in places[number : number + _MAX_NEAR]:
            if place > start + SNIPPET_CHARS - _LEAD:
                break
            if word not in seen:
                seen.add(word)
                span = place - start
        if (len(seen), -span) > best:
            best, where = (len(seen), -span), start
    return where


def _shown(note: Note, query: str) -> str:
    """What is shown of a note below its title."""
    text = unicodedata.normalize("NFC", note.text)
    return snippet(text.removeprefix(f"# {note.title}\n"), query)


def _told(
    found: FoundNotes, query: str, notices: Mapping[str, str], given_up: Callable[[], bool]
) -> str:
    """What was found: for each note its file, its title and where it came from, and below that its
    text or a part of it, indented, so that no note can look like another."""
    hits = ranked(found.notes, query, given_up)
    lines = []
    for number, note in enumerate(hits[:MAX_HITS], start=1):
        path, title = one_line(note.path, marks=True), one_line(note.title, marks=True)
        lines.append(notices["hit"].format(number=number, path=path, title=title))
        if note.created:
            created, session = (one_line(said, marks=True) for said in (note.created, note.session))
            lines.append(
                _INDENT + notices["origin"].format(created=created, session=session or "-")
            )
        lines += [_INDENT + line for line in _shown(note, query).splitlines()]
    if not hits:
        lines.append(notices["none"] if found.notes else notices["empty"])
    if more := len(hits) - MAX_HITS if len(hits) > MAX_HITS else 0:
        lines.append(notices["more"].format(count=more))
    if found.unread:
        lines.append(notices["unread"].format(count=found.unread))
    return "\n".join(lines)
