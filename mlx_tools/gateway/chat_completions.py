"""OpenAI's ``/v1/chat/completions`` and ``/v1/completions``. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct, ValidationError, convert
from pydantic import Field, WrapValidator

from mlx_tools.backends import MAX_SCORES, TokenScore
from mlx_tools.gateway.body import (
    MAX_MESSAGES,
    MAX_PARTS,
    MAX_TOOLS,
    AnswerFormat,
    Body,
    Parts,
    SamplingBody,
    Stops,
    TokenLimit,
    Whole,
    place,
    read,
    unknown_fields,
)
from mlx_tools.gateway.client_tools import (
    ClientTool,
    ClientTools,
    ToolDefinition,
    custom_grammar,
    custom_input,
    custom_input_piece,
    read_choice,
)
from mlx_tools.gateway.content import ContentReader
from mlx_tools.gateway.history import HistoryReader
from mlx_tools.gateway.request import (
    DONE,
    ApiError,
    ArgumentsAdded,
    CallAdded,
    ClientCall,
    ClientMessage,
    EventTemplate,
    JsonObject,
    Role,
    SentCalls,
    TextAdded,
    ThoughtAdded,
    TurnDone,
    TurnEvent,
    TurnRequest,
    missing,
    openai_error,
    server_sent,
    unsupported,
)
from mlx_tools.messages import Usage

_ACCEPTED: Final = (
    *("user", "metadata", "store", "service_tier", "prompt_cache_key", "safety_identifier"),
    *("client_metadata", "include", "reasoning_effort", "verbosity", "prompt_cache_retention"),
)
"""Fields that only change cost, telemetry or storage on somebody else's side."""

_UNSUPPORTED: Final[Mapping[str, Any]] = {
    "audio": None,
    "prediction": None,
    "functions": None,
    "function_call": None,
    "modalities": ["text"],
    "n": 1,
    "logprobs": False,
    "top_logprobs": 0,
}
_UNSUPPORTED_PLAIN: Final[Mapping[str, Any]] = {"n": 1, "best_of": 1, "echo": False, "suffix": ""}
"""Fields that would change the answer, each with the value that has no effect."""

DEFAULT_MAX_TOKENS: Final = 16
"""Tokens of a plain completion without a limit, as in OpenAI's interface."""

Prompt = Annotated[str, Field(min_length=1)]
TokenId = Annotated[str, Field(pattern=r"^[0-9]{1,9}$")]


class ChatFunction(Body):
    name: Annotated[str, Field(min_length=1)]
    description: Any = None
    parameters: Any = None


class ChatCustom(Body):
    name: Annotated[str, Field(min_length=1)]
    description: Any = None
    format: Any = None


class ChatTool(Body):
    type: str = "function"
    function: ChatFunction | None = None
    custom: ChatCustom | None = None


class CalledFunction(Body):
    name: str
    arguments: str | JsonObject | None = ""


class CalledCustom(Body):
    name: str
    input: str | None = ""


class AssistantCall(Body):
    id: str | None = ""
    type: str | None = "function"
    function: CalledFunction | None = None
    custom: CalledCustom | None = None


class ChatMessage(Body):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Parts | None = None
    tool_calls: Annotated[list[AssistantCall], Field(max_length=MAX_PARTS)] | None = None
    function_call: CalledFunction | None = None
    tool_call_id: str | None = None
    refusal: str | None = None


_ROLES: Final[Mapping[str, Role]] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}


class TextMessage(Struct, forbid_unknown_fields=True, gc=False):
    """A message that is a role and a text, as most are."""

    role: Literal["system", "developer", "user", "assistant", "function"]
    content: str


_TextMessages = Annotated[list[TextMessage], Meta(min_length=1, max_length=MAX_MESSAGES)]


