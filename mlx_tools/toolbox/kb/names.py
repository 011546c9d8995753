"""Dotted names in a question, such as ``os.path.join``: where they are defined, or documented.

By their words alone such names are found best where they are used most, which is in tests. A
definition does not say the whole name, and a manual says it once. So they are looked for apart: a
definition by its heading, within a class or a file of the name's next part, or right in a file that
says the parts before; documentation by a line of prose that begins with the name.
"""

# ruff: noqa: S608 - what is put into a query here are names of tables, and numbers

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from mlx_tools.toolbox.kb.chunks import BETWEEN_HEADINGS, defined_in
from mlx_tools.toolbox.kb.database import Database
from mlx_tools.toolbox.kb.documents import is_prose
from mlx_tools.toolbox.kb.terms import MAX_QUERY_CHARS, indexed

MAX_NAMES: Final = 4
"""Names of a question that are looked for, at most."""

_LOOKED_AT: Final = 5_000
"""Passages that are looked at for each, at most."""

_TEXTS_LOOKED_AT: Final = 60
"""Texts that are read for each, at most."""

_NAME: Final = re.compile(r"(?<![\w./@:-])[^\W\d]\w*(?:\.[^\W\d]\w*){1,7}(?![\w/@-]|\.\w)")
_TEST: Final = re.compile(r"(?:^|/)tests?/|(?:^|/)test_|[_.](?:test|spec)\.", re.IGNORECASE)
"""In the path of a file that tests others; many define helpers by the names of what they test."""

_WITHIN: Final = " > "


class DefiningPassage(NamedTuple):
    """A passage that defines or documents a name, and its file."""

    path: str
    file: int
    passage: int


def dotted_names(question: str) -> list[str]:
    """The dotted names in a question, each once; what stands in an address is none."""
    found = _NAME.findall(question[:MAX_QUERY_CHARS])
    return list(dict.fromkeys(found))[:MAX_NAMES]


def places_of(database: Database, name: str, corpus: int | None) -> Iterator[DefiningPassage]:
    """The passages that define a dotted name or document it, at most one of a file and way."""
    parts = name.split(".")
    yield from _defining(database, parts, corpus)
    yield from _documenting(database, parts, corpus)


def _defining(
    database: Database, parts: Sequence[str], corpus: int | None
) -> Iterator[DefiningPassage]:
    owner, last = _terms(parts[-2]), _terms(parts[-1])
    if not owner or not last:
        return
    files = [("file_names", owner, _defines)]
    if len(parts) > 2:
        files.append(("file_words", _terms(".".join(parts[:-1])), _defines_by_itself))
    seen: set[int] = set()
    for table, said, holds in files:
        condition = f"passage.file IN (SELECT rowid FROM {table} WHERE {table} MATCH ?)"
        values = (f"heading : ({last})", said)
        for place, shown, heading in _passages(database, condition, values, corpus):
            if place.file not in seen and holds(heading, shown, parts):
                seen.add(place.file)
                yield place


def _defines(heading: str, shown: str, parts: Sequence[str]) -> bool:
    """Whether one of these headings, in a file with this path, defines the last part of a name
    within the part before."""
    owner, last = (part.casefold() for part in parts[-2:])
    *folders, file = shown.casefold().split("/")
    for one in heading.split(BETWEEN_HEADINGS):
        *above, what = (defined_in(part).casefold() for part in one.split(_WITHIN))
        if what.endswith(f"{owner}.{last}"):
            return True
        if what == last and (
            above[-1] == owner if above else owner in folders or file.partition(".")[0] == owner
        ):
            return True
    return False


def _defines_by_itself(heading: str, shown: str, parts: Sequence[str]) -> bool:
    """Whether one of these headings, not in a test, defines the last part of a name, and stands
    within nothing."""
    last = parts[-1].casefold()
    return not _TEST.search(shown) and any(
        defined_in(one).casefold() == last
        for one in heading.split(BETWEEN_HEADINGS)
        if _WITHIN not in one
    )


def _documenting(
    database: Database, parts: Sequence[str], corpus: int | None
) -> Iterator[DefiningPassage]:
    ends = (_terms(".".join(some)).rpartition(" ")[2] for some in (parts, parts[-2:]))
    expression = " OR ".join(dict.fromkeys(one for one in ends if one))
    if not expression:
        return
    line = _beginning_with(parts)
    order = "ORDER BY bm25(passage_words, 2, 1)"
    seen: set[int] = set()
    read = 0
    for place, shown, _ in _passages(database, "1", (expression,), corpus, order):
        if place.file in seen or not is_prose(shown):
            continue
        if (read := read + 1) > _TEXTS_LOOKED_AT:
            return
        start, stop = database.one("SELECT start, stop FROM passage WHERE id=?", place.passage)
        text, _ = database.text(place.file)
        if line.search(text[start:stop]) and (len(parts) == 2 or parts[0] in text):
            seen.add(place.file)
            yield place


def _beginning_with(parts: Sequence[str]) -> re.Pattern[str]:
    """A line that begins with the whole name, or its last two parts, and what it is a name of."""
    whole, end = (re.escape(".".join(some)) for some in (parts, parts[-2:]))
    kind = "(?:[a-z]{2,20} ){0,2}"
    return re.compile(rf"^[^\w\n]{{0,8}}{kind}(?:{whole}|{end})(?![\w.])", re.MULTILINE | re.I)


def _passages(
    database: Database,
    condition: str,
    values: tuple[object, ...],
    corpus: int | None,
    order: str = "",
) -> Iterator[tuple[DefiningPassage, str, str]]:
    """Passages that match, each with its file's path, as it is shown, and its headings."""
    within = "" if corpus is None else f"AND +corpus = {int(corpus)}"
    query = (
        "SELECT path, file.id, passage.id, shown, passage.heading FROM passage_words "
        "CROSS JOIN passage ON passage.id = passage_words.rowid "
        "CROSS JOIN file ON file.id = passage.file "
        f"WHERE passage_words MATCH ? AND {condition} {within} {order} LIMIT {_LOOKED_AT}"
    )
    for path, file, passage, shown, heading in database.rows(query, *values):
        place = DefiningPassage(str(path), int(str(file)), int(str(passage)))
        yield place, str(shown), str(heading)


def _terms(name: str) -> str:
    """What the index has of a name, as an FTS5 query: all of its terms, each quoted."""
    return " ".join(f'"{term}"' for term in indexed(name).split())
