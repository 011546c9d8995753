"""The seam to a model: text in, pieces of text out."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol

from mlx_tools.messages import FinishReason, Usage


@dataclass(frozen=True, slots=True)
class GrammarText:
    """What a completion may be, in the two dialects that backends take.

    ``gbnf`` is llama.cpp's, ``lark`` is llguidance's. Both say the same.
    """

    gbnf: str
    lark: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionRequest:
    """What to complete, and within what bounds.

    ``timeout`` bounds the whole completion and ``idle_timeout`` the silence of the server, both in
    seconds. A keep-alive breaks the silence; nothing extends the whole. ``grammar`` is what the
    completion may be; a backend that cannot hold a model to one raises
    `mlx_tools.errors.UsageError`. ``top_logprobs`` is how many alternatives per generated token are
    wanted; a backend that cannot say gives none.
    """

    prompt: str
    max_tokens: int = 512
    temperature: float = 0.0
    seed: int | None = None
    timeout: float = 120.0
    idle_timeout: float = 60.0
    grammar: GrammarText | None = None
    top_logprobs: int = 0


@dataclass(frozen=True, slots=True)
class TokenScore:
    """One alternative for a token that was generated.

    ``text`` is the token's own text, with U+FFFD for bytes that are no whole character;
    ``logprob`` the natural logarithm of its probability.
    """

    text: str
    logprob: float


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a completion. The last carries the finish reason, and usage where it is known.

    ``edited``, on the last: the server cut out some of what the model wrote (mlx-lm's does so with
    reasoning and native tool calls), so the text is not the model's own. False where it cannot be
    told.

    ``scores`` holds, for each token generated in this chunk, its likeliest alternatives, best
    first; empty where none were asked for or the backend cannot say.
    """

    text: str = ""
    finish_reason: FinishReason | None = None
    usage: Usage | None = None
    edited: bool = False
    scores: tuple[tuple[TokenScore, ...], ...] = ()


class Backend(Protocol):
    """Anything that completes text.

    `complete` is an async generator: closing it (``aclosing``) cancels the request and frees the
    connection at once. It raises `mlx_tools.errors.BackendError`, and `mlx_tools.errors.UsageError`
    for a request that cannot be sent. A completion that raises never counts, whatever text came
    before.
    """

    def complete(self, request: CompletionRequest) -> AsyncIterator[Chunk]: ...
