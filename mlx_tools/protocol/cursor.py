"""A text that comes in pieces, and how far it has been read."""

from __future__ import annotations

import re


class Cursor:
    """What has come and is not read yet begins at ``text[pos]``.

    ``final`` says that nothing more will come: what could be the beginning of a mark is none then.
    """

    __slots__ = ("final", "pos", "text")

    def __init__(self) -> None:
        self.text = ""
        self.pos = 0
        self.final = False

    def push(self, piece: str) -> None:
        """Takes in the next piece."""
        self.text = self.text[self.pos :] + piece if self.pos < len(self.text) else piece
        self.pos = 0

    def take(self, end: int) -> str:
        """The text up to ``end``, which is read now."""
        taken = self.text[self.pos : end]
        self.pos = end
        return taken

    def take_all(self) -> str:
        """All that is left."""
        return self.take(len(self.text))

    def put_back(self, earlier: str, begin: int) -> None:
        """``earlier`` was read before ``text[begin]``, and is to be read again."""
        self.text = earlier + self.text[begin:]
        self.pos = 0

    def seek(
        self, pattern: re.Pattern[str], begun: re.Pattern[str], longest: int
    ) -> tuple[re.Match[str] | None, int]:
        """The next match and where it begins; or None, and how far there is none for certain.

        ``begun`` matches the beginning of a match at the very end of a text, and ``longest`` is
        the length of the longest match.
        """
        text, size = self.text, len(self.text)
        found = pattern.search(text, self.pos)
        if not self.final and (found is None or size - found.start() < longest):
            half = begun.search(text, max(self.pos, size - longest))
            if half is not None and (found is None or half.start() <= found.start()):
                return None, half.start()
        return found, size if found is None else found.start()


class PlainText:
    """Text whose outer white space does not count, given out as soon as it is known to count."""

    def __init__(self, white: str) -> None:
        self._white = white
        self._pieces: list[str] = []
        self._held: list[str] = []  # white space that more text may follow

    def add(self, text: str) -> str:
        """Takes in more; returns what of it, and of what was held, counts now."""
        body = text.rstrip(self._white)
        if not body:
            self._held.append(text)
            return ""
        held, self._held = self._held, [text[len(body) :]]
        body = "".join((*held, body)) if self._pieces else body.lstrip(self._white)
        self._pieces.append(body)
        return body

    @property
    def text(self) -> str:
        """All that counts."""
        return "".join(self._pieces)
