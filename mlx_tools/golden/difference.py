"""What came out otherwise than it was recorded, small enough to be read."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

Room = Literal["prompt", "reading", "policy", "tools", "outcome"]
"""Where a difference comes from: the words and turns that the model reads, how its text is read,
what is decided about its calls, the tools themselves, and what a question came to."""

ROOMS: Final[tuple[Room, ...]] = get_args(Room)

_WIDTH: Final = 96
_LINES: Final = 12
"""Lines of a diff that are shown; the rest is counted."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that is not as it was recorded.

    ``what`` names it ("the prompt", "the decision"), ``where`` is the place in the run ("turn 2,
    call c1"), ``was`` and ``now`` are texts, empty for what was not there, or is not any more.
    """

    room: Room
    what: str
    where: str
    was: str
    now: str

    def lines(self) -> list[str]:
        """The diff: lines that begin with ``-`` (recorded), ``+`` (now) or a blank (both)."""
        shown = list(_diff(self.was, self.now))
        if len(shown) > _LINES:
            shown[_LINES:] = [f"  ({len(shown) - _LINES} lines more)"]
        return shown

    def to_json(self) -> dict[str, Any]:
        """The difference as ``--json`` prints it."""
        return {
            "room": self.room,
            "what": self.what,
            "where": self.where,
            "was": self.was,
            "now": self.now,
            "diff": self.lines(),
        }


def _diff(was: str, now: str) -> Iterator[str]:
    """The lines that differ, each cut to what differs in it, with a line around them."""
    old, new = was.split("\n"), now.split("\n")
    matcher = difflib.SequenceMatcher(a=old, b=new, autojunk=False)
    for group in matcher.get_grouped_opcodes(1):
        for kind, a, b, c, d in group:
            if kind == "equal":
                yield from (f"  {_cut(line)}" for line in old[a:b])
                continue
            removed, added = old[a:b], new[c:d]
            if len(removed) == len(added):
                pairs = [_around(x, y) for x, y in zip(removed, added, strict=True)]
                removed, added = [x for x, _ in pairs], [y for _, y in pairs]
            if was:
                yield from (f"- {_cut(line)}" for line in removed)
            if now:
                yield from (f"+ {_cut(line)}" for line in added)


def _around(was: str, now: str) -> tuple[str, str]:
    """Both lines from a little before to a little after what differs."""
    shorter = min(len(was), len(now))
    start = next((i for i in range(shorter) if was[i] != now[i]), shorter)
    if max(len(was), len(now)) <= _WIDTH:
        return was, now
    end = next((i for i in range(shorter - start) if was[-1 - i] != now[-1 - i]), shorter - start)
    first = max(0, start - _WIDTH // 4)

    def part(line: str) -> str:
        last = min(len(line), max(len(line) - end + _WIDTH // 4, first + _WIDTH // 2))
        return ("…" if first else "") + line[first:last] + ("…" if last < len(line) else "")

    return part(was), part(now)


def _cut(line: str) -> str:
    return line if len(line) <= 2 * _WIDTH else line[: 2 * _WIDTH - 1] + "…"
