"""The tools that a client sees.

`llm_with_tools`, `resume_run`, and each tool that the policy permits.

Every call is decided about as on the command line, and leaves a session. A client can only choose
among what the server was started with, and approves nothing.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
import secrets
import shlex
import stat
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Final, TextIO

import anyio
import uvicorn
from anyio.abc import TaskGroup
from mcp.server import Server, ServerRequestContext
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.server.stdio import stdio_server
from mcp.server.transport_security import TransportSecuritySettings
from mcp.shared.exceptions import MCPError
from mcp.types import (
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    InputRequiredResult,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
)
from mcp.types import Tool as OfferedTool
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware

from mlx_tools.app import (
    LOCAL_NAMES,
    WAITING,
    AccessRules,
    Guard,
    Refusal,
    ServerConfig,
    call_recorded,
    listen,
)
from mlx_tools.controller import ApprovalAnswer, DirectCall
from mlx_tools.errors import MlxToolsError, UsageError
from mlx_tools.lazy import VERSION
from mlx_tools.messages import ToolSpec
from mlx_tools.parsing import loads
from mlx_tools.paths import read_data
from mlx_tools.plugins.mcp.delegation import DelegatedRun, Delegation, until_left
from mlx_tools.plugins.mcp.elicitation import (
    ANSWER_SECONDS,
    ApprovalText,
    ClientApprover,
    call_key,
    find_form_timing,
    read_answer,
)
from mlx_tools.policy import PRESETS, can_be_allowed
from mlx_tools.prompt import is_on_demand
from mlx_tools.schema import find_faults, join_faults, limit_steps, make_validator
from mlx_tools.tools import Progress, to_mcp, to_text, whole_characters
from mlx_tools.transcript import (
    Answered,
    Event,
    Outcome,
    Paused,
    Stopped,
    events,
    expand_citations,
    stopped_in_words,
)

Context = ServerRequestContext[Any, Any]
Result = CallToolResult | InputRequiredResult
RUN: Final = "llm_with_tools"
RESUME: Final = "resume_run"
DISCONNECTED: Final = "mlx_tools.left"
"""The key in a request's scope for the event that its client has gone."""

CALL_SOURCE: Final = "mcp"
"""The source of a tool's call in the header of its session."""

_CALL: Final = "call"
_MAX_FORMS: Final = 256
"""Calls of tools that wait for their forms; the oldest are dropped.

A choice: a client shows a few forms at once, and each entry is two short texts.
"""
_LINE: Final = 300
"""The most characters of a line of progress. A choice: clients show one line."""
_PREVIEW_CHARS: Final = 40_000
"""The most characters of a dry run's changes in a result. A model reads them; nobody decides by
them."""


