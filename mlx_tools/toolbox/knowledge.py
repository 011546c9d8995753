"""``query_knowledge_base`` and ``list_corpora``: the user's own documents, as numbered sources."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from mlx_tools.errors import KnowledgeBaseError, UsageError
from mlx_tools.messages import Effects
from mlx_tools.paths import knowledge_base_file
from mlx_tools.tools import Tool, ToolError, current_context, words_of
from mlx_tools.transcript import Source, Sources

if TYPE_CHECKING:
    from mlx_tools.toolbox.kb.knowledge_base import Corpus, KnowledgeBase
    from mlx_tools.toolbox.kb.search import Hit

QUERY: Final = "query_knowledge_base"
LIST: Final = "list_corpora"
DEFAULT_LIMIT: Final = 5

_READ: Final[Effects] = frozenset(("read",))
_ROOM: Final = 4_000
_LEAST, _MOST = 160, 900
"""Characters of a passage that are shown: as many as there is room for, between these."""

_HEAD: Final = 160
"""Characters that title and location take, about."""


class Knowledge:
    """The tools of a knowledge base. ``file`` is where it lies, None for the user's own."""

    def __init__(self, file: Path | None = None) -> None:
        self._file = file
        self._cache: tuple[object, str | None] = (None, None)

    def tools(self) -> tuple[Tool, Tool]:
        """``query_knowledge_base`` and ``list_corpora``."""
        query, listing = words_of(QUERY), words_of(LIST)
        return (
            Tool(query.spec(_READ, private=True), self._query),
            Tool(listing.spec(_READ, private=True), self._list),
        )

    def disabled_reason(self) -> str | None:
        """Why there is nothing to search, None where there is something."""
        nothing = words_of(QUERY).notices["off"]
        path = knowledge_base_file() if self._file is None else self._file
        try:
            status = path.stat()
        except OSError:
            return nothing
        stamp = (status.st_ino, status.st_size, status.st_mtime_ns)
        if stamp != self._cache[0]:
            try:
                off = None if any(one.files for one in self._base().corpora()) else nothing
            except KnowledgeBaseError as error:
                off = str(error)
            self._cache = (stamp, off)
        return self._cache[1]

    def _base(self) -> KnowledgeBase:
        from mlx_tools.toolbox.kb.knowledge_base import KnowledgeBase

        return KnowledgeBase(self._file)

    def _corpora(self) -> list[Corpus]:
        try:
            return self._base().corpora()
        except KnowledgeBaseError as error:
            raise ToolError(str(error)) from None

    def _query(self, arguments: Mapping[str, Any]) -> Sources:
        notices = words_of(QUERY).notices
        limit = int(arguments.get("limit", DEFAULT_LIMIT))
        room = (current_context().shown_chars or _ROOM) // limit - _HEAD
        corpus = arguments.get("corpus")
        try:
            hits = self._base().search(
                str(arguments["query"]),
                None if corpus is None else str(corpus),
                limit,
                snippet_chars=max(_LEAST, min(room, _MOST)),
            )
        except UsageError:
            names = ", ".join(one.name for one in self._corpora())
            raise ToolError(notices["unknown"].format(name=corpus, names=names)) from None
        except KnowledgeBaseError as error:
            raise ToolError(str(error)) from None
        found = tuple(_source(hit, notices) for hit in hits)
        return Sources(found, "" if found else notices["none"])

    def _list(self, arguments: Mapping[str, Any]) -> str:
        line = words_of(LIST).notices["corpus"]
        corpora = self._corpora()
        return "\n".join(line.format(name=one.name, files=one.files) for one in corpora)


def _source(hit: Hit, notices: Mapping[str, str]) -> Source:
    """A passage; its title says where in the file it stands, unless that is the beginning."""
    title = hit.name
    if hit.page is not None:
        title = notices["page"].format(title=title, page=hit.page)
    elif hit.snippet_line is not None and hit.snippet_line > 1:
        title = notices["line"].format(title=title, line=hit.snippet_line)
    return Source(title, hit.path, hit.snippet)
