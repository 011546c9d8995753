"""Anthropic's and Ollama's own chat interfaces, each through its own SDK.

Messages and tools go in, a turn comes out as text, as `mlx_tools.backends.chat_wire` writes it.
Neither interface completes text, so the model is told what does not fit. A request without messages
is asked as one question.
"""

from __future__ import annotations

import json
import logging
import os
import re
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from typing import TYPE_CHECKING, Any, Final, Literal

from mlx_tools.backends import (
    LOG_HINT,
    Address,
    Chunk,
    CompletionRequest,
    Deadlines,
    Health,
    TurnText,
    arguments_text,
    as_refusal,
    check_request,
    check_size,
    client_options,
    parse_address,
    proxy_named,
    translate,
    without_surrogates,
)
from mlx_tools.errors import (
    BackendBroken,
    BackendError,
    BackendRefused,
    MissingDependency,
    MlxToolsError,
    UsageError,
)
from mlx_tools.messages import FinishReason, Usage
from mlx_tools.paths import to_install

if TYPE_CHECKING:
    import asyncio

_log = logging.getLogger(__name__)
Message = Mapping[str, Any]


class VendorBackend(ABC):
    """A server that takes messages only, at ``url`` (with or without its prefix).

    The SDK's client is made at its first use, one for each event loop.

    Raises:
        UsageError: ``url`` is no address, or no model is named.
    """

    kind: Literal["native"] = "native"
    completes = False
    obeys_choice: bool
    forbidden_tokens: tuple[int, ...] = ()  # the server reads calls itself, so markers may stay
    interface: str

    def __init__(self, url: str, model: str | None = None, *, api_key: str | None = None) -> None:
        self.address: Address = parse_address(url)
        if not model:
            raise UsageError(
                f"{self.interface} is asked for a model by its name", hint="name it with --model"
            )
        self.model = model
        self._api_key = api_key
        self._client: tuple[asyncio.AbstractEventLoop, Any] | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.address)!r}, {self.model!r})"

    async def complete(self, request: CompletionRequest) -> AsyncGenerator[Chunk, None]:
        """Continue ``request.messages``; close the generator to cancel.

        Raises:
            UsageError: the request cannot be sent.
            BackendError: the class says how it failed; the text so far never counts.
        """
        prompt, name = check_request(request), str(self.address)
        if request.grammar is not None:
            raise UsageError(f"{self.interface} takes no grammars", hint="leave the strategy auto")
        if request.top_logprobs:
            yield Chunk("", "length")  # these interfaces report no likelihoods
            return
        limits, turn, size = Deadlines(request, name), _Turn(), 0
        messages = request.messages or ({"role": "user", "content": prompt},)
        with self._map_errors():
            events = aiter(self._events(request, messages))
            try:
                while (event := await _next(events, limits)) is not None:
                    text = without_surrogates(self._read(event, turn))
                    size += len(text.encode())
                    check_size(size + turn.size, request.max_tokens, name)
                    if text:
                        yield Chunk(text)
            finally:
                try:
                    await events.aclose()  # type: ignore[attr-defined]
                except Exception as error:  # it ends with its client at the latest
                    _log.debug("a stream of %s was not closed: %s", name, type(error).__name__)
        if turn.reason is None:
            raise BackendBroken(f"{name} broke off in the middle of a turn", hint=LOG_HINT)
        yield Chunk(turn.end(turn.reason), turn.reason, turn.usage)

    async def health(self, timeout: float = 5.0) -> Health:
        """Return the server's state: it is well if it lists its models."""
        try:
            with self._limit_time(timeout):
                await self._names()
        except BackendRefused as error:
            return Health("unknown", error.message)
        except (MlxToolsError, TimeoutError) as error:
            return Health("unreachable", getattr(error, "message", "it did not answer in time"))
        return Health("ok")

    async def models(self, timeout: float = 5.0) -> tuple[str, ...]:
        """Return the models that the server lists, empty if it does not list them."""
        try:
            with self._limit_time(timeout):
                return tuple(await self._names())
        except (BackendError, TimeoutError):
            return ()

    async def aclose(self) -> None:
        """Close the connections of the running event loop."""
        from asyncio import get_running_loop

        client, self._client = self._client, None
        if client is not None and client[0] is get_running_loop():
            try:
                await client[1].close()
            except Exception as error:  # the process ends it at the latest
                _log.debug("a client was not closed: %s", type(error).__name__)

    @property
    def client(self) -> Any:
        """The SDK's client for the running event loop."""
        from asyncio import get_running_loop

        loop = get_running_loop()
        if self._client is None or self._client[0] is not loop:
            try:
                self._client = loop, self._new_client()
            except ImportError as error:
                raise MissingDependency(
                    f"{self.interface}'s interface needs its SDK",
                    hint=to_install(self.interface.lower()),
                ) from error
        return self._client[1]

    @contextmanager
    def _limit_time(self, timeout: float) -> Iterator[None]:
        """Limit a question that is no completion to ``timeout`` seconds."""
        import anyio

        with anyio.fail_after(timeout), self._map_errors():
            yield

    @contextmanager
    def _map_errors(self) -> Iterator[None]:
        """Turn errors of the SDK, raised within, into ours."""
        try:
            yield
        except MlxToolsError:
            raise
        except Exception as error:
            raise self._error(error) from error

    def _error(self, error: Exception) -> Exception:
        name = str(self.address)
        status = getattr(error, "status_code", None)
        if isinstance(status, int) and status > 0:
            detail = getattr(error, "body", None) or getattr(error, "error", None) or str(error)
            body = detail if isinstance(detail, str) else json.dumps(detail, default=str)
            headers = getattr(getattr(error, "response", None), "headers", {})
            return as_refusal(status, body.encode("utf-8", "replace"), name, headers)
        # Ollama's SDK reports an error within the stream with this status.
        if status == -1:
            return BackendRefused(f"{name} broke off with an error: {error}"[:400])
        return translate(error.__cause__ if isinstance(error.__cause__, Exception) else error, name)

    @abstractmethod
    def _new_client(self) -> Any: ...

    @abstractmethod
    async def _names(self) -> Sequence[str]: ...

    @abstractmethod
    def _events(
        self, request: CompletionRequest, messages: Sequence[Message]
    ) -> AsyncIterator[Any]: ...

    @abstractmethod
    def _read(self, event: Any, turn: _Turn) -> str:
        """Return the text that an event of the SDK adds."""


