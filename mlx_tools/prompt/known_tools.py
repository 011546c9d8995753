"""Which tools a session's model has been told of: a reading of the transcript, like the prompt.

Every permitted tool may be called by its exact name; what is offered where the host writes a call
(guided decoding, grammars) are the tools that the model could know: those in the catalog, those
that came with a question, those that a search found, and the reader once an output was cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from mlx_tools.messages import ToolSpec
from mlx_tools.prompt.catalog import names_in
from mlx_tools.prompt.finder import READER, Finder, is_reader, is_search, told_when_needed
from mlx_tools.transcript.records import (
    CompactedRecord,
    Header,
    ObservationRecord,
    Record,
    UserRecord,
)


class KnownTools:
    """Folds a session's header, questions and observations.

    ``permitted`` are the tools that policy may allow. Where the header names no shortlist, the
    catalog holds them all, and the search, which would find nothing else, is not offered.
    """

    def __init__(self, header: Header, permitted: Mapping[str, ToolSpec]) -> None:
        self._permitted = permitted
        self._shortlisted = bool(header.shortlist)
        self._request = header.shortlist_request
        self._finder: Finder | None = None
        self._names = set(header.shortlist)
        self._listed = header.shortlist
        self._left: set[str] = set()  # those whose lines have left the prompt
        if not self._shortlisted:
            self._names = {name for name, spec in permitted.items() if not told_when_needed(spec)}

    @property
    def tools(self) -> dict[str, ToolSpec]:
        """The permitted tools that the model has been told of."""
        return {name: spec for name, spec in self._permitted.items() if name in self._names}

    def offer(self, question: str, tool_choice: str) -> tuple[str, ...]:
        """The lines of the tools that a question brings, none where the catalog holds them all, or
        was chosen by this very question."""
        first = [tool_choice] if tool_choice in self._permitted else []
        if not self._shortlisted or (question == self._request and self._names.issuperset(first)):
            return ()
        if self._finder is None:
            listed = (s for s in self._permitted.values() if not told_when_needed(s))
            self._finder = Finder(listed)
        return self._finder.offer(question, self._names - self._left, first)

    def ask(self, record: UserRecord, tool_choice: str) -> None:
        """Takes in a question, the tools it brings, and the tool that must be called."""
        self._tell(*_brought(record), tool_choice)

    def observe(self, record: ObservationRecord) -> bool:
        """Takes in an observation, what was found with it; returns whether it is a search's.

        An observation that names its own artifact was cut, and tells of the reader.
        """
        if record.artifact and record.artifact in (record.content or ""):
            self._tell_of_reader()
        if not self._searches(record):
            return False
        self._tell(*_brought(record))
        return True

    def compact(self, record: CompactedRecord, left: Iterable[Record]) -> None:
        """Takes in that something was left out of the prompt, and where it can be read. ``left``
        is what the prompt is made of now: tools whose lines are gone may be brought again."""
        texts = (record.content, *record.observations.values())
        if any(key in text for key in record.artifacts for text in texts):
            self._tell_of_reader()
        if self._shortlisted:
            brought = (
                _brought(one)
                for one in left
                if isinstance(one, UserRecord)
                or (isinstance(one, ObservationRecord) and self._searches(one))
            )
            self._left = self._names.difference(self._listed, *brought)

    def _tell(self, *names: str) -> None:
        self._names.update(names)
        self._left.difference_update(names)

    def _searches(self, record: ObservationRecord) -> bool:
        spec = self._permitted.get(record.name)
        return spec is not None and is_search(spec)

    def _tell_of_reader(self) -> None:
        self._names.update(name for name in (READER,) if is_reader(self._permitted.get(name)))


def _brought(record: UserRecord | ObservationRecord) -> Iterable[str]:
    """The tools whose lines a question brings, or a search has found."""
    if isinstance(record, UserRecord):
        return names_in("\n".join(record.tools))
    return names_in(record.content or "")