def _read_text_message(
    value: Any, read_model: Callable[[Any], ChatMessage]
) -> ChatMessage | ClientMessage:
    """Read a message that is a role and a text without pydantic."""
    if type(value) is dict and len(value) == 2:
        role, content = value.get("role"), value.get("content")
        if type(role) is str and type(content) is str and role in _ROLES and role != "tool":
            return ClientMessage(_ROLES[role], content)
    return read_model(value)


ReadMessage = Annotated[ChatMessage, WrapValidator(_read_text_message)]
"""A message as its model or, if it is a role and a text, in its quick form."""


def _read_text_messages(
    value: Any, read_models: Callable[[Any], list[ChatMessage | ClientMessage]]
) -> list[ChatMessage | ClientMessage]:
    """Read messages that are all a role and a text, in one go.

    A long conversation has hundreds, and they are sent again with each request.
    """
    try:
        texts = convert(value, _TextMessages)
    except ValidationError:
        return read_models(value)
    return [ClientMessage(_ROLES[message.role], message.content) for message in texts]


class StreamOptions(Body):
    include_usage: bool | None = None


class OpenAiBody(SamplingBody):
    """The fields of both kinds of OpenAI's completions."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stop: Stops | None = None

    @property
    def stops(self) -> tuple[str, ...]:
        """The texts that end the answer."""
        return tuple(self.stop or ())

    @property
    def wants_usage(self) -> bool:
        """True if a stream is to end with its usage."""
        return self.stream_options is not None and self.stream_options.include_usage is True


class ChatBody(OpenAiBody):
    """The fields that have a meaning here; all others are kept separately."""

    messages: Annotated[
        list[ReadMessage],
        Field(min_length=1, max_length=MAX_MESSAGES),
        WrapValidator(_read_text_messages),
    ]
    tools: Annotated[list[ChatTool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: str | JsonObject | None = None
    parallel_tool_calls: bool | None = None
    response_format: JsonObject | None = None
    max_tokens: TokenLimit = None
    max_completion_tokens: TokenLimit = None
    logit_bias: dict[TokenId, Annotated[int | float, Field(ge=-100, le=100)]] | None = None


class CompletionBody(OpenAiBody):
    prompt: Prompt | Annotated[list[Prompt], Field(min_length=1, max_length=1)]
    max_tokens: TokenLimit = None
    logprobs: bool | int | None = None
    top_logprobs: Annotated[Whole, Field(ge=0, le=MAX_SCORES)] | None = None


# --- reading --------------------------------------------------------------------------------------


def read_chat_completion(
    body: JsonObject, *, new_id: Callable[[], str], now: Callable[[], float]
) -> tuple[TurnRequest, ChatReply]:
    """Read what a body asks for, and how it is answered.

    ``new_id`` gives the completion's id, ``now`` is the time in seconds since 1970. Raises
    `ApiError` for the first field that is wrong, or cannot be had.
    """
    _refuse_fields(body, _UNSUPPORTED)
    given = read(ChatBody, body)
    tools, hosted = _tools(given.tools or [])
    choice = read_choice(given.tool_choice, tools, hosted).among(tools.specs)
    content = ContentReader()
    messages = tuple(read_messages(given.messages, HistoryReader(tools.model_name, content)))
    sampling = given.sampling()
    if given.logit_bias:
        sampling["logit_bias"] = given.logit_bias
    request = TurnRequest(
        messages=messages,
        model=given.model or "",
        tools=tools.specs,
        custom_tools=tools.custom_names,
        tool_choice=choice.tool,
        allowed=choice.allowed,
        parallel=given.parallel_tool_calls is not False,
        schema=_schema(given.response_format),
        sampling=sampling,
        stop=given.stops,
        max_tokens=given.max_completion_tokens or given.max_tokens,
        left_out=(
            *(f"tools.{kind}" for kind in hosted),
            *tools.left_out,
            *content.left_out,
            *unknown_fields(given, (*_ACCEPTED, *_UNSUPPORTED)),
        ),
    )
    same = {"id": f"chatcmpl-{new_id()}", "created": int(now()), "model": request.model}
    return request, ChatReply(same, given, tools)


def read_completion(
    body: JsonObject, *, new_id: Callable[[], str], now: Callable[[], float]
) -> tuple[TurnRequest, CompletionReply]:
    """Read the body of a plain completion: a prompt that is passed through.

    Arguments and errors are those of `read_chat_completion`.
    """
    _refuse_fields(body, _UNSUPPORTED_PLAIN)
    given = read(CompletionBody, body)
    request = TurnRequest(
        prompt=given.prompt if isinstance(given.prompt, str) else given.prompt[0],
        model=given.model or "",
        sampling=given.sampling(),
        stop=given.stops,
        max_tokens=given.max_tokens or DEFAULT_MAX_TOKENS,
        left_out=unknown_fields(given, (*_UNSUPPORTED_PLAIN, "user")),
        top_logprobs=_score_count(given),
    )
    same = {"id": f"cmpl-{new_id()}", "object": "text_completion", "created": int(now())}
    return request, CompletionReply(same | {"model": request.model}, given)


def _refuse_fields(body: JsonObject, refused_fields: Mapping[str, Any]) -> None:
    for name, nothing in refused_fields.items():
        if body.get(name) not in (None, False, [], nothing):
            raise unsupported(name, "cannot be had here; leave it out")


def read_messages(
    messages: Sequence[ChatMessage | ClientMessage], history: HistoryReader
) -> Iterator[ClientMessage]:
    """Read the messages of a body. Raises `ApiError` for the first that is wrong."""
    for number, message in enumerate(messages):
        if isinstance(message, ClientMessage):
            yield message
            continue
        at = ("messages", number)
        content = history.content.text(message.content, *at, "content")
        content = content or message.refusal or ""
        if message.role == "tool" and not message.tool_call_id:
            raise missing(place(*at, "tool_call_id"))
        calls = tuple(
            _call(call, history, *at, "tool_calls", index)
            for index, call in enumerate(message.tool_calls or ())
        )
        if (called := message.function_call) is not None:
            calls = (*calls, history.function_call("", called.name, called.arguments))
        yield ClientMessage(_ROLES[message.role], content, calls, message.tool_call_id or "")


def _call(call: AssistantCall, history: HistoryReader, *path: str | int) -> ClientCall:
    if call.custom is not None:
        return history.custom_call(call.id or "", call.custom.name, call.custom.input or "")
    if call.function is None:
        raise missing(place(*path, "function"))
    return history.function_call(call.id or "", call.function.name, call.function.arguments)


def _tools(tools: Sequence[ChatTool]) -> tuple[ClientTools, Collection[str]]:
    """Return the tools that the client runs, and the kinds of those for a server."""
    definitions: list[ToolDefinition] = []
    hosted: dict[str, None] = {}
    for number, tool in enumerate(tools):
        at = place("tools", number, "function")
        if tool.type == "custom" and tool.custom is not None:
            custom = tool.custom
            definitions.append(
                ToolDefinition(
                    ClientTool(custom.name, is_custom=True),
                    custom.description,
                    grammar=custom_grammar(custom.format),
                )
            )
        elif tool.type != "function":
            hosted[tool.type] = None
        elif tool.function is None:
            raise missing(at)
        else:
            function = tool.function
            definitions.append(
                ToolDefinition(ClientTool(function.name), function.description, function.parameters)
            )
    return ClientTools(definitions), hosted


def _schema(value: JsonObject | None) -> Mapping[str, Any] | None:
    """Return the schema that the answer must fit, None for text."""
    if value is None:
        return None
    named = value.get("json_schema")
    flat = value | (named if isinstance(named, dict) else {})
    wanted = read(AnswerFormat, flat | {"type": value.get("type")}, "response_format")
    return wanted.get_schema("response_format.json_schema.schema")


def _score_count(body: CompletionBody) -> int:
    """Return the number of alternatives of each token, by mlx-lm's parameters."""
    wanted = body.top_logprobs or 0
    if not body.logprobs:
        return 0
    if body.logprobs is not True or not wanted:
        raise unsupported("logprobs", "true, with top_logprobs; no other form can be had here")
    if body.stream:
        raise unsupported("logprobs", "not in a stream")
    return wanted


