"""A backend for servers with ``/v1/completions``, streamed or not.

It also reads the server's health, its list of models, and the size of its context.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

from msgspec import Struct, field

from mlx_tools.backends.address import Address, parse_address
from mlx_tools.backends.chat_wire import ChatCollector, chat_body
from mlx_tools.backends.deadlines import WATCH_SECONDS, Deadlines, Retry
from mlx_tools.backends.interface import BackendTraits, Chunk, CompletionRequest, check_token_ids
from mlx_tools.backends.scores import ScoreForm, ScoreReader, score_fields
from mlx_tools.backends.server_errors import (
    DEAD_WORDS,
    START_HINT,
    ConnectionDropped,
    DiedAtWork,
    EmptyResponse,
    ServerFailed,
    TryAnotherServer,
    json_object,
    make_dead_error,
    read_error_body,
)
from mlx_tools.backends.transport import Exchange, ResponseStart
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

_log = logging.getLogger(__name__)
MAX_ANSWER: Final = 4 << 20
"""The limit of an answer that is not streamed, in bytes. mlx-lm's list of models has the whole
Hugging Face cache."""

GRACE: Final = 5.0
"""Seconds to wait for the usage after the finish reason.

A choice: usage follows within milliseconds, but some servers never send it.
"""

DIAGNOSIS: Final = 3.0
"""Seconds to wait for the health of a server after a failure.

A choice: ``/health`` answers at once unless the process hangs, and the error is delayed so long.
"""

CACHE_BREAKERS: Final = (" 0", "\nx", "a.")
"""Texts that are appended to a prompt to remove it from the server's cache: see `_evict_prompt`."""

SERVER_CACHE_ENTRIES: Final = 12
"""Requests that fill the cache of mlx-lm's server: it keeps 10 entries by default; 2 more, to be
sure."""

RESTART_SECONDS: Final = 2.0
"""Seconds after an answer in which the server cannot have been restarted with another model.

A choice: loading a model takes longer, and the turns of a run follow each other faster.
"""

LIST_SECONDS: Final = 2.0
"""Seconds to wait for a server's list of models before a completion.

A choice: it takes milliseconds. A server that is too busy for it is asked for the completion
anyway.
"""

_CONTEXT_KEYS: Final = ("max_model_len", "context_length")
"""Keys for the size of the context in a list of models: of vLLM and SGLang, and of OpenRouter."""


class Health(Struct, frozen=True):
    """The state of a server."""

    status: Literal["ok", "loading", "dead", "unreachable", "unknown"]
    """``unknown``: the server answers, but has no ``/health``, as many servers."""
    detail: str = ""
    """The server's message, or the reason why it is unreachable."""
    server: str = ""
    """The server's name in its answer, otherwise its ``Server`` header."""
    allowed_origin: str = ""
    """The web pages that may read the server's answers, ``*`` for all of them."""
    hint: str = ""
    """Advice if it is unreachable."""

    @property
    def ok(self) -> bool:
        """True unless the server is known to be down or loading."""
        return self.status in ("ok", "unknown")

    @property
    def is_mlx_lm(self) -> bool:
        """True for mlx-lm's server.

        No other known server uses Python's own HTTP server.
        """
        return self.server.startswith("BaseHTTP/")

    @property
    def is_gateway(self) -> bool:
        """True for a gateway of mlx-tools."""
        return self.server == "mlx-tools"

    def as_error(self, address: str) -> BackendDead | None:
        """Return the error for a server whose model thread has died, otherwise None."""
        return make_dead_error(address) if self.status == "dead" else None


class Answer(Struct, frozen=True):
    """A completion that was not streamed."""

    chunk: Chunk
    choice: Mapping[str, Any] = field(default_factory=dict)
    """The ``choices[0]`` of the server's answer."""

    @property
    def usage(self) -> Usage:
        """The token counts; a count that the server does not send is None."""
        return self.chunk.usage or Usage()


