"""Detects a text that repeats itself, so that its completion can be stopped.

A small model that loops would write until the token limit. A text repeats itself if its end is a
short text again and again, without a change. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from mlx_tools.protocol import Place

MAX_PERIOD: Final = 200
"""Characters of the longest text that counts as repeated: two or three lines. A longer text may be
repeated on purpose, such as the rows of a table."""

MAX_REPEATED: Final[Mapping[Place, int]] = MappingProxyType(
    {"answer": 6_000, "thought": 3_000, "call": 24_000}
)
"""Characters that may be repeated, by place. A user may ask for a sentence a hundred times, and a
file in a call may have a thousand equal lines. A thought needs neither."""

_STEP: Final = 256
"""Characters between two checks of the text, because each check costs time."""


class RepetitionWatch:
    """Watches one text while it grows."""

    def __init__(self) -> None:
        self._seen_texts = 0

    def is_due(self, text: str) -> bool:
        """Return whether the text has grown enough to be checked again."""
        return len(text) >= self._seen_texts + _STEP

    def repeats(self, text: str, place: Place) -> bool:
        """Return whether the end of a text has repeated itself for too long.

        Args:
            text: the whole text so far. It is checked again after `_STEP` more characters.
            place: the place of its end, which decides how long it may repeat itself.
        """
        if not self.is_due(text):
            return False
        self._seen_texts = len(text)
        return is_repeated(text, MAX_REPEATED[place])


def is_repeated(text: str, max_repeats: int) -> bool:
    """Return whether a text ends in more than ``max_repeats`` repeated characters.

    At most `MAX_PERIOD` characters are repeated. The work is linear in ``max_repeats``, whatever
    the text is.
    """
    if len(text) <= max_repeats:
        return False
    tail = text[-max_repeats - 1 :]
    # If the tail has a period, its last characters came before, so many characters earlier. The
    # nearest such place is enough: two periods of one text that are this short have a common one.
    before = tail.rfind(tail[-MAX_PERIOD:], -2 * MAX_PERIOD, -1)
    if before < 0:
        return False
    period = len(tail) - MAX_PERIOD - before
    return tail[period:] == tail[:-period]
