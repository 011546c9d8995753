"""Any server that offers ``/v1/completions``: text in, text out, streamed or whole; and what such a
server says of itself."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

from msgspec import Struct, field

from mlx_tools.backends.chat_wire import ChatCollector, chat_body
from mlx_tools.backends.interface import BackendTraits, Chunk, CompletionRequest, check_token_ids
from mlx_tools.backends.scores import ScoreForm, ScoreReader, score_fields
from mlx_tools.backends.transport import (
    DEAD_WORDS,
    START_HINT,
    WATCH,
    Address,
    ConnectionDropped,
    Deadlines,
    DiedAtWork,
    EmptyResponse,
    Exchange,
    ResponseStart,
    Retry,
    ServerFailed,
    dead,
    json_object,
    parse_address,
    words_of,
)
from mlx_tools.backends.wire import Collector, GrammarOption, check_request, completion_body
from mlx_tools.errors import (
    BackendBroken,
    BackendDead,
    BackendError,
    BackendRefused,
    BackendTimeout,
    BackendUnreachable,
    UsageError,
    require_mapping,
    require_text,
)
from mlx_tools.messages import Usage, replace
from mlx_tools.process import clean

if TYPE_CHECKING:
    import httpx

MAX_ANSWER: Final = 4 << 20
"""Bytes of an answer that comes whole; mlx-lm's list of models is the whole Hugging Face cache."""

GRACE: Final = 5.0
"""Seconds that usage may come after the finish reason; a server that then falls silent is done."""

DIAGNOSIS: Final = 3.0
"""Seconds that a server which failed has to say whether its model thread lives."""

NUDGES: Final = (" 0", "\nx", "a.")
"""Texts that, appended, push a prompt out of the server's cache: see `CompletionsBackend`."""

CROWD: Final = 12
"""One more than the entries that mlx-lm's server keeps by default, and one to be sure."""

_CONTEXT_KEYS: Final = ("max_model_len", "context_length")
"""What a row of the list of models calls the size of its context: vLLM and SGLang, OpenRouter."""


class Health(Struct, frozen=True):
    """How a server is. ``unknown``: it answers, but does not say (many have no ``/health``).

    ``server`` is what it says that it is, else its ``Server`` header;
    ``allowed_origin`` is which web pages it lets read its answers, ``*`` for all of them. ``hint``
    is what helps where it is unreachable.
    """

    status: Literal["ok", "loading", "dead", "unreachable", "unknown"]
    detail: str = ""
    server: str = ""
    allowed_origin: str = ""
    hint: str = ""

    @property
    def ok(self) -> bool:
        """Whether a completion may be asked for: not known to be down."""
        return self.status in ("ok", "unknown")

    @property
    def is_mlx_lm(self) -> bool:
        """Whether it is mlx-lm's server: no other is known to be built on Python's own."""
        return self.server.startswith("BaseHTTP/")

    @property
    def is_gateway(self) -> bool:
        """Whether it is a gateway of ours, which has a model's server of its own."""
        return self.server == "mlx-tools"

    def as_error(self, address: str) -> BackendDead | None:
        """The error for a server whose model thread has died; None for every other state."""
        return dead(address) if self.status == "dead" else None


class Answer(Struct, frozen=True):
    """A completion that came whole, and all that the server sent of it."""

    chunk: Chunk
    choice: Mapping[str, Any] = field(default_factory=dict)

    @property
    def usage(self) -> Usage:
        """The counts, None where the server does not say them."""
        return self.chunk.usage or Usage()


