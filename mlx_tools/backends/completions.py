"""Any server that offers ``/v1/completions``: text in, text out, streamed or whole."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Literal

from mlx_tools.backends.address import Address, parse_address
from mlx_tools.backends.collect import Collector
from mlx_tools.backends.deadlines import Deadlines
from mlx_tools.backends.edge import Dropped, ServerFailed, some
from mlx_tools.backends.exchange import Begun, Exchange, NothingCame, Retry
from mlx_tools.backends.health import Health, find_context, find_health, find_models
from mlx_tools.backends.interface import Chunk, CompletionRequest
from mlx_tools.backends.scores import Scored
from mlx_tools.backends.whole import read_answer
from mlx_tools.backends.wire import (
    GrammarOption,
    check_request,
    completion_body,
    find_grammar_option,
)
from mlx_tools.errors import (
    BackendDead,
    BackendError,
    BackendRefused,
    BackendTimeout,
    BackendUnreachable,
    UsageError,
)

if TYPE_CHECKING:
    import httpx

GRACE: Final = 5.0
"""Seconds that usage may come after the finish reason; a server that then falls silent is done."""

DIAGNOSIS: Final = 3.0
"""Seconds that a server which failed has to say whether its model thread lives."""

NUDGES: Final = (" 0", "\nx", "a.")
"""Texts that, appended, push a prompt out of the server's cache: see `CompletionsBackend`."""

CROWD: Final = 12
"""One more than the entries that mlx-lm's server keeps by default, and one to be sure."""


