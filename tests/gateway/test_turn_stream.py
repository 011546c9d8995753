"""A turn that takes long: its events go out while the model writes, by a virtual clock."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from mlx_tools.backends import Chunk, CompletionRequest
from mlx_tools.errors import BackendBroken, BackendRefused
from mlx_tools.gateway.turn_stream import Clock, News
from mlx_tools.testing import Script, ScriptedBackend, answer, call
from tests.gateway.conftest import WEATHER
from tests.gateway.test_native_models import NATIVE

SETTLES = 60
"""Turns of the event loop within which all that can go on has gone on."""


class VirtualClock:
    """A clock that moves on when nothing else can happen."""

    def __init__(self) -> None:
        self.time = 0.0
        self._alarms: list[tuple[float, anyio.Event]] = []

    def now(self) -> float:
        return self.time

    async def elapse(self, seconds: float) -> None:
        await self._alarm(seconds).wait()

    async def wait(self, news: News, seconds: float) -> bool:
        alarm = self._alarm(max(0.0, seconds))
        async with anyio.create_task_group() as tasks:

            async def end(one: anyio.Event | News) -> None:
                await one.wait()
                tasks.cancel_scope.cancel()

            tasks.start_soon(end, alarm)
            tasks.start_soon(end, news)
        return news.is_set

    def _alarm(self, seconds: float) -> anyio.Event:
        alarm = anyio.Event()
        self._alarms.append((self.time + seconds, alarm))
        return alarm

    async def run(self) -> None:
        """Let time pass."""
        while True:
            for _ in range(SETTLES):
                await anyio.lowlevel.checkpoint()
            if self._alarms:
                self._alarms.sort(key=lambda alarm: alarm[0])
                self.time, alarm = self._alarms.pop(0)
                alarm.set()


Timed = Sequence[tuple[float, str | Exception]]
"""Pieces of a completion, each with the seconds before it."""


class SlowBackend:
    """A model that takes its time."""

    def __init__(self, clock: VirtualClock, *completions: Timed) -> None:
        self._clock, self._completions = clock, [*completions]
        self.requests: list[CompletionRequest] = []

    async def complete(self, request: CompletionRequest) -> AsyncIterator[Chunk]:
        self.requests.append(request)
        for seconds, piece in self._completions.pop(0):
            await self._clock.elapse(seconds)
            if isinstance(piece, Exception):
                raise piece
            yield Chunk(piece)
        yield Chunk("", "stop")


WRITE = {
    "name": "write",
    "description": "Writes a file.",
    "parameters": {
        "type": "object",
        "properties": {"path": {"type": "string"}, "content": {"type": "string"}},
        "required": ["path", "content"],
    },
}
HI = [{"role": "user", "content": "Write it."}]
BODIES: dict[str, dict[str, Any]] = {
    "chat/completions": {"messages": HI, "tools": [{"type": "function", "function": WRITE}]},
    "responses": {"input": "Write it.", "tools": [{"type": "function", **WRITE}]},
    "messages": {
        "messages": HI,
        "max_tokens": 9_999,
        "thinking": {"type": "enabled", "budget_tokens": 1_024},
        "tools": [
            {
                "name": "write",
                "description": "Writes a file.",
                "input_schema": WRITE["parameters"],
            }
        ],
    },
}

Event = tuple[float, dict[str, Any]]


async def ask(
    serving: Any, interface: str, timed: Sequence[Timed], **options: Any
) -> tuple[int, list[Event], dict[str, str]]:
    """The status of a streamed turn, its events with their times, and the headers."""
    clock = VirtualClock()
    extra = options.pop("body", {})
    one = serving(**{"backend": SlowBackend(clock, *timed), **options})
    one.gateway.clock = Clock(now=clock.now, wait=clock.wait)
    body = {"model": "scripted", "stream": True, **BODIES[interface], **extra}
    data = json.dumps({name: value for name, value in body.items() if value is not None}).encode()
    sent: list[tuple[float, dict[str, Any]]] = []
    waits, was_asked = anyio.Event(), False

    async def receive() -> dict[str, Any]:
        nonlocal was_asked
        if was_asked:
            await waits.wait()
        was_asked = True
        return {"type": "http.request", "body": data}

    async def send(message: dict[str, Any]) -> None:
        sent.append((clock.time, message))

    headers = [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")]
    scope = {
        "type": "http",
        "method": "POST",
        "path": f"/v1/{interface}",
        "raw_path": b"",
        "query_string": b"",
        "headers": headers,
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
        "scheme": "http",
        "root_path": "",
    }
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(clock.run)
        await one.app(scope, receive, send)
        tasks.cancel_scope.cancel()
    events = [
        (at, json.loads(line.removeprefix("data: ")))
        for at, message in sent
        for line in message.get("body", b"").decode().split("\n")
        if line.startswith(("data: {", "{"))
    ]
    given = {k.decode(): v.decode() for k, v in sent[0][1]["headers"]}
    return sent[0][1]["status"], events, given


def pieces_of(kind: str, interface: str, events: Sequence[Event]) -> list[tuple[float, str]]:
    """The pieces of ``text``, ``thought`` or ``arguments`` in a stream, and of ``name``s."""
    return [(at, piece) for at, event in events if (piece := _piece(kind, interface, event))]


def _piece(kind: str, interface: str, event: dict[str, Any]) -> Any:
    if interface == "chat/completions":
        delta = event["choices"][0]["delta"] if event.get("choices") else {}
        function = (delta.get("tool_calls") or [{}])[0].get("function", {})
        found = {"text": delta.get("content"), "thought": delta.get("reasoning_content")}
        return found.get(kind, function.get(kind))
    if interface == "responses":
        kinds = {
            "text": "response.output_text.delta",
            "thought": "response.reasoning_text.delta",
            "arguments": "response.function_call_arguments.delta",
        }
        if kind == "name":
            return event.get("item", {}).get("name") if event["type"].endswith("added") else None
        return event["delta"] if event["type"] == kinds[kind] else None
    if kind == "name":
        return event.get("content_block", {}).get("name")
    keys = {"text": "text", "thought": "thinking", "arguments": "partial_json"}
    return event.get("delta", {}).get(keys[kind])


LINES = [f"Line {n} of the text, which says this and that." for n in range(40)]
PROSE: Timed = [(3.0, LINES[0]), *((1.0, f" {line}") for line in LINES[1:])]
CALL: Timed = [
    (3.0, '{"type":"tool_call","name":"write",'),
    (1.0, '"arguments":{"path":"a.md",'),
    (1.0, '"content":"'),
    *((1.0, f"{line} ") for line in LINES),
    (1.0, '"}}'),
]
THOUGHT: Timed = [
    (3.0, "<think>"),
    *((1.0, f"{line} ") for line in LINES),
    (1.0, "</think>\n\n"),
    (1.0, "Done."),
]
ROUTES: dict[str, dict[str, Any]] = {"prompted": {}, "native": {"route": NATIVE}}


@pytest.mark.anyio
@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("interface", BODIES)
@pytest.mark.parametrize("kind", ["text", "arguments", "thought"])
async def test_a_client_sees_what_a_slow_model_writes(
    serving: Any, interface: str, kind: str, route: str
) -> None:
    timed = {"text": PROSE, "arguments": CALL, "thought": THOUGHT}[kind]
    status, events, _ = await ask(serving, interface, [timed], **ROUTES[route])
    assert status == 200
    times = [at for at, _ in events]
    assert times[0] == 3.0  # with the first token
    assert max(b - a for a, b in itertools.pairwise(times)) < 10
    pieces = pieces_of(kind, interface, events)
    said = "".join(piece for _, piece in pieces)
    if kind != "arguments":
        assert said.strip() == " ".join(LINES)
        assert len({at for at, _ in pieces}) > 30
        return
    assert json.loads(said) == {"path": "a.md", "content": "".join(f"{line} " for line in LINES)}
    (name_at, name), *_ = pieces_of("name", interface, events)
    assert name == "write" and name_at <= 4.0
    assert pieces[0][0] <= 5.0 and json.loads(pieces[0][1] + "}") == {"path": "a.md"}


@pytest.mark.anyio
@pytest.mark.parametrize("interface", BODIES)
async def test_a_thought_that_a_client_does_not_want_is_silence_with_events(
    serving: Any, interface: str
) -> None:
    extra = {"thinking": None}
    _, events, _ = await ask(serving, interface, [THOUGHT], body=extra)
    times = [at for at, _ in events]
    assert max(b - a for a, b in itertools.pairwise(times)) < 10
    if interface == "messages":
        assert not pieces_of("thought", interface, events)
        assert sum(event["type"] == "ping" for _, event in events) >= 5
    assert "".join(text for _, text in pieces_of("text", interface, events)) == "Done."


@pytest.mark.anyio
@pytest.mark.parametrize("interface", BODIES)
async def test_until_the_first_token_an_error_keeps_its_status(
    serving: Any, interface: str
) -> None:
    busy = BackendRefused("busy")
    busy.status = 503
    status, events, headers = await ask(serving, interface, [[(45.0, busy)]])
    assert (status, headers["x-should-retry"], headers["retry-after"]) == (503, "true", "5")
    assert events[0][1]["error"]["message"] == "busy"


@pytest.mark.anyio
@pytest.mark.parametrize("interface", BODIES)
async def test_a_long_prompt_does_not_look_like_a_dead_gateway(
    serving: Any, interface: str
) -> None:
    status, events, _ = await ask(serving, interface, [[(120.0, "Done.")]])
    times = [0.0, *(at for at, _ in events)]
    gaps = [b - a for a, b in itertools.pairwise(times)]
    assert status == 200 and max(gaps) <= 50 and max(gaps[1:]) < 10
    assert "".join(text for _, text in pieces_of("text", interface, events)) == "Done."


@pytest.mark.anyio
@pytest.mark.parametrize("interface", BODIES)
async def test_of_a_call_that_is_cut_off_at_once_nothing_is_sent(
    serving: Any, interface: str
) -> None:
    text = 'I look.\n{"type":"tool_call","name":"write","arguments":{"path":"a","content":"b'
    backend = ScriptedBackend(Script(text, "length", pieces=3))
    _, events, _ = await ask(serving, interface, [], backend=backend)
    assert not pieces_of("name", interface, events)
    assert not pieces_of("arguments", interface, events)
    assert "".join(text for _, text in pieces_of("text", interface, events)) == "I look."


def numbers(events: Sequence[Event]) -> list[int]:
    return [event["sequence_number"] for _, event in events]


@pytest.mark.anyio
@pytest.mark.parametrize(
    "timed",
    [
        [(0.0, "Done.")],
        PROSE,
        CALL,
        THOUGHT,
        [(0.0, "So "), (20.0, BackendBroken("it broke off"))],
        [(70.0, "Done.")],
    ],
)
async def test_the_numbers_of_events_rise_by_one_from_the_first(serving: Any, timed: Timed) -> None:
    _, events, _ = await ask(serving, "responses", [timed])
    assert numbers(events) == [*range(len(events))]


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("interface", "final"),
    [
        ("chat/completions", {"type": "invalid_request_error", "code": "model_output_invalid"}),
        ("responses", {"code": "invalid_prompt"}),
        ("messages", {"type": "invalid_request_error"}),
    ],
)
async def test_an_error_behind_the_head_is_an_event_that_clients_do_not_answer_by_asking_again(
    serving: Any, interface: str, final: dict[str, str]
) -> None:
    choices: dict[str, Any] = {"messages": {"type": "any"}}
    choice = choices.get(interface, "required")
    completions: list[Timed] = [[(1.0, "I"), (1.0, " will not.")]] * 3
    status, events, _ = await ask(
        serving, interface, completions, strategy="free", body={"tool_choice": choice}
    )
    last = events[-1][1]
    error = last.get("response", last)["error"]
    assert status == 200 and events[0][0] == 1.0
    assert final.items() <= error.items()
    assert "the model wrote no turn that fits" in error["message"]
    assert error["message"].endswith("(it wrote 'I will not.')")


@pytest.mark.anyio
@pytest.mark.parametrize("choice", ["none", {"type": "function", "function": {"name": "read"}}])
async def test_a_call_that_the_tool_choice_forbids_is_not_begun_and_is_corrected(
    serving: Any, choice: Any
) -> None:
    text = call("write", path="a", content="b")
    wrong = [(1.0, text[:-9]), (2.0, text[-9:])]
    right = answer("No.") if choice == "none" else call("read")
    read = {"name": "read", "parameters": {"type": "object", "properties": {}}}
    tools = [{"type": "function", "function": function} for function in (WRITE, read)]
    body = {"tools": tools, "tool_choice": choice}
    completions: list[Timed] = [wrong, [(1.0, right)]]
    status, events, _ = await ask(
        serving, "chat/completions", completions, strategy="free", body=body
    )
    assert status == 200 and not any("error" in event for _, event in events)
    names = [
        made["function"]["name"]
        for _, event in events
        for made in event["choices"][0]["delta"].get("tool_calls", ())
        if "name" in made["function"]
    ]
    assert names == ([] if choice == "none" else ["read"])


@pytest.mark.anyio
@pytest.mark.parametrize("interface", BODIES)
async def test_what_is_known_late_stands_in_the_last_event(serving: Any, interface: str) -> None:
    hermes = '<tool_call>{"name": "write", "arguments": {"path": "a", "content": "b"}}</tool_call>'
    _, events, headers = await ask(serving, interface, [[(1.0, hermes)]])
    assert events[-1][1]["mlx_tools"] == {"repairs": ["dialect"]}
    assert "x-mlx-tools-repairs" not in headers


# --- what is held back ----------------------------------------------------------------------------

CODE = """Here it is:

