"""Anthropic's ``/v1/messages``, and its ``count_tokens``. Pure.

A tool that Anthropic runs or defines itself is left out; choosing it is refused. Thoughts are sent
if the client asks for thinking, and are not shown to the model again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field

from mlx_tools.gateway.body import (
    MAX_MESSAGES,
    MAX_STOPS,
    MAX_TOOLS,
    Body,
    Parts,
    SamplingBody,
    TokenLimit,
    answer_schema,
    place,
    read,
    unknown_fields,
)
from mlx_tools.gateway.client_tools import Choice, ClientTool, ClientTools, ToolDefinition
from mlx_tools.gateway.content import ContentReader
from mlx_tools.gateway.history import (
    ConversationBuilder,
    HistoryReader,
    is_call,
    is_result,
)
from mlx_tools.gateway.request import (
    ApiError,
    ArgumentsAdded,
    CallAdded,
    ClientCall,
    ClientMessage,
    EventTemplate,
    JsonObject,
    Reply,
    Role,
    SentCalls,
    TextAdded,
    ThoughtAdded,
    TurnDone,
    TurnEvent,
    TurnRequest,
    missing,
    server_sent,
)
from mlx_tools.messages import Usage

_ACCEPTED: Final = (
    *("anthropic_beta", "betas", "cache_control", "diagnostics", "inference_geo", "metadata"),
    *("service_tier", "speed", "thinking", "user_profile_id", "workspace_id"),
)
"""Fields that change what somebody else pays, keeps or measures; they have no effect here."""

_SIGNATURE: Final = "mlx-tools"
"""The signature of a thought, which clients require; nobody checks it here."""

_BILLING: Final = "x-anthropic-billing-header:"
"""The beginning of a part that is no instruction: it tells Anthropic whom to bill. It may differ
with every request, and then every prompt would differ from its first byte on."""


class ToolUseBlock(Body):
    """A call that the model made."""

    id: str = Field(min_length=1)
    name: str = Field(min_length=1)
    input: JsonObject


class ToolResultBlock(Body):
    """The result of a call."""

    tool_use_id: str = Field(min_length=1)
    content: Parts | None = None
    is_error: bool | None = None


class MessageParam(Body):
    """A message of any role."""

    role: Literal["user", "assistant", "system"]
    content: Parts


class ToolParam(Body):
    """A tool that the client runs."""

    type: Literal["custom"] | None = None
    name: str = Field(min_length=1)
    description: Any = None
    input_schema: Any


class ToolChoiceParam(Body):
    """The tool that must be called."""

    type: Literal["auto", "any", "required", "tool", "function", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


def _as_choice(value: Any) -> Any:
    """Turn OpenAI's form of a choice, a word, into the object that it stands for."""
    return {"type": value} if isinstance(value, str) else value


class OutputFormat(Body):
    """The form that an answer must have."""

    type: Literal["json_schema"]
    schema_: JsonObject = Field(alias="schema")


class OutputConfig(Body):
    """Settings of how an answer is written."""

    format: OutputFormat | None = None


class CountedBody(SamplingBody):
    """The body whose prompt's tokens are counted."""

    model: str
    messages: list[MessageParam] = Field(min_length=1, max_length=MAX_MESSAGES)
    system: Parts | None = None
    tools: Annotated[list[JsonObject], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: Annotated[ToolChoiceParam, BeforeValidator(_as_choice)] | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None
    mcp_servers: list[JsonObject] | None = None


class MessagesBody(CountedBody):
    """The body of a message that is asked for."""

    max_tokens: TokenLimit
    stop_sequences: (
        Annotated[list[Annotated[str, Field(min_length=1)]], Field(max_length=MAX_STOPS)] | None
    ) = None
    thinking: JsonObject | None = None
    stream: bool | None = None


def anthropic_messages_error(error: ApiError) -> JsonObject:
    """Return the body of an error."""
    kind = _ERRORS.get(error.status) or (
        "invalid_request_error" if error.status < 500 else "api_error"
    )
    message = str(error)
    if error.code == "context_length_exceeded":
        # The interface has no code for it; agents recognise by these words that they must compact.
        message = f"prompt is too long: {message}"
    return {"type": "error", "error": {"type": kind, "message": message}}


_ERRORS: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}


# --- reading --------------------------------------------------------------------------------------


def read_anthropic_messages(
    body: JsonObject, *, new_id: Callable[[], str]
) -> tuple[TurnRequest, Reply]:
    """Read what a body asks for, and how it is answered. Raises `ApiError`.

    ``new_id`` gives letters and digits that nobody else has.
    """
    asked = read(MessagesBody, body)
    request, tools = _request(asked, tuple(asked.stop_sequences or ()), asked.max_tokens)
    thinks = asked.thinking is not None and asked.thinking.get("type") != "disabled"
    reply = MessagesReply(
        f"msg_{new_id()}", asked.model, tools, streamed=bool(asked.stream), thinks=thinks
    )
    return request, reply