class CompletionsBackend:
    """A completions server at ``url`` (with or without ``/v1``).

    ``model`` is sent where given; without it the server takes its own. ``api_key`` goes into
    ``Authorization``, ``headers`` are added to every request. ``forbidden_tokens`` are token ids
    that the model shall not write. ``client`` is an `httpx.AsyncClient` to use; without one,
    connections are kept until `aclose` or the end of the event loop, of which one backend serves
    any number, and proxies from the environment are used except for loopback addresses. Redirects
    are never followed. ``grammar_option`` is how the server takes a grammar, None until that is
    known (`mlx_tools.backends.capabilities.obeys_grammar`). ``completes`` is False if the server is
    known to have a chat interface alone.

    A request that the server fails (a status from 500 on), or of which the connection breaks off,
    before the first byte of an answer is sent again as ``retry`` says, within its own time.

    Nothing sent from here can kill mlx-lm's server (see `mlx_tools.backends.wire`). Where its cache
    holds exactly the prompt, that server answers with nothing; then short requests of one token
    push the prompt out of the cache, and it is sent once more.

    Raises:
        UsageError: ``url``, ``api_key`` or a header cannot be sent.
    """

    kind: Literal["completions"] = "completions"
    traits: ClassVar = BackendTraits(asks_server=True)

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
        if self.address.interface:
            raise UsageError(f"{url} is no completions server", hint="use choose_backend")
        if model is not None:
            require_text("model", model, "give the model's name as the server has it, or None")
        self.model = model
        self.completes = True
        self.forbidden_tokens = check_token_ids(forbidden_tokens)
        self._headers = _headers(api_key, headers)
        self._client = client
        self._exchange = Exchange(self.address, self._headers, client)
        self._retry = retry or Retry()
        self._score_form: ScoreForm | None = None
        self._scores = ScoreReader()
        self.grammar_option: GrammarOption | None = None

    def speak_ollama(self) -> None:
        """Ask for completions by Ollama's own interface from now on."""
        from mlx_tools.backends.ollama_raw import OllamaExchange

        if not isinstance(self._exchange, OllamaExchange):
            self._exchange = OllamaExchange(self.address, self._headers, self._client)

    @property
    def is_ollama(self) -> bool:
        """True if the server is known to be Ollama."""
        return type(self._exchange) is not Exchange

    @property
    def addresses(self) -> tuple[Address, ...]:
        """The one address: a pool of servers has several."""
        return (self.address,)

    def __repr__(self) -> str:
        return f"CompletionsBackend({str(self.address)!r}, {self.model!r})"

    async def complete(self, request: CompletionRequest) -> AsyncGenerator[Chunk, None]:
        """Complete ``request.prompt``, or by the server's chat interface ``request.messages``;
        close the generator to cancel.

        Raises:
            UsageError: the request cannot be sent, or the server does not take its grammar.
            BackendError: the class says which way it failed; the text so far never counts.
        """
        check_request(request)
        limits = self._limits(request)
        if request.grammar is not None and self.grammar_option is None:
            from mlx_tools.backends.capabilities import find_grammar_option

            with limits.step(silent=True):
                await find_grammar_option(self)
        if request.top_logprobs:
            yield await self._score_completion(request, limits)
            return
        async with self._start_response(request, limits) as begun:
            if begun.whole:
                yield (await self._read_whole(begun, request)).chunk
                return
            collector = self._collector(request)
            data: bytes | None = begun.first
            while True:
                for text in collector.feed(data):
                    yield Chunk(text)
                if collector.done:
                    await begun.drain()
                if collector.done or data is None:
                    break
                data = await _next(begun, collector)
            yield collector.last()

    async def ask_whole(
        self, request: CompletionRequest, limits: Deadlines | None = None, **options: Any
    ) -> Answer:
        """One completion that is not streamed, with ``options`` added to its body.

        ``limits`` are those of a request that this is a part of. Raises as `complete` does.
        """
        check_request(request)
        limits = limits or self._limits(request)
        async with self._start_response(request, limits, whole=True, **options) as begun:
            return await self._read_whole(begun, request)

    async def aclose(self) -> None:
        """Close the connections; an injected client stays its owner's. A later request opens them
        again."""
        await self._exchange.aclose()

    # --- what it says of itself ---------------------------------------------------------------

    async def health(self, timeout: float = 5.0) -> Health:
        """How the server is, by what ``/health`` answers in time; any answer, and none, is one."""
        try:
            status, answered, body = await self.get("/health", timeout)
        except UsageError:
            raise
        except Exception as error:
            why, hint = self._explain_failure(error)
            return Health("unreachable", why, hint=hint)
        value = json_object(body)
        said, named = value.get("status"), value.get("server")
        known = isinstance(said, str)
        detail = f"{status}: {clean(str(said)) if known else words_of(body)}"
        found: Literal["ok", "loading", "dead", "unknown"] = "unknown"
        if status == 200 and (known or not body):
            found = "ok"
        elif (status == 503 and said == "unavailable") or (status != 200 and DEAD_WORDS in detail):
            found = "dead"
        elif status == 503:
            found = "loading"
        origin = answered.get("access-control-allow-origin", "")
        server = named if isinstance(named, str) and named else answered.get("server", "")
        return Health(found, detail, server, origin)

    async def _check_alive(self) -> None:
        """Raise `BackendDead` if the server answers and its model's thread has ended."""
        if (await self.health(WATCH / 2)).status == "dead":
            raise dead(str(self.address), DiedAtWork)

    async def models(self, timeout: float = 5.0) -> tuple[str, ...]:
        """The models it lists, in its order; empty where it cannot (or will not) say.

        mlx-lm's cannot where no Hugging Face cache folder exists: it answers 200 and no body.
        """
        names = [row.get("id") for row in await self._fetch_models(timeout)]
        return tuple(name for name in names if isinstance(name, str) and name)

    async def context(self, timeout: float = 2.0) -> int | None:
        """How many tokens its model takes, by the list of models (vLLM and others) or by ``/props``
        (llama.cpp's server, a slot's share). None where it cannot (or will not) say, as mlx-lm's.
        """
        if self.is_ollama:
            from mlx_tools.backends.ollama_raw import loaded_models

            return (await loaded_models(self, timeout)).get(self.model or "")
        rows = await self._fetch_models(timeout)
        own = [row for row in rows if row.get("id") == self.model] or rows[: len(rows) == 1]
        said = [row.get(key) for row in own for key in _CONTEXT_KEYS]
        settings = (await self.get_object("/props", timeout)).get("default_generation_settings")
        said.append(settings.get("n_ctx") if isinstance(settings, dict) else None)
        sizes = [n for n in said if isinstance(n, int) and not isinstance(n, bool) and n > 0]
        return min(sizes, default=None)

    async def get(
        self, path: str, timeout: float, content: bytes | None = None
    ) -> tuple[int, httpx.Headers, bytes]:
        """Status, headers and body of the answer at ``path``, to which ``content`` is posted where
        there is some. Raises what httpx raises, `TimeoutError` and `ValueError`."""
        import anyio

        method = "GET" if content is None else "POST"
        headers = {**self._headers, "Accept": "application/json"}
        client, body = await self._exchange.client(), bytearray()
        with anyio.fail_after(timeout):
            async with client.stream(
                method,
                f"{self.address}{path}",
                headers=headers,
                content=content,
                follow_redirects=False,
            ) as answer:
                if answer.headers.get("content-encoding", "identity").lower() != "identity":
                    raise ValueError("the answer is compressed, which was not asked for")
                async for piece in answer.aiter_bytes():
                    body += piece
                    if len(body) > MAX_ANSWER:
                        raise ValueError("the answer is too long")
                return answer.status_code, answer.headers, bytes(body)

    async def _fetch_models(self, timeout: float) -> list[dict[str, Any]]:
        """The rows of ``/v1/models``."""
        rows = (await self.get_object("/v1/models", timeout)).get("data")
        return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []

    async def get_object(
        self, path: str, timeout: float, content: bytes | None = None
    ) -> dict[str, Any]:
        """Return the JSON object at a path, to which ``content`` is posted; empty without one."""
        try:
            status, _, body = await self.get(path, timeout, content)
        except UsageError:
            raise
        except Exception:
            return {}
        return json_object(body) if status == 200 else {}

    def _explain_failure(self, error: Exception) -> tuple[str, str]:
        """Why nothing was answered, and what helps."""
        if isinstance(error, TimeoutError):
            return f"{self.address} did not answer in time", START_HINT
        if isinstance(error, ValueError):
            return f"{self.address}: {error}", START_HINT
        told = self._exchange.as_backend_error(error)
        return told.message, told.hint or START_HINT

    # --- one completion -----------------------------------------------------------------------

    @asynccontextmanager
    async def _start_response(
        self, request: CompletionRequest, limits: Deadlines, *, whole: bool = False, **options: Any
    ) -> AsyncGenerator[ResponseStart, None]:
        """The answer to a request, from its first byte on; ``options`` are added to the body.

        ``whole``: it is not to be streamed. What fails within is translated and diagnosed too.
        """
        body = self._body(request, stream=not whole) | options
        begun = await self._first(request, body, limits, silent=whole)
        try:
            with self._exchange.map_errors():
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
    ) -> ResponseStart:
        """The beginning of an answer; asked for again where that may help."""
        tries = nudges = 0
        broke_off: ConnectionDropped | None = None
        while True:
            try:
                return await self._exchange.begin(
                    body, limits, silent=silent, watch=self._check_alive
                )
            except BackendError as error:
                if isinstance(error, BackendUnreachable) and broke_off is not None:
                    raise broke_off from error  # it has ended, perhaps by this very request
                broke_off = error if isinstance(error, ConnectionDropped) else None
                health = await self._health_after(error)
                if health is not None and (died := health.as_error(str(self.address))):
                    raise died from error
                # mlx-lm's answers nothing at all, where it was to answer whole
                stock = silent and health is not None and health.is_mlx_lm
                if isinstance(error, EmptyResponse) or (
                    stock and isinstance(error, ConnectionDropped)
                ):
                    if nudges > len(NUDGES):
                        said = "began an answer and gave nothing, again and again"
                        raise BackendRefused(
                            f"{self.address} {said}",
                            hint="its prompt cache may hold exactly this prompt: "
                            "restart it, or ask in other words",
                        ) from error
                    await self._push_out(request, limits, nudges)
                    nudges += 1
                    continue
                if isinstance(error, BackendRefused) and not isinstance(error, ServerFailed):
                    raise await self._with_names(error) from error.__cause__
                delay = self._retry.delay(tries)
                passing = isinstance(error, ConnectionDropped | ServerFailed)
                if not passing or tries >= self._retry.times or delay >= limits.seconds_left:
                    raise
            tries += 1
            await self._retry.sleep(delay)

    def _collector(self, request: CompletionRequest) -> Collector:
        kind = Collector if request.messages is None else ChatCollector
        return kind(str(self.address), request.max_tokens)

    async def _read_whole(self, response: ResponseStart, request: CompletionRequest) -> Answer:
        """All of an answer that came whole, or that is a stream though nobody asked for one."""
        body = bytearray()
        async for piece in response:
            body += piece
            if len(body) > MAX_ANSWER:
                raise BackendBroken(f"{self.address} sent more than {MAX_ANSWER} bytes")
        collector = self._collector(request)
        if response.whole:
            return Answer(collector.take_whole(bytes(body)), collector.choice)
        text = "".join(collector.feed(bytes(body)))
        text += "" if collector.done else "".join(collector.feed(None))
        last = collector.last()
        return Answer(replace(last, text=text + last.text))

    def _limits(self, request: CompletionRequest) -> Deadlines:
        return Deadlines(request, str(self.address), clock=self._retry.clock)

    def _body(self, request: CompletionRequest, *, stream: bool = True) -> dict[str, Any]:
        if request.messages is not None:
            return chat_body(request, model=self.model, stream=stream)
        return completion_body(
            request,
            model=self.model,
            forbidden_tokens=self.forbidden_tokens,
            grammar_option=self.grammar_option,
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
                request,
                prompt=prompt,
                max_tokens=1,
                temperature=0.0,
                top_logprobs=0,
                grammar=None,
                messages=None,
            )
            try:
                with self._exchange.map_errors():
                    begun = await self._exchange.begin(self._body(nudge), limits, silent=False)
                    try:
                        await self._read_whole(begun, nudge)
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
        listed = () if self.model is None or error.status == 429 else await self.models()
        if not listed or self.model in listed:
            return error
        return type(error)(
            f"{error.message}; it lists the models {some(listed)}",
            hint="name one of these with --model, or leave it out",
        )

    async def _diagnosed(self, error: BackendError) -> BackendError:
        """``error``, or the one that says that the server's model thread has died."""
        health = await self._health_after(error)
        return (health and health.as_error(str(self.address))) or error

    async def _health_after(self, error: BackendError) -> Health | None:
        """How the server is after a failure; None where that is known already."""
        if isinstance(error, BackendDead | BackendUnreachable):
            return None
        return await self.health(timeout=DIAGNOSIS)

    # --- likelihoods --------------------------------------------------------------------------

    async def _score_completion(self, request: CompletionRequest, limits: Deadlines) -> Chunk:
        """The completion as one chunk; without scores where the server gives none, and without text
        where it is known to give none.

        Which form the server knows is remembered. Only an answer settles that: a request that
        fails, or is refused however it is put, says nothing of the next.
        """
        if self._score_form is ScoreForm.NONE:
            return Chunk("", "length")
        if self._score_form is not None:
            return (await self._scored_as(self._score_form, request, limits))[0]
        least: Chunk | None = None
        for form in (ScoreForm.MLX, ScoreForm.COMPLETIONS):
            try:
                chunk, told = await self._scored_as(form, request, limits)
            except ServerFailed:
                raise
            except (BackendRefused, UsageError):
                continue
            if not told and least is None:
                # without a token there is nothing to be likely
                self._score_form = ScoreForm.NONE if chunk.text else None
                return chunk
            if chunk.scores and len(chunk.scores[0]) > 1:
                self._score_form = form
                return chunk
            # A server that takes `true` for 1 gives one alternative: the other form gives more.
            least = least or (chunk if told else None)
        if least is not None:
            self._score_form = ScoreForm.MLX if least.scores else None
            return least
        # Is it the likelihoods that are refused, or this request?
        chunk, _ = await self._scored_as(ScoreForm.NONE, request, limits)
        self._score_form = ScoreForm.NONE
        return chunk

    async def _scored_as(
        self, form: ScoreForm, request: CompletionRequest, limits: Deadlines
    ) -> tuple[Chunk, bool]:
        """The completion, and whether its server spoke of likelihoods at all."""
        answer = await self.ask_whole(request, limits, **score_fields(form, request.top_logprobs))
        chunk = replace(answer.chunk, scores=self._scores.read(answer.choice))
        return chunk, answer.choice.get("logprobs") is not None


