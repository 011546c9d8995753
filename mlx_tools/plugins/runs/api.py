"""The routes of ``/v1/runs``, with its event stream and its WebSocket."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from functools import partial
from typing import Any, Final

import anyio
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from mlx_tools.errors import MlxToolsError, StorageError
from mlx_tools.gateway import (
    SEND_SECONDS,
    ApiError,
    EventStream,
    JsonObject,
    as_api_error,
    invalid,
    json_body,
    json_object,
    left_out_headers,
    openai_error,
    read,
    server_sent,
)
from mlx_tools.messages import json_line
from mlx_tools.plugins.runs.body import ApprovalBody, ContinueBody, ResultBody, read_run
from mlx_tools.plugins.runs.rows import RunRow
from mlx_tools.plugins.runs.runs import Runs, in_thread

RUN_BODIES: Final = {
    "approvals": ApprovalBody,
    "tool_results": ResultBody,
    "continue": ContinueBody,
}
"""The actions that may be posted to a run, with the body of each; ``cancel`` takes none."""

_MAX_KEY_CHARS: Final = 255
_MAX_PAGE: Final = 100


def run_routes(runs: Runs) -> list[BaseRoute]:
    """Return the routes of runs."""

    async def create(request: Request) -> Response:
        body = await json_body(request)
        key = request.headers.get("idempotency-key")
        if key is not None and not 0 < len(key) <= _MAX_KEY_CHARS:
            raise invalid("Idempotency-Key", f"1 to {_MAX_KEY_CHARS} characters")
        run_request = await in_thread(read_run, body)
        row, new = await runs.create(_owner(runs, request), body, run_request, key)
        headers = {"location": f"/v1/runs/{row.id}"} | left_out_headers(run_request.left_out)
        if not new:
            headers["idempotent-replayed"] = "true"
        return JSONResponse(await runs.view(row), 201, headers=headers)

    async def list_runs(request: Request) -> Response:
        limit = _number(request.query_params.get("limit", "20"), "limit", 1, _MAX_PAGE)
        after = request.query_params.get("after")
        try:
            rows = await in_thread(runs.rows.page, _owner(runs, request), limit + 1, after)
        except ApiError as error:
            error.param = "after"
            raise
        data, ids = [], [row.id for row in rows[:limit]]
        for row in rows[:limit]:
            with suppress(ApiError):  # its session was removed, or is damaged
                data.append(await runs.view(row))
        ends = {"first_id": ids[0] if ids else None, "last_id": ids[-1] if ids else None}
        return JSONResponse({"object": "list", "data": data, **ends, "has_more": len(rows) > limit})

    async def get_run(request: Request) -> Response:
        return JSONResponse(await runs.with_previews(await _row(runs, request)))

    async def followed(request: Request) -> Response:
        row, after = await _row(runs, request), _last_event_id(request)
        await runs.view(row)  # a fault of the run is reported before a stream begins
        return EventStream(_stream_events(runs, row, after))

    async def act(request: Request) -> Response:
        row, action = await _row(runs, request), request.path_params["action"]
        if action != "cancel" and action not in RUN_BODIES:
            problem = f"{request.url.path} is not served here"
            raise ApiError(404, "not_found", problem)
        await _act(runs, row, action, {} if action == "cancel" else await json_body(request))
        return JSONResponse(await runs.with_previews(row))

    return [
        Route("/v1/runs", create, methods=["POST"]),
        Route("/v1/runs", list_runs, methods=["GET"]),
        Route("/v1/runs/{id}", get_run, methods=["GET"]),
        Route("/v1/runs/{id}/events", followed, methods=["GET"]),
        WebSocketRoute("/v1/runs/{id}/socket", partial(_talk, runs)),
        Route("/v1/runs/{id}/{action}", act, methods=["POST"]),
    ]


async def _act(runs: Runs, row: RunRow, action: str, body: Mapping[str, Any]) -> None:
    """Do the posted action on a run. Raises `ApiError`."""
    match action:
        case "approvals":
            decided = read(ApprovalBody, body)
            await runs.decide(row, decided.call_id, decided.answer())
        case "tool_results":
            await runs.give(row, read(ResultBody, body))
        case "continue":
            await runs.ask(row, read(ContinueBody, body).question)
        case _:
            await runs.cancel(row)


async def _stream_events(runs: Runs, row: RunRow, last_number: int) -> AsyncGenerator[str | None]:
    """Yield a run's events as a server sends them; None keeps the connection alive."""
    async with aclosing(runs.follow(row, last_number)) as follows:
        async for told in follows:
            if told is None:
                yield None
                continue
            number, event = told
            mark = "" if number is None else f"id: {number}\n"
            yield mark + server_sent(event, event["type"])


async def _talk(runs: Runs, socket: WebSocket) -> None:
    """Send a run's events over a WebSocket, and take what its messages post."""
    try:
        row, after = await _row(runs, socket), _last_event_id(socket)
        await runs.view(row)
    except MlxToolsError as error:
        told = as_api_error(error)
        await socket.send_denial_response(JSONResponse(openai_error(told), told.status))
        return
    await socket.accept()
    one = anyio.Lock()

    async def tell(value: JsonObject) -> None:
        gone = True
        async with one:
            with anyio.move_on_after(SEND_SECONDS), suppress(WebSocketDisconnect, RuntimeError):
                await socket.send_text(json_line(value))
                gone = False
        if gone:
            tasks.cancel_scope.cancel()

    async def follow() -> None:
        try:
            async with aclosing(runs.follow(row, after, ends=())) as follows:
                async for told in follows:
                    if told is not None:
                        number, event = told
                        await tell(event if number is None else {"id": number} | event)
        except StorageError as error:  # followers connect again once the database is back
            await tell({"type": "error"} | openai_error(as_api_error(error)))
        tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(follow)
        # A message that is no text ends the connection.
        while (text := (await socket.receive()).get("text")) is not None:
            await tell(await _answered(runs, row, text))
        tasks.cancel_scope.cancel()


async def _answered(runs: Runs, row: RunRow, text: str) -> JsonObject:
    """Do the action of a message, and send its result."""
    try:
        value = json_object(text, "the message is")
        kinds = ("cancel", *RUN_BODIES)
        if value.get("type") not in kinds:
            problem = f"a message is an object whose type is one of {', '.join(kinds)}"
            raise ApiError(400, "invalid_value", problem, param="type")
        await _act(runs, row, value.pop("type"), value)
        return {"type": "run", "run": await runs.with_previews(row)}
    except MlxToolsError as error:
        return {"type": "error"} | openai_error(as_api_error(error))


def _owner(runs: Runs, asking: HTTPConnection) -> str:
    """Return the name of a client, made of its whole key, from either header."""
    if (given := asking.headers.get("x-api-key")) is None:
        scheme, _, given = asking.headers.get("authorization", "").partition(" ")
        given = given or scheme
    return runs.owner(given.strip())


async def _row(runs: Runs, asking: HTTPConnection) -> RunRow:
    return await runs.find(_owner(runs, asking), asking.path_params["id"])


def _last_event_id(asking: HTTPConnection) -> int:
    """Return the number of the last event that the client has.

    It comes from a header or the address.
    """
    query = asking.query_params.get("last_event_id", "0")
    return _number(
        asking.headers.get("last-event-id", query) or "0", "Last-Event-ID", 0, 10**16 - 1
    )


def _number(text: str, name: str, minimum: int, maximum: int) -> int:
    if text.isascii() and text.isdigit() and len(text) <= 17 and minimum <= int(text) <= maximum:
        return int(text)
    raise invalid(name, f"a number from {minimum} to {maximum}")
