"""The body of ``POST /v1/responses`` as Open Responses has it, read into what a turn is made of.

What such a body says and how it counts here: honoured where it changes the answer, accepted where
it changes only what somebody else pays or keeps, refused by name otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Final, Literal, get_args

from msgspec import Struct, field
from pydantic import AliasChoices, BeforeValidator, Field

from mlx_tools.gateway.body import (
    Body,
    JsonObject,
    Sampled,
    answer_schema,
    as_parts,
    check_choice,
    check_names,
    check_text,
    place,
    read,
    tool_spec,
    unknown_fields,
    usable_name,
)
from mlx_tools.gateway.request import ClientCall, ClientMessage, invalid, missing, unsupported
from mlx_tools.messages import ToolSpec, replace

_ACCEPTED: Final = frozenset(
    {
        *("access_programs", "background_options", "client_metadata", "prompt_cache_options"),
        *("prompt_cache_retention", "reasoning", "service_tier", "stream_options", "user"),
    }
)
"""Fields that change what somebody else pays, keeps or measures; nothing of it is done here."""


PartKind = Literal["input_text", "output_text", "text", "refusal"]


class TextPart(Body):
    """A part of a message, or of what a tool put out."""

    type: PartKind
    text: str = Field(validation_alias=AliasChoices("text", "refusal"))


Parts = Annotated[list[TextPart], BeforeValidator(partial(as_parts, kind="input_text"))]


class MessageItem(Body):
    """A message of anybody."""

    role: Literal["user", "assistant", "system", "developer"]
    content: Parts


class CallItem(Body):
    """A call that the model made in an earlier turn."""

    call_id: str = Field(min_length=1)
    name: str = Field(min_length=1)
    namespace: str | None = None
    arguments: str


class OutputItem(Body):
    """What came of a call."""

    call_id: str = Field(min_length=1)
    output: Parts


class FunctionParam(Body):
    """A tool, alone or in a namespace."""

    name: str = Field(min_length=1)
    description: str | None = None
    parameters: JsonObject | None = None
    strict: bool | None = None


class NamespaceParam(Body):
    """A group of tools."""

    name: str = Field(min_length=1)
    description: str | None = None
    tools: list[JsonObject]


class KindOnly(Body):
    """Anything that says of what kind it is."""

    type: str


class NamedTool(Body):
    """A tool that is chosen or allowed."""

    type: Literal["function"]
    name: str
    namespace: str | None = None

    def known_as(self) -> str:
        """Its name here."""
        return usable_name(self.name, self.namespace or "")


class AllowedTools(Body):
    """The tools that may be called now."""

    mode: Literal["auto", "required", "none"] | None = None
    tools: list[JsonObject] = Field(min_length=1)


class AnswerFormat(Body):
    """What an answer must be."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    name: str | None = None
    description: str | None = None
    schema_: JsonObject | None = Field(None, alias="schema")
    strict: bool | None = None


class TextParam(Body):
    """How the answer is written."""

    format: AnswerFormat | None = None


def _items(value: Any) -> Any:
    if isinstance(value, str):
        return [{"type": "message", "role": "user", "content": value}]
    return value


class ResponsesBody(Sampled):
    """The body, but for its items and tools, which have a reader each."""

    model: str | None = None
    input: Annotated[list[JsonObject], BeforeValidator(_items)]
    instructions: str | None = None
    previous_response_id: str | None = None
    tools: list[JsonObject] | None = None
    tool_choice: str | JsonObject | None = None
    parallel_tool_calls: bool | None = None
    text: TextParam | None = None
    max_output_tokens: int | None = Field(None, ge=1)
    stream: bool | None = None
    store: bool | None = None
    truncation: Literal["auto", "disabled"] | None = None
    background: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    include: list[str] | None = None
    conversation: Any = None
    prompt: Any = None
    metadata: JsonObject | None = None
    max_tool_calls: int | None = Field(None, ge=1)
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    def left_out(self) -> tuple[str, ...]:
        """What of the top was accepted and has no effect."""
        cut = ("truncation",) if self.truncation == "auto" else ()
        return (*unknown_fields(self, _ACCEPTED), *cut)


def check_supported(body: ResponsesBody) -> None:
    """Return where nothing is asked for that cannot be had here. Raises `ApiError`."""
    if body.store or body.previous_response_id is not None:
        named = "store" if body.store else "previous_response_id"
        raise unsupported(named, "no response is kept; send all items each time")
    if body.background:
        raise unsupported("background", "a response is made while its client waits")
    if body.conversation is not None:
        raise unsupported("conversation", "none are kept; send all items each time")
    if body.prompt is not None:
        raise unsupported("prompt", "no templates are kept; send the text itself")
    if body.top_logprobs:
        raise unsupported("top_logprobs", "the model's probabilities are not passed on")
    if "message.output_text.logprobs" in (body.include or ()):
        raise unsupported("include", "the model's probabilities are not passed on")


# --- items ----------------------------------------------------------------------------------------


def messages_of(items: Sequence[Mapping[str, Any]]) -> list[ClientMessage]:
    """The conversation that these items are. What the model said and called in one turn is one
    message. Raises `ApiError` for an item that cannot be told to a model of text."""
    messages: list[ClientMessage] = []
    for index, item in enumerate(items):
        _add_item(messages, item, place("input", index))
    return messages


