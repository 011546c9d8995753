"""A turn that does not go on from the host's beginning.

Some servers ignore the beginning of a model's turn, and some models begin a form of their own. Then
the model's text counts without the host's beginning.
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
"""Punctuation that begins no turn. A small model writes it if it has nothing to say."""
_KEY_BEGUN: Final = re.compile(r"[ \t\r\n]*+[\"}]")
_OBJECTS: Final = ('{"type":"tool_call"', '{"type":"final_answer"')
_FENCE: Final = re.compile("^```(?:json)?")
_WHITE: Final = re.compile(r"\s+")

_HEADS: Final = (*_OBJECTS, f'{CALL_TAG}{{"', ANSWER_TAG)
"""The beginning of a line of the protocol in any style, after white space and fences."""

_BLANKS: Final = 64
"""White space after which a text counts as the model's, even if nothing else came."""


def restarts(text: str, prefix: str) -> bool | None:
    """Return whether a text begins its line again after the host's ``prefix``.

    The text is the first that the model wrote. None if it is too short to tell.

    Some servers ignore the beginning of the model's turn, above all those that put every prompt
    into a chat of their own. Then the model writes a whole line. In JSON an unescaped quote ends
    the string that the prefix leaves open, and no object goes on as those heads do after it. A tag
    alone may be in a string. After a tag of an answer any text may follow.
    """
    bare = _WHITE.sub("", text)
    if not bare:
        return None if len(text) < _BLANKS else False
    if "```json".startswith(bare):
        return None
    bare = _FENCE.sub("", bare)
    heads = [head for head in _HEADS if prefix.startswith("<") or head != ANSWER_TAG]
    heads = heads if prefix != ANSWER_TAG else heads[len(_OBJECTS) :]
    if any(bare.startswith(head) for head in heads):
        return True
    return None if any(head.startswith(bare) for head in heads) else False


def starts_answer(text: str) -> bool:
    """Return whether the text begins with the protocol's answer, in a fence or not."""
    return _FENCE.sub("", _WHITE.sub("", text)).startswith(_OBJECTS[1])


def continues_opening(text: str, prefix: str) -> bool:
    """Return whether a text goes on from the host's ``prefix``.

    It does if it ends a string that is open there, or begins a key.
    """
    return (_NAME_WRITTEN if prefix.endswith('"') else _KEY_BEGUN).match(text) is not None


def read_without_opening(
    text: str, reason: FinishReason | None, rules: ReadingRules
) -> tuple[ReadingRules, Reading]:
    """Return how a text is read without the host's beginning, and the rules for that."""
    rules = replace(rules, prefix="", in_thought=False)
    return rules, read(text, reason or "stop", rules)


def is_scrap(text: str) -> bool:
    """Return whether a text begins as no turn does: with a mark that ends something."""
    return _PUNCTUATION.match(text) is not None


class NativeTurn:
    """A turn that does not go on from the host's beginning.

    It is read with that beginning and without it, until it is known whether it is a message.
    """

    def __init__(self, kind: MendKind, boundary: int, rules: ReadingRules) -> None:
        """``kind`` and ``boundary`` are of the mend that follows if it is no message."""
        self.kind, self.boundary = kind, boundary
        own_rules = replace(rules, prefix="", in_thought=False)
        if rules.result:  # its value may be the whole turn
            own_rules = replace(own_rules, tool_choice="auto")
        self.own_reader = Reader(own_rules)
        self._open = {0: Reader(rules), 1: self.own_reader}
        self._fed = 0

    def feed(self, text: str) -> None:
        """Read on in ``text``, which is all the text of the turn so far."""
        for reader in self._open.values():
            reader.feed(text[self._fed :])
        self._fed = len(text)

    def readings(self, *, is_end: bool = False) -> Iterator[tuple[int, Reading]]:
        """Finish the readers that are done, each once; at the end all of them.

        The readings come with numbers: 0 with the host's beginning, 1 without it.
        """
        for index, reader in [*self._open.items()]:
            if reader.done or is_end:
                del self._open[index]
                yield index, reader.finish()

    @property
    def is_decided(self) -> bool:
        """True if more text changes neither reading."""
        return not self._open


class RestReader:
    """Reads the end of a turn as if it were all of it, and each part of it once."""

    def __init__(self, rules: ReadingRules) -> None:
        self._rules = replace(rules, prefix="", in_thought=False)
        self._reader: Reader | None = None
        self._text = ""

    def read(self, text: str) -> Reader:
        """Return a reader of all of this text."""
        reader = self._reader
        if reader is None or not text.startswith(self._text):
            reader, self._text = Reader(self._rules), ""
        reader.feed(text[len(self._text) :])
        self._reader, self._text = reader, text
        return reader

    def read_to_call(self, text: str) -> Reader:
        """Return a reader of this text, up to where an object or a call begins in it.

        A complete one may have come at once.
        """
        begin = len(self._text) if text.startswith(self._text) else 0
        for step in _TO_CALL.finditer(text, begin):
            rest = self.read(text[: step.end()])
            if rest.call_begin is not None or rest.done or rest.in_object or rest.in_prose:
                return rest
        return self.read(text)
