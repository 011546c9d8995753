"""Connections to MCP servers, by the official SDK: made when a call first needs one, and ended with
the loop that made them.

A server is a stranger. What it says of its tools is held to what was agreed to each time it is
connected to, and again when it says that they changed; what it writes is bounded; what it asks of
the model or the person is asked of the person first. It sees no variable that was not named for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import logging
import os
import re
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from msgspec import Struct, field

from mlx_tools.errors import MlxToolsError, ToolDefinitionError
from mlx_tools.lazy import VERSION
from mlx_tools.messages import replace
from mlx_tools.paths import private_dir, read_regular, state_dir
from mlx_tools.process import RELAYED, clean
from mlx_tools.store import RootName
from mlx_tools.tools.bound import BoundSource, BoundSources, BoundTool, is_here
from mlx_tools.tools.context import ToolContext, ToolError, current_context
from mlx_tools.tools.host_tools import words_of
from mlx_tools.tools.mcp.places import fill_variables
from mlx_tools.tools.mcp.sign_in import sign_in, sign_in_wanted
from mlx_tools.tools.tool import Tool

if TYPE_CHECKING:
    import mcp
    from mcp import types

MAX_TOOLS: Final = 1000
MAX_DESCRIPTION_CHARS: Final = 4000
MAX_PAGES: Final = 50
MAX_LINE_BYTES: Final = 16_000_000
MAX_ERROR_BYTES: Final = 1_000_000
MAX_SAMPLES: Final = 3
"""Times that one call may have its server ask the model."""
MAX_QUESTIONS: Final = 5
"""Times that one call may have its server ask the person."""
START_SECONDS: Final = 30.0
"""For which a server that starts is waited for."""
END_SECONDS: Final = 5.0
"""For which a server that is to end is waited for."""
_STARTS: Final = 2
_GONE: Final = "Session terminated"
"""What the SDK says where a server over HTTP knows nothing of the connection any more."""
_STREAMS: Final = 20
"""So many streams a server may have opened as fast as it likes; from then on one a second."""


class McpServerFailed(ToolError):
    """A server could not be reached, or ended."""


class ServerOffer(Struct, frozen=True):
    """What a server offers: its own name and version, its tools with the effects that it hints at,
    which nobody believes, and why others can be none; its prompts, and whether it has resources."""

    version: str
    tools: tuple[BoundTool, ...]
    hints: Mapping[str, str] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    prompts: tuple[Any, ...] = ()
    resources: bool = False


class McpClients:
    """The servers of the sources of bound tools. ``roots`` are the folders that they are told of
    (`mlx_tools.store.RootName`), ``environ`` has the variables that their places may name.
    ``seconds``: for so long a server that starts is waited for. ``show`` shows a person the page on
    which to sign in, where one is there.
    """

    def __init__(
        self,
        sources: BoundSources,
        roots: Sequence[str] = (),
        environ: Mapping[str, str] = os.environ,
        seconds: float = START_SECONDS,
        show: Callable[[str], None] | None = None,
    ) -> None:
        self.sources = sources
        self.roots = tuple(roots)
        self.environ = environ
        self.seconds = seconds
        self.show = show
        self._servers: dict[str, _McpServer] = {}

    def tool(self, source: BoundSource, tool: BoundTool) -> Tool:
        """What calls one tool of a server (`mlx_tools.tools.bound.MakeTool`)."""
        return source.tool(tool, functools.partial(self._call, source.name, tool))

    def server(self, source: BoundSource) -> _McpServer:
        """The server of a source, connected to or not."""
        if source.name not in self._servers:
            self._servers[source.name] = _McpServer(source, self)
        return self._servers[source.name]

    async def aclose(self) -> None:
        """End all connections."""
        servers, self._servers = self._servers, {}
        await asyncio.gather(*(server.close() for server in servers.values()))

    async def _call(self, name: str, tool: BoundTool, arguments: Mapping[str, Any]) -> Any:
        server = self.server(self.sources.read(name))
        context = current_context()
        async with server.calling(context) as client:
            server.hold(tool)
            result = await client.call_tool(
                tool.name, dict(arguments), progress_callback=functools.partial(_report, context)
            )
        return answer_of(result)


class _McpServer:
    """One server: its connection, which lives in a task of its own, and who asks through it."""

    def __init__(self, source: BoundSource, clients: McpClients) -> None:
        self.source = source
        self._clients = clients
        self._task: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()
        self._client: mcp.Client | None = None
        self._starts = 0
        self._stale = False
        self._fault = ""
        self._lock = asyncio.Lock()
        self.offer: ServerOffer | None = None
        self._contexts: list[ToolContext] = []
        self._request_counts: dict[str, int] = {}

    @contextlib.asynccontextmanager
    async def calling(self, context: ToolContext) -> AsyncIterator[mcp.Client]:
        """Inside, the server is connected to, and may ask on behalf of this call. Raises ToolError
        for whatever goes wrong with it."""
        from mcp import MCPError
        from mcp.types import CONNECTION_CLOSED

        if not self._contexts:
            self._request_counts.clear()
        self._contexts.append(context)
        try:
            yield await self._get_client()
        except MCPError as error:
            if error.code != CONNECTION_CLOSED and error.message != _GONE:
                raise ToolError(clean(str(error), 500)) from None
            await self.close()  # the next call starts it again
            raise McpServerFailed(self._fault or self._explain_error(error)) from None
        except (OSError, EOFError, ValueError, RuntimeError) as error:
            raise McpServerFailed(self._explain_error(error)) from None
        else:
            self._starts = 1  # one that answered may end, and be started, once more
        finally:
            self._contexts.remove(context)

    def hold(self, tool: BoundTool) -> None:
        """Raises ToolError where the server says otherwise of a tool than was agreed to."""
        offered = self.offer.tools if self.offer is not None else ()
        now = next((one for one in offered if one.name == tool.name), None)
        if now is None or now.pin != tool.pin:
            raise ToolError(self.source.changed, code="disabled")

    async def close(self) -> None:
        """End the connection, and the server that was started for it."""
        task, self._task, self._client = self._task, None, None
        if task is not None:
            self._stop.set()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                async with asyncio.timeout(END_SECONDS):
                    await task

    async def _get_client(self) -> mcp.Client:
        async with self._lock:
            if self._client is None or self._task is None or self._task.done():
                if self._starts >= _STARTS:
                    raise McpServerFailed(f"the server {self.source.name} ended twice")
                client = await self._start()
            else:
                client = self._client
            if self._stale:
                self._stale = False
                self._took(await _offer_of(client))
            return client

    async def _start(self) -> mcp.Client:
        """Connect in a task of its own: what the SDK enters must be left where it was entered."""
        self._starts += 1
        self._client, self._fault = None, ""
        self._stop = asyncio.Event()
        ready: asyncio.Future[mcp.Client] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._live(ready), name=f"mcp {self.source.name}")
        try:
            async with asyncio.timeout(self._clients.seconds):
                self._client = await asyncio.shield(ready)
                return self._client
        except TimeoutError:
            self._task.cancel()
            raise McpServerFailed(
                f"the server {self.source.name} did not answer within {self._clients.seconds:g} s"
            ) from None
        except asyncio.CancelledError:
            self._task.cancel()
            raise

    async def _live(self, ready: asyncio.Future[mcp.Client]) -> None:
        try:
            async with self._client_of() as client:
                client.session.validate_tool_result = _unchecked  # type: ignore[method-assign]
                self._took(await _offer_of(client))
                ready.set_result(client)
                await self._stop.wait()
        except BaseException as error:
            if isinstance(error, Exception):
                self._fault = self._explain_error(error)
            if not ready.done():
                why = (
                    error
                    if isinstance(error, ToolError)
                    else McpServerFailed(self._explain_error(error))
                )
                ready.set_exception(why)
                ready.exception()  # nobody may wait for it any more
            if not isinstance(error, Exception):
                raise

    def _took(self, offer: ServerOffer) -> None:
        """Hold what the server offers to what was agreed to, and keep what is otherwise; not where
        that was agreed to anew, or the source was removed, since it was read."""
        self.offer = offer
        agreed = {tool.name: tool.pin for tool in self.source.tools}
        said = tuple(tool for tool in offer.tools if agreed.get(tool.name) != tool.pin)
        if agreed and said != self.source.said:
            before, self.source = self.source, replace(self.source, said=said)
            with contextlib.suppress(MlxToolsError):  # it is off for this run in any case
                if self._clients.sources.read(before.name) == before:
                    self._clients.sources.put(self.source)

    def _client_of(self) -> mcp.Client:
        from mcp import Client, StdioServerParameters
        from mcp.types import Implementation

        logging.getLogger("mcp").addHandler(logging.NullHandler())  # what it logs is no user's
        at, environ = self.source.at, self._clients.environ
        if "url" in at:
            headers = {key: fill_variables(value, environ) for key, value in at["headers"].items()}
            url = str(at["url"])
            auth = sign_in(url, self.source.name, self._clients.show)
            wanted = None if self._clients.show else sign_in_wanted(self.source.name)
            transport: Any = _http(url, headers, auth, wanted)
        else:
            command = [fill_variables(part, environ) for part in at["command"]]
            limits = (str(MAX_LINE_BYTES), str(MAX_ERROR_BYTES))
            parameters = StdioServerParameters(
                command=RELAYED[0],
                args=[*RELAYED[1:], *limits, *command],
                env={key: fill_variables(value, environ) for key, value in at["env"].items()},
                cwd=at.get("cwd") or str(private_dir(state_dir())),
                encoding_error_handler="replace",
            )
            transport = _logged(parameters, log_file(self.source.name))
        return Client(
            transport,
            client_info=Implementation(name="mlx-tools", version=VERSION),
            list_roots_callback=self._roots,
            sampling_callback=self._sample,
            elicitation_callback=self._elicit,
            logging_callback=self._log,
            message_handler=self._on_message,
            cache=None,
        )

    def _explain_error(self, error: BaseException) -> str:
        """The cause in a group of errors, in words; and the end of what a command said."""
        while isinstance(error, BaseExceptionGroup) and error.exceptions:
            error = error.exceptions[0]
        if isinstance(error, MlxToolsError):
            return f"the server {self.source.name} cannot be started: {error.message}"
        text = clean(str(error) or type(error).__name__, 300)
        said = ""
        if "command" in self.source.at:
            with contextlib.suppress(OSError):
                lines = (
                    read_regular(log_file(self.source.name)).decode("utf-8", "replace").splitlines()
                )
                said = f"; it said: {clean(lines[-1], 200)}" if lines else ""
        return f"the server {self.source.name} failed: {text}{said}"

    # --- what a server asks of us ---

    async def _on_message(self, message: Any) -> None:
        from mcp.types import ToolListChangedNotification

        self._stale = self._stale or isinstance(message, ToolListChangedNotification)

    async def _log(self, params: types.LoggingMessageNotificationParams) -> None:
        if self._contexts:
            self._contexts[-1].progress(clean(f"{params.level}: {params.data}", 200))

    async def _roots(self, context: Any) -> types.ListRootsResult:
        from mcp.types import ListRootsResult, Root

        names = map(RootName.parse, self._clients.roots)
        folders = (Path(one.path) for one in names if not one.patterns)  # it would see all of it
        return ListRootsResult(
            roots=[Root(uri=folder.as_uri(), name=folder.name) for folder in folders]  # type: ignore[arg-type]
        )

    def _may_ask(self, subject: str, max_requests: int) -> ToolContext | types.ErrorData:
        """The call on whose behalf the server asks, or why it may not."""
        self._request_counts[subject] = self._request_counts.get(subject, 0) + 1
        if not self._contexts:
            return _error_data("no call of yours runs")
        if len({context.session for context in self._contexts}) > 1:  # whose would it be?
            return _error_data("calls of several sessions run")
        if self._request_counts[subject] > max_requests:
            return _error_data(f"a call may ask {max_requests} times")
        return self._contexts[-1]

    async def _sample(
        self, context: Any, params: types.CreateMessageRequestParams
    ) -> types.CreateMessageResult | types.ErrorData:
        from mcp.types import CreateMessageResult, TextContent

        own = self._may_ask("the model", MAX_SAMPLES)
        if not isinstance(own, ToolContext):
            return own
        said = [f"{one.role}: {text_of(one.content_as_list)}" for one in params.messages]
        question = "\n\n".join([*([params.system_prompt] if params.system_prompt else []), *said])
        name = f"{self.source.name} asks the model"
        agreed = await own.confirm(name, {"question": question}, "a server wants to ask the model")
        if agreed is None:
            return _error_data("the person did not agree")
        try:
            answer = await own.ask(str(agreed.get("question", question)), ())
        except ToolError as error:
            return _error_data(str(error))
        content = TextContent(type="text", text=answer)
        return CreateMessageResult(role="assistant", content=content, model="local")

    async def _elicit(self, context: Any, params: Any) -> types.ElicitResult | types.ErrorData:
        from mcp.types import ElicitResult

        own = self._may_ask("the person", MAX_QUESTIONS)
        if not isinstance(own, ToolContext):
            return own
        reason = f"the server {self.source.name} asks you: {clean(params.message, 500)}"
        if getattr(params, "mode", "form") == "url":
            return ElicitResult(action="decline")  # a server sends nobody anywhere
        wanted = params.requested_schema
        properties = wanted.get("properties", {}) if isinstance(wanted, Mapping) else {}
        blank = {key: _blank(one) for key, one in properties.items()}
        agreed = await own.confirm(f"{self.source.name} asks you", blank, reason)
        if agreed is None:
            return ElicitResult(action="decline")
        return ElicitResult(action="accept", content=dict(agreed))


async def _unchecked(name: str, result: Any) -> None:
    """In place of the SDK's check of a result against the tool's own schema, whose patterns a
    stranger wrote: one can keep the whole loop busy for ever. Nobody relies on that schema."""


def _error_data(message: str) -> types.ErrorData:
    from mcp.types import INVALID_REQUEST, ErrorData

    return ErrorData(code=INVALID_REQUEST, message=message)


def _blank(schema: Any) -> Any:
    """A value to begin with, for a person to change."""
    known = schema if isinstance(schema, Mapping) else {}
    for key in ("default", "const"):
        if key in known:
            return known[key]
    if known.get("enum"):
        return known["enum"][0]
    blanks = {"boolean": False, "integer": 0, "number": 0, "array": []}
    return blanks.get(str(known.get("type")), "")


async def _report(
    context: ToolContext, progress: float, total: float | None, message: str | None
) -> None:
    context.progress(message or "", progress / total if total else None)


async def _offer_of(client: mcp.Client) -> ServerOffer:
    """What a server offers, within bounds. Raises ToolError where there is no end to it."""
    able, info = client.server_capabilities, client.server_info
    tools: dict[str, BoundTool] = {}
    hints, refused = {}, {}
    for tool in await _pages(client.list_tools, "tools") if able.tools else ():
        if tool.name in tools:
            refused[tool.name] = "it has two of this name"
            continue
        try:
            tools[tool.name] = bound_tool(tool)
        except ToolDefinitionError as error:
            refused[tool.name] = error.message
        notes = tool.annotations
        if notes is not None:
            given = notes.model_dump(by_alias=True)
            yes_or_no = [f"{k} {v}" for k, v in given.items() if isinstance(v, bool)]
            hints[tool.name] = clean(", ".join(yes_or_no), 200)
    prompts = await _pages(client.list_prompts, "prompts") if able.prompts else ()
    called = f"{info.name} {info.version}".strip() if info is not None else ""
    return ServerOffer(
        clean(called, 100),
        tuple(tools.values()),
        hints,
        refused,
        tuple(prompts),
        bool(able.resources),
    )


async def _pages(fetch: Callable[..., Any], subject: str) -> list[Any]:
    found: list[Any] = []
    cursor = None
    for _ in range(MAX_PAGES):
        page = await fetch(cursor=cursor)
        found += getattr(page, subject)
        if len(found) > MAX_TOOLS:
            raise ToolError(f"the server has more than {MAX_TOOLS} {subject}")
        cursor = page.next_cursor
        if not cursor:
            return found
    raise ToolError(f"the server's list of {subject} does not end")


def bound_tool(tool: types.Tool) -> BoundTool:
    """A server's tool as it would be agreed to, with all effects. Raises ToolDefinitionError where
    its schema cannot be used."""
    schema = {"type": "object", "properties": {}} | dict(tool.input_schema or {})
    texts = tool.title, tool.description
    return BoundTool.told(tool.name, texts, MAX_DESCRIPTION_CHARS, schema)


def log_file(name: str) -> Path:
    """Where a server's standard error goes."""
    return state_dir() / "logs" / f"mcp-{name}.log"


