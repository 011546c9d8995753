"""Whatever a model writes that slips at random: what a client was told stays true."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import anyio
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mlx_tools.backends import Chunk, CompletionRequest
from mlx_tools.gateway.client_tools import ClientTool, ClientTools, ToolDefinition
from mlx_tools.gateway.request import (
    ApiError,
    ArgumentsAdded,
    CallAdded,
    ClientMessage,
    FirstToken,
    TextAdded,
    ThoughtAdded,
    TurnDone,
    TurnEvent,
    TurnRequest,
)
from mlx_tools.messages import ToolSpec
from mlx_tools.schema import fits
from mlx_tools.testing import make_turn_runner
from tests.gateway.test_native_models import NATIVE

TOOLS = {
    spec.name: spec
    for spec in (
        ToolSpec(
            "edit_file",
            "Edits a file.",
            {
                "type": "object",
                "properties": {
                    "path": {"type": "string"},
                    "count": {"type": "integer"},
                    "mode": {"enum": ["all", "first"]},
                    "edits": {
                        "type": "array",
                        "items": {
                            "type": "object",
                            "properties": {"old": {"type": "string"}, "new": {"type": "string"}},
                            "required": ["old", "new"],
                            "additionalProperties": False,
                        },
                    },
                    "tags": {"anyOf": [{"type": "array"}, {"type": "null"}]},
                },
                "required": ["path", "edits"],
                "additionalProperties": False,
            },
            plugin="client",
        ),
        ToolSpec(
            "get_weather",
            "Forecast.",
            {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
                "required": ["city"],
            },
            plugin="client",
        ),
        *ClientTools([ToolDefinition(ClientTool("apply_patch", is_custom=True))]).specs,
    )
}
CUSTOM = frozenset(("apply_patch",))
ROUTES: dict[str, dict[str, Any]] = {
    "prompted": {},
    "native": {"route": NATIVE},
    "chat only": {"route": {**NATIVE, "completes": False}},
}


class SlippingModel:
    """A model that gives the next of its texts, cut into pieces, for each request."""

    def __init__(self, texts: Sequence[str], size: int) -> None:
        self._texts, self._size = [*texts], size
        self.requests = 0

    async def complete(self, request: CompletionRequest) -> AsyncIterator[Chunk]:
        self.requests += 1
        if request.top_logprobs:
            yield Chunk("", "length")
            return
        text = self._texts.pop(0) if self._texts else '"}}'
        for begin in range(0, len(text), self._size):
            yield Chunk(text[begin : begin + self._size])
        yield Chunk("", "length" if text.endswith("…") else "stop")


# --- texts that slip ------------------------------------------------------------------------------

_WORDS = st.sampled_from(["a.md", "Rome", 'say "hi"', "line\n", "", "5", "ü🌍", "true", "}", "\\d"])
_VALUES: st.SearchStrategy[Any] = st.recursive(
    _WORDS | st.integers(-9, 99) | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(_WORDS, inner, max_size=2),
    max_leaves=3,
)
_EDITS = st.lists(st.fixed_dictionaries({"old": _WORDS, "new": _WORDS}), max_size=3)
_FITTING = st.fixed_dictionaries(
    {"path": _WORDS, "edits": _EDITS},
    optional={"count": st.integers(0, 9), "mode": st.sampled_from(["all", "first"])},
)
_ARGUMENTS = st.one_of(
    _FITTING,
    st.fixed_dictionaries({"city": _WORDS}, optional={"days": st.integers(0, 9)}),
    st.fixed_dictionaries({"input": st.lists(_WORDS, max_size=5).map(" ".join)}),
    st.dictionaries(
        st.sampled_from(["path", "count", "mode", "edits", "tags", "city", "days", "more"]),
        _VALUES,
        max_size=4,
    ),
)
_NAMES = st.sampled_from(
    ["edit_file", "get_weather", "edit_file", "apply_patch", "apply_patch", "Edit-File", "rm_all"]
)


@st.composite
def _calls(draw: st.DrawFn) -> str:
    name, arguments = draw(_NAMES), draw(_ARGUMENTS)
    text = json.dumps(arguments, ensure_ascii=draw(st.booleans()))
    form = draw(st.integers(0, 3))
    if form == 1:
        return f'<tool_call>{{"name": "{name}", "arguments": {text}}}</tool_call>'
    if form == 2:
        return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"
    line = f'{{"type":"tool_call","name":"{name}","arguments":{text}}}'
    return line.replace('"', "'") if form == 3 else line


_PROSE = st.sampled_from(
    [
        "I look it up.",
        "It rains.\n\nIt does.",
        "```json\n{}\n```",
        "<think>Hm, well.</think>",
        '{"type":"final_answer","content":"It rains."}',
        "",
        "<|do|>get_weather of Rome",
        "Final Answer: It rains.",
    ]
)


@st.composite
def _texts(draw: st.DrawFn) -> str:
    """A turn of messages and text, in which anything may be cut, doubled or put in."""
    parts = draw(st.lists(_calls() | _PROSE, min_size=1, max_size=3))
    text = "\n".join(parts)
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, len(text)))
        slip = draw(st.sampled_from(["", '"', "}", "{", ",", "\n", ":", "]", "tool", "'", "\\"]))
        text = text[:at] + slip + text[at + draw(st.integers(0, 4)) :]
    cut = draw(st.integers(0, 6)) == 0
    return text[: draw(st.integers(0, len(text)))] + "…" * draw(st.booleans()) if cut else text


# --- what a client sees ---------------------------------------------------------------------------


class Client:
    """A client that keeps what it was told."""

    def __init__(self) -> None:
        self.events: list[TurnEvent] = []
        self.text = self.thought = ""
        self.calls: list[list[str]] = []

    def take(self, event: TurnEvent) -> None:
        assert isinstance(event, FirstToken) or self.events, "the turn was told to begin"
        self.events.append(event)
        match event:
            case TextAdded(text=text):
                assert text and not self.calls
                self.text += text
            case ThoughtAdded(text=text):
                assert text and not self.calls
                self.thought += text
            case CallAdded():
                assert event.index == len(self.calls) and event.name in TOOLS
                self.calls.append([event.id, event.name, ""])
            case ArgumentsAdded():
                assert event.text
                call = self.calls[event.index]
                call[2] += event.text
                self._check_values(call[2], is_custom=call[1] in CUSTOM)

    def _check_values(self, text: str, *, is_custom: bool) -> None:
        """Check that the text is JSON up to a whole value, closing brackets aside.

        That of a custom tool may end within its text.
        """
        closers: list[str] = []
        is_string = is_escaped = False
        for char in text:
            if is_string:
                is_string = is_escaped or char != '"'
                is_escaped = char == "\\" and not is_escaped
            elif char in "{[":
                closers.append("}" if char == "{" else "]")
            elif char in "}]":
                closers.pop()
            else:
                is_string = char == '"'
        end = '"' if is_string and is_custom else ""
        assert isinstance(json.loads(text + end + "".join(reversed(closers))), dict)

    def check_end(self, done: TurnDone, tool_choice: str) -> None:
        """Check that the end of the turn is what was told."""
        assert (done.text, done.thought) == (self.text, self.thought)
        if done.finish != "length":
            assert len(done.calls) >= len(self.calls)
        for told, call in zip(self.calls, done.calls, strict=False):
            assert (call.id, call.name) == (told[0], told[1])
            assert call.arguments.startswith(told[2])
        for call in done.calls:
            assert fits(json.loads(call.arguments), TOOLS[call.name].parameters)
            assert tool_choice in ("auto", "required", call.name)


@given(
    texts=st.lists(_texts(), min_size=1, max_size=6),
    size=st.sampled_from([1, 3, 7, 1_000]),
    strategy=st.sampled_from(["free", "auto", "guided"]),
    style=st.sampled_from(["jsonl", "markdown-json", "xml"]),
    tool_choice=st.sampled_from(["auto", "auto", "required", "edit_file"]),
    route=st.sampled_from([*ROUTES]),
)
@example(  # a call without what it needs, of which some was told
    texts=['{"type":"tool_call","name":"edit_file","arguments":{"path":"a","count":5}}', ',"e'],
    size=3,
    strategy="free",
    style="jsonl",
    tool_choice="auto",
    route="prompted",
)
@example(  # the second of two calls has a fault
    texts=[
        '{"type":"tool_call","name":"get_weather","arguments":{"city":"Rome"}}\n'
        '{"type":"tool_call","name":"edit_file","arguments":{"path":"a","edits":[{"old":"x"}]}}',
        ',"new":"y"}]}}',
    ],
    size=3,
    strategy="free",
    style="jsonl",
    tool_choice="auto",
    route="prompted",
)
@example(  # a text of which some was told, and then read otherwise
    texts=[
        '{"type":"tool_call","name":"apply_patch","arguments":{"input":"a\\nb","more":1}}',
        ' c"}}',
    ],
    size=3,
    strategy="free",
    style="jsonl",
    tool_choice="auto",
    route="prompted",
)
@example(  # a quote within the text
    texts=['{"type":"tool_call","name":"apply_patch","arguments":{"input":"say "hi" now"}}'],
    size=1,
    strategy="free",
    style="jsonl",
    tool_choice="auto",
    route="prompted",
)
def test_what_was_told_stays_true(
    texts: list[str], size: int, strategy: str, style: str, tool_choice: str, route: str
) -> None:
    model, client = SlippingModel(texts, size), Client()
    speaker = make_turn_runner(model, strategy=strategy, style=style, **ROUTES[route])
    request = TurnRequest(
        messages=(ClientMessage("user", "Go."),),
        tools=tuple(TOOLS.values()),
        custom_tools=CUSTOM,
        tool_choice=tool_choice,
    )
    ids = (f"call_{number}" for number in range(1_000))
    try:
        done = anyio.run(speaker.run, request, client.take, lambda: next(ids))
    except ApiError as error:
        assert error.code == "model_output_invalid"
        return
    client.check_end(done, tool_choice)


@pytest.mark.anyio
async def test_a_call_goes_on_from_what_was_told_of_it() -> None:
    """The model leaves out what the tool needs; it is let to add it behind what was told."""
    cut = '{"type":"tool_call","name":"edit_file","arguments":{"path":"a.md","count":5}}'
    model = SlippingModel([cut, ',"edits":[{"old":"x","new":"y"}]}}'], 3)
    client = Client()
    request = TurnRequest(messages=(ClientMessage("user", "Go."),), tools=tuple(TOOLS.values()))
    done = await make_turn_runner(model, strategy="free").run(
        request, client.take, lambda: "call_1"
    )
    client.check_end(done, "auto")
    (call,) = done.calls
    whole = {"path": "a.md", "count": 5, "edits": [{"old": "x", "new": "y"}]}
    assert json.loads(call.arguments) == whole
    assert client.calls[0][2].startswith('{"path":"a.md","count":5')
    assert model.requests == 2
