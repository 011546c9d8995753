"""Backends for Anthropic's and Ollama's own chat interfaces, each through its SDK.

They send messages and tools, and return a turn as text, in the form of
`mlx_tools.backends.chat_wire`. Neither interface can continue a text, so a wrong call is not
corrected while it is written: the model gets an error instead. A request without messages is sent
as one message of the user.
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
    map_proxy_errors,
    parse_address,
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
"""A message in OpenAI's chat format."""


class VendorBackend(ABC):
    """A server with a chat interface only.

    The SDK's client is created when it is first used, one for each event loop.

    Args:
        url: the server's address, with or without the interface's prefix.
        model: the model's name on the server.
        api_key: the key for the server.

    Raises:
        UsageError: ``url`` is not an address, or ``model`` is missing.
    """

    kind: Literal["native"] = "native"
    completes = False
    obeys_choice: bool
    """True if the server obeys a tool choice."""
    forbidden_tokens: tuple[int, ...] = ()
    """None: the server parses calls itself, so the model may write its markers of calls."""
    interface: str
    """The name of the interface, for messages. In lower case it is the name of the extra."""

    def __init__(self, url: str, model: str | None = None, *, api_key: str | None = None) -> None:
        self.address: Address = parse_address(url)
        if not model:
            raise UsageError(
                f"{self.interface} needs the name of a model", hint="name it with --model"
            )
        self.model = model
        self._api_key = api_key
        self._client: tuple[asyncio.AbstractEventLoop, Any] | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.address)!r}, {self.model!r})"

    async def complete(self, request: CompletionRequest) -> AsyncGenerator[Chunk, None]:
        """Complete a turn; close the generator to cancel.

        Raises:
            UsageError: the request cannot be sent.
            BackendError: the request failed. Its class says how. The text so far does not count.
        """
        prompt, name = check_request(request), str(self.address)
        if request.grammar is not None:
            raise UsageError(f"{self.interface} takes no grammars", hint="leave the strategy auto")
        if request.top_logprobs:
            yield Chunk("", "length")  # these interfaces return no log probabilities
            return
        deadlines, turn, size = Deadlines(request, name), _Turn(), 0
        messages = request.messages or ({"role": "user", "content": prompt},)
        with self._map_errors():
            events = aiter(self._stream_events(request, messages))
            try:
                while (event := await _read_next(events, deadlines)) is not None:
                    text = without_surrogates(self._read_event(event, turn))
                    size += len(text.encode())
                    check_size(size + turn.size, request.max_tokens, name)
                    if text:
                        yield Chunk(text)
            finally:
                try:
                    await events.aclose()  # type: ignore[attr-defined]
                except Exception as error:  # closing the client closes the stream too
                    _log.debug("a stream of %s was not closed: %s", name, type(error).__name__)
        if turn.finish_reason is None:
            raise BackendBroken(f"{name} broke off in the middle of a turn", hint=LOG_HINT)
        yield Chunk(turn.end(turn.finish_reason), turn.finish_reason, turn.usage)

    async def health(self, timeout: float = 5.0) -> Health:
        """Return the server's state: ``ok`` if it lists its models.

        Args:
            timeout: seconds to wait for the answer.
        """
        try:
            with self._limit_time(timeout):
                await self._list_models()
        except BackendRefused as error:
            return Health("unknown", error.message)
        except (MlxToolsError, TimeoutError) as error:
            return Health("unreachable", getattr(error, "message", "it did not answer in time"))
        return Health("ok")

    async def models(self, timeout: float = 5.0) -> tuple[str, ...]:
        """Return the names of the server's models, empty if it does not list them.

        Args:
            timeout: seconds to wait for the answer.
        """
        try:
            with self._limit_time(timeout):
                return tuple(await self._list_models())
        except (BackendError, TimeoutError):
            return ()

    async def aclose(self) -> None:
        """Close the connections of the running event loop."""
        from asyncio import get_running_loop

        client, self._client = self._client, None
        if client is not None and client[0] is get_running_loop():
            try:
                await client[1].close()
            except Exception as error:  # the end of the process closes it too
                _log.debug("a client was not closed: %s", type(error).__name__)

    @property
    def client(self) -> Any:
        """The SDK's client for the running event loop."""
        from asyncio import get_running_loop

        loop = get_running_loop()
        if self._client is None or self._client[0] is not loop:
            try:
                self._client = loop, self._create_client()
            except ImportError as error:
                raise MissingDependency(
                    f"{self.interface}'s interface needs its SDK",
                    hint=to_install(self.interface.lower()),
                ) from error
        return self._client[1]

    @contextmanager
    def _limit_time(self, timeout: float) -> Iterator[None]:
        """Limit a request other than a completion to ``timeout`` seconds."""
        import anyio

        with anyio.fail_after(timeout), self._map_errors():
            yield

    @contextmanager
    def _map_errors(self) -> Iterator[None]:
        """Raise the SDK's errors, in the block, as an `MlxToolsError`."""
        try:
            yield
        except MlxToolsError:
            raise
        except Exception as error:
            raise self._convert_error(error) from error

    def _convert_error(self, error: Exception) -> MlxToolsError:
        """Return the `MlxToolsError` for an error of the SDK."""
        name = str(self.address)
        status = getattr(error, "status_code", None)
        if isinstance(status, int) and status > 0:
            detail = getattr(error, "body", None) or getattr(error, "error", None) or str(error)
            body = detail if isinstance(detail, str) else json.dumps(detail, default=str)
            headers = getattr(getattr(error, "response", None), "headers", {})
            return as_refusal(status, body.encode("utf-8", "replace"), name, headers)
        # Ollama's SDK uses this status for an error in the middle of a stream.
        if status == -1:
            return BackendRefused(f"{name} broke off with an error: {error}"[:400])
        return translate(error.__cause__ if isinstance(error.__cause__, Exception) else error, name)

    @abstractmethod
    def _create_client(self) -> Any:
        """Return a new client of the SDK. May raise ImportError."""

    @abstractmethod
    async def _list_models(self) -> Sequence[str]:
        """Return the names of the server's models."""

    @abstractmethod
    def _stream_events(
        self, request: CompletionRequest, messages: Sequence[Message]
    ) -> AsyncIterator[Any]:
        """Send a request, and yield the SDK's events."""

    @abstractmethod
    def _read_event(self, event: Any, turn: _Turn) -> str:
        """Add an event of the SDK to the turn, and return the text that it adds."""


