"""Whether a passage says again what another has said: a copy with small changes.

Byte by byte alike are few of the copies that people keep: a licence was put above one, a line end
or a name changed, a version of a page was kept. Texts that differ in a number are two, however
alike they are: invoices, minutes, readings.
"""

from __future__ import annotations

import re
from typing import Final

from mlx_tools.toolbox.kb.terms import terms

_IN_A_ROW: Final = 3
_SHARE: Final = 0.9
"""How many of a text's stretches of so many words stand in another that says the same."""

_OWNER: Final = re.compile(r"^\W*(?:copyright\b|\(c\)|©).*$", re.MULTILINE | re.IGNORECASE)
"""Whose a text is, and since when: it makes no other text of it."""

MOST: Final = 300
"""Texts that are compared; what comes later is taken for new."""


class SeenTexts:
    """What was told before, one text after the other."""

    def __init__(self) -> None:
        self._told: dict[frozenset[str], list[frozenset[tuple[str, ...]]]] = {}
        self._compared = 0

    def repeats(self, text: str) -> bool:
        """Whether one of the texts before says nearly all of this one; if not, it is told now."""
        self._compared += 1
        if self._compared > MOST:
            return False
        words = list(terms(_OWNER.sub("", text)))
        numbers = frozenset(word for word in words if any(map(str.isdigit, word)))
        rows = range(max(1, len(words) - _IN_A_ROW + 1))
        said = frozenset(tuple(words[at : at + _IN_A_ROW]) for at in rows)
        alike = self._told.setdefault(numbers, [])
        if any(len(said & other) >= _SHARE * len(said) for other in alike):
            return True
        alike.append(said)
        return False
