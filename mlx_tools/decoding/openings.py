"""Turns that do not continue the host's prefix.

Some servers ignore the prefix, and some models begin a message in a form of their own. Then the
model's text is read without the prefix.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from mlx_tools.messages import FinishReason, replace
from mlx_tools.protocol import ANSWER_TAG, CALL_TAG, Reader, Reading, ReadingRules, read
from mlx_tools.transcript import MendKind

_TO_CALL: Final = re.compile(r"[^{>(\n]*+[{>(\n]?+")
"""Text up to where an object may begin, or a call in another form."""

_NAME_WRITTEN: Final = re.compile(r"[\w$./-]++\"")
_PUNCTUATION: Final = re.compile(r"\s*[.,;:!?)\]}…]")
"""Punctuation that never begins a turn. A small model writes it if it has no answer."""
_KEY_BEGUN: Final = re.compile(r"[ \t\r\n]*+[\"}]")
_OBJECTS: Final = ('{"type":"tool_call"', '{"type":"final_answer"')
_FENCE: Final = re.compile("^```(?:json)?")
_WHITE: Final = re.compile(r"\s+")

_HEADS: Final = (*_OBJECTS, f'{CALL_TAG}{{"', ANSWER_TAG)
"""Beginnings of a line of the protocol in any style, without white space and fences."""

_MAX_BLANKS: Final = 64
"""Characters of white space at the beginning of a text that may still restart. A choice."""


def restarts(text: str, prefix: str) -> bool | None:
    """Return whether a text begins its line again and ignores the host's prefix.

    Servers that put every prompt into a chat of their own ignore the prefix, and then the model
    writes a whole line. Such a line cannot continue the prefix. Its first quote ends the string
    that the prefix leaves open, and the text after that quote continues no object. A tag alone may
    be part of a string. After the tag of an answer any text may follow.

    Args:
        text: the first text of the model.
        prefix: the host's prefix.

    Returns:
        None if the text is too short to decide.
    """
    bare = _WHITE.sub("", text)
    if not bare:
        return None if len(text) < _MAX_BLANKS else False
    if "```json".startswith(bare):
        return None
    bare = _FENCE.sub("", bare)
    heads = [head for head in _HEADS if prefix.startswith("<") or head != ANSWER_TAG]
    heads = heads if prefix != ANSWER_TAG else heads[len(_OBJECTS) :]
    if any(bare.startswith(head) for head in heads):
        return True
    return None if any(head.startswith(bare) for head in heads) else False


def starts_answer(text: str) -> bool:
    """Return whether a text begins with an answer of the protocol, in a fence or not."""
    return _FENCE.sub("", _WHITE.sub("", text)).startswith(_OBJECTS[1])


def continues_opening(text: str, prefix: str) -> bool:
    """Return whether a text continues the host's prefix.

    It does if it ends the open string of the prefix, or begins a key.
    """
    return (_NAME_WRITTEN if prefix.endswith('"') else _KEY_BEGUN).match(text) is not None


def read_without_opening(
    text: str, reason: FinishReason | None, rules: ReadingRules
) -> tuple[ReadingRules, Reading]:
    """Return the reading of a text without the host's prefix, and the rules for it."""
    rules = replace(rules, prefix="", in_thought=False)
    return rules, read(text, reason or "stop", rules)


def is_scrap(text: str) -> bool:
    """Return whether a text begins with punctuation, as no turn does."""
    return _PUNCTUATION.match(text) is not None


class NativeTurn:
    """A turn that may be a message in the form that the model was trained on.

    It is read with the host's prefix and without it, until one of these is a message.

    Args:
        kind: the kind of the mend that follows if it is not a message.
        boundary: the offset of that mend.
        rules: the rules for reading the turn.
    """

    def __init__(self, kind: MendKind, boundary: int, rules: ReadingRules) -> None:
        self.kind, self.boundary = kind, boundary
        own_rules = replace(rules, prefix="", in_thought=False)
        if rules.result:  # the result may be the whole turn
            own_rules = replace(own_rules, tool_choice="auto")
        self.own_reader = Reader(own_rules)
        self._open = {0: Reader(rules), 1: self.own_reader}
        self._fed = 0

    def feed(self, text: str) -> None:
        """Read on in the turn.

        Args:
            text: the whole turn so far, without the host's prefix.
        """
        for reader in self._open.values():
            reader.feed(text[self._fed :])
        self._fed = len(text)

    def readings(self, *, is_end: bool = False) -> Iterator[tuple[int, Reading]]:
        """Yield each reading that is complete, once; at the end of the turn, all of them.

        Each has a number: 0 with the host's prefix, 1 without it.
        """
        for index, reader in [*self._open.items()]:
            if reader.done or is_end:
                del self._open[index]
                yield index, reader.finish()

    @property
    def is_decided(self) -> bool:
        """True if more text cannot change a reading."""
        return not self._open


class RestReader:
    """Reads the end of a turn as if it were a whole turn, and each part only once."""

    def __init__(self, rules: ReadingRules) -> None:
        self._rules = replace(rules, prefix="", in_thought=False)
        self._reader: Reader | None = None
        self._text = ""

    def read(self, text: str) -> Reader:
        """Return a reader that has read a text."""
        reader = self._reader
        if reader is None or not text.startswith(self._text):
            reader, self._text = Reader(self._rules), ""
        reader.feed(text[len(self._text) :])
        self._reader, self._text = reader, text
        return reader

    def read_to_call(self, text: str) -> Reader:
        """Return a reader that has read a text up to the beginning of an object or a call.

        If a complete call arrived in one piece, the reader has read it.
        """
        begin = len(self._text) if text.startswith(self._text) else 0
        for step in _TO_CALL.finditer(text, begin):
            rest = self.read(text[: step.end()])
            if rest.call_begin is not None or rest.done or rest.in_object or rest.in_prose:
                return rest
        return self.read(text)
