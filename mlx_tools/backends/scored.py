"""A completion with the likelihoods of its tokens, from a server that may know either dialect."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlx_tools.backends.base import Chunk, CompletionRequest
from mlx_tools.backends.scores import Dialect, fields, read_scores
from mlx_tools.backends.whole import ask_whole
from mlx_tools.errors import BackendRefused, UsageError

if TYPE_CHECKING:
    from mlx_tools.backends.completions import CompletionsBackend


class Scored:
    """Asks one server, and remembers which dialect it knows."""

    def __init__(self, backend: CompletionsBackend) -> None:
        self._backend = backend
        self._dialect: Dialect | None = None

    async def complete(self, request: CompletionRequest) -> Chunk:
        """The completion as one chunk; without scores where the server gives none, and without text
        where it is known to give none.

        Raises:
            BackendError: as for `CompletionsBackend.complete`.
        """
        if self._dialect is Dialect.NONE:
            return Chunk("", "length")
        if self._dialect is not None:
            return (await self._asked(request, self._dialect))[0]
        least: Chunk | None = None
        for dialect in (Dialect.MLX, Dialect.COMPLETIONS):
            try:
                chunk, told = await self._asked(request, dialect)
            except (BackendRefused, UsageError):
                continue
            if len(chunk.scores) and len(chunk.scores[0]) > 1:
                self._dialect = dialect
                return chunk
            if not told:  # it answered, and knows of no likelihoods
                self._dialect = Dialect.NONE
                return chunk
            # A server that takes `true` for 1 gives one alternative: the other dialect gives more.
            least = least or chunk
        self._dialect = Dialect.MLX if least is not None else Dialect.NONE
        return least or Chunk("", "length")

    async def _asked(self, request: CompletionRequest, dialect: Dialect) -> tuple[Chunk, bool]:
        """The completion, and whether its server spoke of likelihoods at all."""
        answer = await ask_whole(self._backend, request, **fields(dialect, request.top_logprobs))
        chunk = Chunk(
            answer.text, answer.finish or "length", answer.usage, scores=read_scores(answer.choice)
        )
        return chunk, answer.choice.get("logprobs") is not None
