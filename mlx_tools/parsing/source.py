"""The text of a completion as it comes, for readers that wait at its end.

A reader is a generator: it yields if it needs more text than has come, and is resumed when there is
more. So it is written as if the whole text were there, and its result does not depend on how the
text was split.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from functools import lru_cache
from typing import Any, Final, TypeVar

from mlx_tools.parsing.scan import INCOMPLETE, ObjectScanner
from mlx_tools.parsing.strict import MAX_DEPTH, Unreadable

WHITE: Final = " \t\r\n"
SPACE: Final = re.compile(r"[ \t\r\n]++")
_BLANKS: Final = re.compile(r"[ \t\r]++")
_PLAIN: Final = re.compile(r"[^()\[\]{}'\"<]++")
_NOT_END: Final = {quote: re.compile(rf"[^\\{quote}]++") for quote in "'\""}
_CLOSERS: Final = {"(": ")", "{": "}", "[": "]"}

T = TypeVar("T")
Steps = Generator[None, None, T]
"""A reader: it yields if it needs more text than has come."""


def finished(steps: Steps[T]) -> T:
    """Return the result of a reader whose whole text is there."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            value: T = done.value
            return value


def match_any(marks: list[str]) -> re.Pattern[str]:
    longest_first = sorted(set(marks), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")


def match_any_beginning(marks: list[str]) -> re.Pattern[str]:
    """Return a pattern for the beginning of a mark, not the whole, at a text's end."""
    tree: dict[str, Any] = {}
    for mark in marks:
        node = tree
        for char in mark:
            node = node.setdefault(char, {})

    def ways(node: dict[str, Any]) -> str:
        further = (rf"{re.escape(c)}(?:\Z|{ways(n)})" for c, n in node.items() if n)
        return "|".join(further) or "(?!)"

    return re.compile(ways(tree))


class Fault(Exception):
    """The text is no call as its family writes it; the message says why."""


class CutOff(Exception):
    """The text ends within a call.

    ``scanner``: within this object, which may be closed.
    """

    def __init__(self, scanner: ObjectScanner | None = None) -> None:
        super().__init__("the output was cut off")
        self.scanner = scanner


@lru_cache(maxsize=256)
def _prepare_marks(*marks: str) -> tuple[re.Pattern[str], re.Pattern[str], int]:
    """Compile the marks and their beginnings; return the longest mark's length, too."""
    return match_any(list(marks)), match_any_beginning(list(marks)), max(map(len, marks))


class TextSource:
    """All text that has come, ``text``; the unread part begins at ``pos``.

    ``final`` says that no more text will come, so the beginning of a mark is none. To read
    something again, set ``pos`` back.
    """

    def __init__(self, text: str = "", *, pos: int = 0, final: bool = False) -> None:
        self.text = text
        self.pos = pos
        self.final = final
        self._line_tried = -1  # the end of the line that was last tried as strict JSON

    def add(self, piece: str) -> None:
        """Append text that has come."""
        # A string that nothing else refers to grows in place; otherwise all of it would be copied.
        # So no reader keeps the text, or a match in it, over a yield: methods return positions.
        text, self.text = self.text, ""
        text += piece
        self.text = text

    @property
    def remaining(self) -> int:
        """The number of unread characters."""
        return len(self.text) - self.pos

    def take(self, end: int) -> str:
        """Take the text up to ``end`` and return it."""
        taken = self.text[self.pos : end]
        self.pos = end
        return taken

    def seek(
        self, pattern: re.Pattern[str], beginnings: re.Pattern[str], longest: int
    ) -> tuple[str, int]:
        """Return the next match and where it begins.

        Without one return "", and the place up to which there is certainly none.

        ``beginnings`` matches the beginning of a match at the end of the text, and ``longest`` is
        the length of the longest match.
        """
        text, size = self.text, len(self.text)
        found = pattern.search(text, self.pos)
        if not self.final and (found is None or size - found.start() < longest):
            half = beginnings.search(text, max(self.pos, size - longest))
            if half is not None and (found is None or half.start() <= found.start()):
                return "", half.start()
        return ("", size) if found is None else (found[0], found.start())

    def skip(self, pattern: re.Pattern[str]) -> bool:
        """Skip the text that ``pattern`` matches here; return False if it matches none."""
        found = pattern.match(self.text, self.pos)
        if found is None:
            return False
        self.pos = found.end()
        return True

    def fill(self, size: int) -> Steps[bool]:
        """Wait for so many characters; return False if the text ends before."""
        while self.remaining < size:
            if self.final:
                return False
            yield
        return True

    def peek(self) -> Steps[str]:
        """Return the next character, empty at the end."""
        return (yield from self.lookahead(1))

    def lookahead(self, size: int) -> Steps[str]:
        """Return so many of the next characters, or all there are."""
        yield from self.fill(size)
        return self.text[self.pos : self.pos + size]

    def tag(self, max_chars: int, end: str = ">", skip: int = 0) -> Steps[str]:
        """Return the next characters up to ``end``, with it; take none.

        They are at most ``max_chars``. The first ``skip`` characters do not hold the end.
        """
        while True:
            found = self.text.find(end, self.pos + skip, self.pos + max_chars)
            if found >= 0 or self.final or self.remaining >= max_chars:
                return self.text[
                    self.pos : found + len(end) if found >= 0 else self.pos + max_chars
                ]
            yield

    def space(self, *, lines: bool = True) -> Steps[None]:
        """Skip white space; line breaks only if ``lines`` is true."""
        pattern = SPACE if lines else _BLANKS
        while (yield from self.fill(1)):
            if not self.skip(pattern):
                return

    def peek_mark(self, *marks: str) -> Steps[str]:
        """Return the longest of the marks that comes next, empty if none does."""
        pattern, begun, _ = _prepare_marks(*marks)
        while not self.final and (not self.remaining or begun.match(self.text, self.pos)):
            yield
        found = pattern.match(self.text, self.pos)
        return found[0] if found else ""

    def mark(self, *marks: str) -> Steps[str]:
        """Take the longest of the marks that comes next and return it; empty if none does."""
        found = yield from self.peek_mark(*marks)
        self.pos += len(found)
        return found

    def read_until(self, *marks: str) -> Steps[tuple[str, str]]:
        """Take the text before the next of the marks, and that mark.

        Raises `CutOff`.
        """
        looked_for = _prepare_marks(*marks)
        begin = self.pos
        while True:
            mark, self.pos = self.seek(*looked_for)
            if mark:
                return self.text[begin : self.pos], self.take(self.pos + len(mark))
            if self.final:
                raise CutOff
            yield

    def match(self, pattern: re.Pattern[str], max_chars: int) -> Steps[str]:
        """Take the next characters that ``pattern`` matches, empty if there are none.

        They are at most ``max_chars``.
        """
        yield from self.fill(1)
        while True:
            found = pattern.match(self.text, self.pos, self.pos + max_chars)
            whole = self.final or self.remaining >= max_chars
            if whole or found is None or found.end() < len(self.text):
                return self.take(found.end()) if found else ""
            found = None
            yield

    def bracketed(self, quotes: str, string_marks: Sequence[str] = ()) -> Steps[str]:
        """Return the text from the bracket here to the one that closes it, with both.

        ``quotes`` are the characters around strings, in which brackets do not count, and
        ``string_marks`` are marks in place of quotes. Raises `CutOff`, and `Fault` for brackets
        that do not match.
        """
        begin = self.pos
        due: list[str] = []
        while (yield from self.fill(1)):
            if self.skip(_PLAIN):
                continue
            char = self.text[self.pos]
            if char in quotes:
                yield from self._quoted(char)
                continue
            if string_marks and (mark := (yield from self.mark(*string_marks))):
                yield from self.read_until(mark)
                continue
            self.pos += 1
            if char in _CLOSERS:
                due.append(_CLOSERS[char])
                if len(due) > MAX_DEPTH:
                    raise Fault(f"it nests deeper than {MAX_DEPTH} levels")
            elif char in ")}]":
                if not due or char != due.pop():
                    raise Fault(f"{char!r} closes nothing at character {self.pos - begin}")
                if not due:
                    return self.text[begin : self.pos]
        raise CutOff

    def _quoted(self, quote: str) -> Steps[None]:
        triple = yield from self.mark(quote * 3)
        if not triple:
            self.pos += 1
        while (yield from self.fill(1)):
            if self.skip(_NOT_END[quote]):
                continue
            if self.text[self.pos] == "\\":
                if not (yield from self.fill(2)):
                    break
                self.pos += 2
            elif not triple:
                self.pos += 1
                return
            elif (yield from self.mark(triple)):
                return
            else:
                self.pos += 1
        raise CutOff

    def json_object(self) -> Steps[tuple[dict[str, Any], tuple[str, ...]]]:
        """Read the object whose brace is here; return it, and its repairs.

        Raises `CutOff`, and `Fault` if it cannot be read.
        """
        scanner = ObjectScanner(self.pos)
        if self.final:
            self._line_tried = scanner.take_line(self.text, self._line_tried)
        while True:
            if scanner.status == INCOMPLETE:
                scanner.advance(self.text)
            self.pos = scanner.pos
            if scanner.status != INCOMPLETE:
                break
            if self.final:
                raise CutOff(None if self.remaining else scanner)
            yield
        if bad := scanner.bad_reason or scanner.reason:
            raise Fault(bad)
        try:
            return scanner.read(self.text)
        except Unreadable as error:
            raise Fault(str(error)) from None
