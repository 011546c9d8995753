"""Connections to MCP servers, by the official SDK.

A connection is made when a call first needs it, and ends with the event loop that made it.

A server is not trusted. Its description of its tools is compared with what was agreed to at each
connection, and again when it says that they changed. What it sends is bounded. When it wants to ask
the model or the person, the person is asked first. It sees no environment variable that was not
named for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import logging
import math
import os
import re
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from msgspec import Struct, field

from mlx_tools.errors import MlxToolsError, ToolDefinitionError
from mlx_tools.lazy import VERSION
from mlx_tools.messages import replace
from mlx_tools.paths import private_dir, read_regular, state_dir
from mlx_tools.plugins.mcp.places import fill_variables
from mlx_tools.plugins.mcp.sign_in import sign_in, sign_in_hint, tokens_path
from mlx_tools.process import RELAYED, clean
from mlx_tools.store import RootName
from mlx_tools.tools import (
    BoundSource,
    BoundSources,
    BoundTool,
    Tool,
    ToolContext,
    ToolError,
    current_context,
    is_local,
    load_words,
)

if TYPE_CHECKING:
    import mcp
    from mcp import types

_log = logging.getLogger(__name__)
MAX_TOOLS: Final = 1000
"""Tools, prompts or resources that one server may list."""
MAX_DESCRIPTION_CHARS: Final = 4000
"""Characters of a tool's description: about a page, longer ones would fill the prompt."""
MAX_PAGES: Final = 50
"""Pages of one list; a server could return cursors for ever."""
MAX_LINE_BYTES: Final = 16_000_000
"""Bytes of one message of a server. A choice: pictures in base64 fit."""
MAX_ERROR_BYTES: Final = 1_000_000
"""Bytes of standard error that are kept of a server."""
MAX_SAMPLES: Final = 3
"""Times that a server may ask the model during one call."""
MAX_QUESTIONS: Final = 5
"""Times that a server may ask the person during one call."""
START_SECONDS: Final = 60.0
"""Seconds that a server has to start: ``npx`` and ``uvx`` may download it first."""
END_SECONDS: Final = 30.0
"""Seconds that a connection has to end. More than the SDK takes to ask a server to end and then to
kill it: an SDK that is stopped before leaves a process that nobody waits for."""
_MAX_STARTS: Final = 2
"""Starts of a server that did not answer in between: one that fails twice would fail again."""
PAUSE_SECONDS: Final = 60.0
"""Seconds after which such a server is tried once more: a gateway runs for days."""
_SESSION_ENDED: Final = "Session terminated"
"""The SDK's message if a server over HTTP no longer knows the connection."""
_MAX_FAST_STREAMS: Final = 20
"""Streams that a server may have opened without delay; from then on one a second."""


class McpServerFailed(ToolError):
    """A server could not be reached, or ended."""


class ServerOffer(Struct, frozen=True):
    """The offer of a server: tools, prompts and resources."""

    version: str
    """Its own name and version."""
    tools: tuple[BoundTool, ...]
    """Its tools."""
    hints: Mapping[str, str] = field(default_factory=dict)
    """The effects that it claims for each tool. They are shown, but not believed."""
    refused_tools: Mapping[str, str] = field(default_factory=dict)
    """Tools that cannot be used, with the reason."""
    prompts: tuple[Any, ...] = ()
    """Its prompts."""
    resources: bool = False
    """True if it has resources."""