# --- writing --------------------------------------------------------------------------------------


class ChatReply:
    """A chat completion, whole or as chunks, which have the fields ``same``."""

    def __init__(
        self, same: JsonObject, body: OpenAiBody, tools: ClientTools | None = None
    ) -> None:
        self._same, self.streamed, self._usage = same, body.stream is True, body.wants_usage
        self._sent_calls = SentCalls()
        self._tools = ClientTools() if tools is None else tools
        self._templates: dict[str | tuple[int, str], EventTemplate] = {}

    def begin(self) -> Iterator[str]:
        yield self._chunk({"role": "assistant", "content": ""})

    def tell(self, event: TurnEvent) -> Iterator[str]:
        match event:
            case TextAdded(text=text):
                yield self._text_chunk("content", text)
            case ThoughtAdded(text=text):
                yield self._text_chunk("reasoning_content", text)
            case CallAdded():
                self._sent_calls.begin(event.name)
                call = {"index": event.index} | self._call(event.id, event.name, "")
                yield self._chunk({"tool_calls": [call]})
            case ArgumentsAdded(index=index, text=text):
                if self._is_custom(index):
                    yield from self._add_to_call(index, "custom", custom_input_piece(text))
                else:
                    yield from self._add_to_call(index, "function", text)

    def idle(self) -> Iterator[str]:
        yield self._chunk({})

    def end(self, done: TurnDone) -> Iterator[str]:
        for index, call in enumerate(done.calls):
            if index >= len(self._sent_calls):
                yield from self.tell(CallAdded(index, call.id, call.name))
            is_custom = self._is_custom(index)
            text = custom_input(call.arguments) if is_custom else call.arguments
            kind: Literal["custom", "function"] = "custom" if is_custom else "function"
            yield from self._add_to_call(index, kind, self._sent_calls.remaining(index, text))
        notes: JsonObject = {"mlx_tools": done.notes} if done.notes else {}
        yield self._chunk({}, done.finish, **({} if self._usage else notes))
        if self._usage:
            yield server_sent(self._object([], usage=_usage(done.usage), **notes))
        yield DONE

    def fail(self, error: ApiError) -> Iterator[str]:
        yield server_sent(_stream_error(error))

    def whole(self, done: TurnDone) -> JsonObject:
        message: JsonObject = {"role": "assistant", "content": done.text}
        if done.thought:
            message["reasoning_content"] = done.thought
        if done.calls:
            message["content"] = done.text or None
            message["tool_calls"] = [
                self._call(call.id, call.name, call.arguments) for call in done.calls
            ]
        choice = {
            "index": 0,
            "message": message | {"refusal": None},
            "logprobs": None,
            "finish_reason": done.finish,
        }
        return self._object([choice], kind="chat.completion", usage=_usage(done.usage))

    def _add_to_call(
        self, index: int, kind: Literal["custom", "function"], piece: str
    ) -> Iterator[str]:
        """Send a piece of a call's arguments, or of a custom tool's text."""
        if piece:
            self._sent_calls.add(index, piece)
            yield self._text_chunk((index, kind), piece)

    def _is_custom(self, index: int) -> bool:
        """Return whether a call that was begun is of a custom tool."""
        return self._tools.client_tool(self._sent_calls.name(index)).is_custom

    def _call(self, id_: str, name: str, arguments: str) -> JsonObject:
        """Return a call as the client knows its tool.

        ``arguments`` are empty if the call only begins.
        """
        tool = self._tools.client_tool(name)
        if tool.is_custom:
            text = custom_input(arguments) if arguments else ""
            return {"id": id_, "type": "custom", "custom": {"name": tool.name, "input": text}}
        function = {"name": tool.name, "arguments": arguments}
        return {"id": id_, "type": "function", "function": function}

    def _text_chunk(self, place: str | tuple[int, str], text: str) -> str:
        """Return the chunk with more text of a field, or of a call (number and kind)."""
        template = self._templates.get(place)
        if template is None:
            delta: JsonObject
            if isinstance(place, str):
                delta = {place: EventTemplate.CHANGES}
            else:
                index, kind = place
                changing = {"input" if kind == "custom" else "arguments": EventTemplate.CHANGES}
                delta = {"tool_calls": [{"index": index, kind: changing}]}
            template = self._templates[place] = EventTemplate(self._chunk_data(delta))
        return template.with_text(text)

    def _chunk(self, delta: JsonObject, finish: str | None = None, **fields: Any) -> str:
        return server_sent(self._chunk_data(delta, finish, **fields))

    def _chunk_data(
        self, delta: JsonObject, finish: str | None = None, **fields: Any
    ) -> JsonObject:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        more: JsonObject = {"usage": None} if self._usage else {}
        return self._object([choice], **more, **fields)

    def _object(
        self, choices: list[JsonObject], kind: str = "chat.completion.chunk", **fields: Any
    ) -> JsonObject:
        return {**self._same, "object": kind, "choices": choices, **fields}


