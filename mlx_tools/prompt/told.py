"""Which tools a session's model has been told of: a reading of the transcript, like the prompt.

Every permitted tool may be called by its exact name; what is offered where the host writes a call
(guided decoding, grammars) are the tools that the model could know: those in the catalog, those
that came with a question, those that a search found, and the reader once an output was cut.
"""

from __future__ import annotations

from collections.abc import Mapping

from mlx_tools.prompt.catalog import names_in
from mlx_tools.prompt.finder import READER, Finder, is_reader, is_search, told_when_needed
from mlx_tools.records import Header, ObservationRecord, UserRecord
from mlx_tools.spec import ToolSpec


class Told:
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
        return self._finder.offer(question, self._names, first)

    def ask(self, record: UserRecord, tool_choice: str) -> None:
        """Takes in a question, the tools it brings, and the tool that must be called."""
        self._names.update(names_in("\n".join(record.tools)), (tool_choice,))

    def observe(self, record: ObservationRecord) -> bool:
        """Takes in an observation, what was found with it; returns whether it is a search's.

        An observation that names its own artifact was cut, and tells of the reader.
        """
        if record.artifact and record.artifact in (record.content or ""):
            self._names.update(name for name in (READER,) if is_reader(self._permitted.get(name)))
        spec = self._permitted.get(record.name)
        if spec is None or not is_search(spec):
            return False
        if record.content is not None:
            self._names.update(names_in(record.content))
        return True