@contextlib.asynccontextmanager
async def _logged(parameters: mcp.StdioServerParameters, log: Path) -> AsyncIterator[Any]:
    from mcp.client.stdio import stdio_client

    private_dir(log.parent)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    with os.fdopen(os.open(log, flags, 0o600), "w") as errors:
        async with stdio_client(parameters, errlog=errors) as streams:
            yield streams


@contextlib.asynccontextmanager
async def _http(
    url: str, headers: Mapping[str, str], auth: Any, authentication: str | None
) -> AsyncIterator[Any]:
    """Streams to a server over HTTP: no proxy, no redirect, no answer without an end.
    ``authentication`` is what is said where it wants a person to sign in and none is there to do
    so."""
    import httpx2
    from mcp.client.streamable_http import streamable_http_client

    class StrictTransport(httpx2.AsyncHTTPTransport):
        opened = 0

        async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
            if not may_ask_at(str(request.url), url):
                raise ToolError(f"it leads to {clean(str(request.url), 200)}, not over https")
            if request.method == "GET":
                self.opened += 1
                if self.opened > _STREAMS:  # it ends each at once, to have it opened again
                    await asyncio.sleep(1.0)
            request.headers["accept-encoding"] = "identity"
            response = await super().handle_async_request(request)
            proof = response.headers.get("www-authenticate", "")
            if authentication and (response.status_code == 401 or "insufficient_scope" in proof):
                await response.aclose()
                raise ToolError(authentication)
            if response.headers.get("content-encoding", "identity").lower() != "identity":
                await response.aclose()  # it could be any number of times its size
                raise httpx2.ReadError("it packed its answer, which it was asked not to")
            kind = response.headers.get("content-type", "")
            if not kind.startswith("text/event-stream"):  # of those the SDK bounds each event
                response.stream = _CountingStream(response.stream)
            return response

    class _CountingStream(httpx2.AsyncByteStream):
        def __init__(self, stream: Any) -> None:
            self._stream = stream

        async def __aiter__(self) -> AsyncIterator[bytes]:
            size = 0
            async for chunk in self._stream:
                size += len(chunk)
                if size > MAX_LINE_BYTES:
                    raise httpx2.ReadError(f"an answer of more than {MAX_LINE_BYTES} bytes")
                yield chunk

        async def aclose(self) -> None:
            await self._stream.aclose()

    timeout = httpx2.Timeout(START_SECONDS, read=None)  # the call's own limit holds
    async with (
        httpx2.AsyncClient(
            headers=dict(headers),
            auth=auth,
            timeout=timeout,
            transport=StrictTransport(),
            trust_env=False,
        ) as http,
        streamable_http_client(url, http_client=http, max_sse_event_size=MAX_LINE_BYTES) as streams,
    ):
        yield streams