class _Turn(TurnText):
    """A turn as text while it streams in."""

    def __init__(self) -> None:
        super().__init__()
        self.finish_reason: FinishReason | None = None
        """None until the turn has ended."""
        self.usage: Usage | None = None


async def _read_next(events: AsyncIterator[Any], deadlines: Deadlines) -> Any:
    """Return the next event within its deadline, None at the end of the stream."""
    try:
        with deadlines.step():
            return await anext(events)
    except StopAsyncIteration:
        return None


# --- Anthropic ----------------------------------------------------------------------------------

_OFFICIAL_ADDRESS: Final = "https://api.anthropic.com"
_FORBIDDEN_IN_ID: Final = re.compile(r"[^A-Za-z0-9_-]")
"""Characters that Anthropic's interface refuses in the id of a call."""
_FINISH_REASONS: Final[Mapping[str, FinishReason]] = dict.fromkeys(
    ("end_turn", "stop_sequence", "tool_use"), "stop"
)
"""Anthropic's stop reasons for a complete turn. Every other reason counts as ``length``."""


class AnthropicBackend(VendorBackend):
    """Anthropic's messages API, from Anthropic's service or another server.

    Without ``api_key``, ``ANTHROPIC_API_KEY`` of the environment is sent, but only to Anthropic's
    own service.
    """

    interface = "Anthropic"
    obeys_choice = True

    def _create_client(self) -> Any:
        from anthropic import AsyncAnthropic, DefaultAsyncHttpxClient

        official = str(self.address) == _OFFICIAL_ADDRESS
        key = self._api_key or (os.environ.get("ANTHROPIC_API_KEY") if official else None)
        options = client_options(self.address, has_key=key is not None)
        # This client ignores trust_env and uses the environment's proxies; only mounts override
        # them.
        mounts = {} if options["trust_env"] else dict.fromkeys(("all://", "http://", "https://"))
        with map_proxy_errors():
            http = DefaultAsyncHttpxClient(mounts=mounts, **options)
        return AsyncAnthropic(api_key=key or "none", base_url=str(self.address), http_client=http)

    async def _list_models(self) -> Sequence[str]:
        return [model.id for model in (await self.client.models.list()).data]

    async def _stream_events(
        self, request: CompletionRequest, messages: Sequence[Message]
    ) -> AsyncGenerator[Any, None]:
        body: dict[str, Any] = {
            "model": self.model,
            "max_tokens": request.max_tokens,
            "messages": to_anthropic_messages(messages),
            **to_anthropic_tools(request, messages),
        }
        # Anthropic's interface has a field of its own for system messages.
        if system := "\n\n".join(m["content"] for m in messages if m["role"] == "system"):
            body["system"] = system
        extra = {k: v for k, v in request.sampling.items() if k in ("top_p", "top_k")}
        if request.temperature > 0:  # some models refuse the parameter
            extra["temperature"] = min(request.temperature, 1.0)
        stream = await self.client.messages.create(**body, stream=True, extra_body=extra or None)
        async with stream:
            async for event in stream:
                yield event

    def _read_event(self, event: Any, turn: _Turn) -> str:
        match event.type:
            case "message_start":
                turn.usage = _read_anthropic_usage(event.message.usage, None)
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
                turn.usage = _read_anthropic_usage(event.usage, turn.usage)
                reason = event.delta.stop_reason
                if reason == "refusal":
                    raise BackendRefused(
                        f"{self.address} refused to complete the turn (stop reason refusal)"
                    )
                if reason:
                    turn.finish_reason = _FINISH_REASONS.get(reason, "length")
        return ""


