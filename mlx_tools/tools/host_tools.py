"""The tools that a run itself offers, ``tool_search`` and ``read_artifact``; and the words of all
that come with the package: what ``prompts/tools/<name>.json`` says of one."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from msgspec import Struct

from mlx_tools.messages import Effects, ToolSpec
from mlx_tools.paths import read_data
from mlx_tools.policy import BUILTIN, Policy, can_be_allowed
from mlx_tools.prompt import READER, SEARCH, Finder, build_catalog, is_on_demand, one_line
from mlx_tools.tools.context import RunTools, ToolError, current_context
from mlx_tools.tools.tool import Tool


class Words(Struct, frozen=True):
    """Name, description and schema as the model sees them, and the notices in a tool's output."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    notices: Mapping[str, str]

    def spec(
        self, effects: Effects | Callable[[Mapping[str, Any]], Effects], **declaration: Any
    ) -> ToolSpec:
        """The tool's spec; what it does is code and stands, as what it declares, with the code."""
        said = self.name, self.description, self.parameters
        return ToolSpec(*said, effects, plugin=BUILTIN, **declaration)


@functools.cache
def words_of(name: str) -> Words:
    """The words in a file of ``prompts/tools/``, named without its ending."""
    read = json.loads(read_data(f"prompts/tools/{name}.json"))
    return Words(read["name"], read["description"], read["parameters"], read.get("notices", {}))


# --- tool_search: what a model needs and its catalog does not show --------------------------------

DEFAULT_LIMIT: Final = 5
MAX_LIMIT: Final = 20
BUDGET: Final = 800
"""Tokens that the signatures of what was found may take: all of them still fit into what a model
sees of an observation."""

MAX_REASON_CHARS: Final = 200


class ToolSearch(Struct, frozen=True):
    """The outcome of a search.

    ``hits`` match and may be called, the best first, each with its score; ``more`` further ones do.
    Of the best matches among all tools, ``denied`` may not be called, and those in ``disabled``
    might be, but cannot work now, for the reasons given.
    """

    hits: tuple[tuple[ToolSpec, float], ...]
    more: int = 0
    denied: int = 0
    disabled: tuple[tuple[str, str], ...] = ()


def find_tools(
    tools: RunTools,
    policy: Policy,
    query: str,
    limit: int = DEFAULT_LIMIT,
    *,
    include_hidden: bool = False,
) -> ToolSearch:
    """The tools that ``policy`` may allow and that match ``query``, at most ``limit``.

    What is hidden is counted among the ``limit`` best matches of all tools. A tool that policy
    forbids is counted as such whether it could work or not. With ``include_hidden`` nothing is
    hidden.
    """
    specs = [spec for spec in tools.all_specs().values() if not is_on_demand(spec)]
    allowed = {spec.name for spec in specs if can_be_allowed(policy, spec)}
    off = tools.disabled
    usable = specs
    if not include_hidden:
        usable = [spec for spec in specs if spec.name in allowed and spec.name not in off]
    hits = [(spec, score) for spec, score in Finder(usable).matches(query) if score > 0]
    best: list[str] = []
    if len(usable) < len(specs):
        best = [spec.name for spec in Finder(specs).hits(query)[:limit]]
    return ToolSearch(
        hits=tuple(hits[:limit]),
        more=max(0, len(hits) - limit),
        denied=sum(1 for name in best if name not in allowed),
        disabled=tuple((name, off[name]) for name in best if name in allowed and name in off),
    )


@functools.cache
def tool_search() -> Tool:
    """The tool that searches the tools of the run that calls it, by the policy of that run.

    One tool for all runs: in ``[*builtin_tools(), mine]`` it finds ``mine``. Outside of a run there
    are no tools to search.
    """
    words = words_of(SEARCH)

    def run(arguments: Mapping[str, Any]) -> str:
        context = current_context()
        if context.tools is None:
            return words.notices["none"]
        limit = int(arguments.get("limit", DEFAULT_LIMIT))
        found = find_tools(context.tools, context.policy, str(arguments["query"]), limit)
        return _describe_search(found, words.notices)

    return Tool(words.spec(frozenset(("read",))), run)


def _describe_search(search: ToolSearch, notices: Mapping[str, str]) -> str:
    """Return what was found as the catalog would show it, and in a line each what was not shown."""
    catalog = build_catalog([spec for spec, _ in search.hits], BUDGET)
    lines = [*catalog.lines] if catalog.lines else [notices["none"]]
    if more := search.more + len(catalog.hidden):
        lines.append(notices["more"].format(count=more))
    if search.denied:
        lines.append(notices["denied"].format(count=search.denied))
    if search.disabled:
        given = [one_line(why, MAX_REASON_CHARS).rstrip(".") for _, why in search.disabled]
        reasons = "; ".join(dict.fromkeys(given))
        lines.append(notices["disabled"].format(count=len(search.disabled), reasons=reasons))
    return "\n".join(lines)


# --- read_artifact: an output of this session that was cut for the model, page by page ------------

DEFAULT_LENGTH: Final = 3000


@functools.cache
def read_artifact() -> Tool:
    """The tool, one for all. It reads the artifacts of the session that calls it, and of no other.

    An id that is wrong, guessed, of another session or expired gives one and the same error. A page
    is never longer than what the model will see of it: its end says where the next one begins.
    """
    words = words_of(READER)

    def run(arguments: Mapping[str, Any]) -> str:
        context = current_context()
        kept = context.artifacts
        text = kept.get(str(arguments["id"])) if kept is not None else None
        if text is None:
            raise ToolError(words.notices["missing"])
        start = int(arguments.get("offset", 0))
        if start and start >= len(text):
            raise ToolError(words.notices["beyond"].format(start=start, total=len(text)))
        length = int(arguments.get("length", DEFAULT_LENGTH))
        return page(text, start, length, context.shown_chars, words.notices)

    return Tool(words.spec(frozenset(("read",))), run)


def page(text: str, start: int, length: int, room: int | None, notices: Mapping[str, str]) -> str:
    """``length`` characters from ``start`` on, fewer where page and notice would be more than
    ``room`` characters; at least one."""
    if room is not None:
        numbers = dict.fromkeys(("start", "end", "total"), len(text))
        longest = max(len(notices[key].format(**numbers)) for key in ("more", "end"))
        length = max(1, min(length, room - longest))
    end = min(start + length, len(text))
    notice = notices["more" if end < len(text) else "end"]
    return text[start:end] + notice.format(start=start, end=end, total=len(text))


def why_off() -> str:
    """Why the tool is switched off in a session that keeps no artifacts."""
    return words_of(READER).notices["off"]
