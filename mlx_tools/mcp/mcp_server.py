"""What a client is offered: `llm_with_tools`, `resume_run`, and each tool that the policy permits.

Every call is decided about as on the command line, and leaves a session. What a client wrote
chooses among what the server was started with, and answers for nothing.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import secrets
import shlex
import stat
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
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
from mlx_tools.mcp.delegation import DelegatedRun, Delegation, until_left
from mlx_tools.mcp.elicitation import (
    PATIENCE,
    ApprovalText,
    ClientApprover,
    answer_of,
    key_of,
    way_of,
)
from mlx_tools.messages import ToolSpec
from mlx_tools.paths import read_data
from mlx_tools.policy import PRESETS, can_be_allowed
from mlx_tools.prompt import is_on_demand
from mlx_tools.protocol import strict
from mlx_tools.schema import faults, join_faults, limit_steps, validator_for
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
LEFT: Final = "mlx_tools.left"
"""The event in a request's scope that says that its client has gone."""

HOW: Final = "mcp"
"""What the header of a tool's call says of how it came about."""

_CALL: Final = "call"
_KEPT: Final = 256
"""Calls of tools that wait for their forms; the oldest are dropped."""
_LINE: Final = 300
_PREVIEW_CHARS: Final = 40_000
"""Of what a dry run would have changed: a model is shown it here, and nobody decides by it."""


@dataclass
class McpServer:
    """The server's part of each request. ``by_person``: what a client answers in a form is said by
    a person, since not everybody on this machine can be that client.

    Raises `UsageError` where a permitted tool has the name of one of ours.
    """

    delegation: Delegation
    wording: ApprovalText
    by_person: bool
    tools: dict[str, ToolSpec] = field(init=False)

    def __post_init__(self) -> None:
        registry, policy = self.delegation.registry, self.delegation.policy
        self.tools = {
            name: spec
            for name, spec in registry.specs().items()
            if can_be_allowed(policy, spec) and not is_on_demand(spec)
        }
        if taken := {RUN, RESUME} & self.tools.keys():
            name = min(taken)
            raise UsageError(f"a tool is called {name}, as one of the server's own", hint="deny it")
        slots = self.delegation.configuration.settings.gateway.concurrency
        self._runs, self._calls = anyio.CapacityLimiter(slots), anyio.CapacityLimiter(slots)
        self._shown_digests: dict[str, str] = {}
        self._words = json.loads(read_data("prompts/mcp.json"))
        self._offered = {one.name: one for one in self._own_tools()}
        found = to_mcp(self.tools.values())
        self._offered |= {one["name"]: OfferedTool.model_validate(one) for one in found}

    def server(self) -> Server[Any]:
        """It, as the SDK serves it."""
        made: Server[Any] = Server(
            "mlx-tools",
            version=VERSION,
            instructions=self._words["instructions"],
            on_list_tools=self._list,
            on_call_tool=self._call,
        )
        security = RequestStateSecurity.ephemeral(ttl=PATIENCE)
        made.middleware.append(RequestStateBoundary(security, default_audience=made.name))
        return made

    async def _list(self, context: Context, params: PaginatedRequestParams | None) -> Any:
        return ListToolsResult(tools=list(self._offered.values()))

    async def _call(self, context: Context, params: CallToolRequestParams) -> Result:
        if params.name not in self._offered:
            raise MCPError(code=INVALID_PARAMS, message=f"Unknown tool: {params.name[:100]}")
        own = params.name in (RUN, RESUME)
        limiter = self._runs if own else self._calls
        if limiter.statistics().tasks_waiting >= WAITING:
            return _text_result("too many calls wait already: try again later", error=True)
        approver = self._approver(context)
        try:
            async with limiter:
                call = self._run if own else self._direct
                return await call(context, params, approver)
        except MlxToolsError as error:
            return _text_result(str(error), error=True)

    def _approver(self, context: Context) -> ClientApprover:
        """Who decides about what one request leads to: a client that anybody on this machine may
        be answers for nothing, unless the user's own settings say so."""
        settings = self.delegation.configuration.settings
        asks = self.by_person or settings.gateway.approvals == "client"
        way = way_of(context) if asks and settings.policy.approve != "never" else "no"
        always = settings.policy.approve == "always"
        return ClientApprover(context, self.wording, way, always)

    # --- runs ---

    async def _run(
        self, context: Context, params: CallToolRequestParams, approver: ClientApprover
    ) -> Result:
        arguments, delegation = params.arguments or {}, self.delegation
        schema = self._offered[params.name].input_schema
        with limit_steps():
            wrong = join_faults(faults(validator_for(schema), arguments, 5))
        if wrong:
            raise UsageError(f"the arguments do not fit {params.name}: {wrong}")
        tell = _ProgressReporter(context, self.wording.line)
        more: dict[str, Any] = {
            "approver": approver,
            "see": tell.see,
            "disconnected": _disconnect_event(context),
        }
        if params.request_state is not None:
            begun = json.loads(params.request_state)
            answers = _answers(begun["digests"], begun["typed"], params)
            outcome = await delegation.resume(begun["session"], answers=answers, **more)
        elif params.name == RESUME:
            outcome = await delegation.resume(arguments["session"], **more)
        else:
            outcome = await delegation.run(DelegatedRun(**arguments), **more)
        return _asking(outcome, approver) or _outcome_result(outcome)

    # --- tools ---

    async def _direct(
        self, context: Context, params: CallToolRequestParams, approver: ClientApprover
    ) -> Result:
        if params.request_state is not None:
            shown = self._shown_digests.pop(params.request_state, "")  # what was approved is, once
            approver.response = shown, (params.input_responses or {}).get(_CALL)
        tell = _ProgressReporter(context, self.wording.line)

        async def work(tasks: TaskGroup) -> DirectCall:
            def report(progress: Progress) -> None:
                tasks.start_soon(tell.say, f"{params.name}: {progress.message}")

            done, _ = await call_recorded(
                self.delegation.configuration,
                self.delegation.registry,
                params.name,
                params.arguments or {},
                source=HOW,
                approver=approver,
                on_progress=report,
            )
            return done

        done = await until_left(_disconnect_event(context), work)
        if done.status != "pending" or not approver.requests:
            return _called(done)
        (request,) = approver.requests.values()
        state = secrets.token_hex(16)
        self._shown_digests[state] = key_of(request)
        while len(self._shown_digests) > _KEPT:
            del self._shown_digests[next(iter(self._shown_digests))]
        return InputRequiredResult(
            input_requests={_CALL: approver.form(request)}, request_state=state
        )

    # --- what is offered ---

    def _own_tools(self) -> Iterator[OfferedTool]:
        """Our two tools. Their hints are of all that a run may call."""
        effects = frozenset().union(*(spec.possible_effects for spec in self.tools.values()))
        (made,) = to_mcp([ToolSpec(RUN, effects=effects)])
        more = {"annotations": made["annotations"], "outputSchema": self._words["outcome"]}
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
            yield OfferedTool.model_validate(tool | more)