def _read_anthropic_usage(usage_data: Any, prior_usage: Usage | None) -> Usage:
    """Return the token counts of an event.

    Args:
        usage_data: the event's counts.
        prior_usage: the counts of the turn so far, None at its beginning.
    """

    def count(name: str) -> int | None:
        value = getattr(usage_data, name, None)
        return value if isinstance(value, int) else None

    read, wrote = count("cache_read_input_tokens"), count("cache_creation_input_tokens")
    uncached = count("input_tokens")
    prior_usage = prior_usage or Usage()
    if not uncached:  # the last event has no counts of the prompt
        return Usage(prior_usage.prompt_tokens, prior_usage.cached_tokens, count("output_tokens"))
    # Anthropic's count leaves out the cached tokens. Ours has them, as in OpenAI's interface.
    return Usage(uncached + (read or 0) + (wrote or 0), read, count("output_tokens"))


def to_anthropic_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Convert OpenAI's chat messages to Anthropic's, without system messages.

    Messages of one role in a row become one message. Results of tools are part of the user's.
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
            call_id = _FORBIDDEN_IN_ID.sub("_", message["tool_call_id"])
            add("user", {"type": "tool_result", "tool_use_id": call_id, "content": content})
        elif role != "system":
            calls = (
                {
                    "type": "tool_use",
                    "id": _FORBIDDEN_IN_ID.sub("_", call["id"]),
                    "name": call["function"]["name"],
                    "input": json.loads(call["function"]["arguments"]),
                }
                for call in message.get("tool_calls", ())
            )
            add(role, *text, *calls)
    return converted


def to_anthropic_tools(request: CompletionRequest, messages: Sequence[Message]) -> dict[str, Any]:
    """Return ``tools`` and ``tool_choice`` of a request in Anthropic's format."""
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
        # The interface refuses messages with calls of tools that are not in the request.
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

_SAMPLING: Final = ("top_k", "top_p", "min_p", "presence_penalty", "frequency_penalty")
"""Parameters of sampling that Ollama's interface takes."""


class OllamaBackend(VendorBackend):
    """Ollama's chat API. It has no tool choice."""

    interface = "Ollama"
    obeys_choice = False

    async def context(self, timeout: float = 2.0) -> int | None:
        """Return the model's context in tokens, None if the model is not loaded.

        Args:
            timeout: seconds to wait for the answer.
        """
        try:
            with self._limit_time(timeout):
                running = (await self.client.ps()).models
        except (BackendError, TimeoutError):
            return None
        sizes = (
            getattr(model, "context_length", None)
            for model in running
            if self.model in (model.model, str(model.model).removesuffix(":latest"))
        )
        return next((size for size in sizes if isinstance(size, int) and size > 0), None)

    def _create_client(self) -> Any:
        from ollama import AsyncClient

        # Without this header the SDK would send OLLAMA_API_KEY to any server.
        headers = {"Authorization": f"Bearer {self._api_key or 'none'}"}
        options = client_options(self.address, has_key=self._api_key is not None)
        with map_proxy_errors():
            return AsyncClient(host=str(self.address), headers=headers, **options)

    async def _list_models(self) -> Sequence[str]:
        return [str(model.model) for model in (await self.client.list()).models]

    async def _stream_events(
        self, request: CompletionRequest, messages: Sequence[Message]
    ) -> AsyncGenerator[Any, None]:
        options: dict[str, Any] = {
            "temperature": request.temperature,
            "num_predict": request.max_tokens,
            **{name: request.sampling[name] for name in _SAMPLING if name in request.sampling},
        }
        if request.seed is not None:
            options["seed"] = request.seed
        stream = await self.client.chat(
            model=self.model,
            messages=to_ollama_messages(messages),
            tools=[*request.tools] if request.tool_choice != "none" else None,
            stream=True,
            options=options,
        )
        async with aclosing(stream):  # closing the stream closes the connection
            async for event in stream:
                yield event

    def _read_event(self, event: Any, turn: _Turn) -> str:
        message = event.message
        text = turn.think(message.thinking or "") + turn.say(message.content or "")
        for call in message.tool_calls or ():
            number = len(turn.calls)  # a call is never split between events
            function = call.function
            text += turn.call(number, "", function.name, arguments_text(dict(function.arguments)))
        if event.done:
            turn.finish_reason = "length" if event.done_reason not in ("stop", None) else "stop"
            turn.usage = Usage(event.prompt_eval_count, None, event.eval_count)
        return text


def to_ollama_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Convert OpenAI's chat messages to Ollama's.

    In Ollama's format, arguments are an object, and a result has its tool's name in place of an id.
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
"""The backends by the prefix of an address."""
