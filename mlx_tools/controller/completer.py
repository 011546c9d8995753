"""One completion, streamed: read as it comes, told as it forms, closed when it is whole."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, cast

import anyio

from mlx_tools.backends import Backend, Chunk, CompletionRequest, GrammarText, Guarded, TokenScore
from mlx_tools.controller.completion import Written
from mlx_tools.controller.session import Session
from mlx_tools.controller.step import Complete, Thought
from mlx_tools.decoding import HeldTurn, Score
from mlx_tools.errors import BackendBroken, BackendError, BackendRefused
from mlx_tools.messages import ErrorInfo, Usage
from mlx_tools.protocol import AnswerDelta, ArgumentsDelta, CallStarted, Delta, Reading
from mlx_tools.transcript import events

if TYPE_CHECKING:
    from mlx_tools.decoding.constraints import Grammar

GRACE_SECONDS: Final = 0.25
"""How long the server may take, once the message is whole, to end by itself and say its usage."""
CHARS_PER_TOKEN: Final = 64
"""More text than this for each token asked for is no completion: the stream is closed."""

CHARS_OF_TOKEN: Final = 6
"""A token has so many characters or fewer, mostly: for servers that neither stream nor count."""

ALTERNATIVES: Final = 11
"""How many alternatives for a token are asked for: the most that mlx-lm's server gives."""

WARM: Final = 0.7
"""The least temperature of what is drawn again."""

Emit = Callable[[events.Event], None]


