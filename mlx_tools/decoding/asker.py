"""Asks a backend for what comes next: pieces of text, or how likely which token is.

Everything that one turn asks goes through one `Asker`, which adds up what it cost and stops a model
that would make it ask for ever.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final, cast

from mlx_tools.backends.base import Backend, Chunk, CompletionRequest, TokenScore
from mlx_tools.decoding.anew import begins_anew
from mlx_tools.errors import BackendBroken, BackendRefused
from mlx_tools.messages import FinishReason, Usage

ALTERNATIVES: Final = 11
"""How many alternatives for a token are asked for: the most that mlx-lm's server gives."""

MAX_REQUESTS: Final = 256
"""How often one turn may ask, whatever its schemas and the model's answers are."""


class Unfilled(Exception):
    """The model gave nothing that fits a place, within the bounds. Says what was wanted."""


class CutOff(Unfilled):
    """An answer did not end within the tokens of its turn."""


class Restarted(Exception):
    """The model wrote a whole line of its own where it was to go on with the host's: some servers
    pay no heed to what the model's turn begins with. ``text`` is the line."""

    def __init__(self, text: str) -> None:
        super().__init__("the model began its line anew")
        self.text = text


@dataclass(frozen=True, slots=True, kw_only=True)
class AskerLimits:
    """What bounds the requests of one turn; times are in seconds, see `CompletionRequest`."""

    max_tokens: int
    timeout: float
    idle_timeout: float
    temperature: float = 0.0
    seed: int | None = None


class Asker:
    """Asks for continuations of one prompt. ``requests`` and ``pieces`` count what was asked.

    ``usage`` adds up what the server reported; a stream that was closed reports nothing, so a
    number of it is None as soon as one request did not report it. ``pieces`` is the number of
    pieces of text that came, which a stock server sends one a token. ``neutral`` is the same prompt
    with a request that says nothing; empty where there is none.
    """

    def __init__(
        self, backend: Backend, prompt: str, limits: AskerLimits, neutral: str = ""
    ) -> None:
        self.requests = 0
        self.pieces = 0
        self.finish: FinishReason | None = None
        self.usage = Usage(prompt_tokens=0, cached_tokens=0, completion_tokens=0)
        self._backend = backend
        self._prompt = prompt
        self._neutral = neutral
        self._limits = limits
        self._scoring = True

    @property
    def left(self) -> int:
        """How many tokens this turn may still write."""
        return self._limits.max_tokens - self.pieces

    async def read(self, text: str, most: int, attempt: int = 0) -> AsyncGenerator[str]:
        """What the model writes after the prompt and ``text``, piece by piece; close it to stop.

        ``most`` is a number of tokens. A later ``attempt`` draws its text at random, so that it may
        be another. ``finish`` holds the finish reason once it has ended by itself. Raises
        `Unfilled` where the turn has no token left, `Restarted`, and what the backend raises.
        """
        most = min(most, self.left)
        if most < 1:
            raise Unfilled("no tokens are left for this turn")
        self.finish = None
        usage: Usage | None = None
        begun: str | None = ""  # what came first, as long as it may be the beginning of a line
        try:
            async with aclosing(self._ask(text, most, attempt)) as chunks:
                async for chunk in chunks:
                    usage = chunk.usage or usage
                    self.finish = chunk.finish_reason or self.finish
                    self.pieces += bool(chunk.text)
                    if begun is None:
                        if chunk.text:
                            yield chunk.text
                        continue
                    begun += chunk.text
                    if begins_anew(begun) is False:
                        yield begun
                        begun = None
            if begun is not None and begins_anew(begun):
                raise Restarted(begun)
            if begun:
                yield begun
        finally:
            self._add(usage)

    async def scores(
        self, text: str, tokens: int = 1, *, neutral: bool = False
    ) -> tuple[tuple[TokenScore, ...], ...]:
        """The likeliest tokens after the prompt and ``text``, best first, for each of the next
        ``tokens`` of the model's own way on; empty where the backend cannot say. ``neutral`` asks
        for those whatever is requested, where the turn has a prompt for it."""
        if not self._scoring or (neutral and not self._neutral):
            return ()
        scores: list[tuple[TokenScore, ...]] = []
        usage: Usage | None = None
        said = ""
        prompt = self._neutral if neutral else self._prompt
        most = min(tokens, max(self.left, 1))
        request = self._request(prompt + text, most, 0, ALTERNATIVES)
        try:
            async with aclosing(cast(Any, self._backend.complete(request))) as chunks:
                async for chunk in chunks:
                    usage = chunk.usage or usage
                    scores += chunk.scores
                    said += chunk.text
                    self.finish = chunk.finish_reason or self.finish
        except (BackendBroken, BackendRefused):
            scores.clear()  # it can do without: the next request for text tells whether it works
        self._add(usage)
        self.pieces += len(scores)
        self._scoring = bool(scores)
        if not scores and self.finish == "stop" and begins_anew(said):
            raise Restarted(said)
        return tuple(scores)

    def _ask(self, text: str, most: int, attempt: int) -> AsyncGenerator[Chunk]:
        request = self._request(self._prompt + text, most, attempt, 0)
        return cast(AsyncGenerator[Chunk], self._backend.complete(request))

    def _request(
        self, prompt: str, most: int, attempt: int, alternatives: int
    ) -> CompletionRequest:
        if self.requests >= MAX_REQUESTS:
            raise Unfilled(f"{MAX_REQUESTS} requests were not enough for this turn")
        self.requests += 1
        limits = self._limits
        seed = limits.seed
        if attempt:
            seed = (seed or 0) + attempt
        return CompletionRequest(
            prompt=prompt,
            max_tokens=most,
            temperature=max(limits.temperature, 0.7) if attempt else limits.temperature,
            seed=seed,
            timeout=limits.timeout,
            idle_timeout=limits.idle_timeout,
            top_logprobs=alternatives,
        )

    def _add(self, usage: Usage | None) -> None:
        said = usage or Usage()
        self.usage = Usage(
            _sum(self.usage.prompt_tokens, said.prompt_tokens),
            _sum(self.usage.cached_tokens, said.cached_tokens),
            _sum(self.usage.completion_tokens, said.completion_tokens),
        )


def _sum(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other
