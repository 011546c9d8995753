"""The likelihoods of tokens: request fields, and reading of answers. No I/O.

Two forms are known. mlx-lm's server takes ``logprobs: true`` with ``top_logprobs`` of at most 11.
It answers in the form of chat completions, with tokens in the tokenizer's own spelling. The older
form (OpenAI's completions, llama.cpp, vLLM) takes a number for ``logprobs``, and the answer has one
table for each token. Likelihoods are not requested in a stream, because mlx-lm's server sends none
there.

A token is a sequence of bytes, which may be a part of a character. Some servers send the list of
bytes. Otherwise the bytes are found by the tokenizer's spelling. If the spelling is unclear there
are no likelihoods, because a guess could put wrong text into a call.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from enum import Enum
from functools import cache
from typing import Any, Final

from mlx_tools.backends.interface import TokenScore
from mlx_tools.backends.wire import without_surrogates

MAX_SCORES: Final = 11
"""The limit of alternatives for a token: mlx-lm's server allows no more."""


class ScoreForm(Enum):
    """The form of a request for the likelihoods of tokens."""

    MLX = "mlx"
    COMPLETIONS = "completions"
    NONE = "none"


def score_fields(form: ScoreForm, count: int) -> dict[str, Any]:
    """Return the request fields that ask for ``count`` alternatives of each token."""
    count = max(1, min(count, MAX_SCORES))
    if form is ScoreForm.MLX:
        return {"logprobs": True, "top_logprobs": count}
    return {"logprobs": count} if form is ScoreForm.COMPLETIONS else {}


class ScoreReader:
    """Reads the likelihoods in one server's answers.

    It remembers the tokenizer's spelling, because not every answer has a token that shows it.
    """

    def __init__(self) -> None:
        self._spelling: Spelling | None = None

    def read(self, choice: Mapping[str, Any]) -> tuple[tuple[TokenScore, ...], ...]:
        """Return the likeliest alternatives for each token, the best first.

        The result is empty without likelihoods, or if the likeliest alternative for a token cannot
        be read.
        """
        logprobs = choice.get("logprobs")
        if not isinstance(logprobs, Mapping):
            return ()
        rows = _rows(logprobs)
        while rows and not rows[-1]:
            rows.pop()  # the end token may have no alternatives
        if not rows or not all(rows):
            return ()
        spelled_tokens = [token for row in rows for token, _, data, _ in row if data is None]
        spelling = self._find_spelling(
            spelled_tokens, raw=isinstance(logprobs.get("content"), list)
        )
        if spelling is None:
            return ()
        result = []
        for row in rows:
            # Servers differ in the order of their alternatives.
            row.sort(key=lambda alternative: -alternative[1])
            scores = [
                TokenScore(token_data.decode("utf-8", "replace"), logprob, token_data, number)
                if (token_data := token_bytes(token, spelling) if data is None else data)
                is not None
                else None
                for token, logprob, data, number in row
            ]
            if scores[0] is None:
                return ()
            result.append(tuple(score for score in scores if score is not None))
        return tuple(result)

    def _find_spelling(self, tokens: Collection[str], *, raw: bool) -> Spelling | None:
        """Return the spelling of an answer's tokens; None if it is unclear.

        ``raw``: the answer has the form in which mlx-lm's server sends the tokenizer's own
        spelling.
        """
        if not raw:
            has_spaces = any(" " in token for token in tokens)
            return (None if has_spaces else find_spelling(tokens)) or Spelling.PLAIN
        self._spelling = self._spelling or find_spelling(tokens)
        if self._spelling is not None:
            return self._spelling
        text = "".join(tokens)
        # ASCII is the same in all spellings. A character outside of the alphabet is not a byte.
        return Spelling.PLAIN if text.isascii() or not alphabet().keys() >= set(text) else None


_Alternative = tuple[str, float, bytes | None, int | None]
"""A token, its likelihood, its bytes (None if the server does not send them), and its number."""


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
        rows = []  # this server's tables have ids as keys
    return [
        [alternative for item in row if (alternative := _alternative(item)) is not None]
        for row in rows
    ]


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _alternative(item: Any) -> _Alternative | None:
    if not isinstance(item, Mapping):
        return None
    token, logprob, number = item.get("token"), item.get("logprob"), item.get("id")
    if not isinstance(token, str) or not isinstance(logprob, int | float):
        return None
    # JSON has no infinity: servers send a huge number for an impossible token.
    if isinstance(logprob, bool) or not -1e6 < logprob < 1e6:
        return None
    is_number = isinstance(number, int) and not isinstance(number, bool)
    try:
        data = bytes(item["bytes"]) if isinstance(item.get("bytes"), list) else None
    except (TypeError, ValueError):
        data = None
    return without_surrogates(token), float(logprob), data, number if is_number else None


# --- a tokenizer's own spelling ---------------------------------------------------------------


class Spelling(Enum):
    """The way in which a tokenizer spells tokens."""

    BYTES = "byte-level"
    """One character for each byte, by GPT-2's table: ``Ġ`` for a space."""

    PIECES = "sentencepiece"
    """``▁`` for a space, ``<0xE2>`` for a byte that is not a character."""

    PLAIN = "plain"
    """The token's text itself."""


_BYTE: Final = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_ADDED_TOKEN: Final = re.compile(r"<[^<>\s]+>")
"""The form of tokens outside the plain vocabulary, which do not show the spelling of others."""


def find_spelling(tokens: Collection[str]) -> Spelling | None:
    """Return the spelling of these tokens by its typical marks, None without any."""
    text = "".join(token for token in tokens if not _ADDED_TOKEN.fullmatch(token))
    if "▁" in text or any(_BYTE.fullmatch(token) for token in tokens):
        return Spelling.PIECES  # the byte-level spelling has no such character
    return Spelling.BYTES if "Ġ" in text or "Ċ" in text else None


def token_bytes(token: str, spelling: Spelling) -> bytes | None:
    """Return a token's bytes, None if its text does not show them."""
    if "\ufffd" in token:
        return None
    if spelling is Spelling.BYTES:
        return decode_spelling(token)
    if spelling is Spelling.PIECES:
        byte = _BYTE.fullmatch(token)
        return bytes([int(byte[1], 16)]) if byte else token.replace("▁", " ").encode()
    return token.encode()


def decode_spelling(token: str) -> bytes:
    """Return the bytes of a token in the byte-level spelling.

    An added token is plain text.
    """
    table = alphabet()
    if all(char in table for char in token):
        return bytes(table[char] for char in token)
    return token.encode()


@cache
def alphabet() -> Mapping[str, int]:
    """Return the byte of each character in the byte-level spelling, which is GPT-2's."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    other_bytes = [byte for byte in range(256) if byte not in set(plain)]
    return {chr(byte): byte for byte in plain} | {
        chr(256 + number): byte for number, byte in enumerate(other_bytes)
    }
