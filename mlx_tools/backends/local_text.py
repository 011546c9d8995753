"""From tokens to text, exactly: nothing stripped, no character before it is whole."""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Sequence
from typing import Any, Final, Protocol

from mlx_tools.backends.scores import spelled_bytes

CONTEXT: Final = 8
"""Tokens before the text that a tokenizer without a table of bytes is given to read it right."""

_Decoder: Final = getincrementaldecoder("utf-8")


class TextStream(Protocol):
    """Text as its tokens come."""

    def add(self, token: int) -> str: ...

    def finish(self) -> str: ...


class TokenTexts:
    """What the tokens of one tokenizer (as mlx-lm loads it) stand for."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._bytes = _token_bytes(tokenizer.detokenizer)

    def text(self, token: int) -> str:
        """A token's own text, with U+FFFD for bytes that are no whole character."""
        if self._bytes is None:
            return str(self._tokenizer.decode([token]))
        return self._of(token).decode("utf-8", "replace")

    def data(self, token: int) -> bytes | None:
        """A token's bytes; None where the tokenizer does not say them."""
        if self._bytes is not None:
            return self._of(token)
        text = self.text(token)
        return None if "\ufffd" in text else text.encode()

    def stream(self, before: Sequence[int]) -> TextStream:
        """The text that follows the tokens ``before``."""
        if self._bytes is None:
            return _Decoded(self._tokenizer, before)
        return _FromBytes(self)

    def _of(self, token: int) -> bytes:
        table = self._bytes or ()
        return table[token] if token < len(table) else b""  # a model may have more than are used


class _FromBytes:
    def __init__(self, texts: TokenTexts) -> None:
        self._texts = texts
        self._decoder = _Decoder("replace")

    def add(self, token: int) -> str:
        return self._decoder.decode(self._texts._of(token))

    def finish(self) -> str:
        return self._decoder.decode(b"", final=True)


class _Decoded:
    """For a tokenizer that only decodes: what a token adds to the text of those before it."""

    def __init__(self, tokenizer: Any, before: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._tokens = list(before[-CONTEXT:])
        self._start, self._read = 0, len(self._tokens)

    def add(self, token: int) -> str:
        self._tokens.append(token)
        return self._more(final=False)

    def finish(self) -> str:
        return self._more(final=True)

    def _more(self, *, final: bool) -> str:
        known = str(self._tokenizer.decode(self._tokens[self._start : self._read]))
        whole = str(self._tokenizer.decode(self._tokens[self._start :]))
        if len(whole) <= len(known) or (whole.endswith("\ufffd") and not final):
            return ""
        self._start, self._read = self._read, len(self._tokens)
        return whole[len(known) :]


def _token_bytes(detokenizer: Any) -> Sequence[bytes] | None:
    """The bytes of every token, where mlx-lm has found the tokenizer to be of a kind with a table
    of them."""
    kinds = {kind.__name__ for kind in type(detokenizer).__mro__}
    if "SPMStreamingDetokenizer" in kinds:
        return [piece.replace("\u2581".encode(), b" ") for piece in detokenizer.tokenmap]
    if "BPEStreamingDetokenizer" in kinds:
        return [spelled_bytes(piece or "") for piece in detokenizer.tokenmap]
    return None
