"""A completion with the likelihoods of its tokens, from a server that may know either dialect."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlx_tools.backends.base import Chunk, CompletionRequest
from mlx_tools.backends.scores import Dialect, fields, read_scores
from mlx_tools.backends.whole import ask_whole
from mlx_tools.errors import BackendRefused, UsageError

if TYPE_CHECKING:
    from mlx_tools.backends.completions import CompletionsBackend

_ORDER = (Dialect.MLX, Dialect.COMPLETIONS, Dialect.NONE)


class Scored:
    """Asks one server, and remembers which dialect it knows."""

    def __init__(self, backend: CompletionsBackend) -> None:
        self._backend = backend
        self._dialect: Dialect | None = None

    async def complete(self, request: CompletionRequest) -> Chunk:
        """The completion as one chunk; without scores where the server gives none.

        Raises:
            BackendError: as for `CompletionsBackend.complete`.
        """
        if self._dialect is not None:
            return await self._asked(request, self._dialect)
        best: Chunk | None = None
        for dialect in _ORDER:
            try:
                chunk = await self._asked(request, dialect)
            except (BackendRefused, UsageError):
                if dialect is Dialect.NONE:
                    raise
                continue
            # A server that takes `true` for 1 gives one alternative: the other dialect gives more.
            enough = bool(chunk.scores) and len(chunk.scores[0]) > 1
            if enough or dialect is Dialect.NONE:
                self._dialect = dialect if enough or best is None else Dialect.MLX
                return chunk if enough or best is None else best
            if chunk.scores:
                best = chunk
        raise AssertionError("unreachable")

    async def _asked(self, request: CompletionRequest, dialect: Dialect) -> Chunk:
        answer = await ask_whole(self._backend, request, **fields(dialect, request.top_logprobs))
        return Chunk(
            answer.text, answer.finish or "length", answer.usage, scores=read_scores(answer.choice)
        )
