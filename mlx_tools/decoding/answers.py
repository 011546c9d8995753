"""Reads an answer as a model writes it: to its end, or to where it goes round in circles. Pure."""

from __future__ import annotations

from typing import Final

from mlx_tools.decoding.holes import StringHole

TIMES: Final = 5
LEAST_CHARS: Final = 160
LONGEST: Final = 150
"""A piece of up to `LONGEST` characters that ends a text so many times in a row, over so many
characters at least, is said in circles."""

HELD_FROM: Final = 16
"""From so many characters on it is waited what becomes of a piece that is said again."""


class AnswerHole(StringHole):
    """The inside of the last string of an object.

    A quote that neither the object's end nor another member follows stands within the text: small
    models forget to escape it.
    """

    def _closes(self, after: str) -> bool | None:
        after = after.lstrip()
        if after.startswith(","):
            after = after[1:].lstrip()
            return after.startswith('"') if after else None
        return after.startswith("}") if after else None

    def finish(self) -> str:
        """The model ended its text: a quote that was held back closed the string."""
        if self._held.startswith('"'):
            self.done, self.rest, self._held = True, self._held[1:], ""
            return ""
        return super().finish()


class TextHole:
    """Plain text up to an end mark, as style ``xml`` has its answer. Nothing is escaped."""

    def __init__(self, end: str) -> None:
        self.text = ""
        self.done = False
        self.rest = ""
        self._end = end
        self._held = ""

    def feed(self, piece: str) -> str:
        """Takes a piece; gives what it adds to ``text``."""
        if self.done:
            self.rest += piece
            return ""
        held = self._held + piece
        found = held.find(self._end)
        if found >= 0:
            self.done, self.rest = True, held[found + len(self._end) :]
            new, self._held = held[:found], ""
        else:
            keep = next(
                (n for n in range(len(self._end) - 1, 0, -1) if held.endswith(self._end[:n])), 0
            )
            new, self._held = held[: len(held) - keep], held[len(held) - keep :]
        self.text += new
        return new

    def finish(self) -> str:
        """The model ended its text: the beginning of an end mark is text too."""
        held, self._held = self._held, ""
        self.text += held
        return held


class Answer:
    """What is to be said of an answer, as its pieces come.

    A weak model that does not find the end of its answer says the last thing again, until its
    tokens are spent. What may be the beginning of that is held back until it is known; where it
    goes on, the answer is ``done`` after the first round. All other text is said as it is.
    """

    def __init__(self, hole: AnswerHole | TextHole) -> None:
        self.done = False
        self._hole = hole
        self._ends: list[int] = []  # where in the text each piece ends: no half escape stands there
        self._said = 0

    def feed(self, piece: str) -> str:
        """Takes a piece of what the model writes; gives what is to be said now."""
        if self.done:
            return ""
        self._hole.feed(piece)
        self.done = self._hole.done
        return self._more()

    def finish(self) -> str:
        """The model ended its text: gives what was held back."""
        if self.done:
            return ""
        self._hole.finish()
        self.done = self._hole.done
        return self._till(len(self._hole.text))

    @property
    def is_empty(self) -> bool:
        """Whether nothing was said."""
        return not self._said

    def _more(self) -> str:
        text = self._hole.text
        self._ends.append(len(text))
        again = None if self.done else said_again(text)
        if again is None:
            return self._till(len(text))
        begin, length = again
        if len(text) - begin >= max(TIMES * length, LEAST_CHARS):
            self.done = True
        return self._till(next(end for end in self._ends if end >= begin + length))

    def _till(self, end: int) -> str:
        """What was not said yet of the text up to ``end``."""
        begin, self._said = self._said, max(self._said, end)
        return self._hole.text[begin : self._said]


def said_again(text: str) -> tuple[int, int] | None:
    """Where what is said again and again at the end of a text begins, and the length of one round;
    None where nothing is."""
    for length in range(1, min(LONGEST, len(text) // 2) + 1):
        if text[-length:] != text[-2 * length : -length]:
            continue
        begin = len(text) - 2 * length
        while begin > 0 and text[begin - 1] == text[begin - 1 + length]:
            begin -= 1
        if len(text) - begin >= HELD_FROM:
            return begin, length
    return None