class McpClients:
    """The MCP servers among the sources of bound tools.

    Args:
        sources: the sources that the user added.
        roots: folders that the servers are told about (`mlx_tools.store.RootName`).
        environ: the variables that commands and headers may name.
        seconds: the time that a server has to start.
        show: shows a person the page to sign in, None if nobody is there.
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
        """Return the tool that calls one tool of a server (a `MakeTool`)."""
        return source.tool(tool, functools.partial(self._call, source.name, tool))

    def server(self, source: BoundSource) -> _McpServer:
        """Return the server of a source, connected or not."""
        if source.name not in self._servers:
            self._servers[source.name] = _McpServer(source, self)
        return self._servers[source.name]

    async def aclose(self) -> None:
        """Close all connections."""
        servers, self._servers = self._servers, {}
        await asyncio.gather(*(server.close() for server in servers.values()))

    async def _call(self, name: str, tool: BoundTool, arguments: Mapping[str, Any]) -> Any:
        server = self.server(self.sources.read(name))
        context = current_context()
        async with server.calling(context) as client:
            server.check_tool(tool)
            result = await client.call_tool(
                tool.name, dict(arguments), progress_callback=functools.partial(_report, context)
            )
        return read_answer(result)


class _McpServer:
    """One server: its connection, in a task of its own, and the calls that use it."""

    def __init__(self, source: BoundSource, clients: McpClients) -> None:
        self.source = source
        self._clients = clients
        self._task: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()
        self._client: mcp.Client | None = None
        self._starts = 0
        self._started_at = 0.0
        self._stale = False
        self._fault = ""
        self._lock = asyncio.Lock()
        self.offer: ServerOffer | None = None
        self._contexts: list[ToolContext] = []
        self._request_counts: dict[str, int] = {}

    @contextlib.asynccontextmanager
    async def calling(self, context: ToolContext) -> AsyncIterator[mcp.Client]:
        """Connect to the server, which may ask on behalf of this call in the block.

        Raises:
            ToolError: the server failed in any way.
        """
        from mcp import MCPError
        from mcp.types import CONNECTION_CLOSED

        if not self._contexts:
            self._request_counts.clear()
        self._contexts.append(context)
        try:
            yield await self._get_client()
        except MCPError as error:
            if error.code != CONNECTION_CLOSED and error.message != _SESSION_ENDED:
                raise ToolError(clean(_describe_fault(error), 500)) from None
            await self.close()  # the next call starts it again
            raise McpServerFailed(self._fault or self._explain_error(error)) from None
        except (OSError, EOFError, ValueError, RuntimeError) as error:
            raise McpServerFailed(self._explain_error(error)) from None
        else:
            self._starts = 1  # one that answered may end, and be started, once more
        finally:
            self._contexts.remove(context)

    def check_tool(self, tool: BoundTool) -> None:
        """Raise ToolError if the server now describes a tool differently."""
        offered = self.offer.tools if self.offer is not None else ()
        current = next(
            (offered_tool for offered_tool in offered if offered_tool.name == tool.name), None
        )
        if current is None or current.pin != tool.pin:
            raise ToolError(self.source.disabled_reason, code="disabled")

    async def close(self) -> None:
        """Close the connection, and end the server that was started for it."""
        task, self._task, self._client = self._task, None, None
        if task is not None:
            self._stop.set()
            try:
                async with asyncio.timeout(END_SECONDS):
                    await task
            except (asyncio.CancelledError, Exception) as error:  # it ends all the same
                _log.debug("%s ended with %s", self.source.name, type(error).__name__)

    async def _get_client(self) -> mcp.Client:
        # Calls of one turn run together: without the lock each would start the server.
        async with self._lock:
            if self._client is None or self._task is None or self._task.done():
                seconds_left = self._started_at + PAUSE_SECONDS - time.monotonic()
                if self._starts >= _MAX_STARTS and seconds_left > 0:
                    raise McpServerFailed(
                        f"the server {self.source.name} failed twice in a row; "
                        f"it is tried again in {math.ceil(seconds_left)} s"
                    )
                client = await self._start()
            else:
                client = self._client
            if self._stale:
                self._stale = False
                self._update_offer(await _list_offer(client))
            return client

    async def _start(self) -> mcp.Client:
        """Connect in a task of its own.

        The SDK must exit a context in the task that entered it.
        """
        self._starts += 1
        self._started_at = time.monotonic()
        self._client, self._fault = None, ""
        self._stop = asyncio.Event()
        ready: asyncio.Future[mcp.Client] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(
            self._run_connection(ready), name=f"mcp {self.source.name}"
        )
        try:
            async with asyncio.timeout(self._clients.seconds):
                # Shielded, since a timeout here must not cancel the future that the task will still
                # set.
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

    async def _run_connection(self, ready: asyncio.Future[mcp.Client]) -> None:
        try:
            async with self._make_client() as client:
                client.session.validate_tool_result = _skip_check  # type: ignore[method-assign]
                self._update_offer(await _list_offer(client))
                ready.set_result(client)
                await self._stop.wait()
        except BaseException as error:
            if isinstance(error, Exception):
                self._fault = self._explain_error(error)
            if not ready.done():
                why = (
                    error
                    if isinstance(error, ToolError)
                    else McpServerFailed(self._fault or self._explain_error(error))
                )
                ready.set_exception(why)
                ready.exception()  # nobody may wait for it any more
            if not isinstance(error, Exception):
                raise

    def _update_offer(self, offer: ServerOffer) -> None:
        """Compare the offer with what was agreed to, and keep the differences.

        They are not kept if the source was agreed to again, or removed, since it was read.
        """
        self.offer = offer
        agreed = {tool.name: tool.pin for tool in self.source.tools}
        changed_tools = tuple(tool for tool in offer.tools if agreed.get(tool.name) != tool.pin)
        if agreed and changed_tools != self.source.changed_tools:
            old_source, self.source = self.source, replace(self.source, changed_tools=changed_tools)
            with contextlib.suppress(MlxToolsError):  # it is off for this run in any case
                if self._clients.sources.read(old_source.name) == old_source:
                    self._clients.sources.save(self.source)

    def _make_client(self) -> mcp.Client:
        from mcp import Client, StdioServerParameters
        from mcp.types import Implementation

        logging.getLogger("mcp").addHandler(logging.NullHandler())  # what it logs is no user's
        place, environ = self.source.location, self._clients.environ
        if "url" in place:
            headers = {
                key: fill_variables(value, environ) for key, value in place["headers"].items()
            }
            url = str(place["url"])
            # The SDK's sign-in sends one request at a time: one that is not answered holds up all
            # others, also the one that ends the session. So it is used only where it is needed.
            may_sign = self._clients.show is not None or tokens_path(self.source.name).exists()
            auth = sign_in(url, self.source.name, self._clients.show) if may_sign else None
            hint = None if self._clients.show else sign_in_hint(self.source.name)
            transport: Any = _open_http(url, headers, auth, hint)
        else:
            command = [fill_variables(part, environ) for part in place["command"]]
            limits = (str(MAX_LINE_BYTES), str(MAX_ERROR_BYTES))
            parameters = StdioServerParameters(
                command=RELAYED[0],
                args=[*RELAYED[1:], *limits, *command],
                env={key: fill_variables(value, environ) for key, value in place["env"].items()},
                cwd=place.get("cwd") or str(private_dir(state_dir())),
                encoding_error_handler="replace",
            )
            transport = _open_stdio(parameters, log_path(self.source.name))
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
        """Return the cause of an exception in words, and a command's last line."""
        while isinstance(error, BaseExceptionGroup) and error.exceptions:
            error = error.exceptions[0]
        if isinstance(error, MlxToolsError):
            return f"the server {self.source.name} cannot be started: {error.message}"
        text = clean(_describe_fault(error), 300)
        last_line = ""
        if "command" in self.source.location:
            with contextlib.suppress(OSError):
                lines = (
                    read_regular(log_path(self.source.name)).decode("utf-8", "replace").splitlines()
                )
                last_line = f"; it said: {clean(lines[-1], 200)}" if lines else ""
        return f"the server {self.source.name} failed: {text}{last_line}"

    # --- what a server asks of us ---

    async def _on_message(self, message: Any) -> None:
        from mcp.types import ToolListChangedNotification

        self._stale = self._stale or isinstance(message, ToolListChangedNotification)
        # Nothing tells which call is answered: without this, each would wait for its time limit.
        if self._task is not None and _is_unreadable_answer(message):
            self._fault = self._explain_error(message)
            if self._client is not None:
                self._starts = 1  # it is started once more
            self._task.cancel()

    async def _log(self, params: types.LoggingMessageNotificationParams) -> None:
        if self._contexts:
            self._contexts[-1].progress(clean(f"{params.level}: {params.data}", 200))

    async def _roots(self, context: Any) -> types.ListRootsResult:
        from mcp.types import ListRootsResult, Root

        names = map(RootName.parse, self._clients.roots)
        folders = (Path(root.path) for root in names if not root.patterns)  # it would see all of it
        return ListRootsResult(
            roots=[Root(uri=folder.as_uri(), name=folder.name) for folder in folders]  # type: ignore[arg-type]
        )

    def _may_ask(self, subject: str, max_requests: int) -> ToolContext | types.ErrorData:
        """Return the call on whose behalf the server asks, or why it may not ask."""
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

        context_or_error = self._may_ask("the model", MAX_SAMPLES)
        if not isinstance(context_or_error, ToolContext):
            return context_or_error
        messages = [
            f"{message.role}: {render_content(message.content_as_list)}"
            for message in params.messages
        ]
        question = "\n\n".join(
            [*([params.system_prompt] if params.system_prompt else []), *messages]
        )
        name = f"{self.source.name} asks the model"
        agreed = await context_or_error.confirm(
            name, {"question": question}, "a server wants to ask the model"
        )
        if agreed is None:
            return _error_data("the person did not agree")
        try:
            answer = await context_or_error.ask(str(agreed.get("question", question)), ())
        except ToolError as error:
            return _error_data(str(error))
        content = TextContent(type="text", text=answer)
        return CreateMessageResult(role="assistant", content=content, model="local")

    async def _elicit(self, context: Any, params: Any) -> types.ElicitResult | types.ErrorData:
        from mcp.types import ElicitResult

        context_or_error = self._may_ask("the person", MAX_QUESTIONS)
        if not isinstance(context_or_error, ToolContext):
            return context_or_error
        reason = f"the server {self.source.name} asks you: {clean(params.message, 500)}"
        if getattr(params, "mode", "form") == "url":
            return ElicitResult(action="decline")  # a server sends nobody anywhere
        schema = params.requested_schema
        properties = schema.get("properties", {}) if isinstance(schema, Mapping) else {}
        blank = {key: _make_default(property_schema) for key, property_schema in properties.items()}
        agreed = await context_or_error.confirm(f"{self.source.name} asks you", blank, reason)
        if agreed is None:
            return ElicitResult(action="decline")
        return ElicitResult(action="accept", content=dict(agreed))


