"""How likely a server says its tokens are: what to ask for, and how to read the answer. Pure.

Two dialects are known. mlx-lm's takes ``logprobs: true`` with ``top_logprobs`` of at most 11, and
answers in the form of chat completions, with tokens in the tokenizer's own spelling. The older one
(OpenAI's completions; llama.cpp's, vLLM's) takes a number for ``logprobs`` and answers with one
table a token. Neither is asked for in a stream: mlx-lm's server gives none there.

A token is bytes, and these need not be a whole character. They are read from the list of bytes that
some servers give, else from how the tokenizer spells its tokens; what a spelling leaves in doubt
counts as no likelihoods, since a guess would put other text in a call than the model meant.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from mlx_tools.backends.deadlines import Deadlines
from mlx_tools.backends.edge import ServerFailed
from mlx_tools.backends.interface import Chunk, CompletionRequest, TokenScore
from mlx_tools.backends.whole import ask_whole
from mlx_tools.backends.wire import without_surrogates
from mlx_tools.errors import BackendRefused, UsageError

if TYPE_CHECKING:
    from mlx_tools.backends.completions import CompletionsBackend


MOST: Final = 11


class ScoreForm(Enum):
    """How a server is asked for the likelihoods of its tokens."""

    MLX = "mlx"
    COMPLETIONS = "completions"
    NONE = "none"


def fields(dialect: ScoreForm, wanted: int) -> dict[str, Any]:
    """What to add to a request's body."""
    wanted = max(1, min(wanted, MOST))
    if dialect is ScoreForm.MLX:
        return {"logprobs": True, "top_logprobs": wanted}
    return {"logprobs": wanted} if dialect is ScoreForm.COMPLETIONS else {}


Rows = tuple[tuple[TokenScore, ...], ...]
"""For each token of a completion its likeliest alternatives, best first."""


class ScoreReader:
    """Reads the likelihoods of one server's answers.

    It remembers how the tokenizer spells its tokens once an answer has shown that: others may hold
    no token by which it could be told.
    """

    def __init__(self) -> None:
        self._spelling: Spelling | None = None

    def read(self, choice: Mapping[str, Any]) -> Rows:
        """The alternatives for each token of a completion; empty where there are none, and where
        the likeliest of one cannot be read."""
        found = choice.get("logprobs")
        if not isinstance(found, Mapping):
            return ()
        rows = _alternatives(found)
        while rows and not rows[-1]:
            rows.pop()  # the end token may have none
        if not rows or not all(rows):
            return ()
        spelling = self._spelling_of(
            [one.token for row in rows for one in row if one.data is None],
            raw=isinstance(found.get("content"), list),
        )
        if spelling is None:
            return ()
        read = []
        for row in rows:
            row.sort(key=lambda one: -one.logprob)
            scores = [_score(one, spelling) for one in row]
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


@dataclass(frozen=True, slots=True)
class _Alternative:
    """One alternative as the server gives it; ``data`` where it gives the bytes."""

    token: str
    logprob: float
    id: int | None = None
    data: bytes | None = None


def _alternatives(found: Mapping[str, Any]) -> list[list[_Alternative]]:
    content, tables = found.get("content"), found.get("top_logprobs")
    if isinstance(content, list):
        rows = [row.get("top_logprobs") if isinstance(row, Mapping) else None for row in content]
        return [[one for item in _list(row) if (one := _told(item))] for row in rows]
    if not all(isinstance(token, str) for token in _list(found.get("tokens"))):
        return []  # the tables' keys are ids
    pairs = [table.items() if isinstance(table, Mapping) else () for table in _list(tables)]
    return [[one for t, p in row if (one := _told({"token": t, "logprob": p}))] for row in pairs]


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _told(item: Any) -> _Alternative | None:
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
    return _Alternative(without_surrogates(token), float(logprob), number if whole else None, data)


def _score(one: _Alternative, spelling: Spelling) -> TokenScore | None:
    data = one.data if one.data is not None else token_bytes(one.token, spelling)
    if data is None:
        return None
    return TokenScore(data.decode("utf-8", "replace"), one.logprob, data, one.id)


# --- a tokenizer's own spelling -----------------------------------------------------------------


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
    table = {chr(byte): byte for byte in plain}
    others = [byte for byte in range(256) if byte not in set(plain)]
    table |= {chr(256 + number): byte for number, byte in enumerate(others)}
    return table


# --- a completion with its likelihoods ----------------------------------------------------------


class Scored:
    """Asks one server, and remembers which dialect it knows.

    Only an answer settles that. A request that fails, or is refused however it is put, says nothing
    of the next.
    """

    def __init__(self, backend: CompletionsBackend) -> None:
        self._backend = backend
        self._dialect: ScoreForm | None = None
        self._reader = ScoreReader()

    async def complete(self, request: CompletionRequest, limits: Deadlines) -> Chunk:
        """The completion as one chunk; without scores where the server gives none, and without text
        where it is known to give none.

        Raises:
            BackendError: as for `CompletionsBackend.complete`.
        """
        if self._dialect is ScoreForm.NONE:
            return Chunk("", "length")
        if self._dialect is not None:
            return (await self._asked(request, limits, self._dialect))[0]
        least: Chunk | None = None
        for dialect in (ScoreForm.MLX, ScoreForm.COMPLETIONS):
            try:
                chunk, told = await self._asked(request, limits, dialect)
            except ServerFailed:
                raise
            except (BackendRefused, UsageError):
                continue
            if not told and least is None:
                # without a token there is nothing to be likely
                self._dialect = ScoreForm.NONE if chunk.text else None
                return chunk
            if chunk.scores and len(chunk.scores[0]) > 1:
                self._dialect = dialect
                return chunk
            # A server that takes `true` for 1 gives one alternative: the other dialect gives more.
            least = least or (chunk if told else None)
        if least is not None:
            self._dialect = ScoreForm.MLX if least.scores else None
            return least
        # Is it the likelihoods that are refused, or this request?
        chunk, _ = await self._asked(request, limits, ScoreForm.NONE)
        self._dialect = ScoreForm.NONE
        return chunk

    async def _asked(
        self, request: CompletionRequest, limits: Deadlines, dialect: ScoreForm
    ) -> tuple[Chunk, bool]:
        """The completion, and whether its server spoke of likelihoods at all."""
        wanted = fields(dialect, request.top_logprobs)
        answer = await ask_whole(self._backend, request, limits, **wanted)
        chunk = replace(answer.chunk, scores=self._reader.read(answer.choice))
        return chunk, answer.choice.get("logprobs") is not None
