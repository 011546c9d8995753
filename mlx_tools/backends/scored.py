"""A completion with the likelihoods of its tokens, from a server that may know either dialect."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from mlx_tools.backends.deadlines import Deadlines
from mlx_tools.backends.edge import ServerFailed
from mlx_tools.backends.interface import Chunk, CompletionRequest
from mlx_tools.backends.scores import ScoreForm, ScoreReader, fields
from mlx_tools.backends.whole import ask_whole
from mlx_tools.errors import BackendRefused, UsageError

if TYPE_CHECKING:
    from mlx_tools.backends.completions import CompletionsBackend


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