_PYDANTIC_TEXT: Final = re.compile(
    r"\d+ validation errors? for \S+\n(?:\S.*\n)?\s*(.*?) \[type=.*", re.DOTALL
)
"""The faults of a message that the SDK could not read; the first is captured."""


def _is_unreadable_answer(message: Any) -> bool:
    """Return True for the error of an answer that the SDK cannot read as JSON.

    Such as one with half of a surrogate pair. Other unreadable lines are skipped.
    """
    from pydantic import ValidationError

    if not isinstance(message, ValidationError):
        return False
    line = str(message.errors(include_url=False, include_context=False)[0]["input"])
    return re.search(r'"(?:result|error)"\s*:', line) is not None and '"id"' in line


def _describe_fault(error: BaseException) -> str:
    """Return the text of an exception; the first fault if the SDK refused a message."""
    from pydantic import ValidationError

    if isinstance(error, ValidationError):
        fault = error.errors(include_url=False, include_context=False, include_input=False)[0]
        path = ".".join(map(str, fault["loc"]))
        place = f", at {path}" if path else ""
        return f"its answer is not as the protocol says{place}: {fault['msg']}"
    return _PYDANTIC_TEXT.sub(r"\1", str(error)[:2_000]) or type(error).__name__


async def _skip_check(name: str, result: Any) -> None:
    """Replace the SDK's check of a result against the tool's output schema.

    A stranger wrote the patterns of that schema: one can keep the loop busy for ever. Nothing here
    relies on the schema.
    """


