"""Tokens with which models open a native tool call or a thought, as mlx-lm's server knows them.

That server cuts what stands between such markers out of a completion's text. Where a model's ids
for them are known they can be forbidden, so that the model writes in the protocol's own words.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, Literal

from mlx_tools.messages import Style

Native = Literal["calls", "reasoning"]

_OPENERS: Final[Mapping[Native, tuple[str, ...]]] = {
    "calls": (
        "<tool_call>",
        "<|tool_call>",
        "<|tool_call_start|>",
        "<|tool_calls_section_begin|>",
        "<|tool_call_begin|>",
        "<start_function_call>",
        "<minimax:tool_call>",
        "<longcat_tool_call>",
        "[TOOL_CALLS]",
        "<|python_tag|>",
    ),
    "reasoning": ("<think>", "<longcat_think>", "<|think:start|>", "<|channel>"),
}


def opener_ids(added_tokens: Mapping[str, int], kinds: Collection[Native]) -> tuple[int, ...]:
    """The ids of a model's own openers of these kinds; empty where it has none as one token."""
    texts = (text for kind in sorted(kinds) for text in _OPENERS[kind])
    return tuple(added_tokens[text] for text in texts if text in added_tokens)


def native_markers(style: Style) -> frozenset[Native]:
    """Which of its own markers a model shall not write in this style: `choose_backend`."""
    own = style in ("xml", "native")  # they are what a call is written with
    return frozenset() if own else frozenset(("calls",))