def read_count_tokens(body: JsonObject) -> TurnRequest:
    """Return the turn whose prompt is to be counted. Raises `ApiError`."""
    return _request(read(CountedBody, body))[0]


def _request(
    body: CountedBody, stop: tuple[str, ...] = (), max_tokens: int | None = None
) -> tuple[TurnRequest, ClientTools]:
    """Return the turn that is asked for, and the client's tools."""
    definitions: list[ToolDefinition] = []
    left_out = ["mcp_servers"] if body.mcp_servers else []
    for index, given in enumerate(body.tools or ()):
        kind = given.get("type")
        if isinstance(kind, str) and kind != "custom":  # its fields are Anthropic's own
            left_out.append(kind)
            continue
        tool = read(ToolParam, given, place("tools", index))
        definitions.append(
            ToolDefinition(ClientTool(tool.name), tool.description, tool.input_schema)
        )
    tools, content = ClientTools(definitions), ContentReader()
    messages = tuple(_messages(body, HistoryReader(tools.model_name, content)))
    once = body.tool_choice is not None and body.tool_choice.disable_parallel_tool_use
    request = TurnRequest(
        messages=messages,
        model=body.model,
        tools=tools.specs,
        tool_choice=_choice(body.tool_choice, tools),
        parallel=not once,
        schema=_schema(body),
        sampling=body.sampling(),
        stop=stop,
        max_tokens=max_tokens,
        left_out=(
            *(*unknown_fields(body, _ACCEPTED), *left_out, *tools.left_out),
            *content.left_out,
        ),
    )
    return request, tools


def _messages(body: CountedBody, history: HistoryReader) -> Iterator[ClientMessage]:
    if system := _instructions(body.system or (), history.content, "system"):
        yield ClientMessage("system", system)
    for index, message in enumerate(body.messages):
        at = ("messages", index, "content")
        if message.role == "system":
            yield ClientMessage("system", _instructions(message.content, history.content, *at))
        else:
            yield from _block_messages(message, history, *at)


def _block_messages(
    message: MessageParam, history: HistoryReader, *path: str | int
) -> list[ClientMessage]:
    """Return the text, calls and results of a message's blocks, in their order."""
    role: Role = "user" if message.role == "user" else "assistant"
    built = ConversationBuilder()
    for index, block in enumerate(message.content):
        here, kind = (*path, index), block.get("type")
        if kind == "tool_use":
            call = read(ToolUseBlock, block, *here)
            built.call(history.function_call(call.id, call.name, call.input))
        elif kind == "tool_result":
            built.add(_result(read(ToolResultBlock, block, *here), history, *here))
        elif is_call(block) or is_result(block):
            for part in history.messages(block):
                built.add(part)
        elif (text := history.content.part(block, *here)) is not None:
            built.say(role, text)
    return built.end() or [ClientMessage(role)]


def _result(block: ToolResultBlock, history: HistoryReader, *path: str | int) -> ClientMessage:
    text = history.content.text(block.content, *path, "content")
    return ClientMessage("tool", text, call_id=block.tool_use_id, is_error=bool(block.is_error))


def _instructions(blocks: Sequence[JsonObject], content: ContentReader, *path: str | int) -> str:
    texts = (content.part(block, *path, index) for index, block in enumerate(blocks))
    return "\n".join(text for text in texts if text and not text.startswith(_BILLING))


def _choice(choice: ToolChoiceParam | None, tools: ClientTools) -> str:
    if choice is None:
        return "auto"
    if choice.type not in ("tool", "function"):
        mode = "required" if choice.type == "any" else choice.type
        return Choice(mode).among(tools.specs).tool
    if not choice.name:
        raise missing("tool_choice.name")
    return Choice(tools.model_name(choice.name)).among(tools.specs).tool


def _schema(body: CountedBody) -> Mapping[str, Any] | None:
    if body.output_config is not None and body.output_config.format is not None:
        schema = body.output_config.format.schema_
        return answer_schema(schema, "output_config.format.schema")
    if body.output_format is not None:
        return answer_schema(body.output_format.schema_, "output_format.schema")
    return None


# --- writing --------------------------------------------------------------------------------------