def _disconnect_event(context: Context) -> anyio.Event:
    """The event that the client of a request has gone; one that never comes where the SDK itself
    ends the request then."""
    scope: Mapping[str, Any] = getattr(context.request, "scope", {})
    event: anyio.Event = scope.get(LEFT) or anyio.Event()
    return event


def _answers(
    digests: Mapping[str, str], names: Collection[str], params: CallToolRequestParams
) -> dict[str, ApprovalAnswer] | None:
    """What was said of the calls with these digests, None where nobody decided about any.
    ``names``: the calls to which yes must be typed out."""
    said = params.input_responses or {}
    answers = {
        call: answer_of(said.get(call), digest, is_typed=call in names)
        for call, digest in digests.items()
    }
    return {call: one for call, one in answers.items() if one.approved is not None} or None


def _asking(outcome: Outcome, approver: ClientApprover) -> InputRequiredResult | None:
    """What the client is to ask before it makes the call again, None where that is nothing."""
    if not isinstance(outcome, Paused):
        return None
    asked = {one.call_id: approver.requests.get(one.digest) for one in outcome.pending}
    forms = {call: approver.form(one) for call, one in asked.items() if one is not None}
    if not forms:
        return None
    requests = {call: one for call, one in asked.items() if one is not None}
    digests = {call: one.digest for call, one in requests.items()}
    typed = [call for call, one in requests.items() if one.omitted]
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
    """An outcome: in words, and as JSON."""
    whole = json.loads(to_text(outcome.to_json()))
    match outcome:
        case Answered():
            return _text_result(expand_citations(outcome.answer, outcome.sources), structured=whole)
        case Paused():
            names = ", ".join(one.name for one in outcome.pending)
            text = (
                f"paused: {names} waits for a person, who decides by: "
                f"mlx-tools sessions resume {outcome.session}"
            )
            return _text_result(text, structured=whole)
        case Stopped():
            text = f"{stopped_in_words(outcome.records)} (session {outcome.session})"
            return _text_result(text, structured=whole, error=True)
    raise AssertionError(outcome)


def _called(done: DirectCall) -> CallToolResult:
    """A tool's result, or why there is none."""
    if done.result is not None and done.result.content is not None:
        text = done.result.content
        return _text_result(text, structured=_object_in(text))
    if done.status == "pending":
        arguments = shlex.quote(to_text(dict(done.arguments)))
        how = f"mlx-tools tools call {done.name} {arguments}"
        return _text_result(
            f"not called: a person must approve it, or call it by: {how}", error=True
        )
    assert done.error is not None
    shown = done.preview[:_PREVIEW_CHARS]
    left = len(done.preview) - len(shown)
    changes = f"\n{shown}" if shown else ""
    changes += f"\n({left} more characters)" if left else ""
    text = f"{done.error.code}: {done.error.message}{changes}"
    return _text_result(text, error=done.status != "dry_run")


def _object_in(text: str) -> dict[str, Any] | None:
    """The JSON object that a text is, None where it is none."""
    if not text.startswith("{"):
        return None
    try:
        found = strict.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