def _error_data(message: str) -> types.ErrorData:
    from mcp.types import INVALID_REQUEST, ErrorData

    return ErrorData(code=INVALID_REQUEST, message=message)


def _make_default(schema: Any) -> Any:
    """Return a value that a person can start from."""
    keywords = schema if isinstance(schema, Mapping) else {}
    for key in ("default", "const"):
        if key in keywords:
            return keywords[key]
    if keywords.get("enum"):
        return keywords["enum"][0]
    blanks = {"boolean": False, "integer": 0, "number": 0, "array": []}
    return blanks.get(str(keywords.get("type")), "")


async def _report(
    context: ToolContext, progress: float, total: float | None, message: str | None
) -> None:
    context.progress(message or "", progress / total if total else None)


async def _list_offer(client: mcp.Client) -> ServerOffer:
    """Return what a server offers, within bounds.

    Raises:
        ToolError: a list does not end.
    """
    capabilities, info = client.server_capabilities, client.server_info
    tools: dict[str, BoundTool] = {}
    hints, refused = {}, {}
    for tool in await _fetch_pages(client.list_tools, "tools") if capabilities.tools else ():
        if tool.name in tools:
            refused[tool.name] = "it has two of this name"
            continue
        try:
            tools[tool.name] = bound_tool(tool)
        except ToolDefinitionError as error:
            refused[tool.name] = error.message
        notes = tool.annotations
        if notes is not None:
            hints_given = notes.model_dump(by_alias=True)
            yes_or_no = [f"{k} {v}" for k, v in hints_given.items() if isinstance(v, bool)]
            hints[tool.name] = clean(", ".join(yes_or_no), 200)
    prompts = await _fetch_pages(client.list_prompts, "prompts") if capabilities.prompts else ()
    version = f"{info.name} {info.version}".strip() if info is not None else ""
    return ServerOffer(
        clean(version, 100),
        tuple(tools.values()),
        hints,
        refused,
        tuple(prompts),
        bool(capabilities.resources),
    )