def may_ask_at(place: str, server: str) -> bool:
    """Whether a place may be asked on a server's word, such as where it says that one signs in:
    at the server itself; elsewhere over https, where nobody can stand in for who it names; and on
    this machine for a server that is on it."""
    there, own = urlsplit(place), urlsplit(server)
    if there[:2] == own[:2] or there.scheme == "https":
        return True
    return is_here(there.hostname) and is_here(own.hostname)


# --- resources and prompts ------------------------------------------------------------------------


def mcp_read(clients: McpClients, servers: Sequence[str]) -> Tool:
    """The tool that reads resources of these servers, and lists them."""
    words = words_of("mcp_read")

    async def run(arguments: Mapping[str, Any]) -> Any:
        name, uri = arguments["server"], arguments.get("uri")
        if name not in servers:
            raise ToolError(words.notices["unknown"].format(servers=", ".join(servers)))
        server = clients.server(clients.sources.read(name))
        async with server.calling(current_context()) as client:
            if uri is None:
                found = await _pages(client.list_resources, "resources")
                return {"resources": [{"uri": str(one.uri), "name": one.name} for one in found]}
            result = await client.read_resource(uri)
        return limit_length("\n".join(map(resource_text, result.contents)))

    spec = words.spec(frozenset(("read", "network")))
    return Tool(replace(spec, plugin="mcp", private=True, cache=False), run)