class CompletionsBackend:
    """A completions server at ``url`` (with or without ``/v1``).

    ``model`` is sent where given; without it the server takes its own. ``api_key`` goes into
    ``Authorization``, ``headers`` are added to every request. ``forbidden_tokens`` are token ids
    that the model shall not write. ``client`` is an `httpx.AsyncClient` to use; without one,
    connections are kept until `aclose` or the end of the event loop, of which one backend serves
    any number, and proxies from the environment are used except for loopback addresses. Redirects
    are never followed.

    A request that the server fails (a status from 500 on), or of which the connection breaks off,
    before the first byte of an answer is sent again as ``retry`` says, within its own time.

    Nothing sent from here can kill mlx-lm's server (see `mlx_tools.backends.wire`). Where its cache
    holds exactly the prompt, that server answers with nothing; then short requests of one token
    push the prompt out of the cache, and it is sent once more.

    Raises:
        UsageError: ``url``, ``api_key`` or a header cannot be sent.
    """

    kind: Literal["completions"] = "completions"

    def __init__(
        self,
        url: str,
        model: str | None = None,
        *,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        forbidden_tokens: Sequence[int] = (),
        client: httpx.AsyncClient | None = None,
        retry: Retry | None = None,
    ) -> None:
        self.address: Address = parse_address(url)
        self.model = model
        self.forbidden_tokens = tuple(forbidden_tokens)
        self.headers = _headers(api_key, headers or {})
        self._exchange = Exchange(self.address, self.headers, client)
        self._retry = retry or Retry()
        self._scored = Scored(self)
        self._grammar_option: GrammarOption | None = None

    def __repr__(self) -> str:
        return f"CompletionsBackend({str(self.address)!r}, {self.model!r})"

    async def complete(self, request: CompletionRequest) -> AsyncGenerator[Chunk, None]:
        """Complete ``request.prompt``; close the generator to cancel.

        Raises:
            UsageError: the request cannot be sent, or the server does not take its grammar.
            BackendError: the class says which way it failed; the text so far never counts.
        """
        check_request(request)
        if request.grammar is not None and self._grammar_option is None:
            self._grammar_option = await find_grammar_option(self)
        limits = self.limits(request)
        if request.top_logprobs:
            yield await self._scored.complete(request, limits)
            return
        collector = Collector(str(self.address), request.max_tokens)
        async with self.begun(request, limits) as begun:
            if begun.whole:
                answer = await read_answer(begun, str(self.address), request.max_tokens)
                yield answer.chunk
                return
            while not collector.done:
                data = await _next(begun, collector)
                text = collector.end() if data is None else collector.feed(data)
                if text:
                    yield Chunk(text)
                collector.check()
                if data is None:
                    break
            else:
                await begun.drain()
            yield collector.last()

    @asynccontextmanager
    async def begun(
        self, request: CompletionRequest, limits: Deadlines, *, whole: bool = False, **options: Any
    ) -> AsyncGenerator[Begun, None]:
        """The answer to a request, from its first byte on; ``options`` are added to the body.

        ``whole``: it is not to be streamed. What fails within is translated and diagnosed too.
        """
        body = self.body(request, stream=not whole) | options
        begun = await self._first(request, body, limits, silent=whole)
        try:
            with self._exchange.translated():
                yield begun
        except BackendError as error:
            diagnosed = await self._diagnosed(error)
            if diagnosed is error:
                raise
            raise diagnosed from error
        finally:
            await begun.aclose()

    async def _first(
        self,
        request: CompletionRequest,
        body: Mapping[str, Any],
        limits: Deadlines,
        *,
        silent: bool,
    ) -> Begun:
        """The beginning of an answer; asked for again where that may help."""
        tries = nudges = 0
        while True:
            try:
                return await self._exchange.begin(body, limits, silent=silent)
            except BackendError as error:
                health = await self._health_after(error)
                if health is not None and (dead := health.as_error(str(self.address))):
                    raise dead from error
                # mlx-lm's answers nothing at all, where it was to answer whole
                stock = silent and health is not None and health.is_mlx_lm
                if isinstance(error, NothingCame) or (stock and isinstance(error, Dropped)):
                    if nudges > len(NUDGES):
                        raise _stuck(str(self.address)) from error
                    await self._push_out(request, limits, nudges)
                    nudges += 1
                    continue
                if isinstance(error, BackendRefused) and not isinstance(error, ServerFailed):
                    raise await self._with_names(error) from error.__cause__
                delay = self._retry.delay(tries)
                passing = isinstance(error, Dropped | ServerFailed)
                if not passing or tries >= self._retry.times or delay >= limits.left:
                    raise
            tries += 1
            await self._retry.sleep(delay)

    async def health(self, timeout: float = 5.0) -> Health:
        """How the server is, by what it answers within ``timeout`` seconds; no answer raises."""
        return await find_health(await self.client(), self.address, self.headers, timeout)

    async def models(self, timeout: float = 5.0) -> tuple[str, ...]:
        """The models it lists, in its order; empty where it cannot (or will not) say."""
        return await find_models(await self.client(), self.address, self.headers, timeout)

    async def client(self) -> httpx.AsyncClient:
        """What the requests are sent with."""
        return await self._exchange.client()

    async def context(self, timeout: float = 2.0) -> int | None:
        """How many tokens its model takes; None where it cannot (or will not) say."""
        client = await self.client()
        return await find_context(client, self.address, self.headers, timeout, self.model)

    async def aclose(self) -> None:
        """Close the connections; an injected client stays its owner's. A later request opens them
        again."""
        await self._exchange.aclose()

    def limits(self, request: CompletionRequest) -> Deadlines:
        """The deadlines of ``request``, from now on."""
        return Deadlines(request, str(self.address), clock=self._retry.clock)

    def body(self, request: CompletionRequest, *, stream: bool = True) -> dict[str, Any]:
        """What is sent for ``request``."""
        return completion_body(
            request,
            model=self.model,
            forbidden_tokens=self.forbidden_tokens,
            grammar_option=self._grammar_option,
            stream=stream,
        )

    async def _push_out(self, request: CompletionRequest, limits: Deadlines, turn: int) -> None:
        """Have the server's cache drop the entry that is exactly the prompt.

        Its cache drops an entry when one that continues it comes in; for a model whose entries
        cannot be shortened, only when newer ones crowd it out.
        """
        if turn < len(NUDGES):
            prompts = [request.prompt + NUDGES[turn]]
        else:
            prompts = [f"{number} {number}" for number in range(CROWD)]
        for prompt in prompts:
            nudge = replace(
                request, prompt=prompt, max_tokens=1, temperature=0.0, top_logprobs=0, grammar=None
            )
            try:
                with self._exchange.translated():
                    begun = await self._exchange.begin(self.body(nudge), limits, silent=False)
                    try:
                        await read_answer(begun, str(self.address), 1)
                    finally:
                        await begun.aclose()
            except BackendTimeout:
                raise
            except BackendError as error:
                diagnosed = await self._diagnosed(error)
                if isinstance(diagnosed, BackendDead | BackendUnreachable):
                    raise diagnosed from error

    async def _with_names(self, error: BackendRefused) -> BackendRefused:
        """``error``, with the models that the server lists where it does not list the one that was
        asked for: mlx-lm's loads others too, so only its refusal tells that it cannot."""
        listed = () if self.model is None else await self.models()
        if not listed or self.model in listed:
            return error
        return BackendRefused(
            f"{error.message}; it lists the models {some(listed)}",
            hint="name one of these with --model, or leave it out",
        )

    async def _diagnosed(self, error: BackendError) -> BackendError:
        """``error``, or the one that says that the server's model thread has died."""
        health = await self._health_after(error)
        return (health.as_error(str(self.address)) if health is not None else None) or error

    async def _health_after(self, error: BackendError) -> Health | None:
        """How the server is after a failure; None where that is known already."""
        if isinstance(error, BackendDead | BackendUnreachable):
            return None
        return await self.health(timeout=DIAGNOSIS)


async def _next(begun: Begun, collector: Collector) -> bytes | None:
    """The next bytes; None at the end, or once nothing that matters can follow."""
    finished = collector.finish is not None
    try:
        return await begun.next(GRACE if finished else None)
    except StopAsyncIteration:
        return None
    except Exception:
        if finished:  # the completion is whole; only its usage is missing
            return None
        raise


def _stuck(address: str) -> BackendRefused:
    return BackendRefused(
        f"{address} began an answer and gave nothing, again and again",
        hint="its prompt cache may hold exactly this prompt: restart it, or ask in other words",
    )


def _headers(api_key: str | None, extra: Mapping[str, str]) -> dict[str, str]:
    headers = {
        "Content-Type": "application/json",
        "Accept": "text/event-stream",
        "Accept-Encoding": "identity",
        **extra,
    }
    if api_key is not None:
        headers["Authorization"] = f"Bearer {api_key.strip()}"
    for name, value in headers.items():
        if not (name + value).isascii() or not (name + value).isprintable() or not name:
            raise UsageError(
                f"the header {name!r} cannot be sent: it holds more than printable ASCII",
                hint="check the key or header for stray characters",
            )
    return headers
