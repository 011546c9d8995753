"""``query_knowledge_base`` and ``list_corpora``: documents as numbered sources."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from mlx_tools.errors import KnowledgeBaseError, UsageError
from mlx_tools.messages import Effects
from mlx_tools.paths import knowledge_base_file
from mlx_tools.tools import Tool, ToolError, current_context, load_words
from mlx_tools.transcript import Source, Sources

if TYPE_CHECKING:
    from mlx_tools.plugins.kb.knowledge_base import Corpus, KnowledgeBase
    from mlx_tools.plugins.kb.search import Hit

QUERY: Final = "query_knowledge_base"
LIST: Final = "list_corpora"
DEFAULT_LIMIT: Final = 5

_READ: Final[Effects] = frozenset(("read",))
_DEFAULT_MAX_CHARS: Final = 4_000
"""Characters of an answer if the context has no limit."""
_MIN_SNIPPET_CHARS, _MAX_SNIPPET_CHARS = 160, 900
"""Limits for the shown characters of a passage. Between them the available room decides."""

_HEAD: Final = 160
"""The approximate number of characters of title and location."""


class Knowledge:
    """The tools of a knowledge base. ``file`` is its file, None for the user's own."""

    def __init__(self, file: Path | None = None) -> None:
        self._file = file
        self._cache: tuple[object, str | None] = (None, None)

    def tools(self) -> tuple[Tool, Tool]:
        """Return ``query_knowledge_base`` and ``list_corpora``."""
        query, listing = load_words(QUERY), load_words(LIST)
        return (
            Tool(query.spec(_READ, private=True), self._query),
            Tool(listing.spec(_READ, private=True), self._list),
        )

    def disabled_reason(self) -> str | None:
        """Return the reason why there is no knowledge base to search, or None."""
        empty_reason = load_words(QUERY).notices["off"]
        path = knowledge_base_file() if self._file is None else self._file
        try:
            status = path.stat()
        except OSError:
            return empty_reason
        stamp = (status.st_ino, status.st_size, status.st_mtime_ns)
        if stamp != self._cache[0]:
            try:
                reason = (
                    None if any(corpus.files for corpus in self._base().corpora()) else empty_reason
                )
            except KnowledgeBaseError as error:
                reason = str(error)
            self._cache = (stamp, reason)
        return self._cache[1]

    def _base(self) -> KnowledgeBase:
        from mlx_tools.plugins.kb.knowledge_base import KnowledgeBase

        return KnowledgeBase(self._file)

    def _corpora(self) -> list[Corpus]:
        try:
            return self._base().corpora()
        except KnowledgeBaseError as error:
            raise ToolError(str(error)) from None

    def _query(self, arguments: Mapping[str, Any]) -> Sources:
        notices = load_words(QUERY).notices
        limit = int(arguments.get("limit", DEFAULT_LIMIT))
        room = (current_context().shown_chars or _DEFAULT_MAX_CHARS) // limit - _HEAD
        corpus = arguments.get("corpus")
        try:
            hits = self._base().search(
                str(arguments["query"]),
                None if corpus is None else str(corpus),
                limit,
                snippet_chars=max(_MIN_SNIPPET_CHARS, min(room, _MAX_SNIPPET_CHARS)),
            )
        except UsageError:
            names = ", ".join(corpus_entry.name for corpus_entry in self._corpora())
            raise ToolError(notices["unknown"].format(name=corpus, names=names)) from None
        except KnowledgeBaseError as error:
            raise ToolError(str(error)) from None
        sources = tuple(_make_source(hit, notices) for hit in hits)
        return Sources(sources, "" if sources else notices["none"])

    def _list(self, arguments: Mapping[str, Any]) -> str:
        line = load_words(LIST).notices["corpus"]
        corpora = self._corpora()
        return "\n".join(line.format(name=corpus.name, files=corpus.files) for corpus in corpora)


def _make_source(hit: Hit, notices: Mapping[str, str]) -> Source:
    """Return a passage as a source, whose title has the place within the file."""
    title = hit.name
    if hit.page is not None:
        title = notices["page"].format(title=title, page=hit.page)
    elif hit.snippet_line is not None and hit.snippet_line > 1:
        title = notices["line"].format(title=title, line=hit.snippet_line)
    return Source(title, hit.path, hit.snippet)