class CompletionReply:
    """A text completion, whole or as chunks, which have the fields ``same``."""

    def __init__(self, same: JsonObject, body: OpenAiBody) -> None:
        self._same, self.streamed, self._usage = same, body.stream is True, body.wants_usage

    def begin(self) -> Iterator[str]:
        return iter(())

    def tell(self, event: TurnEvent) -> Iterator[str]:
        if isinstance(event, TextAdded):
            yield server_sent({**self._same, "choices": [self._choice(event.text, None)]})

    def idle(self) -> Iterator[str]:
        yield from self.tell(TextAdded(""))

    def end(self, done: TurnDone) -> Iterator[str]:
        yield server_sent({**self._same, "choices": [self._choice("", done.finish)]})
        if self._usage:
            yield server_sent({**self._same, "choices": [], "usage": self._usage_object(done)})
        yield DONE

    def fail(self, error: ApiError) -> Iterator[str]:
        yield server_sent(_stream_error(error))

    def whole(self, done: TurnDone) -> JsonObject:
        choice = self._choice(done.text, done.finish)
        if done.scores:
            choice["logprobs"] = {"content": [_row(scores) for scores in done.scores]}
        return {**self._same, "choices": [choice], "usage": self._usage_object(done)}

    def _choice(self, text: str, finish: str | None) -> JsonObject:
        return {"index": 0, "text": text, "logprobs": None, "finish_reason": finish}

    def _usage_object(self, done: TurnDone) -> JsonObject:
        """Return the usage, without cached tokens if the model's server reports none."""
        said = _usage(done.usage)
        if done.usage.cached_tokens is None:
            del said["prompt_tokens_details"]
        return said


def _stream_error(error: ApiError) -> JsonObject:
    """Return the error event of a stream; some clients repeat each server error."""
    told = openai_error(error)
    if error.should_retry is False:
        told["error"]["type"] = "invalid_request_error"
    return told


def _row(scores: Sequence[TokenScore]) -> JsonObject:
    """Return one token's alternatives as mlx-lm's server writes them, each with bytes."""
    rows = [
        {"id": one.id, "token": one.text, "logprob": one.logprob, "bytes": list(one.data)}
        for one in scores
    ]
    return {"top_logprobs": rows}


def _usage(usage: Usage) -> JsonObject:
    """Return the tokens of a turn as OpenAI's interface writes them."""
    prompt, completion = usage.prompt_tokens or 0, usage.completion_tokens or 0
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens or 0},
    }
