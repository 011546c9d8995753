"""The tools that each run has itself: ``tool_search`` and ``read_artifact``.

This module also reads the texts of all built-in tools from ``prompts/tools/<name>.json``.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from msgspec import Struct

from mlx_tools.messages import Effects, ToolSpec
from mlx_tools.paths import read_data
from mlx_tools.policy import BUILTIN, Policy, can_be_allowed
from mlx_tools.prompt import READER, SEARCH, build_catalog, is_on_demand, one_line
from mlx_tools.tools.context import RunTools, ToolError, current_context
from mlx_tools.tools.finder import Finder
from mlx_tools.tools.tool import Tool


class Words(Struct, frozen=True):
    """The texts of a tool: name, description and schema for the model, and notices."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    notices: Mapping[str, str]
    """The sentences that its outputs may contain, by key."""

    def spec(
        self, effects: Effects | Callable[[Mapping[str, Any]], Effects], **declaration: Any
    ) -> ToolSpec:
        """Return the tool's specification, with effects and declarations of the code."""
        texts = self.name, self.description, self.parameters
        return ToolSpec(*texts, effects, plugin=BUILTIN, **declaration)


@functools.cache
def load_words(name: str) -> Words:
    """Read the texts of a tool from the file ``name``.json in ``prompts/tools/``."""
    document = json.loads(read_data(f"prompts/tools/{name}.json"))
    return Words(
        document["name"],
        document["description"],
        document["parameters"],
        document.get("notices", {}),
    )


# --- tool_search: finds tools that the model's catalog does not show ------------------------------

DEFAULT_LIMIT: Final = 5
"""Tools that a search returns by default: enough for one step, few enough for a small context."""
MAX_LIMIT: Final = 20
MAX_SIGNATURE_TOKENS: Final = 800
"""The limit of the signatures of the matching tools, in tokens. An observation of the smallest size
has room for all of them."""

MAX_REASON_CHARS: Final = 200
"""Characters of the reason why a tool is disabled."""


class ToolSearch(Struct, frozen=True):
    """The result of a search for tools."""

    hits: tuple[tuple[ToolSpec, float], ...]
    """The matching tools that may be called, best first, each with its score."""
    hidden_count: int = 0
    """The number of further matches."""
    denied: int = 0
    """The number of best matches that the policy does not permit."""
    disabled: tuple[tuple[str, str], ...] = ()
    """Best matches that are permitted but disabled, each with the reason."""


def find_tools(
    tools: RunTools,
    policy: Policy,
    query: str,
    limit: int = DEFAULT_LIMIT,
    *,
    include_hidden: bool = False,
) -> ToolSearch:
    """Return the tools that match ``query`` and that ``policy`` may allow.

    Denied and disabled tools are counted among the ``limit`` best matches of all tools. A tool that
    the policy forbids counts as denied, also if it is disabled.

    Args:
        tools: the registry to search.
        policy: the policy of the run.
        query: the words to look for.
        limit: the maximum number of matches.
        include_hidden: True to return denied and disabled tools, too.
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
        hidden_count=max(0, len(hits) - limit),
        denied=sum(1 for name in best if name not in allowed),
        disabled=tuple((name, off[name]) for name in best if name in allowed and name in off),
    )


@functools.cache
def tool_search() -> Tool:
    """Make the tool that searches the tools of the calling run, under its policy.

    All runs can share one tool: in ``[*builtin_tools(), mine]`` it finds ``mine``. Outside of a run
    it finds nothing.
    """
    words = load_words(SEARCH)

    def run(arguments: Mapping[str, Any]) -> str:
        context = current_context()
        if context.tools is None:
            return words.notices["none"]
        limit = int(arguments.get("limit", DEFAULT_LIMIT))
        search = find_tools(context.tools, context.policy, str(arguments["query"]), limit)
        return _describe_search(search, words.notices)

    return Tool(words.spec(frozenset(("read",))), run)


def _describe_search(search: ToolSearch, notices: Mapping[str, str]) -> str:
    """Return the matches as a catalog, with a line for each kind of hidden tool."""
    catalog = build_catalog([spec for spec, _ in search.hits], MAX_SIGNATURE_TOKENS)
    lines = [*catalog.lines] if catalog.lines else [notices["none"]]
    if further_count := search.hidden_count + len(catalog.hidden_names):
        lines.append(notices["more"].format(count=further_count))
    if search.denied:
        lines.append(notices["denied"].format(count=search.denied))
    if search.disabled:
        reasons_given = [one_line(why, MAX_REASON_CHARS).rstrip(".") for _, why in search.disabled]
        reasons = "; ".join(dict.fromkeys(reasons_given))
        lines.append(notices["disabled"].format(count=len(search.disabled), reasons=reasons))
    return "\n".join(lines)


# --- read_artifact: reads an output of this session that was truncated, page by page --------------

DEFAULT_LENGTH: Final = 3000
"""Characters of a page: about 1,000 tokens."""


@functools.cache
def read_artifact() -> Tool:
    """Make the tool that reads the artifacts of the calling session only.

    The error is the same for a wrong, a foreign and an expired id. A page is never longer than the
    text that the model will see, because its end says where the next page begins.
    """
    words = load_words(READER)

    def run(arguments: Mapping[str, Any]) -> str:
        context = current_context()
        artifacts = context.artifacts
        text = artifacts.get(str(arguments["id"])) if artifacts is not None else None
        if text is None:
            raise ToolError(words.notices["missing"])
        start = int(arguments.get("offset", 0))
        if start and start >= len(text):
            raise ToolError(words.notices["beyond"].format(start=start, total=len(text)))
        length = int(arguments.get("length", DEFAULT_LENGTH))
        return read_page(text, start, length, context.shown_chars, words.notices)

    return Tool(words.spec(frozenset(("read",))), run)


def read_page(
    text: str, start: int, length: int, room: int | None, notices: Mapping[str, str]
) -> str:
    """Return a page of a text with its notice. A page has at least one character.

    Args:
        text: the whole text.
        start: the number of the first character.
        length: the length of the page in characters.
        room: the limit of page and notice together, None without a limit.
        notices: the sentences for the end of a page.
    """
    if room is not None:
        numbers = dict.fromkeys(("start", "end", "total"), len(text))
        longest = max(len(notices[key].format(**numbers)) for key in ("more", "end"))
        length = max(1, min(length, room - longest))
    end = min(start + length, len(text))
    notice = notices["more" if end < len(text) else "end"]
    return text[start:end] + notice.format(start=start, end=end, total=len(text))


def artifacts_off_reason() -> str:
    """Return why the tool is disabled in a session without artifacts."""
    return load_words(READER).notices["off"]