async def _fetch_pages(fetch: Callable[..., Any], subject: str) -> list[Any]:
    items: list[Any] = []
    cursor = None
    for _ in range(MAX_PAGES):
        page = await fetch(cursor=cursor)
        items += getattr(page, subject)
        if len(items) > MAX_TOOLS:
            raise ToolError(f"the server has more than {MAX_TOOLS} {subject}")
        cursor = page.next_cursor
        if not cursor:
            return items
    raise ToolError(f"the server's list of {subject} does not end")


def bound_tool(tool: types.Tool) -> BoundTool:
    """Return a server's tool as it would be agreed to, with all effects.

    Raises:
        ToolDefinitionError: its schema cannot be used.
    """
    schema = {"type": "object", "properties": {}} | dict(tool.input_schema or {})
    texts = tool.title, tool.description
    return BoundTool.from_description(tool.name, texts, MAX_DESCRIPTION_CHARS, schema)


def log_path(name: str) -> Path:
    """Return the file with a server's standard error."""
    return state_dir() / "logs" / f"mcp-{name}.log"


@contextlib.asynccontextmanager
async def _open_stdio(parameters: mcp.StdioServerParameters, log: Path) -> AsyncIterator[Any]:
    from mcp.client.stdio import stdio_client

    private_dir(log.parent)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    with os.fdopen(os.open(log, flags, 0o600), "w") as errors:
        async with stdio_client(parameters, errlog=errors) as streams:
            yield streams


@contextlib.asynccontextmanager
async def _open_http(
    url: str, headers: Mapping[str, str], auth: Any, authentication: str | None
) -> AsyncIterator[Any]:
    """Open streams to a server over HTTP: no proxy, no redirect, no endless answer.

    Args:
        url: the address of the server.
        headers: headers of each request.
        auth: signs requests.
        authentication: the message if the server wants a person to sign in and nobody is there.
    """
    import httpx2
    from mcp.client.streamable_http import streamable_http_client

    class StrictTransport(httpx2.AsyncHTTPTransport):
        stream_count = 0

        async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
            if not is_allowed_place(str(request.url), url):
                raise ToolError(f"it leads to {clean(str(request.url), 200)}, not over https")
            if request.method == "GET":
                self.stream_count += 1
                if (
                    self.stream_count > _MAX_FAST_STREAMS
                ):  # it ends each at once, to have it opened again
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


def is_allowed_place(place: str, server: str) -> bool:
    """Return whether a server may send us to this place, for example to sign in.

    The server itself is fine, and so is https elsewhere, where nobody can impersonate the host. A
    server on this machine may also name this machine.
    """
    target, origin = urlsplit(place), urlsplit(server)
    if target[:2] == origin[:2] or target.scheme == "https":
        return True
    return is_local(target.hostname) and is_local(origin.hostname)


# --- resources and prompts ------------------------------------------------------------------------


