"""One completion, streamed: read as it comes, told as it forms, closed when it is whole."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import Any, Final, cast

import anyio

from mlx_tools import events
from mlx_tools.backends.base import Backend, Chunk, CompletionRequest, GrammarText
from mlx_tools.backends.guard import Guarded
from mlx_tools.decoding import Opening
from mlx_tools.due import Complete, Thought
from mlx_tools.errors import BackendError
from mlx_tools.messages import ErrorInfo
from mlx_tools.protocol import AnswerDelta, ArgumentsDelta, CallStarted, Delta, Reader, Reading
from mlx_tools.session import Session
from mlx_tools.written import Written

GRACE_SECONDS: Final = 0.25
"""How long the server may take, once the message is whole, to end by itself and say its usage."""
CHARS_PER_TOKEN: Final = 64
"""More text than this for each token asked for is no completion: the stream is closed."""

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

    @property
    def heard(self) -> bool:
        """Whether anything has come from the backend for the completion under way."""
        return self._backend.heard

    async def complete(self, due: Complete, emit: Emit) -> Written:
        """Completes what is due. Raises `BackendError`, whatever the backend raised, and
        `UsageError` for a request that cannot be sent."""
        self.partial, self._backend.heard = "", False
        written = Written(prefix=due.rules.prefix)
        prompt = due.prompt
        if due.thought is not None:
            written.thought = await self._think(due, due.thought)
            written.requests += 1
            prompt += due.thought.opening + written.thought + due.thought.closing
        if due.strategy == "guided":
            await self._guide(prompt, due, written, emit)
        else:
            await self._stream(prompt, due, written, emit)
        written.text = self.partial
        self.partial = ""
        return written

    async def _guide(self, prompt: str, due: Complete, written: Written, emit: Emit) -> None:
        """Writes the turn hole by hole: see `mlx_tools.decoding.guided`."""
        from mlx_tools.decoding import CutOff, Restarted, Unfilled, guide_for

        reader = Reader(due.rules)
        ahead = len(due.rules.prefix)  # the reader has this already

        def tell(piece: str) -> None:
            nonlocal ahead
            new, ahead = piece[ahead:], max(0, ahead - len(piece))
            self.partial += new
            for delta in reader.feed(new):
                emit(_event(due.turn, delta))

        prompt = prompt.removesuffix(due.rules.prefix)
        guide = guide_for(self._session, due, prompt, self._backend, tell)
        asker = guide.asker
        try:
            await guide.write()
            written.reading = reader.finish()
            written.finish_reason = "stop"
        except Restarted as error:
            written.prefix = ""
            again = Reader(replace(due.rules, prefix=""))
            self.partial = error.text
            for delta in again.feed(error.text):
                emit(_event(due.turn, delta))
            written.finish_reason = asker.finish or "stop"
            written.reading = again.finish(written.finish_reason)
        except CutOff:
            written.reading, written.finish_reason = reader.finish("length"), "length"
        except Unfilled as error:
            text = self._session.words.error("unfilled", name=guide.tool, reason=str(error))
            written.reading = Reading(error=ErrorInfo("unfilled", text))
            written.finish_reason, written.closed_early = "length", True
        written.usage = asker.usage
        written.requests += asker.requests
        written.pieces += asker.pieces

    async def _stream(self, prompt: str, due: Complete, written: Written, emit: Emit) -> None:
        """Lets the model write, and reads along."""
        reader = Reader(due.rules)
        opening = Opening(due.rules.prefix)

        def take(text: str, *, last: bool) -> None:
            nonlocal reader
            text = opening.feed(text, last=last)
            if opening.anew and written.prefix:
                written.prefix = ""
                reader = Reader(replace(due.rules, prefix=""))
            for delta in reader.feed(text):
                emit(_event(due.turn, delta))

        most = due.max_tokens * CHARS_PER_TOKEN
        written.requests += 1
        grammar = self._grammar(due) if due.strategy == "grammar" else None
        async with aclosing(self._ask(prompt, due.max_tokens, grammar)) as chunks:
            async for chunk in chunks:
                self.partial += chunk.text
                written.pieces += bool(chunk.text)
                take(chunk.text, last=False)
                written.finish_reason = chunk.finish_reason
                written.usage = chunk.usage or written.usage
                if chunk.finish_reason is None and reader.done:
                    await self._see_end(chunks, written)
                    break
                if len(self.partial) > most:
                    written.finish_reason, written.closed_early = "length", True
                    break
        take("", last=True)
        written.reading = reader.finish(written.finish_reason or "stop")

    async def _see_end(self, chunks: AsyncIterator[Chunk], written: Written) -> None:
        """Waits a moment for a server that ends by itself: only then does it say its usage.

        The first piece of text that comes instead closes the stream.
        """
        written.closed_early = True
        # The message is whole: how the server ends, or breaks off, takes nothing from it.
        with anyio.move_on_after(GRACE_SECONDS), suppress(BackendError):
            async for chunk in chunks:
                if chunk.finish_reason is not None:
                    written.closed_early = False
                    written.finish_reason = chunk.finish_reason
                    written.usage = chunk.usage or written.usage
                if chunk.finish_reason is not None or chunk.text.strip():
                    return

    async def _think(self, due: Complete, thought: Thought) -> str:
        """Lets the model think until it closes its thought, or its budget ends."""
        text = ""
        async with aclosing(self._ask(due.prompt + thought.opening, thought.budget)) as chunks:
            async for chunk in chunks:
                text += chunk.text
                if thought.marker in text or len(text) > thought.budget * CHARS_PER_TOKEN:
                    break
        return self._session.neutralise(text.partition(thought.marker)[0].strip())

    def _grammar(self, due: Complete) -> GrammarText:
        """What the completion may be: the calls and the answer that are open to the model now."""
        from mlx_tools.decoding.grammar import grammar_for

        return grammar_for(
            due.tools,
            style=due.rules.style,
            tool_choice=due.rules.tool_choice,
            max_calls=due.rules.max_calls or 1,
            prefix=due.rules.prefix,
        )

    def _ask(self, prompt: str, max_tokens: int, grammar: GrammarText | None = None) -> Any:
        sampling, limits = self._session.header.sampling, self._session.limits
        request = CompletionRequest(
            prompt=prompt,
            max_tokens=max_tokens,
            temperature=sampling.get("temperature", 0.0),
            seed=sampling.get("seed"),
            timeout=limits.completion_timeout,
            idle_timeout=limits.idle_timeout,
            grammar=grammar,
        )
        return cast(Any, self._backend.complete(request))


def _event(turn: int, delta: Delta) -> events.Event:
    match delta:
        case AnswerDelta():
            return events.AnswerPiece(turn=turn, text=delta.text)
        case CallStarted():
            return events.CallOpened(turn=turn, index=delta.index, name=delta.name)
        case ArgumentsDelta():
            return events.ArgumentsPiece(turn=turn, index=delta.index, text=delta.text)