```python
def get_weather(city):
    return {"name": "Rome", "city": "Rome"}
```

It takes the name of a city. I can run it for you if you like that.
The code reads nothing else, and writes nothing, and that is all of it.
And one line more, so that there is something to be read behind it."""


def streamed_text(serving: Any, text: str, **options: Any) -> list[str]:
    one = serving(backend=ScriptedBackend(Script(text, pieces=1)), **options)
    body = {"model": "scripted", "stream": True, "messages": HI, "tools": [WEATHER]}

    async def post() -> str:
        return str((await one.client.post("/v1/chat/completions", json=body)).text)

    lines = [line for line in anyio.run(post).split("\n") if line.startswith("data: {")]
    events = [(0.0, json.loads(line.removeprefix("data: "))) for line in lines]
    return [text for _, text in pieces_of("text", "chat/completions", events)]


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("style", ["jsonl", "markdown-json", "xml"])
def test_text_that_shows_code_goes_on_once_it_is_known_to_be_text(
    serving: Any, style: str, route: str
) -> None:
    pieces = streamed_text(serving, CODE, style=style, **ROUTES[route])
    assert "".join(pieces) == CODE
    assert max(map(len, pieces)) < len(CODE) * 3 / 4
    assert len(pieces) > 60  # before the code, and behind it


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(
    "call",
    [
        '{"type":"tool_call","name":"get_weather","arguments":{"city":"Rome"}}',
        '<tool_call>{"name":"get_weather","arguments":{"city":"Rome"}}</tool_call>',
        "get_weather(city='Rome')",
        "[get_weather(city='Rome')]",
        'Action: get_weather\nAction Input: {"city": "Rome"}',
        '{"name":"get_weather","arguments":{"city":"Rome"}}',
    ],
)
def test_no_byte_of_a_call_is_told_as_text(serving: Any, call: str, route: str) -> None:
    said = "I look it up now."
    pieces = streamed_text(serving, f"{said}\n{call}", **ROUTES[route])
    assert "".join(pieces) in (said, f"{said}\n{call}")  # of text that stays text, all