@dataclass
class McpServer:
    """The server's part of each request.

    Raises:
        UsageError: a permitted tool has the name of one of the server's own.
    """

    delegation: Delegation
    wording: ApprovalText
    by_person: bool
    """True if a client's answer in a form is a person's.

    It is if not everybody on this machine can be that client.
    """
    tools: dict[str, ToolSpec] = field(init=False)

    def __post_init__(self) -> None:
        registry, policy = self.delegation.registry, self.delegation.policy
        self.tools = {
            name: spec
            for name, spec in registry.specs().items()
            if can_be_allowed(policy, spec) and not is_on_demand(spec)
        }
        if conflicts := {RUN, RESUME} & self.tools.keys():
            name = min(conflicts)
            raise UsageError(f"a tool is called {name}, as one of the server's own", hint="deny it")
        slots = self.delegation.configuration.settings.gateway.concurrency
        self._runs, self._calls = anyio.CapacityLimiter(slots), anyio.CapacityLimiter(slots)
        self._shown_digests: dict[str, str] = {}
        self._words = json.loads(read_data("prompts/mcp.json"))
        self._offered = {tool.name: tool for tool in self._own_tools()}
        offered_tools = to_mcp(self.tools.values())
        self._offered |= {tool["name"]: OfferedTool.model_validate(tool) for tool in offered_tools}

    def server(self) -> Server[Any]:
        """Return it as the SDK serves it."""
        sdk_server: Server[Any] = Server(
            "mlx-tools",
            version=VERSION,
            instructions=self._words["instructions"],
            on_list_tools=self._list,
            on_call_tool=self._call,
        )
        security = RequestStateSecurity.ephemeral(ttl=ANSWER_SECONDS)
        sdk_server.middleware.append(
            RequestStateBoundary(security, default_audience=sdk_server.name)
        )
        return sdk_server

    async def _list(self, context: Context, params: PaginatedRequestParams | None) -> Any:
        return ListToolsResult(tools=list(self._offered.values()))

    async def _call(self, context: Context, params: CallToolRequestParams) -> Result:
        if params.name not in self._offered:
            raise MCPError(code=INVALID_PARAMS, message=f"Unknown tool: {params.name[:100]}")
        is_own = params.name in (RUN, RESUME)
        limiter = self._runs if is_own else self._calls
        # A client that sends without end must not fill the memory with waiting calls.
        if limiter.statistics().tasks_waiting >= WAITING:
            return _text_result("too many calls wait already: try again later", error=True)
        approver = self._approver(context)
        try:
            async with limiter:
                call = self._run if is_own else self._direct
                return await call(context, params, approver)
        except MlxToolsError as error:
            return _text_result(str(error), error=True)

    def _approver(self, context: Context) -> ClientApprover:
        """Return the approver for the calls of one request.

        A client that anybody on this machine may be approves nothing, unless the user's settings
        allow it.
        """
        settings = self.delegation.configuration.settings
        may_ask = self.by_person or settings.gateway.approvals == "client"
        timing = (
            find_form_timing(context) if may_ask and settings.policy.approve != "never" else "no"
        )
        always = settings.policy.approve == "always"
        return ClientApprover(context, self.wording, timing, always)

    # --- runs ---

    async def _run(
        self, context: Context, params: CallToolRequestParams, approver: ClientApprover
    ) -> Result:
        arguments, delegation = params.arguments or {}, self.delegation
        schema = self._offered[params.name].input_schema
        with limit_steps():
            problems = join_faults(find_faults(make_validator(schema), arguments, 5))
        if problems:
            raise UsageError(f"the arguments do not fit {params.name}: {problems}")
        reporter = _ProgressReporter(context, self.wording.line)
        options: dict[str, Any] = {
            "approver": approver,
            "on_event": reporter.report_event,
            "disconnected": _disconnect_event(context),
        }
        if params.request_state is not None:
            state = json.loads(params.request_state)
            answers = _read_answers(state["digests"], state["typed"], params)
            outcome = await delegation.resume(state["session"], answers=answers, **options)
        elif params.name == RESUME:
            outcome = await delegation.resume(arguments["session"], **options)
        else:
            outcome = await delegation.run(DelegatedRun(**arguments), **options)
        return _build_questions(outcome, approver) or _outcome_result(outcome)

    # --- tools ---

    async def _direct(
        self, context: Context, params: CallToolRequestParams, approver: ClientApprover
    ) -> Result:
        if params.request_state is not None:
            key = self._shown_digests.pop(params.request_state, "")  # each approval is used once
            approver.response = key, (params.input_responses or {}).get(_CALL)
        reporter = _ProgressReporter(context, self.wording.line)

        async def work(tasks: TaskGroup) -> DirectCall:
            def report(progress: Progress) -> None:
                tasks.start_soon(reporter.report_text, f"{params.name}: {progress.message}")

            direct_call, _ = await call_recorded(
                self.delegation.configuration,
                self.delegation.registry,
                params.name,
                params.arguments or {},
                source=CALL_SOURCE,
                approver=approver,
                on_progress=report,
            )
            return direct_call

        direct_call = await until_left(_disconnect_event(context), work)
        if direct_call.status != "pending" or not approver.requests:
            return _call_result(direct_call)
        (request,) = approver.requests.values()
        # Random, so that a client cannot name the form of another client's call.
        state = secrets.token_hex(16)
        self._shown_digests[state] = call_key(request)
        while len(self._shown_digests) > _MAX_FORMS:
            del self._shown_digests[next(iter(self._shown_digests))]
        return InputRequiredResult(
            input_requests={_CALL: approver.form(request)}, request_state=state
        )

    # --- what is offered ---

    def _own_tools(self) -> Iterator[OfferedTool]:
        """Yield the server's own two tools.

        Their hints are about all tools that a run may call.
        """
        effects = frozenset().union(*(spec.possible_effects for spec in self.tools.values()))
        (merged,) = to_mcp([ToolSpec(RUN, effects=effects)])
        common = {"annotations": merged["annotations"], "outputSchema": self._words["outcome"]}
        run, resume = self._words["tools"]
        run["description"] = run["description"].format(tools=", ".join(self.tools) or "none")
        properties = run["inputSchema"]["properties"]
        for key, names in (
            ("preset", PRESETS),
            ("require_tools", self.tools),
            ("profile", self.delegation.configuration.profiles),
        ):
            if names:
                properties[key].get("items", properties[key])["enum"] = list(names)
            else:
                del properties[key]
        for tool in (run, resume):
            yield OfferedTool.model_validate(tool | common)


