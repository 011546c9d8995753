"""The tools that match a request (for a shortlist, a search, and what a question brings), and those
that a session's model has been told of.

All rank by BM25 (`mlx_tools.prompt.lexical`). Tools that match alike stand in the order of their
names, so the result depends on the tools and not on the order they came in.

Every permitted tool may be called by its exact name; what is offered where the host writes a call
(guided decoding, grammars) are the tools that the model could know: those in the catalog, those
that came with a question, those that a search found, and the reader once an output was cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from mlx_tools.messages import ToolSpec
from mlx_tools.prompt.catalog import LEAST_SHOWN, build_catalog, names_in
from mlx_tools.prompt.lexical import Bm25, stems, tool_stems
from mlx_tools.transcript.records import (
    CompactedRecord,
    Header,
    ObservationRecord,
    Record,
    UserRecord,
)

SEARCH: Final = "tool_search"
"""The name of the built-in tool that looks through the tools."""

READER: Final = "read_artifact"
"""The name of the built-in tool that reads on in an output that was cut."""

BUILTIN: Final = "builtin"
"""The plugin of the built-in tools: another tool may bear the name, and is then like any other."""

OFFERED: Final = 5
"""So many of the best matches of a later question are told of with it."""

OFFER_BUDGET: Final = 400
"""Tokens that the tools told of with a question may take."""

_DIGITS: Final = 6
"""Decimals of a score that count: sums of the same numbers in another order differ in the last."""


def is_search(spec: ToolSpec | None) -> bool:
    """True where this is the built-in tool that looks through the others."""
    return spec is not None and spec.name == SEARCH and spec.plugin == BUILTIN


def is_reader(spec: ToolSpec | None) -> bool:
    """True where this is the built-in tool that reads on in an output that was cut."""
    return spec is not None and spec.name == READER and spec.plugin == BUILTIN


def told_when_needed(spec: ToolSpec) -> bool:
    """True where the catalog leaves this tool out, because it is told of where it is of use: the
    search where not all tools fit, the reader with an output that was cut."""
    return spec.plugin == BUILTIN and spec.name in (SEARCH, READER)


class Finder:
    """Ranks some tools against requests. Made once for the tools; works when it is first asked."""

    def __init__(self, tools: Iterable[ToolSpec]) -> None:
        self.tools = tuple(tools)
        self._scorer: Bm25 | None = None

    def matches(self, request: str) -> list[tuple[ToolSpec, float]]:
        """All tools with their scores, the best first; 0 for no word in common."""
        if self._scorer is None:
            self._scorer = Bm25(list(map(tool_stems, self.tools)))
        scores = [round(score, _DIGITS) for score in self._scorer.scores(set(stems(request)))]
        pairs = zip(self.tools, scores, strict=True)
        return sorted(pairs, key=lambda pair: (-pair[1], pair[0].name))

    def shortlist(self, request: str, first: Sequence[str] = ()) -> list[ToolSpec]:
        """The tools that a shortlist is filled with, in its order: those named in ``first``, those
        that match, and where these are few, others up to `LEAST_SHOWN`.

        More of what has no word in common with the request would cost time and mislead.
        """
        places = {name: place for place, name in enumerate(first)}
        matches = self.matches(request)
        wanted = sum(1 for tool, score in matches if score > 0 or tool.name in places)
        ranked = sorted(matches, key=lambda pair: places.get(pair[0].name, len(places)))
        return [tool for tool, _ in ranked[: max(wanted, LEAST_SHOWN)]]

    def hits(self, request: str) -> list[ToolSpec]:
        """The tools that have a word in common with ``request``, the best match first."""
        return [tool for tool, score in self.matches(request) if score > 0]

    def offer(
        self, request: str, known: Iterable[str], first: Sequence[str] = ()
    ) -> tuple[str, ...]:
        """The lines of what a later question brings: the tools named in ``first`` and those among
        its `OFFERED` best matches that are not ``known``, within `OFFER_BUDGET`."""
        told = set(known)
        named = [tool for tool in self.tools if tool.name in first]
        best = [*named, *self.hits(request)[:OFFERED]]
        new = {tool.name: tool for tool in best if tool.name not in told}
        return build_catalog(list(new.values()), OFFER_BUDGET).lines


class KnownTools:
    """Folds a session's header, questions and observations: a reading of the transcript, like the
    prompt.

    ``permitted`` are the tools that policy may allow. Where the header names no shortlist, the
    catalog holds them all, and the search, which would find nothing else, is not offered.
    """

    def __init__(self, header: Header, permitted: Mapping[str, ToolSpec]) -> None:
        self._permitted = permitted
        self._request = header.shortlist_request
        self._finder: Finder | None = None
        self._listed = header.shortlist
        self._names = set(header.shortlist)
        self._left: set[str] = set()  # those whose lines have left the prompt
        if not self._listed:
            self._names = {name for name, spec in permitted.items() if not told_when_needed(spec)}

    @property
    def tools(self) -> dict[str, ToolSpec]:
        """The permitted tools that the model has been told of."""
        return {name: spec for name, spec in self._permitted.items() if name in self._names}

    def offer(self, question: str, tool_choice: str) -> tuple[str, ...]:
        """The lines of the tools that a question brings, none where the catalog holds them all, or
        was chosen by this very question."""
        first = [tool_choice] if tool_choice in self._permitted else []
        if not self._listed or (question == self._request and self._names.issuperset(first)):
            return ()
        if self._finder is None:
            listed = (s for s in self._permitted.values() if not told_when_needed(s))
            self._finder = Finder(listed)
        return self._finder.offer(question, self._names - self._left, first)

    def ask(self, record: UserRecord, tool_choice: str) -> None:
        """Takes in a question, the tools it brings, and the tool that must be called."""
        names = [*self._brought(record), tool_choice]
        self._names.update(names)
        self._left.difference_update(names)

    def observe(self, record: ObservationRecord) -> bool:
        """Takes in an observation, what was found with it; returns whether it is a search's.

        An observation that names its own artifact was cut, and tells of the reader.
        """
        if record.artifact and record.artifact in (record.content or ""):
            self._tell_of_reader()
        if not is_search(self._permitted.get(record.name)):
            return False
        found = self._brought(record)
        self._names.update(found)
        self._left.difference_update(found)
        return True

    def compact(self, record: CompactedRecord, left: Iterable[Record]) -> None:
        """Takes in that something was left out of the prompt, and where it can be read. ``left``
        is what the prompt is made of now: tools whose lines are gone may be brought again."""
        texts = (record.content, *record.observations.values())
        if any(key in text for key in record.artifacts for text in texts):
            self._tell_of_reader()
        if self._listed:
            self._left = self._names.difference(self._listed, *map(self._brought, left))

    def _tell_of_reader(self) -> None:
        if is_reader(self._permitted.get(READER)):
            self._names.add(READER)

    def _brought(self, record: Record) -> list[str]:
        """The tools whose lines a question brings, or a search has found."""
        if isinstance(record, UserRecord):
            return names_in("\n".join(record.tools)) if record.tools else []
        if isinstance(record, ObservationRecord) and is_search(self._permitted.get(record.name)):
            return names_in(record.content or "")
        return []