async def prompt_text(
    clients: McpClients, source: BoundSource, prompt: str, arguments: Mapping[str, str]
) -> str:
    """The text of a server's prompt. Raises ToolError."""
    async with clients.server(source).calling(ToolContext()) as client:
        result = await client.get_prompt(prompt, dict(arguments))
    return limit_length("\n\n".join(text_of([one.content]) for one in result.messages))


async def look(clients: McpClients, source: BoundSource) -> ServerOffer:
    """What a server offers now. Raises ToolError where it cannot be reached."""
    server = clients.server(source)
    async with server.calling(ToolContext()):
        assert server.offer is not None
        return server.offer


# --- what a server returns ------------------------------------------------------------------------


MAX_CONTENT_CHARS: Final = 2_000_000
_WORD: Final = re.compile(r"\w+")


def text_of(blocks: Iterable[Any]) -> str:
    """The text in content blocks; of pictures, sounds and other bytes what they are."""
    parts = []
    for block in blocks:
        kind = getattr(block, "type", "")
        if kind == "text":
            parts.append(block.text)
        elif kind in ("image", "audio"):
            parts.append(f"[{kind}: {block.mime_type}, {len(block.data) * 3 // 4} bytes]")
        elif kind == "resource":
            parts.append(resource_text(block.resource))
        elif kind == "resource_link":
            parts.append(f"[resource: {block.uri}{f' ({block.name})' if block.name else ''}]")
        else:
            parts.append(f"[{kind or 'something'} that is not shown]")
    return limit_length("\n".join(parts))