class _Turn(TurnText):
    """A turn as text, with its finish reason (None while it goes on) and its usage."""

    def __init__(self) -> None:
        super().__init__()
        self.reason: FinishReason | None = None
        self.usage: Usage | None = None


async def _next(events: AsyncIterator[Any], limits: Deadlines) -> Any:
    try:
        with limits.step():
            return await anext(events)
    except StopAsyncIteration:
        return None


# --- Anthropic ----------------------------------------------------------------------------------

_OFFICIAL: Final = "https://api.anthropic.com"
_NO_ID: Final = re.compile(r"[^A-Za-z0-9_-]")
"""Characters that Anthropic's interface forbids in the id of a call."""
_ENDS: Final[Mapping[str, FinishReason]] = dict.fromkeys(
    ("end_turn", "stop_sequence", "tool_use"), "stop"
)
"""Reasons of Anthropic's interface that end a turn as the model meant it; any other is ``length``.
"""


class AnthropicBackend(VendorBackend):
    """Anthropic's messages at ``url``.

    Its own service, or a server with the same interface.

    Without ``api_key`` the environment's ``ANTHROPIC_API_KEY`` goes to Anthropic's own service
    only.
    """

    interface = "Anthropic"
    obeys_choice = True

    def _new_client(self) -> Any:
        from anthropic import AsyncAnthropic, DefaultAsyncHttpxClient

        official = str(self.address) == _OFFICIAL
        key = self._api_key or (os.environ.get("ANTHROPIC_API_KEY") if official else None)
        way = client_options(self.address, has_key=key is not None)
        # This client uses the environment's proxies whatever trust_env says, except for mounts.
        mounts = {} if way["trust_env"] else dict.fromkeys(("all://", "http://", "https://"))
        with proxy_named():
            http = DefaultAsyncHttpxClient(mounts=mounts, **way)
        return AsyncAnthropic(api_key=key or "none", base_url=str(self.address), http_client=http)

    async def _names(self) -> Sequence[str]:
        return [model.id for model in (await self.client.models.list()).data]

    async def _events(
        self, request: CompletionRequest, messages: Sequence[Message]
    ) -> AsyncGenerator[Any, None]:
        body: dict[str, Any] = {
            "model": self.model,
            "max_tokens": request.max_tokens,
            "messages": anthropic_messages(messages),
            **anthropic_tools(request, messages),
        }
        # Anthropic's interface takes system texts apart from the messages.
        if system := "\n\n".join(m["content"] for m in messages if m["role"] == "system"):
            body["system"] = system
        extra = {k: v for k, v in request.sampling.items() if k in ("top_p", "top_k")}
        if request.temperature > 0:  # some models refuse the parameter
            extra["temperature"] = min(request.temperature, 1.0)
        stream = await self.client.messages.create(**body, stream=True, extra_body=extra or None)
        async with stream:
            async for event in stream:
                yield event

    def _read(self, event: Any, turn: _Turn) -> str:
        match event.type:
            case "message_start":
                turn.usage = _anthropic_usage(event.message.usage, None)
            case "content_block_start" if event.content_block.type == "tool_use":
                block = event.content_block
                return turn.call(
                    event.index, block.id, block.name, arguments_text(block.input or None)
                )
            case "content_block_start" if event.content_block.type == "text":
                return turn.say(event.content_block.text or "")
            case "content_block_delta":
                delta = event.delta
                if delta.type == "text_delta":
                    return turn.say(delta.text)
                if delta.type == "input_json_delta":
                    return turn.call(event.index, "", "", delta.partial_json)
                if delta.type == "thinking_delta":
                    return turn.think(delta.thinking)
            case "message_delta":
                turn.usage = _anthropic_usage(event.usage, turn.usage)
                reason = event.delta.stop_reason
                if reason == "refusal":
                    raise BackendRefused(f"{self.address} gave the turn up: refusal")
                turn.reason = _ENDS.get(reason, "length") if reason else turn.reason
        return ""


