"""How likely a server says its tokens are: what to ask for, and how to read the answer. Pure.

Two dialects are known. mlx-lm's takes ``logprobs: true`` with ``top_logprobs`` of at most 11, and
answers in the form of chat completions, with tokens in the tokenizer's own spelling. The older one
(OpenAI's completions; llama.cpp's, vLLM's) takes a number for ``logprobs`` and answers with one
table a token. Neither is asked for in a stream: mlx-lm's server gives none there.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from enum import Enum
from functools import cache
from typing import Any, Final

from mlx_tools.backends.base import TokenScore

MOST: Final = 11


class Dialect(Enum):
    """How a server is asked for the likelihoods of its tokens."""

    MLX = "mlx"
    COMPLETIONS = "completions"
    NONE = "none"


def fields(dialect: Dialect, wanted: int) -> dict[str, Any]:
    """What to add to a request's body."""
    wanted = max(1, min(wanted, MOST))
    if dialect is Dialect.MLX:
        return {"logprobs": True, "top_logprobs": wanted}
    return {"logprobs": wanted} if dialect is Dialect.COMPLETIONS else {}


def read_scores(choice: Mapping[str, Any]) -> tuple[tuple[TokenScore, ...], ...]:
    """The alternatives for each token of a completion, best first; empty where there are none."""
    found = choice.get("logprobs")
    if not isinstance(found, Mapping):
        return ()
    content, tables = found.get("content"), found.get("top_logprobs")
    if isinstance(content, list):
        rows = [row.get("top_logprobs") if isinstance(row, Mapping) else None for row in content]
        pairs = [[(item.get("token"), item.get("logprob")) for item in _objects(r)] for r in rows]
    elif isinstance(tables, list):
        pairs = [list(table.items()) if isinstance(table, Mapping) else [] for table in tables]
    else:
        return ()
    read = [[s for pair in row if (s := _score(*pair)) is not None] for row in pairs]
    while read and not read[-1]:
        read.pop()  # the end token may have none
    if not read or not all(read):
        return ()
    spell = _speller({score.text for row in read for score in row})
    text = spell if isinstance(content, list) else str
    told = [[TokenScore(text(score.text), score.logprob) for score in row] for row in read]
    return tuple(tuple(sorted(row, key=lambda score: -score.logprob)) for row in told)


def _objects(value: Any) -> Sequence[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


def _score(token: Any, logprob: Any) -> TokenScore | None:
    number = isinstance(logprob, int | float) and not isinstance(logprob, bool)
    if not (isinstance(token, str) and number and math.isfinite(logprob)):
        return None
    return TokenScore(token, float(logprob))


# --- a tokenizer's own spelling -----------------------------------------------------------------


def _speller(tokens: set[str]) -> Any:
    """How tokens of one response are turned to text: by the alphabet that they show."""
    if any("Ġ" in token or "Ċ" in token for token in tokens):
        return _from_bytes
    if any("▁" in token for token in tokens):
        return _from_pieces
    return str


def _from_bytes(token: str) -> str:
    """A token of a byte-level tokenizer (GPT-2's alphabet)."""
    table = alphabet()
    if any(char not in table for char in token):
        return token  # an added token stands as it is
    return bytes(table[char] for char in token).decode("utf-8", "replace")


@cache
def alphabet() -> Mapping[str, int]:
    """Which byte each character stands for in the spelling of byte-level tokenizers: GPT-2's,
    which all have taken over."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in plain}
    others = [byte for byte in range(256) if byte not in set(plain)]
    table |= {chr(256 + number): byte for number, byte in enumerate(others)}
    return table


_BYTE: Final = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _from_pieces(token: str) -> str:
    """A token of a SentencePiece tokenizer."""
    if byte := _BYTE.fullmatch(token):
        return bytes([int(byte[1], 16)]).decode("utf-8", "replace")
    return token.replace("▁", " ")
