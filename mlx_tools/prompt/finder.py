"""Which tools match a request: the order of a shortlist, a search, and what a question brings.

All three rank by `mlx_tools.prompt.lexical.Ranking`. Tools that match alike stand in the order of
their names, so the result depends on the tools and not on the order they came in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from mlx_tools.messages import ToolSpec
from mlx_tools.prompt.catalog import LEAST_SHOWN, build_catalog, count_tokens
from mlx_tools.prompt.lexical import Ranking

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


def is_search(spec: ToolSpec) -> bool:
    """Whether this is the built-in tool that looks through the others."""
    return spec.name == SEARCH and spec.plugin == BUILTIN


def is_reader(spec: ToolSpec | None) -> bool:
    """Whether this is the built-in tool that reads on in an output that was cut."""
    return spec is not None and spec.name == READER and spec.plugin == BUILTIN


def told_when_needed(spec: ToolSpec) -> bool:
    """Whether the catalog leaves this tool out, because it is told of where it is of use: the
    search where not all tools fit, the reader with an output that was cut."""
    return is_search(spec) or is_reader(spec)


class Finder:
    """Ranks some tools against requests. Made once for the tools; works when it is first asked."""

    def __init__(self, tools: Iterable[ToolSpec]) -> None:
        self.tools = tuple(tools)
        self._ranking: Ranking | None = None

    def matches(self, request: str) -> list[tuple[ToolSpec, float]]:
        """All tools with their scores, the best first; 0 for no word in common."""
        if self._ranking is None:
            self._ranking = Ranking(self.tools)
        scores = [round(score, _DIGITS) for score in self._ranking.scores(request)]
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
        self,
        request: str,
        known: Iterable[str],
        first: Sequence[str] = (),
        count: Callable[[str], int] = count_tokens,
    ) -> tuple[str, ...]:
        """The lines of what a later question brings: the tools named in ``first`` and those among
        its `OFFERED` best matches that are not ``known``, within `OFFER_BUDGET`."""
        told = set(known)
        named = [tool for tool in self.tools if tool.name in first]
        best = [*named, *self.hits(request)[:OFFERED]]
        new = {tool.name: tool for tool in best if tool.name not in told}
        return build_catalog(list(new.values()), OFFER_BUDGET, count).lines