@dataclass
class MessagesReply:
    """A message that is made of a turn, in one piece or as events.

    Attributes:
        tools: The client's tools, by the names that the turn knows.
        thinks: Whether the client wants to see thoughts.
    """

    id: str
    model: str
    tools: ClientTools
    streamed: bool
    thinks: bool = False
    _blocks: int = field(default=0, init=False)
    _open: str = field(default="", init=False)  # the type of the open block of text
    _sent_calls: SentCalls = field(default_factory=SentCalls, init=False)
    _first_call: int = field(default=0, init=False)  # the block of the first call

    def begin(self) -> Iterator[str]:
        usage = _usage(Usage())
        message = self._message([], stop_reason=None, stop_sequence=None, usage=usage)
        yield _event("message_start", message=message)
        yield _event("ping")

    def tell(self, event: TurnEvent) -> Iterator[str]:
        match event:
            case TextAdded(text=text):
                yield from self._open_block("text", text="")
                yield _delta(self._blocks - 1, "text_delta", text=text)
            case ThoughtAdded(text=text) if self.thinks:
                yield from self._open_block("thinking", thinking="", signature="")
                yield _delta(self._blocks - 1, "thinking_delta", thinking=text)
            case CallAdded():
                yield from self._close_block()
                self._first_call = self._blocks - event.index
                self._sent_calls.begin(event.name)
                yield self._begin(self._call(ClientCall(event.id, event.name, ""), {}))
            case ArgumentsAdded(index=index, text=text):
                self._sent_calls.add(index, text)
                yield _delta(self._first_call + index, "input_json_delta", partial_json=text)

    def idle(self) -> Iterator[str]:
        yield _event("ping")

    def end(self, done: TurnDone) -> Iterator[str]:
        yield from self._close_block()
        for index, call in enumerate(done.calls):
            if index >= len(self._sent_calls):
                yield from self.tell(CallAdded(index, call.id, call.name))
            if rest := self._sent_calls.remaining(index, call.arguments):
                yield from self.tell(ArgumentsAdded(index, rest))
            yield _event("content_block_stop", index=self._first_call + index)
        yield _event("message_delta", delta=_ending(done), usage=_usage(done.usage))
        notes = {"mlx_tools": done.notes} if done.notes else {}
        yield _event("message_stop", **notes)

    def fail(self, error: ApiError) -> Iterator[str]:
        told = anthropic_messages_error(error)
        if error.should_retry is False:
            told["error"]["type"] = "invalid_request_error"  # clients repeat the other errors
        yield server_sent(told, "error")

    def whole(self, done: TurnDone) -> JsonObject:
        content: list[JsonObject] = []
        if done.thought and self.thinks:
            content.append({"type": "thinking", "thinking": done.thought, "signature": _SIGNATURE})
        content += [{"type": "text", "text": done.text}] if done.text else []
        content += [self._call(call, json.loads(call.arguments)) for call in done.calls]
        return self._message(content, **_ending(done), usage=_usage(done.usage))

    def _call(self, call: ClientCall, arguments: JsonObject) -> JsonObject:
        name = self.tools.client_tool(call.name).name
        return {"type": "tool_use", "id": call.id, "name": name, "input": arguments}

    def _open_block(self, kind: str, **fields: str) -> Iterator[str]:
        """Open a block of text or of a thought, unless one is open."""
        if self._open != kind:
            yield from self._close_block()
            self._open = kind
            yield self._begin({"type": kind, **fields})

    def _close_block(self) -> Iterator[str]:
        kind, self._open = self._open, ""
        if kind == "thinking":
            yield _delta(self._blocks - 1, "signature_delta", signature=_SIGNATURE)
        if kind:
            yield _event("content_block_stop", index=self._blocks - 1)

    def _begin(self, block: JsonObject) -> str:
        self._blocks += 1
        return _event("content_block_start", index=self._blocks - 1, content_block=block)

    def _message(self, content: list[JsonObject], **ends: Any) -> JsonObject:
        about = {"id": self.id, "type": "message", "role": "assistant", "model": self.model}
        return {**about, "content": content, **ends}


def _delta(index: int, kind: str, **fields: str) -> str:
    ((name, text),) = fields.items()
    return _delta_template(index, kind, name).with_text(text)


@lru_cache(maxsize=256)
def _delta_template(index: int, kind: str, name: str) -> EventTemplate:
    event, delta = "content_block_delta", {"type": kind, name: EventTemplate.CHANGES}
    return EventTemplate({"type": event, "index": index, "delta": delta}, event)


def _event(kind: str, **fields: Any) -> str:
    return server_sent({"type": kind, **fields}, kind)


def _ending(done: TurnDone) -> JsonObject:
    """Return the reason why a message ended."""
    if done.stopped_by:
        reason = "stop_sequence"
    else:
        reason = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}[done.finish]
    return {"stop_reason": reason, "stop_sequence": done.stopped_by or None}


def _usage(usage: Usage) -> JsonObject:
    """Return the tokens of a message; an unknown number is 0 in this interface."""
    cached = usage.cached_tokens or 0
    return {
        "input_tokens": max((usage.prompt_tokens or 0) - cached, 0),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": usage.completion_tokens or 0,
    }
