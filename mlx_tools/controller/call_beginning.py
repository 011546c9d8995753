"""Text that may become a call or the frame of an answer, while it is written.

Until more text has come, it is not shown as an answer.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final, NamedTuple

from mlx_tools.messages import loose_name

_HEAD_WORDS: Final = ("action:", "tool:", "call:", "function:", "final answer:", "thought:")
_BEFORE_NAME: Final = (
    r"(?:\[\s{0,8})?(?:print\(\s{0,8})?(?:(?:default_api|functions?)\.)?(?<![\w-])"
)
_CALL_BEGUN: Final = re.compile(
    rf"{_BEFORE_NAME}(?P<name>[\w.-]{{1,128}})(?=\(|\s{{0,8}}\{{)"
    r"|^[ \t]*(?:Action|Tool|Call|call|Function):"
    r"|(?:<?[|｜][\w▁:.-]{0,40})?[|｜]>"
    r"|[\[{\s]{0,8}[\"'](?:name|tool|tool_name|function|action|tool_calls)[\"']?\s*:"
    r"|<[\w:|｜]*(?:tool|call|invoke|function)|<(?P<tag>[\w.-]{1,128})[>\s]|\bto="
    r"|(?P<frame>^(?:Final Answer:|<(?:answer|response|final|final_answer)>)|\A\s*Thought:)",
    re.MULTILINE,
)
_TAIL_BEGUN: Final = re.compile(
    rf"(?:{_BEFORE_NAME}(?P<name>[\w.-]{{1,128}})(?P<space>\s{{0,8}})"
    r"|[\[{\s]{0,8}[\"'](?:\w{1,10}[\"']?\s{0,8})?"
    r"|[\[{]\s{0,8}"
    r"|<[\w:|｜▁.-]{0,60}"
    r"|[|｜][\w▁:.-]{0,40}"
    r"|^[ \t]*(?P<head>[A-Za-z][A-Za-z ]{0,12}))\Z",
    re.MULTILINE,
)
"""Text by which the end of a text may become one of these."""

_MAX_TAIL_CHARS: Final = 120
"""Characters at the end of a text in which a call may begin."""

_MAX_WORD_CHARS: Final = 40
"""The same for a call without a mark: a word that may be a tool's name, or a heading such as
Action."""

_MARK: Final = re.compile(r"[({<>\[|｜:=\"']")
"""A character without which only a tool's name or a heading can begin a call."""


class CallBeginning(NamedTuple):
    """The beginning of what may become a call, or of the frame of an answer.

    Attributes:
        offset: Its place in the text.
        is_open: Whether more text must come to see that: a tool's name alone may be a word.
        is_frame: Whether it is a frame, such as ``Final Answer:``.
    """

    offset: int
    is_open: bool = False
    is_frame: bool = False


def call_beginning(text: str, loose_names: Collection[str], start: int = 0) -> CallBeginning | None:
    """Return what in a text may go on to be a call or an answer's frame, or None.

    Args:
        text: The text of an answer so far.
        loose_names: The names of the tools, as `loose_name` writes them.
        start: Nothing that ends before this offset counts.
    """
    # Cheap, and mostly false: the costly patterns run only if there is a bracket or a mark.
    is_marked = _MARK.search(text, start) is not None
    for match in _CALL_BEGUN.finditer(text) if is_marked else ():
        name = match["name"] or match["tag"]
        is_named = name is None or not _loose_forms(name).isdisjoint(loose_names)
        if match.end() >= start and is_named:
            return CallBeginning(match.start(), is_frame=match["frame"] is not None)
    # Only the end can still become a call; the text before it was checked when it came.
    tail = max(0, len(text) - (_MAX_TAIL_CHARS if is_marked else _MAX_WORD_CHARS))
    for match in _TAIL_BEGUN.finditer(text, tail):
        begins_line = text[max(0, match.start() - 1) : match.start()] in ("", "\n")
        if _may_continue(match, loose_names, begins_line=begins_line):
            return CallBeginning(match.start(), is_open=True)
    return None


def _loose_forms(name: str) -> set[str]:
    """Return the loose forms of a name: all of it, and its part after the last dot."""
    return {loose_name(name), loose_name(name.rpartition(".")[2])}


def _may_continue(match: re.Match[str], names: Collection[str], *, begins_line: bool) -> bool:
    """Return whether a match at the end of a text may be the beginning of a call."""
    word = match[0].strip().lower()
    if begins_line and word and any(head.startswith(word) for head in _HEAD_WORDS):
        return True
    name = match["name"]
    if name is None:
        return match["head"] is None
    forms = _loose_forms(name)
    if match["space"]:
        return not forms.isdisjoint(names)
    words = filter(None, forms)
    return any(one.startswith(word) for word in words for one in (*names, "to", "print"))
