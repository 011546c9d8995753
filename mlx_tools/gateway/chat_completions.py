"""OpenAI's chat completions: what a client may send, and how a turn is written for it. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from mlx_tools.gateway.body import (
    NAME_FORM,
    Body,
    JsonObject,
    Sampled,
    answer_schema,
    as_parts,
    check_choice,
    check_names,
    check_plain,
    check_text,
    place,
    read,
    tool_spec,
    unknown_fields,
    usable_name,
)
from mlx_tools.gateway.request import (
    DONE,
    ApiError,
    ArgumentsMore,
    CallBegun,
    ClientCall,
    ClientMessage,
    Role,
    TextPiece,
    TurnDone,
    TurnEvent,
    TurnRequest,
    invalid,
    server_sent,
    unsupported,
)
from mlx_tools.messages import ToolSpec, Usage

_ACCEPTED: Final = (
    *("user", "metadata", "store", "service_tier", "prompt_cache_key", "safety_identifier"),
    *("client_metadata", "include", "reasoning_effort", "verbosity", "prompt_cache_retention"),
)
"""Fields that only change cost, telemetry or storage on somebody else's side."""

_REFUSED: Final[Mapping[str, Any]] = {
    "audio": None,
    "prediction": None,
    "functions": None,
    "function_call": None,
    "modalities": ["text"],
    "n": 1,
    "logprobs": False,
    "top_logprobs": 0,
}
"""Fields that would change the answer, and the value that asks for nothing."""

Number = int | float
TokenId = Annotated[str, Field(pattern=r"^[0-9]{1,9}$")]


class ChatFunction(Body):
    name: Annotated[str, Field(min_length=1, max_length=500)]
    description: str | None = None
    parameters: JsonObject | None = None


class ChatTool(Body):
    type: str = "function"
    function: JsonObject | None = None


class CalledFunction(Body):
    name: str
    arguments: str | JsonObject | None = ""


class AssistantCall(Body):
    id: str | None = ""
    type: str | None = "function"
    function: CalledFunction


class ChatMessage(Body):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[JsonObject] | None = None
    tool_calls: list[AssistantCall] | None = None
    tool_call_id: str | None = None
    refusal: str | None = None


class StreamOptions(Body):
    include_usage: bool | None = None


class OpenAiBody(Sampled):
    """What both of OpenAI's completions are asked with."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stop: str | list[str] | None = None

    @property
    def stops(self) -> tuple[str, ...]:
        """The texts that end the answer."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def wants_usage(self) -> bool:
        """Whether a stream ends with what the turn cost."""
        return self.stream_options is not None and self.stream_options.include_usage is True


class ChatBody(OpenAiBody):
    """The fields that have a meaning here; all others are kept apart."""

    messages: Annotated[list[JsonObject], Field(min_length=1)]
    tools: list[JsonObject] | None = None
    tool_choice: str | JsonObject | None = None
    parallel_tool_calls: bool | None = None
    response_format: JsonObject | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logit_bias: dict[TokenId, Annotated[Number, Field(ge=-100, le=100)]] | None = None


def read_chat_completion(
    body: Mapping[str, Any], *, new_id: Callable[[], str], now: Callable[[], float]
) -> tuple[TurnRequest, ChatReply]:
    """What a body asks for, and how it is answered.

    ``new_id`` gives the completion's id, ``now`` is the time in seconds since 1970. Raises
    `ApiError` for the first field that is wrong, or cannot be had.
    """
    check_plain(body)
    check_not_asked(body, _REFUSED, [])
    given = read(ChatBody, body)
    tools, left_out = _tools(given.tools or [])
    choice, allowed = _choice(given.tool_choice)
    check_choice(choice, allowed, tools, "tool_choice")
    sampling = given.sampling()
    if given.logit_bias:
        sampling["logit_bias"] = dict(given.logit_bias)
    request = TurnRequest(
        messages=tuple(_messages(given.messages)),
        model=given.model or "",
        tools=tools,
        tool_choice=choice,
        allowed=allowed,
        parallel=given.parallel_tool_calls is not False,
        schema=_schema(given.response_format),
        sampling=sampling,
        stop=given.stops,
        max_tokens=given.max_completion_tokens or given.max_tokens,
        left_out=(*left_out, *unknown_fields(given, (*_ACCEPTED, *_REFUSED))),
    )
    same = {"id": f"chatcmpl-{new_id()}", "created": int(now()), "model": request.model}
    return request, ChatReply(same, streamed=given.stream is True, usage=given.wants_usage)


def check_not_asked(body: Mapping[str, Any], refused: Mapping[str, Any], *nothings: Any) -> None:
    """Return where each of the fields ``refused`` has the value there, one of ``nothings``, or none
    at all. Raises `ApiError`."""
    for name, nothing in refused.items():
        if body.get(name) not in (None, False, nothing, *nothings):
            raise unsupported(name, "cannot be had here; leave it out")


def _messages(values: list[JsonObject]) -> Iterator[ClientMessage]:
    for number, value in enumerate(values):
        at = f"messages[{number}]"
        message = read(ChatMessage, value, at)
        role: Role = "system" if message.role == "developer" else message.role
        content = content_text(message.content, place(at, "content")) or message.refusal or ""
        if role == "tool" and not message.tool_call_id:
            param = place(at, "tool_call_id")
            raise ApiError(400, "missing_required_parameter", f"{param}: required", param=param)
        calls = tuple(
            ClientCall(call.id or "", usable_name(call.function.name), _arguments(call.function))
            for call in message.tool_calls or ()
        )
        yield ClientMessage(role, content, calls, message.tool_call_id or "")