def _disconnect_event(context: Context) -> anyio.Event:
    """Return the event that the client of a request has gone.

    It is never set if the SDK itself ends the request then.
    """
    scope: Mapping[str, Any] = getattr(context.request, "scope", {})
    event: anyio.Event = scope.get(DISCONNECTED) or anyio.Event()
    return event


def _read_answers(
    digests: Mapping[str, str], names: Collection[str], params: CallToolRequestParams
) -> dict[str, ApprovalAnswer] | None:
    """Return the answers about the calls with these digests.

    None if nobody decided about any.

    ``names`` are the calls for which yes must be typed.
    """
    responses = params.input_responses or {}
    answers = {
        call: read_answer(responses.get(call), digest, is_typed=call in names)
        for call, digest in digests.items()
    }
    return {call: answer for call, answer in answers.items() if answer.approved is not None} or None


def _build_questions(outcome: Outcome, approver: ClientApprover) -> InputRequiredResult | None:
    """Return what the client must ask before it makes the call again, None if nothing."""
    if not isinstance(outcome, Paused):
        return None
    request_by_call = {
        request.call_id: approver.requests.get(request.digest) for request in outcome.pending
    }
    forms = {
        call: approver.form(request)
        for call, request in request_by_call.items()
        if request is not None
    }
    if not forms:
        return None
    requests = {call: request for call, request in request_by_call.items() if request is not None}
    digests = {call: request.digest for call, request in requests.items()}
    typed = [call for call, request in requests.items() if request.omitted]
    state = json.dumps({"session": outcome.session, "digests": digests, "typed": typed})
    return InputRequiredResult(input_requests=dict(forms), request_state=state)


# --- results --------------------------------------------------------------------------------------


def _text_result(text: str, *, error: bool = False, structured: Any = None) -> CallToolResult:
    return CallToolResult(
        content=[TextContent(text=whole_characters(text))],
        structured_content=structured,
        is_error=error,
    )


def _outcome_result(outcome: Outcome) -> CallToolResult:
    """Return an outcome in words and as JSON."""
    structured = json.loads(to_text(outcome.to_json()))
    match outcome:
        case Answered():
            return _text_result(
                expand_citations(outcome.answer, outcome.sources), structured=structured
            )
        case Paused():
            names = ", ".join(call.name for call in outcome.pending)
            text = (
                f"paused: {names} waits for a person, who decides by: "
                f"mlx-tools sessions resume {outcome.session}"
            )
            return _text_result(text, structured=structured)
        case Stopped():
            text = stopped_in_words(outcome.records, advice=False)
            text = f"{text} (session {outcome.session})"
            return _text_result(text, structured=structured, error=True)
    raise AssertionError(outcome)


