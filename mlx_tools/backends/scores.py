"""How likely a server says its tokens are: what to ask for, and how to read the answer. Pure.

Two forms are known. mlx-lm's takes ``logprobs: true`` with ``top_logprobs`` of at most 11, and
answers in the form of chat completions, with tokens in the tokenizer's own spelling. The older one
(OpenAI's completions; llama.cpp's, vLLM's) takes a number for ``logprobs`` and answers with one
table a token. Neither is asked for in a stream: mlx-lm's server gives none there.

A token is bytes, and these need not be a whole character. They are read from the list of bytes that
some servers give, else from how the tokenizer spells its tokens; what a spelling leaves in doubt
counts as no likelihoods, since a guess would put other text in a call than the model meant.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from enum import Enum
from functools import cache
from typing import Any, Final

from mlx_tools.backends.interface import TokenScore
from mlx_tools.backends.wire import without_surrogates

MOST_SCORES: Final = 11


class ScoreForm(Enum):
    """How a server is asked for the likelihoods of its tokens."""

    MLX = "mlx"
    COMPLETIONS = "completions"
    NONE = "none"


def score_fields(form: ScoreForm, count: int) -> dict[str, Any]:
    """What to add to a request's body."""
    count = max(1, min(count, MOST_SCORES))
    if form is ScoreForm.MLX:
        return {"logprobs": True, "top_logprobs": count}
    return {"logprobs": count} if form is ScoreForm.COMPLETIONS else {}


class ScoreReader:
    """Reads the likelihoods of one server's answers.

    It remembers how the tokenizer spells its tokens once an answer has shown that: others may hold
    no token by which it could be told.
    """

    def __init__(self) -> None:
        self._spelling: Spelling | None = None

    def read(self, choice: Mapping[str, Any]) -> tuple[tuple[TokenScore, ...], ...]:
        """For each token of a completion its likeliest alternatives, best first; empty where there
        are none, and where the likeliest of one cannot be read."""
        found = choice.get("logprobs")
        if not isinstance(found, Mapping):
            return ()
        rows = _rows(found)
        while rows and not rows[-1]:
            rows.pop()  # the end token may have none
        if not rows or not all(rows):
            return ()
        unread = [token for row in rows for token, _, data, _ in row if data is None]
        spelling = self._spelling_of(unread, raw=isinstance(found.get("content"), list))
        if spelling is None:
            return ()
        read = []
        for row in rows:
            row.sort(key=lambda one: -one[1])
            scores = [
                TokenScore(spelt.decode("utf-8", "replace"), logprob, spelt, number)
                if (spelt := token_bytes(token, spelling) if data is None else data) is not None
                else None
                for token, logprob, data, number in row
            ]
            if scores[0] is None:
                return ()
            read.append(tuple(score for score in scores if score is not None))
        return tuple(read)

    def _spelling_of(self, tokens: Collection[str], *, raw: bool) -> Spelling | None:
        """How the tokens of one answer are spelled; None where it cannot be told.

        ``raw``: they stand in the form in which mlx-lm's server gives the tokenizer's own spelling.
        """
        if not raw:
            spaced = any(" " in token for token in tokens)
            return (None if spaced else shown_spelling(tokens)) or Spelling.PLAIN
        self._spelling = self._spelling or shown_spelling(tokens)
        if self._spelling is not None:
            return self._spelling
        text = "".join(tokens)
        # read alike by every spelling, or holding what no byte is spelled as
        return Spelling.PLAIN if text.isascii() or not alphabet().keys() >= set(text) else None


_Alternative = tuple[str, float, bytes | None, int | None]
"""Token, likelihood, its bytes where the server gives them, its number."""


def _rows(logprobs: Mapping[str, Any]) -> list[list[_Alternative]]:
    rows: Iterable[Iterable[Any]]
    if isinstance(content := logprobs.get("content"), list):
        rows = [
            _list(row.get("top_logprobs")) if isinstance(row, Mapping) else () for row in content
        ]
    elif all(isinstance(token, str) for token in _list(logprobs.get("tokens"))):
        tables = [t if isinstance(t, Mapping) else {} for t in _list(logprobs.get("top_logprobs"))]
        rows = [[{"token": t, "logprob": p} for t, p in table.items()] for table in tables]
    else:
        rows = []  # the tables' keys are ids
    return [[one for item in row if (one := _alternative(item)) is not None] for row in rows]


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _alternative(item: Any) -> _Alternative | None:
    if not isinstance(item, Mapping):
        return None
    token, logprob, number = item.get("token"), item.get("logprob"), item.get("id")
    if not isinstance(token, str) or not isinstance(logprob, int | float):
        return None
    if isinstance(logprob, bool) or not -1e6 < logprob < 1e6:
        return None
    whole = isinstance(number, int) and not isinstance(number, bool)
    try:
        data = bytes(item["bytes"]) if isinstance(item.get("bytes"), list) else None
    except (TypeError, ValueError):
        data = None
    return without_surrogates(token), float(logprob), data, number if whole else None


# --- a tokenizer's own spelling ---------------------------------------------------------------


class Spelling(Enum):
    """How a token is written where it is shown."""

    BYTES = "byte-level"
    """A character for each byte, by GPT-2's table: ``Ġ`` for a space."""

    PIECES = "sentencepiece"
    """``▁`` for a space, ``<0xE2>`` for a byte that is no character."""

    PLAIN = "plain"
    """As it is."""


_BYTE: Final = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_ADDED: Final = re.compile(r"<[^<>\s]+>")
"""What tokens beside the vocabulary look like: their spelling says nothing of the others'."""


def shown_spelling(tokens: Collection[str]) -> Spelling | None:
    """The spelling that the tokens show by a mark of it; None where none does."""
    text = "".join(token for token in tokens if not _ADDED.fullmatch(token))
    if "▁" in text or any(_BYTE.fullmatch(token) for token in tokens):
        return Spelling.PIECES  # the byte-level one has no such character
    return Spelling.BYTES if "Ġ" in text or "Ċ" in text else None


def token_bytes(token: str, spelling: Spelling) -> bytes | None:
    """The bytes that a token stands for; None where its spelling has lost them."""
    if "\ufffd" in token:
        return None
    if spelling is Spelling.BYTES:
        return spelled_bytes(token)
    if spelling is Spelling.PIECES:
        byte = _BYTE.fullmatch(token)
        return bytes([int(byte[1], 16)]) if byte else token.replace("▁", " ").encode()
    return token.encode()


def spelled_bytes(token: str) -> bytes:
    """The bytes of a token in the byte-level spelling; an added token stands as it is."""
    table = alphabet()
    if all(char in table for char in token):
        return bytes(table[char] for char in token)
    return token.encode()


@cache
def alphabet() -> Mapping[str, int]:
    """Which byte each character stands for in the spelling of byte-level tokenizers: GPT-2's,
    which all have taken over."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(plain)]
    return {chr(byte): byte for byte in plain} | {
        chr(256 + number): byte for number, byte in enumerate(others)
    }
