"""The seam to a model: text in, pieces of text out."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol

from mlx_tools.messages import FinishReason, Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionRequest:
    """What to complete, and within what bounds.

    ``timeout`` bounds the whole completion and ``idle_timeout`` the silence of the server, both in
    seconds. A keep-alive breaks the silence; nothing extends the whole.
    """

    prompt: str
    max_tokens: int = 512
    temperature: float = 0.0
    seed: int | None = None
    timeout: float = 120.0
    idle_timeout: float = 60.0


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a completion. The last carries the finish reason, and usage where it is known.

    ``edited``, on the last: the server cut out some of what the model wrote (mlx-lm's does so with
    reasoning and native tool calls), so the text is not the model's own. False where it cannot be
    told.
    """

    text: str = ""
    finish_reason: FinishReason | None = None
    usage: Usage | None = None
    edited: bool = False


class Backend(Protocol):
    """Anything that completes text.

    `complete` is an async generator: closing it (``aclosing``) cancels the request and frees the
    connection at once. It raises `mlx_tools.errors.BackendError`, and `mlx_tools.errors.UsageError`
    for a request that cannot be sent. A completion that raises never counts, whatever text came
    before.
    """

    def complete(self, request: CompletionRequest) -> AsyncIterator[Chunk]: ...