class CompletionsBackend:
    """A completions server at ``url`` (with or without ``/v1``).

    A failed request is sent again, as ``retry`` says and within its own time, if no byte of an
    answer has come, and the server answered with a status from 500 on or dropped the connection.

    No request of this class can kill mlx-lm's server (see `mlx_tools.backends.wire`). If its cache
    has exactly the prompt, that server answers without a byte. Then short requests of one token
    remove the prompt from the cache, and the request is sent once more.

    Redirects are never followed. A backend can be used in several event loops.

    Args:
        url: the server's address.
        model: the model's name, sent with each request; without it the server uses its own model.
        api_key: sent as ``Authorization``.
        headers: added to every request.
        forbidden_tokens: ids of tokens that the model must not write.
        client: an `httpx.AsyncClient` to use. Without one, connections stay open until `aclose` or
            the end of the event loop, and proxies of the environment are used except for loopback
            addresses.
        retry: the number of retries, and the pauses before them.

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
        """False if the server is known to have a chat interface only."""
        self.known_model: str | None = None
        """The name of the model that the server was found to run, None if unknown."""
        self._picks_model = False  # True if the server runs its own model for any name
        self._was_lost = False  # True if the server has failed since its list was read
        self.forbidden_tokens = check_token_ids(forbidden_tokens)
        self._headers = _make_headers(api_key, headers)
        self._client = client
        self._exchange = Exchange(self.address, self._headers, client)
        self._retry = retry or Retry()
        self._seen_at = 0.0  # the time of the last answer, or of the last check of its model
        self._score_form: ScoreForm | None = None
        self._scores = ScoreReader()
        self.grammar_option: GrammarOption | None = None
        """The request field for a grammar, None until it is known."""

    def speak_ollama(self) -> None:
        """Use Ollama's own interface for completions from now on."""
        from mlx_tools.backends.ollama_raw import OllamaExchange

        if not isinstance(self._exchange, OllamaExchange):
            self._exchange = OllamaExchange(self.address, self._headers, self._client)

    @property
    def is_ollama(self) -> bool:
        """True if the server is known to be Ollama."""
        return type(self._exchange) is not Exchange

    @property
    def addresses(self) -> tuple[Address, ...]:
        """The server's address, in a tuple, because a pool of servers has several."""
        return (self.address,)

    def __repr__(self) -> str:
        return f"CompletionsBackend({str(self.address)!r}, {self.model!r})"

    async def complete(self, request: CompletionRequest) -> AsyncGenerator[Chunk, None]:
        """Complete ``request.prompt``, or ``request.messages`` by the chat interface.

        Close the generator to cancel.

        Raises:
            UsageError: the request cannot be sent, or the server does not take its grammar.
            BackendError: the request failed; the class says how. The text so far does not count.
        """
        check_request(request)
        limits = self._limits(request)
        # Only at the first request with a grammar: it costs requests, and most sessions have none.
        if request.grammar is not None and self.grammar_option is None:
            from mlx_tools.backends.grammar_option import find_grammar_option

            with limits.step(silent=True):
                await find_grammar_option(self)
        if self._may_have_changed():
            await self._check_model()
        if request.top_logprobs:
            yield await self._score_completion(request, limits)
            self._seen_at = self._retry.clock()
            return
        try:
            async with self._start_response(request, limits) as start:
                # Some servers ignore `stream` and answer with one object.
                if start.whole:
                    yield (await self._read_whole(start, request)).chunk
                    return
                collector = self._collector(request)
                data: bytes | None = start.first
                while True:
                    for text in collector.feed(data):
                        yield Chunk(text)
                    if collector.done:
                        # A connection can be reused only if its answer was read to the end.
                        await start.drain()
                    if collector.done or data is None:
                        break
                    data = await _next(start, collector)
                self._seen_at = self._retry.clock()
                yield collector.last()
        except (BackendUnreachable, BackendBroken):
            self._was_lost = True
            raise

    def remember_model(self, name: str | None, model_names: Sequence[str]) -> None:
        """Remember the model that the server runs, to notice if it runs another one later.

        Args:
            name: the model's name, None if unknown.
            model_names: the models that the server lists.
        """
        self.known_model = name
        # A server with several models in its list uses the model whose name is sent.
        self._picks_model = self.model is None or len(model_names) == 1
        self._was_lost, self._seen_at = False, self._retry.clock()

    def _may_have_changed(self) -> bool:
        """Return True if the server may run another model by now."""
        if self.known_model is None:
            return False
        is_quiet = self._retry.clock() - self._seen_at > RESTART_SECONDS
        return self._was_lost or (is_quiet and self._picks_model)

    async def _check_model(self) -> None:
        """Check that the server has the same model as before.

        The prompts have the chat format of that model; another model would misread them.

        Raises:
            BackendUnreachable: the server has other models now.
        """
        from mlx_tools.backends.listener import find_started_model

        names = await self.models(LIST_SECONDS)
        started = await find_started_model(self.address, names) if self.model is None else None
        names = names if started is None else (started,)
        if names and self.known_model not in names:
            self._was_lost = True
            raise BackendUnreachable(
                f"the server at {self.address} has other models now: {list_names(names)}, "
                f"and no more {self.known_model}",
                hint="in chat continue with one of them by /model NAME; otherwise start "
                "mlx-tools again",
            )
        self._was_lost = not names
        self._seen_at = self._retry.clock()

    async def ask_whole(
        self, request: CompletionRequest, limits: Deadlines | None = None, **options: Any
    ) -> Answer:
        """Return a completion that is not streamed. Raises as `complete` does.

        Args:
            request: the request.
            limits: the deadlines of a request that this one is a part of; None for its own.
            options: fields that are added to the body.
        """
        check_request(request)
        limits = limits or self._limits(request)
        async with self._start_response(request, limits, whole=True, **options) as start:
            return await self._read_whole(start, request)

    async def aclose(self) -> None:
        """Close the connections; a later request opens them again.

        A client that the caller gave stays open.
        """
        await self._exchange.aclose()

    # --- health, models, context --------------------------------------------------------------

    async def health(self, timeout: float = 5.0) -> Health:
        """Return the server's state by ``/health``. Any answer is a state, and so is none."""
        try:
            status, headers, body = await self.get("/health", timeout)
        except UsageError:
            raise
        except Exception as error:
            reason, hint = self._explain_failure(error)
            return Health("unreachable", reason, hint=hint)
        value = json_object(body)
        message, name = value.get("status"), value.get("server")
        says_status = isinstance(message, str)
        detail = f"{status}: {clean(str(message)) if says_status else read_error_body(body)}"
        state: Literal["ok", "loading", "dead", "unknown"] = "unknown"
        if status == 200 and (says_status or not body):
            state = "ok"
        elif (status == 503 and message == "unavailable") or (
            status != 200 and DEAD_WORDS in detail
        ):
            state = "dead"
        elif status == 503:
            state = "loading"
        origin = headers.get("access-control-allow-origin", "")
        server = name if isinstance(name, str) and name else headers.get("server", "")
        return Health(state, detail, server, origin)

    async def _check_alive(self) -> None:
        """Raise `BackendDead` if the server answers but its model's thread has ended."""
        if (await self.health(WATCH_SECONDS / 2)).status == "dead":
            raise make_dead_error(str(self.address), DiedAtWork)

    async def models(self, timeout: float = 5.0) -> tuple[str, ...]:
        """Return the names of the models that the server lists, in its order.

        There are none for mlx-lm's server if the Hugging Face cache folder does not exist: it
        answers 200 with an empty body.
        """
        names = [row.get("id") for row in await self._fetch_models(timeout)]
        return tuple(name for name in names if isinstance(name, str) and name)

    async def context(self, timeout: float = 2.0) -> int | None:
        """Return the size of the model's context in tokens, None if unknown.

        vLLM and others have it in the list of models, llama.cpp's server in ``/props`` (a slot's
        share). mlx-lm's server does not report it.
        """
        if self.is_ollama:
            from mlx_tools.backends.ollama_raw import list_loaded_models

            return (await list_loaded_models(self, timeout)).get(self.model or "")
        rows = await self._fetch_models(timeout)
        model_rows = [row for row in rows if row.get("id") == self.model] or rows[: len(rows) == 1]
        numbers = [row.get(key) for row in model_rows for key in _CONTEXT_KEYS]
        settings = (await self.get_object("/props", timeout)).get("default_generation_settings")
        numbers.append(settings.get("n_ctx") if isinstance(settings, dict) else None)
        sizes = [n for n in numbers if isinstance(n, int) and not isinstance(n, bool) and n > 0]
        # If the sizes differ, the smaller one is safe.
        return min(sizes, default=None)

    async def get(
        self, path: str, timeout: float, content: bytes | None = None
    ) -> tuple[int, httpx.Headers, bytes]:
        """Return status, headers and body of the answer at ``path``.

        Args:
            path: the path on the server.
            timeout: seconds for all of it.
            content: a body to post; without one the request is a GET.

        Raises:
            httpx.HTTPError, TimeoutError: no answer came.
            ValueError: the answer is too long, or compressed.
        """
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
                # A small compressed answer could unpack to any amount of memory.
                if answer.headers.get("content-encoding", "identity").lower() != "identity":
                    raise ValueError("the answer is compressed, which was not asked for")
                async for piece in answer.aiter_bytes():
                    body += piece
                    if len(body) > MAX_ANSWER:
                        raise ValueError("the answer is too long")
                return answer.status_code, answer.headers, bytes(body)

    async def _fetch_models(self, timeout: float) -> list[dict[str, Any]]:
        """Return the rows of ``/v1/models``."""
        rows = (await self.get_object("/v1/models", timeout)).get("data")
        return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []

    async def get_object(
        self, path: str, timeout: float, content: bytes | None = None
    ) -> dict[str, Any]:
        """Return the JSON object at a path, empty if there is none; post ``content``."""
        try:
            status, _, body = await self.get(path, timeout, content)
        except UsageError:
            raise
        except Exception as error:  # not every server has this path
            _log.debug("%s has nothing at %s: %s", self.address, path, type(error).__name__)
            return {}
        return json_object(body) if status == 200 else {}

    def _explain_failure(self, error: Exception) -> tuple[str, str]:
        """Return the reason why no answer came, and a hint."""
        if isinstance(error, TimeoutError):
            return f"{self.address} did not answer in time", START_HINT
        if isinstance(error, ValueError):
            return f"{self.address}: {error}", START_HINT
        mapped = self._exchange.as_backend_error(error)
        return mapped.message, mapped.hint or START_HINT

    # --- one completion -----------------------------------------------------------------------

    @asynccontextmanager
    async def _start_response(
        self, request: CompletionRequest, limits: Deadlines, *, whole: bool = False, **options: Any
    ) -> AsyncGenerator[ResponseStart, None]:
        """Send a request, and yield the start of its answer.

        Errors that are raised within the block are mapped. After an error the server's health is
        checked.

        Args:
            request: the request.
            limits: the deadlines of the request.
            whole: True if the answer is not streamed.
            options: fields that are added to the body.
        """
        body = self._make_body(request, stream=not whole) | options
        start = await self._send(request, body, limits, silent=whole)
        try:
            with self._exchange.map_errors():
                yield start
        except BackendError as error:
            diagnosis = await self._diagnose(error)
            if diagnosis is error:
                raise
            raise diagnosis from error
        finally:
            await start.aclose()

    async def _send(
        self,
        request: CompletionRequest,
        body: Mapping[str, Any],
        limits: Deadlines,
        *,
        silent: bool,
    ) -> ResponseStart:
        """Send a request, again if that may help. Return the start of its answer."""
        tries = nudges = 0
        drop: ConnectionDropped | None = None
        while True:
            try:
                return await self._exchange.begin(
                    body, limits, silent=silent, watch=self._check_alive
                )
            except BackendError as error:
                if isinstance(error, BackendUnreachable) and drop is not None:
                    raise drop from error  # the server has ended, perhaps because of this request
                drop = error if isinstance(error, ConnectionDropped) else None
                health = await self._check_health(error)
                if health is not None and (death := health.as_error(str(self.address))):
                    raise death from error
                # If its cache has the prompt and the answer is not streamed, mlx-lm's server
                # closes the connection without a byte.
                sent_nothing = silent and health is not None and health.is_mlx_lm
                if isinstance(error, EmptyResponse) or (
                    sent_nothing and isinstance(error, ConnectionDropped)
                ):
                    if nudges > len(CACHE_BREAKERS):
                        problem = "began an answer and gave nothing, again and again"
                        raise TryAnotherServer(
                            f"{self.address} {problem}",
                            hint="its prompt cache may hold exactly this prompt: "
                            "restart it, or ask in other words",
                        ) from error
                    await self._evict_prompt(request, limits, nudges)
                    nudges += 1
                    continue
                if isinstance(error, BackendRefused) and not isinstance(error, ServerFailed):
                    raise await self._add_names(error) from error.__cause__
                # If the request's time would end during the pause, the error is raised at once.
                delay = self._retry.find_delay(tries)
                may_pass = isinstance(error, ConnectionDropped | ServerFailed)
                if not may_pass or tries >= self._retry.times or delay >= limits.seconds_left:
                    raise
            tries += 1
            await self._retry.sleep(delay)

    def _collector(self, request: CompletionRequest) -> Collector:
        kind = Collector if request.messages is None else ChatCollector
        return kind(str(self.address), request.max_tokens)

    async def _read_whole(self, response: ResponseStart, request: CompletionRequest) -> Answer:
        """Read a whole answer, also if it comes as a stream that was not asked for."""
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

    def _make_body(self, request: CompletionRequest, *, stream: bool = True) -> dict[str, Any]:
        if request.messages is not None:
            return chat_body(request, model=self.model, stream=stream)
        return completion_body(
            request,
            model=self.model,
            forbidden_tokens=self.forbidden_tokens,
            grammar_option=self.grammar_option,
            stream=stream,
        )

    async def _evict_prompt(self, request: CompletionRequest, limits: Deadlines, turn: int) -> None:
        """Make the server's cache drop its entry of exactly this prompt.

        The cache drops an entry if a longer prompt that begins with it is added. For some models
        entries cannot be shortened; then an entry is dropped only when newer ones fill the cache.
        """
        # First the cheap way, one longer prompt; if that does not help, as many as fill the cache.
        if turn < len(CACHE_BREAKERS):
            prompts = [request.prompt + CACHE_BREAKERS[turn]]
        else:
            prompts = [f"{number} {number}" for number in range(SERVER_CACHE_ENTRIES)]
        for prompt in prompts:
            # Only one token: this request must be cheap.
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
                    start = await self._exchange.begin(self._make_body(nudge), limits, silent=False)
                    try:
                        await self._read_whole(start, nudge)
                    finally:
                        await start.aclose()
            except BackendTimeout:
                raise
            except BackendError as error:
                diagnosis = await self._diagnose(error)
                if isinstance(diagnosis, BackendDead | BackendUnreachable):
                    raise diagnosis from error

    async def _add_names(self, error: BackendRefused) -> BackendRefused:
        """Return ``error``, with the list of models if the wanted one is not in it.

        mlx-lm's server also loads models that it does not list, so the list is not checked before.
        """
        listed = () if self.model is None or error.status == 429 else await self.models()
        if not listed or self.model in listed:
            return error
        return type(error)(
            f"{error.message}; it lists the models {list_names(listed)}",
            hint="name one of these with --model, or leave it out",
        )

    async def _diagnose(self, error: BackendError) -> BackendError:
        """Return ``error``, or the error for a model thread that has died."""
        health = await self._check_health(error)
        return (health and health.as_error(str(self.address))) or error

    async def _check_health(self, error: BackendError) -> Health | None:
        """Return the server's state after a failure; None if the failure shows it."""
        if isinstance(error, BackendDead | BackendUnreachable):
            return None
        return await self.health(timeout=DIAGNOSIS)

    # --- likelihoods --------------------------------------------------------------------------

    async def _score_completion(self, request: CompletionRequest, limits: Deadlines) -> Chunk:
        """Return the completion as one chunk, with scores if the server sends any.

        The request form that the server understands is remembered, but only after an answer: a
        request that failed or was refused does not show the form. If the server is known to send no
        scores, the chunk has no text, either.
        """
        if self._score_form is ScoreForm.NONE:
            return Chunk("", "length")
        if self._score_form is not None:
            return (await self._complete_with_scores(self._score_form, request, limits))[0]
        single: Chunk | None = None
        for form in (ScoreForm.MLX, ScoreForm.COMPLETIONS):
            try:
                chunk, has_scores = await self._complete_with_scores(form, request, limits)
            except ServerFailed:
                raise
            except (BackendRefused, UsageError):
                continue
            if not has_scores and single is None:
                # An answer without a token cannot have scores, so it does not show the form.
                self._score_form = ScoreForm.NONE if chunk.text else None
                return chunk
            if chunk.scores and len(chunk.scores[0]) > 1:
                self._score_form = form
                return chunk
            # A server that reads `true` as 1 sends one alternative; with the other form, more.
            single = single or (chunk if has_scores else None)
        if single is not None:
            self._score_form = ScoreForm.MLX if single.scores else None
            return single
        # Both forms were refused: try without likelihoods. If that is refused, too, the request
        # itself is the reason.
        chunk, _ = await self._complete_with_scores(ScoreForm.NONE, request, limits)
        self._score_form = ScoreForm.NONE
        return chunk

    async def _complete_with_scores(
        self, form: ScoreForm, request: CompletionRequest, limits: Deadlines
    ) -> tuple[Chunk, bool]:
        """Return the completion, and True if its answer has a ``logprobs`` field."""
        answer = await self.ask_whole(request, limits, **score_fields(form, request.top_logprobs))
        chunk = replace(answer.chunk, scores=self._scores.read(answer.choice))
        return chunk, answer.choice.get("logprobs") is not None


async def _next(response: ResponseStart, collector: Collector) -> bytes | None:
    """Return the next bytes; None at the end, also if only the usage is missing."""
    # After the finish reason only the usage can come: do not wait long for it.
    finished = collector.finish is not None
    try:
        return await response.next(GRACE if finished else None)
    except StopAsyncIteration:
        return None
    except Exception:
        if finished:  # the text is complete; only the usage is missing
            return None
        raise


def list_names(names: Sequence[str]) -> str:
    """Return the first eight names for a message, and the number of the others."""
    shown = ", ".join(clean(name, 100) for name in names[:8])
    return shown + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def _make_headers(api_key: str | None, extra: Mapping[str, str] | None) -> dict[str, str]:
    hint = "give a mapping of names to texts"
    headers = {
        "Content-Type": "application/json",
        "Accept": "text/event-stream",
        "Accept-Encoding": "identity",
        **require_mapping("headers", extra, hint),
    }
    # Error messages never show the key or the value of a header, because it may be secret.
    if not all(isinstance(part, str) for item in headers.items() for part in item):
        raise UsageError("a header is no text", hint=hint)
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
