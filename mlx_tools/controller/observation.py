"""What a model is shown of a tool's output: all of it, or head and tail."""

from __future__ import annotations

from collections.abc import Callable


def shorten(text: str, limit: int, notice: Callable[[int, int], str]) -> str:
    """``text`` in at most ``limit`` characters: two thirds head, then ``notice``, one third tail.

    ``notice`` is given how many characters were left out and where they begin. A limit too small
    for head, notice and tail keeps the head alone.
    """
    if len(text) <= limit:
        return text
    words = notice(len(text), len(text))  # the longest it can get: both numbers only shrink
    room = limit - len(words)
    if room < 2:
        return text[:limit]
    head, tail = room - room // 3, room // 3
    return text[:head] + notice(len(text) - head - tail, head) + text[len(text) - tail :]
