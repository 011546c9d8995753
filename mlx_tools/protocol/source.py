"""The text from a mark on, for readers that wait where it ends.

A reader of a call's body is a generator: it yields where it needs more text than has come, and is
resumed when there is more. So it is written as if the whole text were there, and its result does
not depend on how the text was split. What it takes is kept, to be put back if it was no call.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, Final

from mlx_tools.protocol.delimiters import any_beginning_of, any_of
from mlx_tools.protocol.literals import STRING_MARKS
from mlx_tools.protocol.reading import Cursor, Steps
from mlx_tools.protocol.scan import CLOSED, MORE, ObjectScanner, repaired
from mlx_tools.protocol.strict import MAX_DEPTH, Unreadable

_SPACE: Final = re.compile(r"[ \t\r\n]++")
_BLANKS: Final = re.compile(r"[ \t\r]++")
_PLAIN: Final = re.compile(r"[^()\[\]{}'\"<]++")
_NOT_END: Final = {quote: re.compile(rf"[^\\{quote}]++") for quote in "'\""}
_CLOSERS: Final = {"(": ")", "{": "}", "[": "]"}


class Fault(Exception):
    """The text is no call as its family writes it; the message says why."""


class CutOff(Exception):
    """The text ends within a call. ``scanner``: within this object, which may be closed."""

    def __init__(self, text: str = "", scanner: ObjectScanner | None = None) -> None:
        super().__init__("the output was cut off")
        self.text = text
        self.scanner = scanner


@lru_cache(maxsize=256)
def _looked_for(*marks: str) -> tuple[re.Pattern[str], re.Pattern[str], int]:
    """The marks, their beginnings, and the length of the longest."""
    return any_of(list(marks)), any_beginning_of(list(marks)), max(map(len, marks))


class TextSource:
    """The text that a generator reads from. ``size`` counts the characters that were taken."""

    def __init__(self, cursor: Cursor) -> None:
        self._cursor = cursor
        self.taken: list[str] = []
        self.size = 0

    @property
    def _left(self) -> int:
        return len(self._cursor.text) - self._cursor.pos

    def _take(self, end: int) -> str:
        text = self._cursor.take(end)
        self.taken.append(text)
        self.size += len(text)
        return text

    def put_back(self, size: int) -> None:
        """All but the first ``size`` characters that were taken are to be read again."""
        back: list[str] = []
        while self.size > size:
            piece = self.taken.pop()
            keep = max(0, len(piece) - (self.size - size))
            self.size -= len(piece) - keep
            back.append(piece[keep:])
            if keep:
                self.taken.append(piece[:keep])
        cursor, count = self._cursor, sum(map(len, back))
        if count <= cursor.pos:  # it is all there still
            cursor.pos -= count
        else:
            cursor.put_back("".join(reversed(back)), cursor.pos)

    def fill(self, size: int) -> Steps[bool]:
        """Waits until there are so many characters; False where the text ends before."""
        while self._left < size:
            if self._cursor.final:
                return False
            yield
        return True

    def peek(self) -> Steps[str]:
        """The next character, empty at the end."""
        return (yield from self.ahead(1))

    def ahead(self, size: int) -> Steps[str]:
        """So many of the next characters, or all there are."""
        yield from self.fill(size)
        return self._cursor.text[self._cursor.pos : self._cursor.pos + size]

    def tag(self, most: int) -> Steps[str]:
        """The next characters up to a ``>``, with it, at most ``most``; nothing is taken."""
        cursor = self._cursor
        while True:
            end = cursor.text.find(">", cursor.pos, cursor.pos + most)
            if end >= 0 or cursor.final or self._left >= most:
                return cursor.text[cursor.pos : end + 1 if end >= 0 else cursor.pos + most]
            yield

    def step(self, size: int = 1) -> str:
        """Takes so many characters, which are there."""
        return self._take(self._cursor.pos + size)

    def space(self, *, lines: bool = True) -> Steps[None]:
        """Goes past white space, newlines among it only with ``lines``."""
        pattern = _SPACE if lines else _BLANKS
        while (yield from self.fill(1)):
            found = pattern.match(self._cursor.text, self._cursor.pos)
            if found is None:
                return
            self._take(found.end())

    def mark(self, *marks: str) -> Steps[str]:
        """Takes the longest of the marks that stands here; empty where none does."""
        pattern, begun, _ = _looked_for(*marks)
        cursor = self._cursor
        while not cursor.final and (not self._left or begun.match(cursor.text, cursor.pos)):
            yield
        found = pattern.match(cursor.text, cursor.pos)
        return self._take(found.end()) if found else ""

    def until(self, *marks: str) -> Steps[tuple[str, str]]:
        """The text before the next of the marks, and that mark; both are taken. Raises `CutOff`."""
        looked_for = _looked_for(*marks)
        parts: list[str] = []
        cursor = self._cursor
        while True:
            found, end = cursor.seek(*looked_for)
            parts.append(self._take(end))
            if found is not None:
                return "".join(parts), self._take(found.end())
            if cursor.final:
                raise CutOff
            yield

    def match(self, pattern: re.Pattern[str], most: int) -> Steps[str]:
        """Takes what of at most ``most`` characters ``pattern`` matches; empty where nothing."""
        cursor = self._cursor
        yield from self.fill(1)
        while True:
            found = pattern.match(cursor.text, cursor.pos, cursor.pos + most)
            whole = cursor.final or self._left >= most
            if whole or found is None or found.end() < len(cursor.text):
                return self._take(found.end()) if found else ""
            yield

    def bracketed(self, quotes: str) -> Steps[str]:
        """All from the bracket that stands here to the one that closes it, with both.

        ``quotes`` are the characters around strings, in which brackets do not count. Raises
        `CutOff`, and `Fault` for brackets that do not match.
        """
        cursor = self._cursor
        begin = self.size
        parts: list[str] = []
        due: list[str] = []
        while (yield from self.fill(1)):
            if found := _PLAIN.match(cursor.text, cursor.pos):
                parts.append(self._take(found.end()))
                continue
            char = cursor.text[cursor.pos]
            if char in quotes:
                yield from self._quoted(char, parts)
                continue
            if char == "<" and (mark := (yield from self.mark(*STRING_MARKS))):
                parts += (mark, *(yield from self.until(mark)))
                continue
            parts.append(self.step())
            if char in _CLOSERS:
                due.append(_CLOSERS[char])
                if len(due) > MAX_DEPTH:
                    raise Fault(f"it nests deeper than {MAX_DEPTH} levels")
            elif char in ")}]":
                if not due or char != due.pop():
                    raise Fault(f"{char!r} closes nothing at character {self.size - begin}")
                if not due:
                    return "".join(parts)
        raise CutOff

    def _quoted(self, quote: str, parts: list[str]) -> Steps[None]:
        cursor = self._cursor
        triple = yield from self.mark(quote * 3)
        parts.append(triple or self.step())
        while (yield from self.fill(1)):
            if found := _NOT_END[quote].match(cursor.text, cursor.pos):
                parts.append(self._take(found.end()))
            elif cursor.text[cursor.pos] == "\\":
                if not (yield from self.fill(2)):
                    break
                parts.append(self.step(2))
            else:
                end = (yield from self.mark(triple)) if triple else ""
                parts.append(end or self.step())
                if end or not triple:
                    return
        raise CutOff

    def json_object(self) -> Steps[tuple[dict[str, Any], tuple[str, ...]]]:
        """The object whose brace stands here, and what was repaired in it.

        Raises `CutOff`, and `Fault` where it cannot be read.
        """
        cursor = self._cursor
        scanner = ObjectScanner(quiet=True)
        parts: list[str] = []
        while True:
            end = scanner.advance(cursor.text, cursor.pos)
            parts.append(self._take(end))
            if scanner.status != MORE:
                break
            if cursor.final:
                raise CutOff("".join(parts), scanner if not self._left else None)
            yield
        if scanner.status != CLOSED or scanner.bad:
            raise Fault(scanner.bad or scanner.reason)
        try:
            return repaired("".join(parts), scanner.fixes)
        except Unreadable as error:
            raise Fault(str(error)) from None
