"""A regular expression for lines, matched in time linear in the line.

The engine and the syntax are those of Rust's ``regex``, which pydantic contains and ripgrep uses.
The engine cannot be interrupted, so a large pattern gets less text at once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, Final

_LINE_STEPS: Final = 10_000_000  # characters times size of the pattern: half a second at worst
_PIECE_STEPS: Final = 1_000_000  # for several lines at once: other threads run between the pieces
_MIN_CHARS: Final = 2_000
_REPEATED: Final = re.compile(r"(?<=(.))\{\s*(\d+)\s*(?:,\s*(\d*)\s*)?\}", re.DOTALL)
_IGNORES_BLANKS: Final = re.compile(r"\(\?[A-Za-z]*x")
"""Finds the flag that allows blanks and comments before a repetition."""

_TEXT_ANCHORS: Final = re.compile(r"\\[Az]|\(\?[A-Za-z]*[m-]")
"""Finds anchors of the whole text, and flags that change the meaning of ``^`` and ``$``."""

_SPECIAL: Final = re.compile(r"([\\.+*?()|\[\]{}^$#&\-~])")


class LinePattern:
    """A compiled pattern. If it does not compile, it is searched for as plain text."""

    def __init__(self, pattern: str, *, ignore_case: bool = False) -> None:
        flags = "(?i)" if ignore_case else ""
        self.reason = ""
        """The reason why the pattern does not compile; empty if it does."""
        size = _measure_size(pattern)
        try:
            self._matches = _compile_pattern(flags + pattern)
        except ValueError as error:
            self.reason = str(error)
            pattern, size = _SPECIAL.sub(r"\\\1", pattern), len(pattern)
            self._matches = _compile_pattern(flags + pattern)
        self.max_line_chars = max(_LINE_STEPS // size, _MIN_CHARS)
        """Characters of a longer line that are searched."""
        self.has_skipped_text = False
        """True once a line had no match in its searched characters, and has more of them."""
        self._piece_chars = max(_PIECE_STEPS // size, _MIN_CHARS)
        self._piece_matches: Callable[[str], bool] | None = None
        if not _TEXT_ANCHORS.search(pattern):
            self._piece_matches = _compile_pattern(f"{flags}(?m){pattern}")

    def find_lines(
        self, text: str, should_stop: Callable[[], bool] = lambda: False
    ) -> Iterator[tuple[int, str]]:
        r"""Yield the matching lines, each with its number from 0.

        Lines end at ``\n`` or ``\r\n``, in a text with neither at ``\r``. ``should_stop`` is called
        between pieces of a long text; True ends the search.
        """
        if "\r" in text:  # a lone \r ends lines only in a text without other line ends
            text = text.replace(*("\r\n", "\n") if "\n" in text else ("\r", "\n"))
        number = start = 0
        while start < len(text):
            if start and should_stop():
                return
            stop = self._find_piece_end(text, start)
            piece = text[start:stop] if start or stop < len(text) else text
            # Most pieces have no match, so one call of the engine is enough for many lines.
            if self._piece_matches is None or self._may_match(piece):
                for line in piece.removesuffix("\n").split("\n"):
                    if self._matches(line[: self.max_line_chars]):
                        yield number, line
                    elif len(line) > self.max_line_chars:
                        self.has_skipped_text = True
                    number += 1
            elif stop < len(text):
                number += piece.count("\n")
            start = stop

    def _find_piece_end(self, text: str, start: int) -> int:
        """Return the end of a piece: lines up to a limit of characters, at least one."""
        if len(text) - start <= self._piece_chars:
            return len(text)
        stop = text.rfind("\n", start, start + self._piece_chars) + 1
        stop = stop or text.find("\n", start) + 1
        return stop or len(text)

    def _may_match(self, piece: str) -> bool:
        """Return False if no line of the piece matches."""
        if len(piece) > self.max_line_chars:  # one long line
            return True
        assert self._piece_matches is not None
        return self._piece_matches(piece)

    def find_match_end(self, line: str) -> int:
        """Return the approximate end of the first match in a line, to show that part.

        The engine only says whether a text matches, so the end is found by bisection.
        """
        low, high = 0, min(len(line), self.max_line_chars)
        while low < high:
            middle = (low + high) // 2
            if self._matches(line[:middle]):
                high = middle
            else:
                low = middle + 1
        return low


def _compile_pattern(pattern: str) -> Callable[[str], bool]:
    """Compile a pattern.

    Raises:
        ValueError: it does not compile; the message says why.
    """
    from pydantic_core import SchemaError, SchemaValidator

    form: Any = {"type": "str", "pattern": pattern, "regex_engine": "rust-regex"}
    try:
        return SchemaValidator(form).isinstance_python
    except SchemaError as error:
        message = str(error).rstrip().rpartition("error: ")[2]
        if "size limit" in str(error):
            message = "it is too large"
        raise ValueError(message.partition("\n")[0][:200]) from None
    except (UnicodeEncodeError, RecursionError):
        raise ValueError("it holds what no text has") from None


def _measure_size(pattern: str) -> int:
    """Return an upper bound of the pattern's states that can be active at once."""
    size, factor = len(pattern), 1
    ignores_blanks = _IGNORES_BLANKS.search(pattern) is not None
    for preceding, minimum, maximum in _REPEATED.findall(pattern):
        count = min(int((maximum or minimum)[:9]), 100_000_000)
        # After a group, another repetition or ignored blanks, it repeats more than one character.
        if preceding in ")}?*+" or ignores_blanks:
            factor *= max(count, 1)
        else:
            size += count
    return max(size, 1) * factor
