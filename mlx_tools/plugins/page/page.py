"""The page: HTML, forms that are posted, and events of steps.

Every form works without the script, which only shows the steps of a running run as they come.
Before a person's key was given, only the style and the form for that key are shown, and nothing
else is accepted. A posted form must come from a page of this very address.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl

import anyio
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from mlx_tools.app import (
    STYLESHEET,
    Html,
    admit,
    build_steps,
    escape_invisible,
    is_own_origin,
    templates,
)
from mlx_tools.controller import ApprovalAnswer
from mlx_tools.errors import MlxToolsError, TranscriptError, UsageError
from mlx_tools.gateway import (
    BODY_SECONDS,
    MAX_BODY,
    MAX_UNKNOWN_BODY,
    UNKNOWN_BODY_SECONDS,
    ApiError,
    EventStream,
    ServedModels,
    json_object,
    read_body,
    server_sent,
)
from mlx_tools.paths import package_file, state_dir
from mlx_tools.plugins.page.gateway_runs import END_STATUSES, RunRow, Runs, read_run
from mlx_tools.plugins.page.markdown import draw_markdown
from mlx_tools.plugins.page.session_titles import SessionTitles
from mlx_tools.plugins.page.shown import (
    WaitingCall,
    diff_lines,
    edited_call,
    encode_records,
    is_shown_whole,
    model_rows,
    search_sessions,
    session_shown,
    tool_rows,
    undo_rows,
)
from mlx_tools.plugins.page.shown_sessions import PageSessions
from mlx_tools.policy import equal_digests

PATH: Final = "/page/"
"""The path of all but the first page."""

_FOLDER: Final = package_file("plugins/page")
_FILES: Final = {
    "look.css": STYLESHEET,
    **{name: _FOLDER / name for name in ("page.css", "page.js", "icon.svg")},
}
_HEADERS: Final = {
    "content-security-policy": "default-src 'none'; style-src 'self'; script-src 'self'; "
    "connect-src 'self'; img-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
}
_FIELDS: Final = 250
"""Fields of a form: one for each tool that may be chosen, and some more."""

COOKIE: Final = "mlx_tools_person"
HOLDS: Final = 30 * 86_400
"""Seconds for which a browser is remembered."""

Fields = Mapping[str, str]
Keep = Callable[[str, str], Path]
"""Stores a session as a golden transcript of this name, and returns its path. Blocks. Raises
`MlxToolsError`."""


class Person:
    """A person, known by the secret of the sessions; ``now`` is in seconds since 1970.

    A client may not decide about its own calls, so its key opens nothing here. A person's key is
    derived from the secret of the sessions, which only this user can read: anyone who has it could
    decide at a terminal too. The key is given to the page once; later a cookie replaces it.
    """

    def __init__(self, secret: bytes, now: Callable[[], float]) -> None:
        self._secret, self._now = secret, now
        self.key = self._sealed("key")[:40]

    def admit(self, response: Response, *, https: bool) -> None:
        """Set the cookie by which the browser is recognised from now on."""
        until = str(int(self._now()) + HOLDS)
        value = f"{until}.{self._sealed(f'cookie {until}')}"
        response.set_cookie(
            COOKIE, value, max_age=HOLDS, secure=https, httponly=True, samesite="strict"
        )

    def is_at(self, request: Request) -> bool:
        """Return whether the request comes from a browser that was admitted."""
        until, _, seal = request.cookies.get(COOKIE, "").partition(".")
        if not equal_digests(seal, self._sealed(f"cookie {until}")):
            return False
        return int(until) > self._now()

    def _sealed(self, message: str) -> str:
        text = f"the page: {message}".encode(errors="surrogatepass")
        return hmac.new(self._secret, text, hashlib.sha256).hexdigest()


class Page:
    """The page of a gateway for one person. ``keep`` stores golden transcripts."""

    def __init__(
        self,
        runs: Runs,
        models: ServedModels,
        person: Person,
        keep: Keep,
        titles: SessionTitles | None = None,
    ) -> None:
        self._runs, self._models, self._person, self._keep = runs, models, person, keep
        self._titles = titles or SessionTitles(state_dir() / "page_titles.json")
        self._owner = runs.owner(person.key)
        self._sessions = PageSessions(runs, self._owner)

    def routes(self) -> list[BaseRoute]:
        """Return the routes, each behind the person's key."""
        seen = {
            "/": self._first,
            f"{PATH}sessions": self._search,
            f"{PATH}sessions/{{id}}": self._session,
            f"{PATH}sessions/{{id}}/transcript": self._transcript,
            f"{PATH}sessions/{{id}}/undo": self._undo_offered,
            f"{PATH}tools": self._tools,
            f"{PATH}models": self._show_models,
        }
        posted = {
            f"{PATH}ask": self._ask,
            f"{PATH}sessions/{{id}}/decide": self._decide,
            f"{PATH}sessions/{{id}}/look_again": self._look_again,
            f"{PATH}sessions/{{id}}/continue": self._continue,
            f"{PATH}sessions/{{id}}/cancel": self._cancel,
            f"{PATH}sessions/{{id}}/golden": self._golden,
            f"{PATH}sessions/{{id}}/undo": self._undo,
            f"{PATH}sessions/{{id}}/rename": self._rename,
            f"{PATH}sessions/{{id}}/delete": self._delete,
        }
        return [
            *(
                Route(path, self._require_person(page), methods=["GET"])
                for path, page in seen.items()
            ),
            *(Route(path, self._taking(take), methods=["POST"]) for path, take in posted.items()),
            Route(f"{PATH}key", self._admit, methods=["POST"]),
            Route(f"{PATH}sessions/{{id}}/live", self._live),
            Route(f"{PATH}{{name}}", _file, methods=["GET"]),
        ]

    # --- who may ---

    def _require_person(
        self, page: Callable[[Request], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        async def respond(request: Request) -> Response:
            if not self._is_person(request):
                return _html("key.html.j2", 401, wrong=False)
            try:
                return await page(request)
            except ApiError as error:
                return _html("problem.html.j2", error.status, problem=error.message)
            except MlxToolsError as error:
                status = 400 if isinstance(error, UsageError) else 500
                return _html("problem.html.j2", status, problem=str(error))

        return respond

    def _taking(
        self, take: Callable[[Request, Fields], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        async def respond(request: Request) -> Response:
            return await take(request, await _fields(request))

        return self._require_person(respond)

    def _is_person(self, request: Request) -> bool:
        """Return whether the request is the person's.

        If so, the connection counts as one with a key.
        """
        is_person = self._person.is_at(request)
        if is_person:
            admit(request.scope)
        return is_person

    async def _admit(self, request: Request) -> Response:
        bounds = MAX_UNKNOWN_BODY, UNKNOWN_BODY_SECONDS
        try:
            given = (await _fields(request, *bounds)).get("key", "").strip()
        except ApiError as error:
            return _html("problem.html.j2", error.status, problem=error.message)
        if not equal_digests(given, self._person.key):
            return _html("key.html.j2", 401, wrong=True)
        response = _redirect("/")
        self._person.admit(response, https=request.url.scheme == "https")
        return response

    # --- asking ---

    async def _first(self, request: Request, problem: str = "", question: str = "") -> Response:
        found = await anyio.to_thread.run_sync(search_sessions, self._runs.sessions, "", "")
        tools = await self._tool_rows() if "tools" in request.query_params else None
        return _html(
            "ask.html.j2",
            400 if problem else 200,
            titles=await anyio.to_thread.run_sync(self._titles.all),
            tools=None if tools is None else [row for row in tools if not row["off"]],
            roots=self._runs.execution.roots,
            models=[row["id"] for row in self._models.rows()],
            waiting=[one for one in found.rows if one.status.state == "paused"],
            last=found.rows[:8],
            problem=problem,
            question=question,
        )

    async def _ask(self, request: Request, fields: Fields) -> Response:
        body: dict[str, Any] = {n: fields[n] for n in ("question", "model") if fields.get(n)}
        if fields.get("root"):
            body["roots"] = [fields["root"]]
        offered = [name for name in fields.get("offered", "").split(",") if name]
        chosen = [name for name in offered if f"tool.{name}" in fields]
        if chosen != offered:
            body["tools"] = chosen
        try:
            run_request = await anyio.to_thread.run_sync(read_run, body)
            row, _ = await self._runs.create(self._owner, body, run_request, None)
        except ApiError as error:
            return await self._first(request, error.message, fields.get("question", ""))
        return _redirect(f"{PATH}sessions/{row.id}")

    # --- sessions ---

    async def _search(self, request: Request) -> Response:
        query, after = (request.query_params.get(name, "") for name in ("q", "after"))
        titles = await anyio.to_thread.run_sync(self._titles.all)
        search = functools.partial(search_sessions, titles=titles)
        found = await anyio.to_thread.run_sync(search, self._runs.sessions, query, after)
        return _html("sessions.html.j2", query=query, found=found, titles=titles)

    async def _session(
        self,
        request: Request,
        *,
        problem: str = "",
        done: str = "",
        look: WaitingCall | None = None,
    ) -> Response:
        start = _number(request.query_params.get("from"))
        session = request.path_params["id"]
        titles = await anyio.to_thread.run_sync(self._titles.all)
        shown = await session_shown(self._sessions, session, start, titles.get(session, ""))
        waiting = [look if look and look.call == one.call else one for one in shown.waiting]
        return await anyio.to_thread.run_sync(
            lambda: _html(
                "session.html.j2",
                409 if problem else 200,
                shown=shown,
                waiting=waiting,
                problem=problem or shown.problem,
                done=done,
            )
        )

    async def _transcript(self, request: Request) -> Response:
        session = request.path_params["id"]
        _, records, _ = await self._sessions.read_status(session)
        name = {"content-disposition": f'attachment; filename="{session}.jsonl"'}
        text = await anyio.to_thread.run_sync(encode_records, records)
        return Response(text, 200, _HEADERS | name, "application/x-ndjson")

    async def _live(self, request: Request) -> Response:
        """Stream the steps of a run as HTML, and the text being written as text.

        The last event says that the run has come to rest.
        """
        if not self._is_person(request):
            return Response(status_code=401)
        after = request.headers.get("last-event-id") or request.query_params.get("after")
        steps = self._steps(await self._row(request), _number(after) or 0)
        return EventStream(steps, _HEADERS)

    async def _steps(self, row: RunRow, step_count: int) -> AsyncGenerator[str | None]:
        ends = (*END_STATUSES, "paused")
        events = self._runs.follow(row, step_count, ends, with_formed=True)
        async with aclosing(events) as follows:
            async for told in follows:
                if told is None:
                    yield None
                    continue
                number, event = told
                if number is not None:
                    _, records = await self._runs.read_status(row)
                    html, said = _steps(records[step_count:number])
                    data, step_count = {"html": html, "said": said}, number
                    yield f"id: {number}\n" + server_sent(data, "steps")
                elif (piece := _piece(event)) is not None:
                    yield server_sent(piece, "piece")
        yield server_sent({}, "rest")

    async def _row(self, request: Request) -> RunRow:
        return await self._runs.find(None, request.path_params["id"])

    async def _done(self, request: Request, act: Awaitable[None]) -> Response:
        """Do something with a session, and show the session, or the error."""
        try:
            await act
        except ApiError as error:
            return await self._session(request, problem=error.message)
        return _redirect(f"{PATH}sessions/{request.path_params['id']}")

    async def _decide(self, request: Request, fields: Fields) -> Response:
        session, call = request.path_params["id"], fields.get("call", "")
        given, decision = fields.get("arguments"), fields.get("decision", "")
        if decision == "look":
            try:
                edited = await edited_call(self._sessions, session, call, given or "")
            except (ApiError, UsageError) as error:
                return await self._session(request, problem=str(error))
            return await self._session(request, look=edited)
        reason, digest = fields.get("reason", "").strip(), fields.get("digest", "")
        if decision == "deny":
            answer = ApprovalAnswer(False, reason or "the user said no")
        elif decision in ("approve", "session") and digest:
            arguments = None if given is None else json_object(given, "The arguments are")
            if fields.get("typed", "").strip().lower() != "yes":
                try:
                    shown = await is_shown_whole(self._sessions, session, call, arguments, digest)
                except (ApiError, UsageError) as error:
                    return await self._session(request, problem=str(error))
                if not shown:
                    problem = "Type yes to approve what is not shown"
                    return await self._session(request, problem=problem)
            said = "approved at the page"
            answer = ApprovalAnswer(True, said, arguments, decision == "session", digest)
        else:
            raise ApiError(400, "invalid_value", "decision: approve, session, deny or look")
        return await self._done(request, self._sessions.resume(session, call, answer))

    async def _look_again(self, request: Request, fields: Fields) -> Response:
        session = request.path_params["id"]
        return await self._done(request, self._sessions.resume(session, "", None))

    async def _continue(self, request: Request, fields: Fields) -> Response:
        row, question = await self._row(request), fields.get("question", "")
        if not question.strip():
            return await self._session(request, problem="there is no question")
        return await self._done(request, self._runs.ask(row, question))

    async def _cancel(self, request: Request, fields: Fields) -> Response:
        return await self._done(request, self._runs.cancel(await self._row(request)))

    async def _golden(self, request: Request, fields: Fields) -> Response:
        name = fields.get("name", "").strip()
        keep = functools.partial(self._keep, request.path_params["id"], name)
        try:
            path = await anyio.to_thread.run_sync(keep)
        except MlxToolsError as error:
            return await self._session(request, problem=str(error))
        return await self._session(request, done=f"Kept as a golden transcript: {path}")

    async def _undo_offered(self, request: Request) -> Response:
        return await self._undo_shown(request, act=False)

    async def _undo(self, request: Request, fields: Fields) -> Response:
        return await self._undo_shown(request, act=True)

    async def _undo_shown(self, request: Request, *, act: bool) -> Response:
        """Show what can be undone of a session, or with ``act`` what was undone."""
        session, rows, problem = request.path_params["id"], list[dict[str, str]](), ""
        await self._sessions.read_status(session)
        undo = functools.partial(undo_rows, self._runs.sessions, session, act=act)
        try:
            rows = await anyio.to_thread.run_sync(undo)
        except (TranscriptError, UsageError) as error:
            problem = str(error)
        states = [row["status"] for row in rows]
        undone = states.count("undone")
        return _html(
            "undo.html.j2",
            409 if problem else 200,
            session=session,
            steps=rows,
            due=states.count("due"),
            problem=problem,
            done=f"Undone: {undone} of {len(rows)}" if act and rows else "",
        )

    async def _rename(self, request: Request, fields: Fields) -> Response:
        session, title = request.path_params["id"], fields.get("title", "")
        await self._sessions.read_status(session)
        await anyio.to_thread.run_sync(self._titles.set, session, title)
        return _redirect(f"{PATH}sessions/{session}")

    async def _delete(self, request: Request, fields: Fields) -> Response:
        session = request.path_params["id"]
        await self._sessions.read_status(session)
        if fields.get("sure", "").strip().lower() != "yes":
            return await self._session(request, problem="Type yes to delete the session")
        remove = functools.partial(self._runs.sessions.remove, session, force=True)
        try:
            removed = await anyio.to_thread.run_sync(remove)
        except TranscriptError as error:
            return await self._session(request, problem=str(error))
        if not removed:
            return await self._session(request, problem="It is in use: stop it first")
        await anyio.to_thread.run_sync(self._titles.set, session, "")
        return _redirect(f"{PATH}sessions")

    # --- what there is ---

    async def _tools(self, request: Request) -> Response:
        return _html("tools.html.j2", tools=await self._tool_rows())

    async def _tool_rows(self) -> list[dict[str, Any]]:
        registry, policy = (
            self._runs.execution.make_registry(None),
            self._runs.execution.configuration.policy(),
        )
        try:
            return await anyio.to_thread.run_sync(tool_rows, registry, policy)
        finally:
            await registry.aclose()

    async def _show_models(self, request: Request) -> Response:
        return _html("models.html.j2", models=model_rows(self._models.runners()))


def _steps(records: Any) -> tuple[str, str]:
    """Return records as HTML, and the last step in a few words."""
    steps = build_steps(records)
    html = _templates().get_template("live.html.j2").render(steps=steps)
    said = f"{steps[-1].label} {steps[-1].title}" if steps else ""
    return html, escape_invisible(said[:200])


_FORMS: Final = {"answer_piece": "Answer", "thought_piece": "Thought", "arguments_piece": "Call"}


def _piece(event: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a delta as text under a label.

    If ``whole`` is set, the text is all that the model wrote so far.
    """
    whole = {"whole": True} if event.get("whole") and event["type"] != "arguments_piece" else {}
    if event["type"] == "call_opened":
        return {"label": "Call", "text": f"{escape_invisible(event['name'])} ", **whole}
    label = _FORMS.get(event["type"])
    if label is None:
        return None
    return {"label": label, "text": escape_invisible(event["text"]), **whole}


async def _fields(
    request: Request, max_bytes: int = MAX_BODY, seconds: float = BODY_SECONDS
) -> Fields:
    """Read the fields of a form that was posted by a page of this very address.

    Its bytes and seconds are limited. Raises `ApiError`.
    """
    origin = request.headers.get("origin", "")
    if not is_own_origin(origin, request.headers.get("host", "")):
        raise ApiError(403, "origin_not_allowed", "forms are taken from this page alone")
    body = await read_body(request, "application/x-www-form-urlencoded", max_bytes, seconds)
    try:
        pairs = parse_qsl(body.decode(), True, max_num_fields=_FIELDS)
    except ValueError as error:
        raise ApiError(400, "invalid_value", f"the form cannot be read: {error}") from None
    return {name: value.replace("\r\n", "\n") for name, value in pairs}


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() and len(text) < 10 else None


async def _file(request: Request) -> Response:
    path = _FILES.get(request.path_params["name"])
    if path is None:
        return _html("problem.html.j2", 404, problem="There is no such page.")
    return FileResponse(path, headers=_HEADERS | {"cache-control": "no-cache"})


def _html(name: str, status: int = 200, **values: Any) -> Response:
    text = _templates().get_template(name).render(**values)
    headers = _HEADERS | {"cache-control": "no-store"}
    return HTMLResponse(text.encode(errors="replace"), status, headers)


def _redirect(path: str) -> Response:
    return RedirectResponse(path, 303, _HEADERS)


@functools.cache
def _templates() -> Any:
    environment = templates(_FOLDER)
    environment.globals |= {"diff_lines": diff_lines, "utc": _utc}
    environment.filters["drawn"] = draw_markdown
    # the person's own file, unchanged
    environment.filters["typed"] = lambda text: Html(escape(text))
    return environment


def _utc(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%SZ}"
