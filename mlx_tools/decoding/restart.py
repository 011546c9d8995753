"""Whether a model begins its line anew where it was to go on with the host's. Pure.

Some servers pay no heed to what the model's turn begins with, above all those that put every prompt
into a chat of their own: then the model writes a whole line.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from mlx_tools.protocol.lexis import ANSWER_TAG, CALL_TAG

_OBJECTS: Final = ('{"type":"tool_call"', '{"type":"final_answer"')
_FENCES: Final = ("```json", "```")
_WHITE: Final = re.compile(r"\s+")

HEADS: Final = (*_OBJECTS, f'{CALL_TAG}{{"', ANSWER_TAG)
"""How a line of the protocol begins in any style, white space and fences aside."""

_BLANKS: Final = 64
"""After so much white space and nothing else, a text is what the model writes."""


def heads_after(prefix: str) -> Sequence[str]:
    """Those of the `HEADS` that cannot be what goes on with ``prefix``.

    In JSON an unescaped quote ends the string that the prefix leaves open, and no object goes on as
    those heads do after it; a tag alone may stand in a string. What a tag opens is any text.
    """
    if prefix == ANSWER_TAG:
        return [head for head in HEADS if head not in _OBJECTS]
    return [head for head in HEADS if prefix.startswith("<") or head != ANSWER_TAG]


def begins_anew(text: str, heads: Sequence[str] = HEADS) -> bool | None:
    """Whether ``text``, the first that a model wrote, begins a line; None: too short to tell."""
    bare = _WHITE.sub("", text)
    if not bare:
        return None if len(text) < _BLANKS else False
    for fence in _FENCES:
        if fence.startswith(bare):
            return None
        if bare.startswith(fence):
            bare = bare[len(fence) :]
            break
    if any(bare.startswith(head) for head in heads):
        return True
    return None if any(head.startswith(bare) for head in heads) else False


class RestartWatch:
    """Holds back what a model writes first until it is clear whether it begins its line ``anew``.

    ``prefix`` is what the host wrote of the line; where that is nothing, nothing is held back.
    """

    def __init__(self, prefix: str) -> None:
        self.anew = False
        self._heads = heads_after(prefix)
        self._held: str | None = "" if prefix else None

    def feed(self, text: str) -> str:
        """Take in the next text and return what is to be read on."""
        if self._held is None:
            return text
        self._held += text
        begins = begins_anew(self._held, self._heads)
        if begins is None:
            return ""
        self.anew = begins
        return self.flush()

    def flush(self) -> str:
        """Return what is held back: no more will come."""
        text, self._held = self._held or "", None
        return text