def _anthropic_usage(usage_data: Any, prior_usage: Usage | None) -> Usage | None:
    """Return token counts.

    Anthropic counts the cached part of the prompt apart from the rest.
    """

    def count(name: str) -> int | None:
        value = getattr(usage_data, name, None)
        return value if isinstance(value, int) else None

    read, wrote = count("cache_read_input_tokens"), count("cache_creation_input_tokens")
    uncached = count("input_tokens")
    prior_usage = prior_usage or Usage()
    if not uncached:  # the event at the end has no counts of the prompt
        return Usage(prior_usage.prompt_tokens, prior_usage.cached_tokens, count("output_tokens"))
    # Our count is of the whole prompt, as in OpenAI's interface.
    return Usage(uncached + (read or 0) + (wrote or 0), read, count("output_tokens"))


def anthropic_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return OpenAI's chat messages as Anthropic's.

    Results are part of the user's turn.
    """
    converted: list[dict[str, Any]] = []

    def add(role: str, *blocks: dict[str, Any]) -> None:
        if converted and converted[-1]["role"] == role:
            converted[-1]["content"] += blocks
        elif blocks:
            converted.append({"role": role, "content": [*blocks]})

    for message in messages:
        role, content = message["role"], message.get("content") or ""
        text = [{"type": "text", "text": content}] if content.strip() else []
        if role == "tool":
            call_id = _NO_ID.sub("_", message["tool_call_id"])
            add("user", {"type": "tool_result", "tool_use_id": call_id, "content": content})
        elif role != "system":
            calls = (
                {
                    "type": "tool_use",
                    "id": _NO_ID.sub("_", call["id"]),
                    "name": call["function"]["name"],
                    "input": json.loads(call["function"]["arguments"]),
                }
                for call in message.get("tool_calls", ())
            )
            add(role, *text, *calls)
    return converted


def anthropic_tools(request: CompletionRequest, messages: Sequence[Message]) -> dict[str, Any]:
    """Return ``tools`` and ``tool_choice`` as Anthropic's interface has them."""
    tools = [
        {
            "name": function["name"],
            "description": function.get("description", ""),
            "input_schema": function["parameters"],
        }
        for function in (tool["function"] for tool in request.tools)
    ]
    choice: dict[str, Any] = {"type": {"required": "any"}.get(request.tool_choice, "auto")}
    if request.tool_choice == "none" or not tools:
        # the interface refuses messages with calls of tools that the request does not offer
        choice = {"type": "none"}
        called = {c["function"]["name"] for m in messages for c in m.get("tool_calls", ())}
        offered = {tool["name"] for tool in tools}
        tools += [
            {"name": name, "input_schema": {"type": "object"}} for name in sorted(called - offered)
        ]
    elif request.tool_choice not in ("auto", "required"):
        choice = {"type": "tool", "name": request.tool_choice}
    return {"tools": tools, "tool_choice": choice} if tools else {}


