"""``notes_create`` writes a new note, and never over one that is there; ``notes_search`` finds
notes by their words, the best match first, and shows where they match.

Notes are ranked by BM25 over terms as the knowledge base has them. Nothing is kept: what
a person changes is found at once, and only words that may be asked for are looked into.
"""

from __future__ import annotations

import functools
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from mlx_tools.messages import Effects
from mlx_tools.prompt import Bm25
from mlx_tools.toolbox.notes import FoundNotes, Note, Notes, body_of
from mlx_tools.toolbox.text_files import encoded, one_line, unified_diff
from mlx_tools.tools import Preview, Tool, current_context, words_of

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
    notes: Sequence[Note],
    query: str,
    given_up: Callable[[], bool] = lambda: False,
    terms_of: Callable[[str], Iterable[str]] | None = None,
) -> list[tuple[Note, str]]:
    """The notes that match, the best first, each with the part of its text in which most of what
    was asked stands; of equal ones the one that was changed last. What is no word, such as a
    smiley, is found where it stands in a note as it was asked for. ``given_up`` is asked before
    each note.

    ``terms_of`` gives the terms of a word, by default as the knowledge base has them. It is asked
    of words in notes that may match, once for each.
    """
    from mlx_tools.toolbox.kb.query import TermMatcher, WantedTerm, query_of, terms
    from mlx_tools.toolbox.kb.search import snippet

    roots = tuple(one.root for one in query_of(query, lambda _: 0).wanted)
    counts = [*_counts(notes, roots, given_up, terms_of or terms)]
    if len(counts) < len(notes):
        return []
    said = set().union(*counts)

    def holding(one: WantedTerm) -> int:
        matching = {term for term in said if one.matches(term)}
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
    notes: Iterable[Note],
    roots: tuple[str, ...],
    given_up: Callable[[], bool],
    terms_of: Callable[[str], Iterable[str]],
) -> Iterator[Counter[str]]:
    """The terms of each note that begin with one of ``roots``, as often as it has them."""
    from mlx_tools.toolbox.kb.query import folded

    parts = [*map(folded, roots)]

    @functools.lru_cache(maxsize=65_536)
    def near(word: str) -> list[str]:
        return [term for term in terms_of(word) if term.startswith(roots)]

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