class Completer:
    """Asks a backend for the completions of a session.

    ``partial`` is the text of the completion under way: what is left of it if the backend fails.
    What the host wrote of it is in there too; ``heard`` says whether the backend gave anything.
    """

    def __init__(self, backend: Backend, session: Session) -> None:
        self.partial = ""
        self._backend = Guarded(backend)
        self._session = session
        self._scores = True  # as far as is known, the backend tells likelihoods

    @property
    def heard(self) -> bool:
        """Whether anything has come from the backend for the completion under way."""
        return self._backend.heard

    async def complete(self, due: Complete, emit: Emit) -> Written:
        """Completes what is due. Raises `BackendError`, whatever the backend raised, and
        `UsageError` for a request that cannot be sent."""
        self.partial, self._backend.heard = "", False
        written = Written(prefix=due.rules.prefix)
        prompt = due.prompt.removesuffix(due.rules.prefix)
        if due.thought is not None:
            written.thought = await self._think(due, due.thought)
            written.requests += 1
            closing = due.thought.closing.removesuffix(due.rules.prefix)
            prompt = due.prompt + due.thought.opening + written.thought + closing
        await self._write(prompt, due, written, emit)
        self.partial = ""
        return written

    async def _write(self, prompt: str, due: Complete, written: Written, emit: Emit) -> None:
        """Lets the model write its turn after ``prompt``: see `mlx_tools.decoding.held_turn`."""
        turn = HeldTurn(due.rules, due.tools, due.strategy, number=due.turn)

        def show(deltas: Iterable[Delta]) -> None:
            self.partial = turn.text
            for delta in deltas:
                emit(_event(due.turn, delta))

        while (ask := turn.due) is not None:
            if isinstance(ask, Score):
                show(turn.scored(*await self._likeliest(prompt + ask.text, written)))
                continue
            put = sum(len(mend.put) for mend in turn.mends)  # a token a character, at the most
            left = max(1, due.max_tokens - written.tokens - put)
            grammar = self._grammar(due) if due.strategy == "grammar" else None
            again = grammar.again if grammar is not None else ""
            text = prompt + ask.text.removesuffix(again)
            request = self._request(text, left, grammar, attempt=ask.attempt)
            await self._draw(request, turn, written, show, again)
        written.prefix, written.text, written.reading = turn.prefix, turn.text, turn.reading
        written.mends, written.mended = tuple(turn.mends), turn.mended
        written.finish_reason = turn.finish_reason
        error = written.reading.error
        if turn.unfilled:
            error = ErrorInfo("unfilled", turn.misfit)
        if error is not None and error.code in ("unfilled", "unknown_tool"):
            text = self._session.words.error(error.code, name=turn.tool, reason=error.message)
            written.reading = Reading(error=replace(error, message=text))

    async def _draw(
        self,
        request: CompletionRequest,
        turn: HeldTurn,
        written: Written,
        show: Callable[[Iterable[Delta]], None],
        again: str = "",
    ) -> None:
        """Streams one draw into the turn, until the turn wants something else; ``again`` is what
        the model writes first that the turn has already."""
        ask, most = turn.due, request.max_tokens * CHARS_PER_TOKEN
        usage: Usage | None = None
        pieces, size = written.pieces, 0
        written.requests += 1
        written.closed_early = True
        async with aclosing(self._complete(request)) as chunks:
            async for chunk in chunks:
                written.pieces += bool(chunk.text)
                usage = chunk.usage or usage
                size += len(chunk.text)
                if chunk.text:
                    show(turn.feed(chunk.text.removeprefix(again)))
                    again = ""
                if turn.due is not ask:
                    break
                if chunk.finish_reason is not None:
                    written.closed_early = False
                    show(turn.end(chunk.finish_reason, cut_out=chunk.edited))
                    break
                if turn.closing:
                    end = await self._see_end(chunks)
                    written.closed_early = end is None
                    usage = end.usage if end is not None else usage
                    reason = end.finish_reason if end is not None else None
                    # what was cut out of a whole message was the model's word: it is not clean
                    show(turn.close("tool_calls" if end is not None and end.edited else reason))
                    break
                if size > most:
                    show(turn.end("length"))
                    break
            else:
                show(turn.end("stop"))
        said = usage.completion_tokens if usage is not None else None
        written.tokens += said or max(written.pieces - pieces, size // CHARS_OF_TOKEN)
        written.spend(usage)

    async def _see_end(self, chunks: AsyncIterator[Chunk]) -> Chunk | None:
        """Waits a moment for a server that ends by itself: only then does it say its usage.

        The first piece of text that comes instead closes the stream.
        """
        # The message is whole: how the server ends, or breaks off, takes nothing from it.
        with anyio.move_on_after(GRACE_SECONDS), suppress(BackendError):
            async for chunk in chunks:
                if chunk.finish_reason is not None:
                    return chunk
                if chunk.text.strip():
                    return None
        return None

    async def _likeliest(
        self, prompt: str, written: Written
    ) -> tuple[list[tuple[str, float]] | None, str]:
        """The likeliest next tokens, best first, None where the backend cannot say; and what the
        model wrote while it was asked."""
        if not self._scores:
            return None, ""
        # Of two tokens the first is used: so no later prompt is one that was finished, with its
        # whole text. mlx_lm.server dies of those.
        request = replace(self._request(prompt, 2), top_logprobs=ALTERNATIVES)
        scores: list[tuple[TokenScore, ...]] = []
        usage: Usage | None = None
        text = ""
        written.requests += 1
        try:
            async with aclosing(self._complete(request)) as chunks:
                async for chunk in chunks:
                    usage = chunk.usage or usage
                    scores += chunk.scores
                    text += chunk.text
            self._scores = bool(scores)
        except (BackendBroken, BackendRefused):
            scores.clear()  # it can do without: the next draw tells whether the backend works
        written.spend(usage)
        control = self._session.neutraliser.control_tokens
        likely = [(_token(score), score.logprob) for score in (scores[0] if scores else ())]
        return [(token, at) for token, at in likely if token and token not in control], text

    async def _think(self, due: Complete, thought: Thought) -> str:
        """Lets the model think until it closes its thought, or its budget ends."""
        text = ""
        request = self._request(due.prompt + thought.opening, thought.budget)
        async with aclosing(self._complete(request)) as chunks:
            async for chunk in chunks:
                text += chunk.text
                if thought.marker in text or len(text) > thought.budget * CHARS_PER_TOKEN:
                    break
        return self._session.neutralise(text.partition(thought.marker)[0].strip())

    def _grammar(self, due: Complete) -> Grammar:
        """What the completion may be: the calls and the answer that are open to the model now."""
        from mlx_tools.decoding.constraints import grammar_for

        return grammar_for(
            due.tools,
            style=due.rules.style,
            tool_choice=due.rules.tool_choice,
            max_calls=due.rules.max_calls or 1,
            prefix=due.rules.prefix,
        )

    def _request(
        self, prompt: str, max_tokens: int, grammar: GrammarText | None = None, attempt: int = 0
    ) -> CompletionRequest:
        """What to ask for; a later ``attempt`` draws at random, and otherwise than before."""
        sampling, limits = self._session.header.sampling, self._session.limits
        temperature, seed = sampling.get("temperature", 0.0), sampling.get("seed")
        return CompletionRequest(
            prompt=prompt,
            max_tokens=max_tokens,
            temperature=max(temperature, WARM) if attempt else temperature,
            seed=(seed or 0) + attempt if attempt else seed,
            timeout=limits.completion_timeout,
            idle_timeout=limits.idle_timeout,
            grammar=grammar,
        )

    def _complete(self, request: CompletionRequest) -> Any:
        return cast(Any, self._backend.complete(request))


def _token(score: TokenScore) -> str:
    """A token as text; nothing where it is no whole characters."""
    try:
        return score.data.decode()
    except UnicodeDecodeError:
        return ""


def _event(turn: int, delta: Delta) -> events.Event:
    match delta:
        case AnswerDelta():
            return events.AnswerPiece(turn=turn, text=delta.text)
        case CallStarted():
            return events.CallOpened(turn=turn, index=delta.index, name=delta.name)
        case ArgumentsDelta():
            return events.ArgumentsPiece(turn=turn, index=delta.index, text=delta.text)
