"""Long pasted texts in an input line, shown as ``[120 lines pasted]``.

Each is one character of the line. So the cursor steps over it, and a backspace removes it.
"""

from __future__ import annotations

from typing import Final

FOLDED_LINES: Final = 10
"""Lines from which on a pasted text is folded. A choice: fewer can be read where they are."""

FOLDED_CHARS: Final = 2_000
"""Characters likewise: a screen of 80 columns and 24 rows."""

_FIRST: Final = 0xF0000
"""The beginning of Unicode's private planes: no text that people share has these characters."""


class Pastes:
    """The pasted texts that a line shows folded."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def fold(self, text: str) -> str:
        """Return the text in the line for a pasted text: one character if it is long."""
        if len(text) < FOLDED_CHARS and len(text.splitlines()) < FOLDED_LINES:
            return text
        mark = chr(_FIRST + len(self._texts))
        self._texts[mark] = text
        return mark

    def unfold(self, text: str) -> str:
        """Return a line with the texts that were pasted into it."""
        return "".join(self._texts.get(char, char) for char in text) if self._texts else text

    def ends(self, text: str) -> bool:
        """Return True if the line ends with a folded text."""
        return text[-1:] in self._texts

    def label(self, char: str) -> str | None:
        """Return the label of a character that represents a text; None for any other."""
        text = self._texts.get(char)
        if text is None:
            return None
        lines = len(text.splitlines())
        return f"[{lines:,} lines pasted]" if lines > 1 else f"[{len(text):,} characters pasted]"
