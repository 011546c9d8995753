"""Whether prose looks like a call that nothing could read (reading rule 8b)."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Final

from mlx_tools.protocol.canonical import loose_name

_NAME: Final = r"[A-Za-z0-9_.-]++"
_BRACKETS: Final = re.compile(
    rf"(?:(?<![A-Za-z0-9_.-])({_NAME}))?(\()|(\))[ \t\]}};.]*+\r?(\n|\Z)?"
)
_ACTION: Final = re.compile(rf"^[ \t]*+Action:[ \t]*+({_NAME})[ \t\r]*+$", re.MULTILINE)
_MEMBER: Final = re.compile(
    rf"[{{,][ \t\r\n]*+[\"']?(?:name|tool|tool_name|function|action)[\"']?[ \t\r\n]*+:"
    rf"[ \t\r\n]*+[\"']({_NAME})[\"']"
)
_FENCE: Final = re.compile(r"[ \t]*+(`{3,}+|~{3,}+)")
_RUNS: Final = re.compile(r"`++|[^`]++")


def looks_like_call(prose: str, names: Collection[str]) -> bool:
    """Whether a tool of this name is called in ``prose``, outside code and fences.

    That is a name whose bracket closes at its line's end, an ``Action:``, or an object with the
    name under a key for it. Where the fence is all there is, what stands in it counts.
    """
    if not names:
        return False
    known = {loose_name(name) for name in names}
    text = "".join(_outside(prose))
    if not text.strip():
        text = "".join(_outside(prose, fences=False))
    found = [*_ACTION.findall(text), *_MEMBER.findall(text)]
    return any(loose_name(name) in known for name in found) or _is_called(text, known)


def _is_called(text: str, known: Collection[str]) -> bool:
    opened: list[bool] = []
    for found in _BRACKETS.finditer(text):
        name, opening, _, end = found.groups()
        if opening:
            opened.append(bool(name) and loose_name(name) in known)
        elif opened and opened.pop() and end is not None:
            return True
    return False


def _outside(prose: str, *, fences: bool = True) -> Iterator[str]:
    """What of ``prose`` stands outside inline code, and outside fences too unless told not."""
    fence = ""
    for line in prose.splitlines(keepends=True):
        mark = _FENCE.match(line)
        if mark and (not fence or mark[1].startswith(fence)):
            fence = "" if fence else mark[1]
        elif not fence:
            yield from _without_code(line)
        elif not fences:
            yield line


def _without_code(line: str) -> Iterator[str]:
    ticks = 0
    for run in _RUNS.findall(line):
        if run[0] != "`":
            if not ticks:
                yield run
        elif not ticks:
            ticks = len(run)
        elif ticks == len(run):
            ticks = 0
    if line.endswith("\n") and ticks:
        yield "\n"