def _call_result(direct_call: DirectCall) -> CallToolResult:
    """Return a tool's result, or why there is none."""
    if direct_call.result is not None and direct_call.result.content is not None:
        text = direct_call.result.content
        return _text_result(text, structured=_parse_object(text))
    if direct_call.status == "pending":
        arguments = shlex.quote(to_text(dict(direct_call.arguments)))
        command = f"mlx-tools tools call {direct_call.name} {arguments}"
        return _text_result(
            f"not called: a person must approve it, or call it by: {command}", error=True
        )
    assert direct_call.error is not None
    preview = direct_call.preview[:_PREVIEW_CHARS]
    omitted = len(direct_call.preview) - len(preview)
    changes = f"\n{preview}" if preview else ""
    changes += f"\n({omitted} more characters)" if omitted else ""
    text = f"{direct_call.error.code}: {direct_call.error.message}{changes}"
    return _text_result(text, error=direct_call.status != "dry_run")


def _parse_object(text: str) -> dict[str, Any] | None:
    """Return the JSON object in a text, None if it is none."""
    if not text.startswith("{"):
        return None
    try:
        value = loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


# --- progress -------------------------------------------------------------------------------------


@dataclass
class _ProgressReporter:
    """Reports the events of a request to its client, if the client wants reports.

    ``line`` escapes.
    """

    context: Context
    line: Callable[[str], str]
    steps: int = 0

    async def report_event(self, event: Event) -> None:
        """Report an event of a run."""
        match event:
            case events.TurnStarted():
                await self.report_text(f"turn {event.turn}")
            case events.CallRead():
                await self.report_text(f"{event.name} {to_text(dict(event.arguments))}")
            case events.CallDecided() if event.decision != "allow":
                await self.report_text(f"{event.name}: {event.decision}: {event.reason}")
            case events.ToolProgress():
                await self.report_text(f"{event.name}: {event.message}")
            case events.ToolEnded():
                result = event.error.code if event.error is not None else "ok"
                await self.report_text(f"{event.name}: {result}")

    async def report_text(self, text: str) -> None:
        """Report a text on one line."""
        self.steps += 1
        shown = self.line(whole_characters(text))
        shown = shown if len(shown) <= _LINE else f"{shown[: _LINE - 1]}…"
        await self.context.session.report_progress(self.steps, message=shown)


# --- transports -----------------------------------------------------------------------------------


PATH: Final = "/mcp"

MAX_LINE: Final = 4 << 20
"""The most bytes of a message on standard input, as many as the SDK takes over HTTP."""

GRACE_SECONDS: Final = 3
"""Seconds that requests may take to end once the server is stopped.

A choice: runs are saved at every step, so little is lost, and a person waits for the prompt.
"""


_ESCAPES: Final = re.compile(
    r"(\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})|\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
)
"""In JSON: what stays, an escaped backslash or a surrogate pair; and half of a pair."""


def replace_halves(text: str) -> str:
    """Return JSON with U+FFFD in place of each half of a surrogate pair.

    JavaScript writes one if it cuts a text within an emoji. The SDK would answer nothing.
    """
    if r"\ud" not in text and r"\uD" not in text:
        return text
    return _ESCAPES.sub(lambda match: match[1] or r"\ufffd", text)


async def serve_stdio(served: McpServer, stdout: TextIO) -> None:
    """Serve the program that started this one, until it closes standard input.

    Nothing else may write to ``stdout``.
    """
    server = served.server()
    try:
        with _standard_input() as file:
            async with (
                _read_lines(file, served.delegation.note) as lines,
                stdio_server(lines, anyio.wrap_file(stdout)) as (read, write),
            ):
                await server.run(read, write, server.create_initialization_options())
    finally:
        await served.delegation.aclose()