def mcp_read(clients: McpClients, servers: Sequence[str]) -> Tool:
    """Return the tool that reads and lists resources of these servers."""
    words = load_words("mcp_read")

    async def run(arguments: Mapping[str, Any]) -> Any:
        name, uri = arguments["server"], arguments.get("uri")
        if name not in servers:
            raise ToolError(words.notices["unknown"].format(servers=", ".join(servers)))
        server = clients.server(clients.sources.read(name))
        async with server.calling(current_context()) as client:
            if uri is None:
                resources = await _fetch_pages(client.list_resources, "resources")
                return {
                    "resources": [
                        {"uri": str(resource.uri), "name": resource.name} for resource in resources
                    ]
                }
            result = await client.read_resource(uri)
        return check_length("\n".join(map(render_resource, result.contents)))

    spec = words.spec(frozenset(("read", "network")))
    return Tool(replace(spec, plugin="mcp", private=True, cache=False), run)


async def read_prompt(
    clients: McpClients, source: BoundSource, prompt: str, arguments: Mapping[str, str]
) -> str:
    """Return the text of a server's prompt. Raises ToolError."""
    async with clients.server(source).calling(ToolContext()) as client:
        result = await client.get_prompt(prompt, dict(arguments))
    return check_length(
        "\n\n".join(render_content([message.content]) for message in result.messages)
    )


async def fetch_offer(clients: McpClients, source: BoundSource) -> ServerOffer:
    """Return what a server offers now.

    Raises:
        ToolError: it cannot be reached.
    """
    server = clients.server(source)
    async with server.calling(ToolContext()):
        assert server.offer is not None
        return server.offer


# --- what a server returns ------------------------------------------------------------------------


MAX_CONTENT_CHARS: Final = 2_000_000
"""Characters of one answer; far more than a model can see, so an artifact keeps the rest."""
_WORD: Final = re.compile(r"\w+")


def render_content(blocks: Iterable[Any]) -> str:
    """Return the text in content blocks, and a description of other blocks."""
    parts = []
    for block in blocks:
        kind = getattr(block, "type", "")
        if kind == "text":
            parts.append(block.text)
        elif kind in ("image", "audio"):
            parts.append(f"[{kind}: {block.mime_type}, {len(block.data) * 3 // 4} bytes]")
        elif kind == "resource":
            parts.append(render_resource(block.resource))
        elif kind == "resource_link":
            parts.append(f"[resource: {block.uri}{f' ({block.name})' if block.name else ''}]")
        else:
            parts.append(f"[{kind or 'something'} that is not shown]")
    return check_length("\n".join(parts))


def render_resource(resource: Any) -> str:
    """Return the text of a resource, or its description."""
    text = getattr(resource, "text", None)
    if isinstance(text, str):
        return text
    size = len(getattr(resource, "blob", "")) * 3 // 4
    return f"[{resource.uri}: {resource.mime_type or 'bytes'}, {size} bytes]"


def check_length(text: str) -> str:
    """Return the text. Raises ToolError if it is too long."""
    if len(text) > MAX_CONTENT_CHARS:
        raise ToolError(
            f"it answered with more than {MAX_CONTENT_CHARS} characters", code="payload_too_large"
        )
    return text


def read_answer(result: Any) -> Any:
    """Return the result of a call: structured content, text, or both if they differ.

    Raises:
        ToolError: the server reports an error.
    """
    text = render_content(result.content or ())
    if result.is_error:
        raise ToolError(text or "the server says that it failed")
    structured = result.structured_content
    if structured is None:
        return text
    shown = check_length(json.dumps(structured, ensure_ascii=False))
    return structured if _repeats(text, structured) else check_length(f"{text}\n{shown}")


def _repeats(text: str, structured: Any) -> bool:
    """Return whether each word of a text is also in the structured content.

    Most servers send the same twice, as JSON or in words.
    """
    with contextlib.suppress(ValueError, RecursionError):
        if (value := json.loads(text)) == structured:
            return True
        text = " ".join(_iter_texts(value))
    known_words = {
        word for part in _iter_texts(structured) for word in _WORD.findall(part.casefold())
    }
    return known_words.issuperset(_WORD.findall(text.casefold()))


def _iter_texts(value: Any) -> Iterator[str]:
    """Yield the keys and values in a JSON value as texts."""
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
            case scalar:
                yield str(scalar)