def content_text(content: str | list[JsonObject] | None, at: str) -> str:
    """What a message says, found in the body at this place, its parts joined. Raises `ApiError`
    for a part that is no text."""
    texts = []
    for number, part in enumerate(as_parts(content, "text") or []):
        kind = part.get("type", "text")
        text = part.get("refusal" if kind == "refusal" else "text")
        check_text(part, place(at, number), ("text", "refusal"))
        if not isinstance(text, str):
            raise invalid(place(at, number, "text"), "a text")
        texts.append(text)
    return "\n".join(texts)


def _arguments(function: CalledFunction) -> str:
    given = function.arguments
    return given if isinstance(given, str) else json.dumps(given or {}, ensure_ascii=False)


def _tools(values: list[JsonObject]) -> tuple[tuple[ToolSpec, ...], tuple[str, ...]]:
    """The functions, and the names of what is none and is left out."""
    tools: list[ToolSpec] = []
    left_out: list[str] = []
    for number, value in enumerate(values):
        at = f"tools[{number}]"
        tool = read(ChatTool, value, at)
        if tool.type != "function":
            left_out.append(f"tools.{tool.type}")
            continue
        at = place(at, "function")
        function = read(ChatFunction, tool.function, at)
        name = usable_name(function.name)
        if name != function.name:
            raise invalid(place(at, "name"), f"{function.name!r}: {NAME_FORM}")
        at = place(at, "parameters")
        tools.append(tool_spec(name, function.description, function.parameters, at, left_out))
    check_names(tools)
    return tuple(tools), tuple(left_out)


def _choice(value: str | JsonObject | None) -> tuple[str, frozenset[str] | None]:
    """The choice, and the tools that may be called where these are not all."""
    wrong = invalid("tool_choice", "none, auto, required, a function or allowed_tools")
    if value is None or isinstance(value, str):
        if value not in (None, "none", "auto", "required"):
            raise wrong
        return value or "auto", None
    kind = value.get("type")
    if kind == "function":
        return _named(value, wrong), None
    # In the chat interface the list stands under a key of its own.
    listed = value.get("allowed_tools", value)
    if kind != "allowed_tools" or not isinstance(listed, dict):
        raise wrong
    mode, tools = listed.get("mode", "auto"), listed.get("tools")
    if mode not in ("auto", "required") or not isinstance(tools, list):
        raise wrong
    return mode, frozenset(_named(tool, wrong) for tool in tools)


def _named(value: Any, wrong: ApiError) -> str:
    function = value.get("function", value) if isinstance(value, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        raise wrong
    return name


def _schema(value: JsonObject | None) -> Mapping[str, Any] | None:
    """What the answer must fit, None for text."""
    kind = "text" if value is None else value.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return {"type": "object"}
    named = (value or {}).get("json_schema")
    schema = named.get("schema") if isinstance(named, dict) else None
    if kind != "json_schema" or not isinstance(schema, dict):
        raise invalid("response_format", "text, json_object, or json_schema with a schema")
    return answer_schema(schema, "response_format.json_schema.schema")


# --- the answer -----------------------------------------------------------------------------------


def chat_completion_error(error: ApiError) -> dict[str, Any]:
    """The body that tells of an error, in OpenAI's form."""
    told = {"message": error.message, "type": error.type, "param": error.param}
    return {"error": told | {"code": error.code}}


class ChatReply:
    """A chat completion, whole or as chunks, which have the fields ``same``. With ``usage`` the
    last of them says what the turn cost."""

    def __init__(self, same: Mapping[str, Any], *, streamed: bool, usage: bool) -> None:
        self._same, self.streamed, self._usage = same, streamed, usage

    def begin(self) -> Iterator[str]:
        yield self._chunk({"role": "assistant", "content": ""})

    def take(self, event: TurnEvent) -> Iterator[str]:
        match event:
            case TextPiece(text):
                yield self._chunk({"content": text})
            case CallBegun(index, id, name):
                function = {"name": name, "arguments": ""}
                call = {"index": index, "id": id, "type": "function", "function": function}
                yield self._chunk({"tool_calls": [call]})
            case ArgumentsMore(index, text):
                yield self._chunk(
                    {"tool_calls": [{"index": index, "function": {"arguments": text}}]}
                )
            case TurnDone():
                yield self._chunk({}, event.finish)
                if self._usage:
                    yield server_sent(self._object([], usage=chat_usage(event.usage)))
                yield DONE

    def fail(self, error: ApiError) -> Iterator[str]:
        yield server_sent(chat_completion_error(error))

    def whole(self, done: TurnDone) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": done.text}
        if done.calls:
            message["content"] = done.text or None
            message["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call in done.calls
            ]
        choice = {
            "index": 0,
            "message": message | {"refusal": None},
            "logprobs": None,
            "finish_reason": done.finish,
        }
        return self._object([choice], kind="chat.completion", usage=chat_usage(done.usage))

    def _chunk(self, delta: dict[str, Any], finish: str | None = None) -> str:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        more: dict[str, Any] = {"usage": None} if self._usage else {}
        return server_sent(self._object([choice], **more))

    def _object(
        self, choices: list[dict[str, Any]], kind: str = "chat.completion.chunk", **more: Any
    ) -> dict[str, Any]:
        return {**self._same, "object": kind, "choices": choices, **more}


def chat_usage(usage: Usage) -> dict[str, Any]:
    """The tokens of a turn as OpenAI's interface says them."""
    prompt, completion = usage.prompt_tokens or 0, usage.completion_tokens or 0
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens or 0},
    }