def _add_item(messages: list[ClientMessage], item: Mapping[str, Any], at: str) -> None:
    kind = item.get("type") or ("message" if "role" in item else None)
    if kind == "message":
        _check_parts(item.get("content"), place(at, "content"))
        message = read(MessageItem, item, at)
        role = "system" if message.role == "developer" else message.role
        messages.append(ClientMessage(role, joined(message.content)))
    elif kind == "function_call":
        call = read(CallItem, item, at)
        name = usable_name(call.name, call.namespace or "")
        made = ClientCall(call.call_id, name, call.arguments)
        if not messages or messages[-1].role != "assistant":
            messages.append(ClientMessage("assistant"))
        messages[-1] = replace(messages[-1], calls=(*messages[-1].calls, made))
    elif kind == "function_call_output":
        _check_parts(item.get("output"), place(at, "output"))
        output = read(OutputItem, item, at)
        messages.append(ClientMessage("tool", joined(output.output), call_id=output.call_id))
    elif kind != "reasoning":
        raise unsupported(place(at, "type"), f"an item of type {kind!r} cannot be read here")


def _check_parts(parts: Any, at: str) -> None:
    for index, part in enumerate(parts if isinstance(parts, list) else ()):
        if isinstance(part, dict):
            check_text(part, place(at, index), get_args(PartKind))


def joined(parts: Sequence[TextPart]) -> str:
    """The text of the parts of one message."""
    return "\n".join(part.text for part in parts)


# --- tools ----------------------------------------------------------------------------------------


class OfferedTools(Struct, frozen=True):
    """A client's tools. ``names`` are their namespaces and names, by the names they have here,
    ``told`` are the tools as a response lists them, ``left_out`` are the kinds of those that a
    server would have to run itself."""

    specs: tuple[ToolSpec, ...] = ()
    names: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    told: tuple[JsonObject, ...] = ()
    left_out: tuple[str, ...] = ()


def tools_of(tools: Sequence[Mapping[str, Any]]) -> OfferedTools:
    """The tools that a client offers. Raises `ApiError` for one that is none."""
    specs, names, told = [], {}, []
    left_out: list[str] = []
    for at, namespace, tool in _flat(tools, "tools"):
        if tool.get("type") != "function":
            left_out.append(read(KindOnly, tool, at).type)
            continue
        function = read(FunctionParam, tool, at)
        space = namespace.name if namespace else ""
        name = usable_name(function.name, space)
        described = function.description or (namespace.description if namespace else None)
        schema = place(at, "parameters")
        spec = tool_spec(name, described, function.parameters, schema, left_out)
        specs.append(spec)
        names[name] = space, function.name
        told.append(
            {
                "type": "function",
                "name": name,
                "description": described,
                "parameters": function.parameters,
                "strict": function.strict,
            }
        )
    check_names(specs)
    return OfferedTools(tuple(specs), names, tuple(told), tuple(left_out))


Placed = tuple[str, NamespaceParam | None, Mapping[str, Any]]


def _flat(tools: Sequence[Mapping[str, Any]], at: str) -> Iterator[Placed]:
    for index, tool in enumerate(tools):
        here = place(at, index)
        if tool.get("type") != "namespace":
            yield here, None, tool
            continue
        namespace = read(NamespaceParam, tool, here)
        for inner, one in enumerate(namespace.tools):
            yield place(here, "tools", inner), namespace, one


class Choice(Struct, frozen=True):
    """Which tools must be called, and which may be. ``told`` is how a response says it."""

    tool: str = "auto"
    allowed: frozenset[str] | None = None
    told: Any = "auto"


def choice_of(choice: str | Mapping[str, Any] | None, offered: OfferedTools) -> Choice:
    """What a client chose. Raises `ApiError` where that cannot be."""
    found = _choice(choice or "auto", offered)
    check_choice(found.tool, found.allowed, offered.specs, "tool_choice")
    return found


def _choice(choice: str | Mapping[str, Any], offered: OfferedTools) -> Choice:
    if isinstance(choice, str):
        if choice not in ("auto", "none", "required"):
            raise invalid("tool_choice", "one of 'auto', 'none' and 'required', or an object")
        return Choice(choice, told=choice)
    kind = read(KindOnly, choice, "tool_choice").type
    if kind == "function":
        named = read(NamedTool, choice, "tool_choice").known_as()
        return Choice(named, told={"type": "function", "name": named})
    if kind != "allowed_tools":
        raise unsupported("tool_choice", f"there is no tool of type {kind!r} here")
    wanted = read(AllowedTools, choice, "tool_choice")
    mode = wanted.mode or "auto"
    names = [
        read(NamedTool, tool, place("tool_choice", "tools", index)).known_as()
        for index, tool in enumerate(wanted.tools)
        if tool.get("type") not in offered.left_out
    ]
    if not names and mode == "auto":  # what may be called is nothing that could be, here
        return Choice("none", told="none")
    told = [{"type": "function", "name": name} for name in names]
    return Choice(mode, frozenset(names), {"type": kind, "mode": mode, "tools": told})


# --- the answer's form ----------------------------------------------------------------------------


def schema_of(text: TextParam | None) -> Mapping[str, Any] | None:
    """What the answer must fit, None for text. Raises `ApiError`."""
    wanted = text.format if text else None
    if wanted is None or wanted.type == "text":
        return None
    if wanted.type == "json_object":
        return {"type": "object"}
    at = "text.format.schema"
    if wanted.schema_ is None:
        raise missing(at)
    return answer_schema(wanted.schema_, at)


def told_format(text: TextParam | None) -> JsonObject:
    """The answer's form as a response says it."""
    wanted = text.format if text else None
    if wanted is None:
        return {"type": "text"}
    if wanted.type != "json_schema":
        return {"type": wanted.type}
    return {
        "type": "json_schema",
        "name": wanted.name or "answer",
        "description": wanted.description,
        "schema": wanted.schema_,
        "strict": bool(wanted.strict),
    }