# --- progress -------------------------------------------------------------------------------------


@dataclass
class _ProgressReporter:
    """Tells a client what happens in its request, where it asked for that. ``line`` escapes."""

    context: Context
    line: Callable[[str], str]
    steps: int = 0

    async def see(self, event: Event) -> None:
        """Tell an event of a run."""
        match event:
            case events.TurnStarted():
                await self.say(f"turn {event.turn}")
            case events.CallRead():
                await self.say(f"{event.name} {to_text(dict(event.arguments))}")
            case events.CallDecided() if event.decision != "allow":
                await self.say(f"{event.name}: {event.decision}: {event.reason}")
            case events.ToolProgress():
                await self.say(f"{event.name}: {event.message}")
            case events.ToolEnded():
                how = event.error.code if event.error is not None else "ok"
                await self.say(f"{event.name}: {how}")

    async def say(self, text: str) -> None:
        """Tell the client a text, on one line."""
        self.steps += 1
        shown = self.line(whole_characters(text))
        shown = shown if len(shown) <= _LINE else f"{shown[: _LINE - 1]}…"
        await self.context.session.report_progress(self.steps, message=shown)


# --- transports -----------------------------------------------------------------------------------


PATH: Final = "/mcp"

MAX_LINE: Final = 4 << 20
"""Bytes of a message on standard input, as many as the SDK takes over HTTP."""

GRACE_SECONDS: Final = 3
"""How long requests may take to end once the server is told to."""


async def serve_stdio(served: McpServer, stdout: TextIO) -> None:
    """Serve the program that started this one, until it closes standard input. Nothing else may
    write to ``stdout``."""
    server = served.server()
    try:
        with _standard_input() as file:
            async with (
                _lines_of(file) as lines,
                stdio_server(lines, anyio.wrap_file(stdout)) as (read, write),
            ):
                await server.run(read, write, server.create_initialization_options())
    finally:
        await served.delegation.aclose()


@contextmanager
def _standard_input() -> Iterator[BinaryIO]:
    """Standard input, which nothing that is started meanwhile can read from."""
    own, nothing = os.dup(0), os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    try:
        with os.fdopen(own, "rb", closefd=False) as file:
            yield file
    finally:
        os.set_blocking(own, True)
        os.dup2(own, 0)
        os.close(own)


@asynccontextmanager
async def _lines_of(file: BinaryIO) -> AsyncIterator[Any]:
    """The lines of a file as texts."""
    mode = os.fstat(file.fileno()).st_mode
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or file.isatty()):
        yield anyio.wrap_file(io.TextIOWrapper(file, "utf-8", "replace"))  # it never waits
        return
    reader, loop = asyncio.StreamReader(limit=MAX_LINE), asyncio.get_running_loop()
    made = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), file)
    try:
        yield _lines(reader)
    finally:
        made[0].close()


async def _lines(reader: asyncio.StreamReader) -> AsyncIterator[str]:
    """The lines of a pipe, none longer than `MAX_LINE`: who sends a longer one is heard no more.
    Unlike a thread that reads, it can be stopped."""
    with suppress(ValueError):
        while line := await reader.readline():
            yield line.decode("utf-8", "replace")


async def serve_http(
    served: McpServer, host: str, port: int, door: AccessRules, note: Callable[[str], None]
) -> None:
    """Serve whoever the door lets in, until stopped. Raises `UsageError` where the port cannot be
    had."""
    config = ServerConfig(http_application(served, door), GRACE_SECONDS)
    try:
        with listen(host, port) as listening:
            own, port = listening.getsockname()[:2]
            note(f"served at http://{f'[{own}]' if ':' in own else own}:{port}{PATH}")
            await uvicorn.Server(config).serve(sockets=[listening])
    finally:
        await served.delegation.aclose()


def http_application(served: McpServer, door: AccessRules) -> Any:
    """The server as an ASGI application behind a door. The SDK is told its names and pages."""
    names = [f"[{name}]" if ":" in name else name for name in {*LOCAL_NAMES, *door.hosts}]
    own = [f"{scheme}://{name}" for scheme in ("http", "https") for name in names]
    security = TransportSecuritySettings(
        allowed_hosts=[*names, *(f"{name}:*" for name in names)],
        allowed_origins=[*own, *(f"{origin}:*" for origin in own), *door.origins],
    )
    app: Starlette = served.server().streamable_http_app(
        streamable_http_path=PATH, transport_security=security
    )
    app.user_middleware = [
        Middleware(Guard, door=door, error_body=_refusal_response),
        Middleware(
            CORSMiddleware,
            allow_origins=list(door.origins),
            allow_private_network=True,  # of these origins alone
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
    """Tells a request's work that its client has gone. The SDK keeps the work of a session going
    then, for a client that comes back for the answer; here there is none to come back for."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        scope[LEFT] = left = anyio.Event()

        async def received() -> Any:
            message = await receive()
            if message["type"] == "http.disconnect":
                left.set()
            return message

        await self._app(scope, received, send)
