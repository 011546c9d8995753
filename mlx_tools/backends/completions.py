"""Any server that offers ``/v1/completions``: text in, text out, streamed."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from mlx_tools.backends.address import Address, parse_address
from mlx_tools.backends.base import Chunk, CompletionRequest
from mlx_tools.backends.collect import Collector
from mlx_tools.backends.edge import error_text, refused, translate
from mlx_tools.backends.grammar_wire import GrammarOption, find_grammar_option
from mlx_tools.backends.health import Health, find_health, find_models
from mlx_tools.backends.limits import Limits
from mlx_tools.backends.scored import Scored
from mlx_tools.backends.wire import check_request, completion_body
from mlx_tools.errors import (
    BackendBroken,
    BackendDead,
    BackendError,
    BackendRefused,
    BackendTimeout,
    BackendUnreachable,
    UsageError,
)

if TYPE_CHECKING:
    import httpx

CONNECT_TIMEOUT: Final = 10.0
GRACE: Final = 5.0
"""Seconds that usage may come after the finish reason; a server that then falls silent is done."""

DIAGNOSIS: Final = 3.0
"""Seconds that a server which failed has to say whether its model thread lives."""

ERROR_BYTES: Final = 1 << 16
"""How much of an error's body is read."""

NUDGES: Final = (" 0", "\nx", "a.")
"""Texts that, appended, push a prompt out of the server's cache: see `CompletionsBackend`."""

CROWD: Final = 12
"""One more than the entries that mlx-lm's server keeps by default, and one to be sure."""