def resource_text(resource: Any) -> str:
    """The text of a resource, or what it is."""
    text = getattr(resource, "text", None)
    if isinstance(text, str):
        return text
    size = len(getattr(resource, "blob", "")) * 3 // 4
    return f"[{resource.uri}: {resource.mime_type or 'bytes'}, {size} bytes]"


def limit_length(text: str) -> str:
    """The text. Raises ToolError where it is too long."""
    if len(text) > MAX_CONTENT_CHARS:
        raise ToolError(
            f"it answered with more than {MAX_CONTENT_CHARS} characters", code="payload_too_large"
        )
    return text


def answer_of(result: Any) -> Any:
    """The result of a call: its structured content, its text, or both where each says something
    that the other does not. Raises ToolError for an error that the server tells."""
    text = text_of(result.content or ())
    if result.is_error:
        raise ToolError(text or "the server says that it failed")
    structured = result.structured_content
    if structured is None:
        return text
    shown = limit_length(json.dumps(structured, ensure_ascii=False))
    return structured if _repeats(text, structured) else limit_length(f"{text}\n{shown}")


def _repeats(text: str, structured: Any) -> bool:
    """Return whether a text has no word that structured content does not have: most servers send
    the same twice, as JSON or in words."""
    with contextlib.suppress(ValueError, RecursionError):
        if (value := json.loads(text)) == structured:
            return True
        text = " ".join(_texts_in(value))
    known = {word for part in _texts_in(structured) for word in _WORD.findall(part.casefold())}
    return known.issuperset(_WORD.findall(text.casefold()))


def _texts_in(value: Any) -> Iterator[str]:
    """The keys and values in a JSON value, as texts."""
    rest = [value]
    while rest:
        match rest.pop():
            case dict() as fields:
                yield from fields
                rest += fields.values()
            case list() as items:
                rest += items
            case None:
                yield "null none"
            case one:
                yield str(one)