async def _next(response: ResponseStart, collector: Collector) -> bytes | None:
    """The next bytes; None at the end, or once nothing that matters can follow."""
    finished = collector.finish is not None
    try:
        return await response.next(GRACE if finished else None)
    except StopAsyncIteration:
        return None
    except Exception:
        if finished:  # the completion is whole; only its usage is missing
            return None
        raise


def some(names: Sequence[str]) -> str:
    """Names of models for a message, the first eight of them."""
    shown = ", ".join(clean(name, 100) for name in names[:8])
    return shown + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def _headers(api_key: str | None, extra: Mapping[str, str] | None) -> dict[str, str]:
    wanted = "give a mapping of names to texts"
    headers = {
        "Content-Type": "application/json",
        "Accept": "text/event-stream",
        "Accept-Encoding": "identity",
        **require_mapping("headers", extra, wanted),
    }
    # what a header or the key holds is not shown: it may be a secret
    if not all(isinstance(part, str) for item in headers.items() for part in item):
        raise UsageError("a header is no text", hint=wanted)
    if api_key is not None:
        if not isinstance(api_key, str):
            raise UsageError("api_key is no text", hint="give the server's key as a text, or None")
        headers["Authorization"] = f"Bearer {api_key.strip()}"
    for name, value in headers.items():
        if not (name + value).isascii() or not (name + value).isprintable() or not name:
            raise UsageError(
                f"the header {name!r} cannot be sent: it holds more than printable ASCII",
                hint="check the key or header for stray characters",
            )
    return headers
