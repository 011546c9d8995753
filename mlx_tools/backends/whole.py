"""A completion that comes whole: for what no stream gives (likelihoods, probes), and from servers
that do not stream."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mlx_tools.backends.collect import Collector, cut_out, far_too_much, most_bytes
from mlx_tools.backends.deadlines import Deadlines
from mlx_tools.backends.exchange import MAX_ANSWER, Begun
from mlx_tools.backends.interface import Chunk, CompletionRequest
from mlx_tools.backends.wire import read_event, without_surrogates
from mlx_tools.errors import BackendBroken
from mlx_tools.messages import FinishReason, Usage

if TYPE_CHECKING:
    from mlx_tools.backends.completions import CompletionsBackend


@dataclass(frozen=True, slots=True)
class Answer:
    """A completion that came whole: its text, its end, its usage, and all that the server sent.

    ``edited`` as in `mlx_tools.backends.Chunk`.
    """

    text: str
    finish: FinishReason | None
    usage: Usage
    choice: Mapping[str, Any]
    edited: bool = False

    @property
    def chunk(self) -> Chunk:
        """The completion as one chunk. An end without a reason promises nothing: it is cut off."""
        usage = None if self.usage == Usage() else self.usage
        return Chunk(self.text, self.finish or "length", usage, self.edited)


async def ask_whole(
    backend: CompletionsBackend,
    request: CompletionRequest,
    limits: Deadlines | None = None,
    **options: Any,
) -> Answer:
    """One completion that is not streamed, with ``options`` added to its body.

    ``limits`` are those of a request that this is a part of.

    Raises:
        BackendError: as for `CompletionsBackend.complete`.
    """
    limits = limits or backend.limits(request)
    async with backend.begun(request, limits, whole=True, **options) as begun:
        return await read_answer(begun, str(backend.address), request.max_tokens)


async def read_answer(begun: Begun, address: str, max_tokens: int) -> Answer:
    """All of an answer that came whole, or that is a stream though nobody asked for one.

    Raises:
        BackendBroken: it is no completion.
        BackendRefused: it is an error of the server's.
    """
    body = await begun.rest(MAX_ANSWER, address)
    if not begun.whole:
        collector = Collector(address, max_tokens)
        text = collector.feed(body)
        collector.check()
        text += "" if collector.done else collector.end()
        last = collector.last()
        usage = last.usage or Usage()
        return Answer(text + last.text, last.finish_reason, usage, {}, last.edited)
    try:
        piece = read_event(body.decode("utf-8-sig"), address)
    except UnicodeDecodeError as error:
        raise BackendBroken(f"{address} sent what is not UTF-8") from error
    if piece.choice is None:
        raise BackendBroken(f"{address} sent what is no completion", hint="see the server's log")
    text = without_surrogates(piece.text)
    size = len(text.encode())
    if size > most_bytes(max_tokens):
        raise far_too_much(address)
    usage = piece.usage or Usage()
    edited = piece.finish == "tool_calls" or cut_out(usage.completion_tokens or 0, size)
    return Answer(text, piece.finish, usage, piece.choice, edited)
