"""Search for tools that match a request.

It is used for the shortlist of a prompt, for ``tool_search``, and for the tools that are described
with a later question. Tools are ranked by BM25 over names, descriptions and parameters. Tools with
equal scores are sorted by name, so the result does not depend on the order of the tools.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

from mlx_tools.errors import MissingDependency
from mlx_tools.messages import ToolSpec
from mlx_tools.prompt import MIN_SHOWN_TOOLS, build_catalog, stems

if TYPE_CHECKING:
    import sqlite3

OFFERED: Final = 5
"""The number of best matches that are described with a later question."""

OFFER_BUDGET: Final = 400
"""The limit in tokens of the tools that are described with a later question."""

_DECIMALS: Final = 6
"""Decimals of a score that count. The last decimals depend on the order of a sum."""


MAX_SCHEMA_NODES: Final = 400
"""Parts of a schema that are searched; it bounds the time for huge schemas."""

NAME_WEIGHT: Final = 3
"""A word of a tool's name counts like so many words of its description."""

_TABLE: Final = "CREATE VIRTUAL TABLE tool USING fts5(text, tokenize='ascii')"
"""The index. This tokenizer takes all characters beyond ASCII for letters, so the result does not
depend on the version of Unicode."""

_QUERY: Final = "SELECT rowid, -bm25(tool) FROM tool WHERE tool MATCH ?"

_MIN_RARITY: Final = 1e-6
"""The rarity that FTS5's bm25 assumes for a word of at least half of the rows."""


def rarity_factor(matches: int, rows: int) -> float:
    """Return the factor that turns FTS5's score of a word into Lucene's score.

    In FTS5 a word of half of the rows has a score of almost 0. With few rows that is true for most
    words.

    Args:
        matches: the number of rows with the word.
        rows: the number of all rows.
    """
    odds = (rows - matches + 0.5) / (matches + 0.5)
    return math.log(1 + odds) / max(math.log(odds), _MIN_RARITY)


def _open_memory() -> sqlite3.Connection:
    import sqlite3  # late: most runs show all their tools and search none

    return sqlite3.connect(":memory:")


class Finder:
    """A ranking of some tools against requests, by BM25 of SQLite's FTS5.

    Args:
        tools: the tools.
        connect: opens a database in memory.
    """

    def __init__(
        self, tools: Iterable[ToolSpec], connect: Callable[[], sqlite3.Connection] | None = None
    ) -> None:
        self.tools = tuple(tools)
        self._connect = connect or _open_memory

    @functools.cached_property
    def _texts(self) -> list[str]:
        return list(map(tool_text, self.tools))

    def matches(self, request: str) -> list[tuple[ToolSpec, float]]:
        """Return all tools with their scores, the best first.

        The score is 0 if a tool has no word in common with the request.

        Raises:
            MissingDependency: this Python's SQLite has no FTS5.
        """
        scores = [0.0] * len(self.tools)
        with closing(self._connect()) as index:
            self._fill(index)
            for word in dict.fromkeys(stems(request)):
                # A stem has only letters and digits, so it cannot end the quotes.
                rows = index.execute(_QUERY, (f'"{word}"',)).fetchall()
                weight = rarity_factor(len(rows), len(self.tools))
                for number, score in rows:
                    scores[number] += weight * score
        pairs = zip(self.tools, (round(score, _DECIMALS) for score in scores), strict=True)
        return sorted(pairs, key=lambda pair: (-pair[1], pair[0].name))

    def _fill(self, index: sqlite3.Connection) -> None:
        """Make the index. It is made again for each request, which takes milliseconds.

        So no connection has to be shared between threads, or closed later.
        """
        import sqlite3

        try:
            index.execute(_TABLE)
        except sqlite3.OperationalError as error:
            raise MissingDependency(
                f"tools cannot be searched: {error}",
                hint="this Python's SQLite has no FTS5: use another build of Python",
            ) from error
        index.executemany("INSERT INTO tool (rowid, text) VALUES (?, ?)", enumerate(self._texts))

    def shortlist(self, request: str, first: Sequence[str] = ()) -> list[ToolSpec]:
        """Return the tools of a shortlist, in its order.

        They are the tools named in ``first`` and the tools that match. If these are few, others are
        added up to `MIN_SHOWN_TOOLS`, but no more: tools without a common word would cost time and
        mislead the model.
        """
        places = {name: place for place, name in enumerate(first)}
        matches = self.matches(request)
        wanted = sum(1 for tool, score in matches if score > 0 or tool.name in places)
        ranked = sorted(matches, key=lambda pair: places.get(pair[0].name, len(places)))
        return [tool for tool, _ in ranked[: max(wanted, MIN_SHOWN_TOOLS)]]

    def hits(self, request: str) -> list[ToolSpec]:
        """Return the tools that have a word in common with ``request``, the best first."""
        return [tool for tool, score in self.matches(request) if score > 0]

    def offer(
        self, request: str, known_names: Iterable[str], first: Sequence[str] = ()
    ) -> tuple[str, ...]:
        """Return the lines that describe new tools with a later question.

        They are the tools named in ``first`` and the `OFFERED` best matches, without those in
        ``known_names``, within `OFFER_BUDGET`.
        """
        known = set(known_names)
        named = [tool for tool in self.tools if tool.name in first]
        best = [*named, *self.hits(request)[:OFFERED]]
        new = {tool.name: tool for tool in best if tool.name not in known}
        return build_catalog(list(new.values()), OFFER_BUDGET).lines


def tool_text(spec: ToolSpec) -> str:
    """Return the stems of a tool's texts; those of its name come several times."""
    described = " ".join(schema_texts(spec.parameters))
    return " ".join((*NAME_WEIGHT * stems(spec.name), *stems(spec.description), *stems(described)))


def schema_texts(schema: Any) -> Iterable[str]:
    """Yield the names, descriptions and enum values of a schema, up to a limit."""
    waiting: list[Any] = [schema]
    nodes = 0
    while waiting and nodes < MAX_SCHEMA_NODES:
        node = waiting.pop()
        nodes += 1
        if isinstance(node, list):
            waiting += node
            continue
        if not isinstance(node, Mapping):
            continue
        for key, value in node.items():
            if key in ("description", "title") and isinstance(value, str):
                yield value
            elif key == "enum" and isinstance(value, list):
                yield from (item for item in value if isinstance(item, str))
            elif key in ("properties", "$defs", "definitions") and isinstance(value, Mapping):
                if key == "properties":
                    yield from value
                waiting += value.values()
            elif isinstance(value, Mapping | list) and key not in ("default", "examples"):
                waiting.append(value)
