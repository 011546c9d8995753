"""How many tokens a text has: by the model's own tokenizer, or by a bound where it is not here."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

_STEP: Final = 512
"""Tokens after which a place is noted where a text can be cut."""
_WORD = re.compile(r"[0-9A-Za-z]+")
_SINGLE = re.compile(r"[^0-9A-Za-z\s\x80-\U0010ffff]|[^\S ]| {2,16}")


def bound(text: str) -> int:
    """About how many tokens ``text`` has at most, for a tokenizer that nobody knows.

    A word counts one for three letters, a number one a digit, what is of both three for four; a
    mark and a line break one; blanks in a row one; a character that is not ASCII one less than it
    takes bytes. English comes out at a third to a half more than a tokenizer of 50,000 entries
    makes of it; what is random (keys, base64) about right.
    """
    words = sum(map(_of_word, _WORD.findall(text)))
    beyond = len(text.encode("utf-8", "surrogatepass")) - len(text)
    return words + len(_SINGLE.findall(text)) + beyond


def _of_word(word: str) -> int:
    if word.isalpha():
        return -(-len(word) // 3)
    return len(word) if word.isdecimal() else -(-3 * len(word) // 4)


@dataclass(slots=True)
class TokenCounter:
    """Counts the tokens of prompts.

    ``folder`` gives the folder of the model's files, None where they are not on this machine; it is
    asked at the first count. Where they are, and the package ``tokenizers`` is installed, the count
    is the tokenizer's own, the beginning of text included that it adds; else it is a `bound`.

    A text that begins like the one before is counted from where they part: from the last token
    before that which the tokenizer takes out of any text first, or, where there is none in many,
    from the end of the other one.
    """

    folder: Callable[[], Path | None] = lambda: None
    _tokenizer: _Tokenizer | None = field(default=None, init=False)
    _found: bool = field(default=False, init=False)
    _text: str = field(default="", init=False)
    # places in that text where it can be cut, and the tokens before
    _marks: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)], init=False)

    def known(self, text: str) -> int:
        """How many characters of ``text`` are counted already."""
        return _alike(self._text, text)

    def count(self, text: str) -> int:
        """How many tokens ``text`` has."""
        if not self._found:
            folder = self.folder()
            self._tokenizer = None if folder is None else _tokenizer_in(folder)
            self._found = True
        alike = _alike(self._text, text)
        while self._marks[-1][0] > alike:
            self._marks.pop()
        at, tokens = self._marks[-1]
        self._text = text
        if self._tokenizer is None:
            tokens += bound(text[at:])
            self._marks.append((len(text), tokens))
            return tokens
        more, cuts = self._tokenizer.measure(text[at:])
        self._marks += [(at + place, tokens + before) for place, before in cuts]
        return tokens + more + self._tokenizer.added


class _Tokenizer:
    """A model's tokenizer. ``added`` is how many tokens it puts around any text."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._own = frozenset(tokenizer.get_added_tokens_decoder())
        self.added = len(tokenizer.encode("").ids)

    def measure(self, text: str) -> tuple[int, list[tuple[int, int]]]:
        """The tokens in ``text``, and some places where it can be cut, with the tokens before."""
        encoded = self._tokenizer.encode(text, add_special_tokens=False)
        ids = encoded.ids
        own = [number for number, token in enumerate(ids) if token in self._own]
        if not own:
            return len(ids), [(len(text), len(ids))] if len(ids) >= _STEP else []
        ends = [n for n, last in pairwise((*own, len(ids))) if last // _STEP > n // _STEP]
        return len(ids), [(encoded.token_to_chars(n)[1], n + 1) for n in (*ends[:-1], own[-1])]


def _alike(one: str, other: str) -> int:
    """How many characters two texts begin with that are the same."""
    if other.startswith(one):
        return len(one)
    ends = range(min(len(one), len(other)) + 1)
    return bisect_left(ends, True, key=lambda end: one[:end] != other[:end]) - 1


@lru_cache(maxsize=4)
def _tokenizer_in(folder: Path) -> _Tokenizer | None:
    """The tokenizer in a model's folder, None where it cannot be had."""
    try:
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return _Tokenizer(tokenizer)
    except Exception:  # the package is not here, or the file is none (its errors have no class)
        return None
