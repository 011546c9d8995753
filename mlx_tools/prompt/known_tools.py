"""The tools that a model knows.

Every permitted tool may be called by its exact name. What the host offers while it writes a call
(guided decoding, grammars) are the tools that the model could know: those in the catalog, those
that came with a question, those that a search found, and the reader once an output was cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from typing import Final, Protocol

from mlx_tools.messages import ToolSpec
from mlx_tools.policy import BUILTIN
from mlx_tools.prompt.catalog import parse_tool_names
from mlx_tools.transcript import (
    CompactedRecord,
    Header,
    ObservationRecord,
    Record,
    UserRecord,
)

SEARCH: Final = "tool_search"
"""The name of the built-in tool that looks through the tools; another plugin's tool of this name is
like any other."""

READER: Final = "read_artifact"
"""The same of the one that reads on in an output that was cut."""


class ToolRanking(Protocol):
    """Tools that are ranked against requests: `mlx_tools.tools.Finder`."""

    def shortlist(self, request: str, first: Sequence[str] = ()) -> list[ToolSpec]:
        """Return the tools that a shortlist is filled with, in its order."""
        ...

    def offer(
        self, request: str, known_names: Iterable[str], first: Sequence[str] = ()
    ) -> tuple[str, ...]:
        """Return the lines of the tools that a later question brings."""
        ...


RankTools = Callable[[Iterable[ToolSpec]], ToolRanking]
"""Returns a ranking of some tools."""


def is_search(spec: ToolSpec | None) -> bool:
    """Return True if this is the built-in tool that searches the others."""
    return spec is not None and spec.name == SEARCH and spec.plugin == BUILTIN


def is_reader(spec: ToolSpec | None) -> bool:
    """Return True if this is the built-in tool that reads on in cut outputs."""
    return spec is not None and spec.name == READER and spec.plugin == BUILTIN


def is_on_demand(spec: ToolSpec) -> bool:
    """Return True if the catalog leaves this tool out until it is of use.

    The search is of use if not all tools fit, the reader with an output that was cut.
    """
    return spec.plugin == BUILTIN and spec.name in (SEARCH, READER)


class KnownTools:
    """The tools that a model knows: a fold of header, questions and observations.

    ``permitted`` are the tools that policy may allow; ``rank_tools`` ranks some of them against
    questions. If the header names no shortlist, the catalog
    holds them all, and the search, which would find nothing else, is not offered.
    """

    def __init__(
        self, header: Header, permitted: Mapping[str, ToolSpec], rank_tools: RankTools
    ) -> None:
        self._permitted = permitted
        self._rank_tools = rank_tools
        self._request = header.shortlist_request
        self._ranking: ToolRanking | None = None
        self._shown_names = header.shortlist
        self._names = set(header.shortlist)
        self._remaining: set[str] = set()  # those whose lines have left the prompt
        self._announced: dict[str, ToolSpec] | None = None
        if not self._shown_names:
            self._names = {name for name, spec in permitted.items() if not is_on_demand(spec)}

    @property
    def tools(self) -> Mapping[str, ToolSpec]:
        """The permitted tools that the model has been told of."""
        if self._announced is None:
            told = {name: spec for name, spec in self._permitted.items() if name in self._names}
            self._announced = told
        return self._announced

    def copy(self) -> KnownTools:
        """Return known tools that can be added to while these stay."""
        other = copy(self)
        other._names, other._remaining = {*self._names}, {*self._remaining}
        return other

    def offer(self, question: str, tool_choice: str) -> tuple[str, ...]:
        """Return the lines of the tools that a question brings.

        There are none if the catalog holds all tools, or was chosen by this question.
        """
        first = [tool_choice] if tool_choice in self._permitted else []
        if not self._shown_names or (question == self._request and self._names.issuperset(first)):
            return ()
        if self._ranking is None:
            listed = (s for s in self._permitted.values() if not is_on_demand(s))
            self._ranking = self._rank_tools(listed)
        return self._ranking.offer(question, self._names - self._remaining, first)

    def ask(self, record: UserRecord, tool_choice: str) -> None:
        """Add a question, the tools that it brings, and the tool that must be called."""
        self._add_names(*self._brought(record), tool_choice)

    def observe(self, record: ObservationRecord) -> bool:
        """Add an observation and the tools that it names. Return True for a search's.

        An observation that names its own artifact was cut, and so brings the reader.
        """
        if record.artifact and record.artifact in (record.content or ""):
            self._add_artifact_reader()
        if not is_search(self._permitted.get(record.name)):
            return False
        self._add_names(*self._brought(record))
        return True

    def compact(self, record: CompactedRecord, removed_records: Iterable[Record]) -> None:
        """Add a compaction, and where the removed texts can be read.

        ``removed_records`` is what the prompt is made of now: tools whose lines left may be brought
        again.
        """
        texts = (record.content, *record.observations.values())
        if any(key in text for key in record.artifacts for text in texts):
            self._add_artifact_reader()
        if self._shown_names:
            self._remaining = self._names.difference(
                self._shown_names, *map(self._brought, removed_records)
            )

    def _add_names(self, *names: str) -> None:
        self._names.update(names)
        self._remaining.difference_update(names)
        self._announced = None

    def _add_artifact_reader(self) -> None:
        if is_reader(self._permitted.get(READER)):
            self._add_names(READER)

    def _brought(self, record: Record) -> list[str]:
        """Return the tools whose lines a question brings, or a search has found."""
        if isinstance(record, UserRecord):
            return parse_tool_names("\n".join(record.tools)) if record.tools else []
        if isinstance(record, ObservationRecord) and is_search(self._permitted.get(record.name)):
            return parse_tool_names(record.content or "")
        return []
