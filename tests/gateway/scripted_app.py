"""The interfaces behind a tiny application whose turns are scripted, and strategies for turns."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx2
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from mlx_tools.gateway.anthropic_messages import (
    anthropic_messages_error,
    read_anthropic_messages,
    read_count_tokens,
)
from mlx_tools.gateway.request import (
    ApiError,
    ClientCall,
    Reply,
    TurnDone,
    TurnRequest,
)
from mlx_tools.gateway.responses import read_responses, responses_error
from mlx_tools.messages import Usage

USAGE = Usage(prompt_tokens=30, cached_tokens=20, completion_tokens=5)

Script = list[str | TurnDone | ApiError]
"""What comes of a turn: its text in pieces, and its end, or an error where it breaks off."""


def said(text: str, **more: Any) -> Script:
    """A turn that is an answer, in pieces of three characters."""
    pieces = [text[at : at + 3] for at in range(0, len(text), 3)]
    return [*pieces, TurnDone(**{"finish": "stop", "text": text, "usage": USAGE, **more})]


def called(*calls: tuple[str, Any], text: str = "") -> Script:
    """A turn that calls these tools."""
    made = tuple(
        ClientCall(f"call_{index}", name, json.dumps(arguments))
        for index, (name, arguments) in enumerate(calls)
    )
    done = TurnDone(finish="tool_calls", text=text, calls=made, usage=USAGE)
    return [text, done] if text else [done]


@dataclass
class ScriptedGateway:
    """An application that answers each request with the next script. ``asked`` are the requests."""

    scripts: Iterable[Script] = ()
    time: float = 1000.0
    asked: list[TurnRequest] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._scripts = iter(self.scripts)
        self._ids = (f"x{number}" for number in itertools.count())
        self.app = Starlette(
            routes=[
                Route("/v1/responses", self._responses, methods=["POST"]),
                Route("/v1/messages", self._messages, methods=["POST"]),
                Route("/v1/messages/count_tokens", self._count, methods=["POST"]),
            ]
        )

    def transport(self) -> httpx2.ASGITransport:
        return httpx2.ASGITransport(self.app)

    async def _responses(self, request: Request) -> Response:
        body = await request.json()
        return self._answer(
            lambda: read_responses(body, new_id=lambda: next(self._ids), now=lambda: self.time),
            responses_error,
        )

    async def _messages(self, request: Request) -> Response:
        body = await request.json()
        return self._answer(
            lambda: read_anthropic_messages(body, new_id=lambda: next(self._ids)),
            anthropic_messages_error,
        )

    async def _count(self, request: Request) -> Response:
        try:
            turn = read_count_tokens(await request.json())
        except ApiError as error:
            return JSONResponse(anthropic_messages_error(error), error.status)
        return JSONResponse({"input_tokens": sum(len(m.content) for m in turn.messages)})

    def _answer(
        self,
        read: Callable[[], tuple[TurnRequest, Reply]],
        error_body: Callable[[ApiError], dict[str, Any]],
    ) -> Response:
        try:
            turn, reply = read()
            self.asked.append(turn)
            script = next(self._scripts)
            if reply.streamed:
                return StreamingResponse(streamed(reply, script), media_type="text/event-stream")
            for event in script:
                if isinstance(event, ApiError):
                    raise event
            done = script[-1]
            assert isinstance(done, TurnDone)
            return JSONResponse(reply.whole(done))
        except ApiError as error:
            return JSONResponse(error_body(error), error.status)


def streamed(reply: Reply, script: Script) -> Iterator[str]:
    """All events of a reply, each a text."""
    yield from reply.begin()
    for part in script:
        if isinstance(part, str):
            yield from reply.more(part)
        else:
            yield from reply.end(part) if isinstance(part, TurnDone) else reply.fail(part)


def data_of(events: Iterable[str]) -> list[dict[str, Any]]:
    """The data of server-sent events, without the mark of the end."""
    found = []
    for event in events:
        *name, line = event.removesuffix("\n\n").split("\n")
        data = line.removeprefix("data: ")
        if data == "[DONE]":
            continue
        found.append(json.loads(data))
        assert name == [f"event: {found[-1]['type']}"]
    return found


def with_client(kind: Any, path: str, gateway: ScriptedGateway, use: Callable[[Any], Any]) -> Any:
    """What comes of the use of an official client of this kind."""

    async def run() -> Any:
        http = httpx2.AsyncClient(transport=gateway.transport(), base_url="http://gateway")
        address = f"http://gateway{path}"
        async with kind(api_key="k", base_url=address, http_client=http, max_retries=0) as client:
            return await use(client)

    return asyncio.run(run())


# --- turns of any kind ----------------------------------------------------------------------------

_TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)
_ARGUMENTS = st.dictionaries(_TEXTS, _TEXTS | st.integers() | st.lists(st.none()), max_size=3)


@st.composite
def turns(draw: st.DrawFn) -> Script:
    """A turn as it comes: a text in any pieces, then calls, and at its end what all of it was."""
    text = draw(_TEXTS)
    calls = tuple(
        ClientCall(f"call_{index}", draw(st.sampled_from(["f", "group.g"])), json.dumps(arguments))
        for index, arguments in enumerate(draw(st.lists(_ARGUMENTS, max_size=3)))
    )
    finish = "tool_calls" if calls else draw(st.sampled_from(["stop", "length"]))
    done = TurnDone(finish=finish, text=text, calls=calls, usage=USAGE)
    return [*_pieces(draw, text), done]


def _pieces(draw: st.DrawFn, text: str) -> list[str]:
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=4)))
    bounds = [0, *cuts, len(text)]
    return [text[a:b] for a, b in itertools.pairwise(bounds) if a < b]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=8,
)