# --- Ollama -------------------------------------------------------------------------------------

_OPTIONS: Final = ("top_k", "top_p", "min_p", "presence_penalty", "frequency_penalty")


class OllamaBackend(VendorBackend):
    """Ollama's chat at ``url``. It ignores a tool choice."""

    interface = "Ollama"
    obeys_choice = False

    async def context(self, timeout: float = 2.0) -> int | None:
        """Return the size of the loaded model's context in tokens.

        None if it is not loaded.
        """
        try:
            with self._limit_time(timeout):
                running = (await self.client.ps()).models
        except (BackendError, TimeoutError):
            return None
        sizes = (
            getattr(model_row, "context_length", None)
            for model_row in running
            if self.model in (model_row.model, str(model_row.model).removesuffix(":latest"))
        )
        return next((size for size in sizes if isinstance(size, int) and size > 0), None)

    def _new_client(self) -> Any:
        from ollama import AsyncClient

        # Without this header the SDK would send OLLAMA_API_KEY to any server.
        headers = {"Authorization": f"Bearer {self._api_key or 'none'}"}
        way = client_options(self.address, has_key=self._api_key is not None)
        with proxy_named():
            return AsyncClient(host=str(self.address), headers=headers, **way)

    async def _names(self) -> Sequence[str]:
        return [str(model_row.model) for model_row in (await self.client.list()).models]

    async def _events(
        self, request: CompletionRequest, messages: Sequence[Message]
    ) -> AsyncGenerator[Any, None]:
        options: dict[str, Any] = {
            "temperature": request.temperature,
            "num_predict": request.max_tokens,
            **{name: request.sampling[name] for name in _OPTIONS if name in request.sampling},
        }
        if request.seed is not None:
            options["seed"] = request.seed
        stream = await self.client.chat(
            model=self.model,
            messages=ollama_messages(messages),
            tools=[*request.tools] if request.tool_choice != "none" else None,
            stream=True,
            options=options,
        )
        async with aclosing(stream):  # closing the stream closes the connection
            async for event in stream:
                yield event

    def _read(self, event: Any, turn: _Turn) -> str:
        message = event.message
        text = turn.think(message.thinking or "") + turn.say(message.content or "")
        for call in message.tool_calls or ():
            number = len(turn.calls)  # each call comes whole, so each is a new one
            function = call.function
            text += turn.call(number, "", function.name, arguments_text(dict(function.arguments)))
        if event.done:
            turn.reason = "length" if event.done_reason not in ("stop", None) else "stop"
            turn.usage = Usage(event.prompt_eval_count, None, event.eval_count)
        return text


def ollama_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return OpenAI's chat messages as Ollama's.

    Arguments are objects, and a result names its tool.
    """
    converted: list[dict[str, Any]] = []
    names: dict[str, str] = {}
    for message in messages:
        entry = {"role": message["role"], "content": message.get("content") or ""}
        if message["role"] == "tool":
            entry["tool_name"] = names.get(message["tool_call_id"], "")
        elif calls := message.get("tool_calls"):
            names |= {call["id"]: call["function"]["name"] for call in calls}
            entry["tool_calls"] = [
                {"function": function | {"arguments": json.loads(function["arguments"])}}
                for function in (call["function"] for call in calls)
            ]
        converted.append(entry)
    return converted


VENDORS: Final[Mapping[str, type[VendorBackend]]] = {
    "anthropic": AnthropicBackend,
    "ollama": OllamaBackend,
}
"""Backends by the prefix of an address."""