@contextmanager
def _standard_input() -> Iterator[BinaryIO]:
    """Provide standard input; programs that are started meanwhile read from /dev/null."""
    original, nothing = os.dup(0), os.open(os.devnull, os.O_RDONLY)
    # Programs that tools start inherit descriptor 0: they must not read the protocol's bytes.
    os.dup2(nothing, 0)
    os.close(nothing)
    try:
        with os.fdopen(original, "rb", closefd=False) as file:
            yield file
    finally:
        os.set_blocking(original, True)
        os.dup2(original, 0)
        os.close(original)


@asynccontextmanager
async def _read_lines(file: BinaryIO, note: Callable[[str], None]) -> AsyncIterator[Any]:
    """Provide the lines of a file as texts."""
    mode = os.fstat(file.fileno()).st_mode
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or file.isatty()):
        yield anyio.wrap_file(io.TextIOWrapper(file, "utf-8", "replace"))  # reading never waits
        return
    reader, loop = asyncio.StreamReader(limit=MAX_LINE), asyncio.get_running_loop()
    pipe = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), file)
    try:
        yield _lines(reader, note)
    finally:
        pipe[0].close()


async def _lines(reader: asyncio.StreamReader, note: Callable[[str], None]) -> AsyncIterator[str]:
    """Yield the lines of a pipe; a line longer than `MAX_LINE` ends them.

    Unlike a thread that reads, it can be stopped.
    """
    try:
        while line := await reader.readline():
            yield replace_halves(line.decode("utf-8", "replace"))
    except ValueError:
        note(f"a message of the client has more than {MAX_LINE} bytes, so the connection ends")


async def serve_http(
    served: McpServer, host: str, port: int, door: AccessRules, note: Callable[[str], None]
) -> None:
    """Serve the clients that ``door`` admits, until stopped.

    Raises:
        UsageError: the port cannot be used.
    """
    config = ServerConfig(http_application(served, door), GRACE_SECONDS)
    try:
        with listen(host, port) as listening:
            name, port = listening.getsockname()[:2]
            note(f"served at http://{f'[{name}]' if ':' in name else name}:{port}{PATH}")
            await uvicorn.Server(config).serve(sockets=[listening])
    finally:
        await served.delegation.aclose()


def http_application(served: McpServer, door: AccessRules) -> Any:
    """Return the server as an ASGI application with access rules.

    The SDK gets its names and origins.
    """
    names = [f"[{name}]" if ":" in name else name for name in {*LOCAL_NAMES, *door.hosts}]
    local_origins = [f"{scheme}://{name}" for scheme in ("http", "https") for name in names]
    security = TransportSecuritySettings(
        allowed_hosts=[*names, *(f"{name}:*" for name in names)],
        allowed_origins=[
            *local_origins,
            *(f"{origin}:*" for origin in local_origins),
            *door.origins,
        ],
    )
    app: Starlette = served.server().streamable_http_app(
        streamable_http_path=PATH, transport_security=security
    )
    app.user_middleware = [
        Middleware(Guard, door=door, error_body=_refusal_response),
        Middleware(
            CORSMiddleware,
            allow_origins=list(door.origins),
            allow_private_network=True,  # only for these origins
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"],
            expose_headers=["mcp-session-id"],
        ),
        Middleware(_CancelOnDisconnect),
        *app.user_middleware,
    ]
    return app


def _refusal_response(refusal: Refusal) -> dict[str, Any]:
    error = {"code": -32000, "message": refusal.message}
    return {"jsonrpc": "2.0", "id": None, "error": error}


class _CancelOnDisconnect:
    """Tells a request's work that its client has gone.

    The SDK would continue the work of a session then, for a client that comes back for the answer.
    Here there is none to come back for.
    """

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        scope[DISCONNECTED] = left = anyio.Event()

        async def receive_and_watch() -> Any:
            message = await receive()
            if message["type"] == "http.disconnect":
                left.set()
            return message

        await self._app(scope, receive_and_watch, send)