class CompletionsBackend:
    """A completions server at ``url`` (with or without ``/v1``).

    ``model`` is sent where given; without it the server takes its own. ``api_key`` goes into
    ``Authorization``, ``headers`` are added to every request. ``forbidden_tokens`` are token ids
    that the model shall not write. ``client`` is an `httpx.AsyncClient` to use; without one, each
    request has a client of its own, so that one backend serves any number of event loops, and
    proxies from the environment are used except for loopback addresses. Redirects are never
    followed.

    Nothing sent from here can kill mlx-lm's server (see `mlx_tools.backends.wire`). Where its cache
    holds exactly the prompt, that server answers with an empty stream; then short requests of one
    token push the prompt out of the cache, and it is sent once more.

    Raises:
        UsageError: ``url``, ``api_key`` or a header cannot be sent.
    """

    def __init__(
        self,
        url: str,
        model: str | None = None,
        *,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        forbidden_tokens: Sequence[int] = (),
        client: httpx.AsyncClient | None = None,
    ) -> None:
        self.address: Address = parse_address(url)
        self.model = model
        self.forbidden_tokens = tuple(forbidden_tokens)
        self.headers = _headers(api_key, headers or {})
        self._client = client
        self._ssl: Any = None
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
        limits = Limits(request, str(self.address))
        if request.top_logprobs:
            yield await self._scored_completion(request, limits)
            return
        spent: list[CompletionRequest] = []
        while True:
            try:
                async with aclosing(self._attempt(request, limits)) as chunks:
                    async for chunk in chunks:
                        yield chunk
                return
            except _NothingCame as error:
                diagnosed = await self._diagnosed(error)
                if diagnosed is not error:
                    raise diagnosed from error
                if len(spent) > len(NUDGES):
                    raise _stuck(str(self.address)) from error
                await self._push_out(request, limits, len(spent))
                spent.append(request)
            except BackendError as error:
                diagnosed = await self._diagnosed(error)
                if diagnosed is error:
                    raise
                raise diagnosed from error

    async def _scored_completion(self, request: CompletionRequest, limits: Limits) -> Chunk:
        """A completion with likelihoods, which comes whole. See `complete` for the nudges."""
        spent = 0
        while True:
            try:
                return await self._scored.complete(request)
            except BackendBroken as error:
                diagnosed = await self._diagnosed(error)
                if diagnosed is not error or spent > len(NUDGES):
                    raise diagnosed from error
                await self._push_out(request, limits, spent)
                spent += 1

    async def health(self, timeout: float = 5.0) -> Health:
        """How the server is, by what it answers within ``timeout`` seconds; no answer raises."""
        async with self.client() as client:
            return await find_health(client, self.address, self.headers, timeout)

    async def models(self, timeout: float = 5.0) -> tuple[str, ...]:
        """The models it lists, in its order; empty where it cannot (or will not) say."""
        async with self.client() as client:
            return await find_models(client, self.address, self.headers, timeout)

    async def aclose(self) -> None:
        """Nothing is kept open between requests; an injected client stays its owner's."""

    def body(self, request: CompletionRequest) -> dict[str, Any]:
        """What is sent for ``request``, streamed."""
        return completion_body(
            request,
            model=self.model,
            forbidden_tokens=self.forbidden_tokens,
            grammar_option=self._grammar_option,
        )

    async def _attempt(
        self, request: CompletionRequest, limits: Limits
    ) -> AsyncGenerator[Chunk, None]:
        body = self.body(request)
        collector = Collector(str(self.address), request.max_tokens)
        with self.translated():
            async with self._opened_stream(body, limits) as response:
                stream = response.aiter_bytes()
                while not collector.done:
                    data = await self._next(stream, collector, limits)
                    text = collector.end() if data is None else collector.feed(data)
                    if text:
                        yield Chunk(text)
                    collector.check()
                    if data is None:
                        break
                yield collector.last()

    async def _next(
        self, stream: AsyncIterator[bytes], collector: Collector, limits: Limits
    ) -> bytes | None:
        """The next bytes; None at the end, or once nothing that matters can follow."""
        finished = collector.finish is not None
        try:
            with limits.step(GRACE if finished else None):
                return await anext(stream)
        except StopAsyncIteration:
            if collector.empty:
                raise _NothingCame(str(self.address)) from None
            return None
        except Exception:
            if finished:  # the completion is whole; only its usage is missing
                return None
            raise

    @asynccontextmanager
    async def _opened_stream(
        self, body: Mapping[str, Any], limits: Limits
    ) -> AsyncGenerator[httpx.Response, None]:
        content = json.dumps(body, ensure_ascii=False, allow_nan=False).encode()
        async with self.client() as client:
            sent = client.build_request(
                "POST", self.address.completions, content=content, headers=self.headers
            )
            with limits.step():
                response = await client.send(sent, stream=True, follow_redirects=False)
            try:
                await self._check(response, limits)
                yield response
            finally:
                await response.aclose()

    async def _check(self, response: httpx.Response, limits: Limits) -> None:
        """Raise unless ``response`` begins a stream of events."""
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        coded = response.headers.get("content-encoding", "identity").strip().lower()
        if coded not in ("", "identity"):  # unpacking it could take any amount of memory
            raise BackendBroken(f"{self.address} sent compressed bytes that were not asked for")
        if response.status_code == 200 and kind not in ("application/json", "text/html"):
            return
        body = bytearray()
        stream = response.aiter_bytes()
        while len(body) < ERROR_BYTES:
            try:
                with limits.step():
                    body += await anext(stream)
            except StopAsyncIteration:
                break
        location = response.headers.get("location", "")
        if response.status_code == 200 and not _is_error(bytes(body)):
            raise BackendBroken(
                f"{self.address} answered {kind} where a stream was asked for",
                hint="is it a completions server that can stream?",
            )
        raise refused(
            response.status_code, bytes(body[:ERROR_BYTES]), str(self.address), location=location
        )

    async def _push_out(self, request: CompletionRequest, limits: Limits, turn: int) -> None:
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
                async with aclosing(self._attempt(nudge, limits)) as chunks:
                    async for _ in chunks:
                        pass
            except BackendTimeout:
                raise
            except BackendError as error:
                diagnosed = await self._diagnosed(error)
                if isinstance(diagnosed, BackendDead | BackendUnreachable):
                    raise diagnosed from error

    async def _diagnosed(self, error: BackendError) -> BackendError:
        """``error``, or the one that says that the server's model thread has died."""
        if isinstance(error, BackendDead | BackendUnreachable):
            return error
        health = await self.health(timeout=DIAGNOSIS)
        return health.as_error(str(self.address)) or error

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Turns httpx's and the system's errors, raised within, into ours."""
        import httpx

        foreign = (httpx.HTTPError, httpx.StreamError, httpx.InvalidURL, OSError)
        try:
            yield
        except foreign as error:
            raise translate(error, str(self.address)) from error

    @asynccontextmanager
    async def client(self) -> AsyncGenerator[httpx.AsyncClient, None]:
        """The client for one request."""
        if self._client is not None:
            yield self._client
            return
        async with self._new_client() as client:
            yield client

    def _new_client(self) -> httpx.AsyncClient:
        import httpx

        proxied = not self.address.loopback
        try:
            if self._ssl is None:
                # a TLS context takes 15 to 50 ms: once, and not for plain http to this machine
                plain = self.address.loopback and self.address.base.startswith("http:")
                self._ssl = httpx.create_ssl_context(verify=not plain, trust_env=proxied)
            return httpx.AsyncClient(
                verify=self._ssl,
                trust_env=proxied,
                timeout=httpx.Timeout(None, connect=CONNECT_TIMEOUT),
                follow_redirects=False,
            )
        except (ImportError, ValueError, OSError) as error:
            raise UsageError(
                f"the proxy or certificate settings of the environment cannot be used: {error}",
                hint="check HTTPS_PROXY, ALL_PROXY, SSL_CERT_FILE and SSL_CERT_DIR",
            ) from error


class _NothingCame(BackendBroken):
    """The server began a stream and ended it without a byte: mlx-lm's, for a prompt it caches."""

    def __init__(self, address: str) -> None:
        super().__init__(
            f"{address} ended the stream without a byte", hint="see the server's log; ask again"
        )


def _stuck(address: str) -> BackendRefused:
    return BackendRefused(
        f"{address} began an answer and gave nothing, again and again",
        hint="its prompt cache may hold exactly this prompt: restart it, or ask in other words",
    )


def _is_error(body: bytes) -> bool:
    try:
        return bool(error_text(json.loads(body)))
    except (ValueError, RecursionError):
        return False


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
