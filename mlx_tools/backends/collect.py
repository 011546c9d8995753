"""A stream's bytes, read as one completion: its text as it grows, its end, its usage. Pure."""

from __future__ import annotations

from typing import Final

from mlx_tools.backends.interface import Chunk
from mlx_tools.backends.sse import EventReader, NotEvents
from mlx_tools.backends.wire import Piece, read_event, without_surrogates
from mlx_tools.errors import BackendBroken, BackendError
from mlx_tools.messages import FinishReason, Usage

TOKEN_BYTES: Final = 1024
"""More bytes of text than any tokenizer spends on one token (the longest are runs of spaces)."""

SLACK: Final = 3
"""Tokens a server may count that leave no text: the stop token, and one or two held back."""


def most_bytes(max_tokens: int) -> int:
    """More bytes of text than so many tokens can be."""
    return TOKEN_BYTES * (max_tokens + 64)


def far_too_much(address: str) -> BackendBroken:
    """The error for more text than `most_bytes`."""
    return BackendBroken(
        f"{address} sent far more text than was asked for", hint="it does not honour max_tokens"
    )


def cut_out(tokens: int, size: int) -> bool:
    """Whether so many tokens surely left more than ``size`` bytes: each leaves one at least."""
    return tokens > size + SLACK


class Collector:
    """Reads one stream. ``done`` is set by ``[DONE]``, ``finish`` by the server's finish reason."""

    def __init__(self, address: str, max_tokens: int) -> None:
        self.done = False
        self.finish: FinishReason | None = None
        self._address = address
        self._reader = EventReader()
        self._usage: Usage | None = None
        self._high = ""  # the first half of a surrogate pair that the server cut in two
        self._limit = most_bytes(max_tokens)
        self._bytes = 0
        self._silent_tokens = 0  # how many tokens may honestly have left no event of their own
        self._events = 0
        self._mlx_lm = False
        self._thought = 0  # events of a thought that the server kept, before any text
        self._cut = False
        self._failure: BackendError | None = None

    @property
    def empty(self) -> bool:
        """Whether not one byte of a body has come."""
        return self._reader.silent

    def feed(self, data: bytes) -> str:
        """Take the next bytes of the stream; give the text they add.

        What breaks off after some text is raised by `check`, so that the text is not lost.

        Raises:
            BackendBroken: they are no stream of completions, or more text than was asked for.
            BackendRefused: they hold an error of the server's.
        """
        return self._read(data)

    def check(self) -> None:
        """Raise what broke off after the text that `feed` gave last, if anything did."""
        if self._failure is not None:
            raise self._failure

    def end(self) -> str:
        """The stream ended: give the text that was held back.

        Raises:
            BackendBroken: it ended in the middle.
            BackendRefused: it ended with an error of the server's.
        """
        text = self._read(None)
        self.check()
        if self.finish is None and not self.done:
            raise BackendBroken(
                f"{self._address} broke off in the middle of a completion",
                hint="its text is not used; see the server's log, ask again",
            )
        return text

    def last(self) -> Chunk:
        """The chunk that ends the completion, with text that was held back."""
        text, self._high = ("\ufffd" if self._high else ""), ""
        # [DONE] without a reason promises nothing: what is open counts as cut off
        return Chunk(text, self.finish or "length", self._usage, self._edited())

    def _read(self, data: bytes | None) -> str:
        """Read on; once the reason has come, what cannot be read any more is of no matter."""
        texts: list[str] = []
        events = self._reader.finish() if data is None else self._reader.feed(data)
        try:
            for event in events:
                texts.append(self._event(event))
                if self.done:
                    break
        except NotEvents as error:
            broken = BackendBroken(
                f"{self._address} sent no completion: {error}", hint="is it a completions server?"
            )
            broken.__cause__ = error
            self._break_off(broken)
        except BackendError as error:
            self._break_off(error)
        text = "".join(texts)
        if not text:
            self.check()
        return text

    def _break_off(self, error: BackendError) -> None:
        """After the finish reason it is of no matter."""
        if self.finish is None:
            self._failure = error
        self.done = True

    def _event(self, data: str) -> str:
        if data.strip() == "[DONE]":
            self.done = True
            return ""
        piece = read_event(data, self._address)
        self._usage = piece.usage or self._usage
        self._mlx_lm = self._mlx_lm or piece.mlx_lm
        if self.finish is not None:
            return ""
        self.finish = piece.finish
        return self._text(piece)

    def _text(self, piece: Piece) -> str:
        text = self._high + piece.text
        self._high = ""
        if text and "\ud800" <= text[-1] <= "\udbff":
            text, self._high = text[:-1], text[-1]
        text = without_surrogates(text)
        size = len(text.encode())
        self._bytes += size
        if self._bytes > self._limit:
            raise far_too_much(self._address)
        if piece.text:
            self._events += 1
            self._silent_tokens += size - len(text) + sum(map(text.count, " \n<["))
        elif piece.finish is None and piece.usage is None and piece.mlx_lm:
            # mlx-lm's server sends an event without text for reasoning alone
            self._thought += not self._bytes
            self._cut = self._cut or self._bytes > 0
        return text

    def _edited(self) -> bool:
        """Whether the server cut text out: surely so, or not told. A thought before all text does
        not count.

        mlx-lm's server writes at most one event a token and an event for every token with text of
        its own, so tokens that left neither event nor cause were cut.
        """
        if self.finish == "tool_calls" or self._cut or (self._thought and not self._bytes):
            return True
        tokens = self._usage.completion_tokens if self._usage else None
        if tokens is None:
            return False
        tokens -= self._thought
        if cut_out(tokens, self._bytes):
            return True
        return self._mlx_lm and tokens > self._events + self._silent_tokens + SLACK
