"""OpenAI's ``/v1/responses``, as Open Responses specifies it. Pure.

A field has its effect if it changes the answer. It is accepted without effect if it only changes
what somebody else pays or keeps. Any other field is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal

from msgspec import Struct
from pydantic import BeforeValidator, Field, WithJsonSchema

from mlx_tools.gateway.body import (
    MAX_PARTS,
    MAX_TOOLS,
    AnswerFormat,
    Body,
    Parts,
    SamplingBody,
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
from mlx_tools.gateway.history import ConversationBuilder, HistoryReader
from mlx_tools.gateway.request import (
    DONE,
    ApiError,
    ArgumentsAdded,
    CallAdded,
    ClientCall,
    ClientMessage,
    JsonObject,
    Reply,
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
    *("access_programs", "background_options", "client_metadata", "prompt_cache_options"),
    *("prompt_cache_retention", "reasoning", "service_tier", "stream_options", "user"),
)
"""Fields that change what somebody else pays, keeps or measures; they have no effect here."""

_UNSUPPORTED: Final = {
    "store": "no response is kept; send all items each time",
    "previous_response_id": "no response is kept; send all items each time",
    "background": "a response is made while its client waits",
    "conversation": "none are kept; send all items each time",
    "prompt": "no templates are kept; send the text itself",
    "top_logprobs": "the model's probabilities are not passed on",
}
"""Fields that ask for something that is not supported, and why not."""


class MessageItem(Body):
    """A message of any role."""

    role: Literal["user", "assistant", "system", "developer"]
    content: Parts


class CallItem(Body):
    """A call that the model made in an earlier turn."""

    call_id: str = Field(min_length=1)
    name: str = Field(min_length=1)
    namespace: str | None = None
    arguments: str | JsonObject


class OutputItem(Body):
    """The result of a call."""

    call_id: str | None = None
    output: Parts


class FunctionParam(Body):
    """A tool, alone or in a namespace."""

    name: str = Field(min_length=1)
    description: Any = None
    parameters: Any = None
    format: Any = None
    strict: bool | None = None


class NamespaceParam(Body):
    """A group of tools."""

    name: str = Field(min_length=1)
    description: Any = None
    tools: list[JsonObject]


class TextParam(Body):
    """The form of the answer."""

    format: AnswerFormat | None = None


def _items(value: Any) -> Any:
    return [{"role": "user", "content": value}] if isinstance(value, str) else value


class ResponsesBody(SamplingBody):
    """The body without its items and tools, which have readers of their own."""

    model: str | None = None
    input: Annotated[
        list[JsonObject],
        BeforeValidator(_items),
        WithJsonSchema({"anyOf": [{"type": "string"}, {"items": {"type": "object"}}]}),
        Field(max_length=MAX_PARTS),
    ]
    instructions: str | None = None
    previous_response_id: str | None = None
    tools: Annotated[list[JsonObject], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: str | JsonObject | None = None
    parallel_tool_calls: bool | None = None
    text: TextParam | None = None
    max_output_tokens: TokenLimit = None
    stream: bool | None = None
    store: bool | None = None
    truncation: Literal["auto", "disabled"] | None = None
    background: bool | None = None
    top_logprobs: Whole | None = Field(None, ge=0, le=20)
    include: list[str] | None = None
    conversation: Any = None
    prompt: Any = None
    metadata: JsonObject | None = None
    max_tool_calls: Whole | None = Field(None, ge=1)
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None


def responses_error(error: ApiError) -> JsonObject:
    """Return the body of an error. The field ``messages`` is called ``input`` here."""
    told = openai_error(error)
    if error.param == "messages":
        told["error"]["param"] = "input"
    return told


# --- reading --------------------------------------------------------------------------------------


def read_responses(
    body: JsonObject,
    *,
    new_id: Callable[[], str],
    now: Callable[[], float],
    temperature: float = 1.0,
) -> tuple[TurnRequest, Reply]:
    """Read what a body asks for, and how it is answered. Raises `ApiError`.

    ``new_id`` gives letters and digits that nobody else has. ``now`` is in seconds since 1970.
    ``temperature`` is used if the body has none.
    """
    asked = read(ResponsesBody, body)
    for name, problem in _UNSUPPORTED.items():
        if getattr(asked, name) not in (None, False, 0):
            raise unsupported(name, problem)
    if "message.output_text.logprobs" in (asked.include or ()):
        raise unsupported("include", _UNSUPPORTED["top_logprobs"])
    offered = _read_tools(asked.tools or (), asked.input)
    choice = read_choice(asked.tool_choice, offered.tools, offered.hosted)
    choice = choice.among(offered.tools.specs)
    content = ContentReader()
    messages = _read_messages(asked.input, HistoryReader(offered.tools.model_name, content))
    answer = asked.text.format if asked.text else None
    instructions = [ClientMessage("system", asked.instructions)] if asked.instructions else []
    cut = ("truncation",) if asked.truncation == "auto" else ()
    request = TurnRequest(
        messages=(*instructions, *messages),
        model=asked.model or "",
        tools=offered.tools.specs,
        custom_tools=offered.tools.custom_names,
        tool_choice=choice.tool,
        allowed=choice.allowed,
        parallel=asked.parallel_tool_calls is not False,
        schema=answer.get_schema("text.format.schema") if answer else None,
        sampling=asked.sampling(),
        max_tokens=asked.max_output_tokens,
        left_out=(
            *(*unknown_fields(asked, _ACCEPTED), *cut, *offered.hosted),
            *offered.tools.left_out,
            *content.left_out,
        ),
    )
    mark, created = new_id(), now()
    about = {
        **_about(asked, temperature),
        "text": {"format": _describe_format(answer)},
        "id": f"resp_{mark}",
        "created_at": int(created),
        "tools": list(offered.descriptions),
        "tool_choice": choice.json_value,
    }
    return request, ResponsesReply(about, offered.tools, now, streamed=bool(asked.stream))


def _about(body: ResponsesBody, temperature: float) -> JsonObject:
    """Return the fields of a request that its response repeats, with the values used."""
    return {
        "object": "response",
        "model": body.model or "",
        "previous_response_id": None,
        "instructions": body.instructions,
        "truncation": "disabled",
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "top_p": 1.0 if body.top_p is None else body.top_p,
        "presence_penalty": body.presence_penalty or 0.0,
        "frequency_penalty": body.frequency_penalty or 0.0,
        "top_logprobs": 0,
        "temperature": temperature if body.temperature is None else body.temperature,
        "reasoning": None,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "store": False,
        "background": False,
        "service_tier": "default",
        "metadata": body.metadata or {},
        "safety_identifier": body.safety_identifier,
        "prompt_cache_key": body.prompt_cache_key,
    }


def _describe_format(answer_format: AnswerFormat | None) -> JsonObject:
    if answer_format is None or answer_format.type != "json_schema":
        return {"type": answer_format.type if answer_format else "text"}
    return {
        "type": "json_schema",
        "name": answer_format.name or "answer",
        "description": answer_format.description,
        "schema": answer_format.schema_,
        "strict": bool(answer_format.strict),
    }


def _read_messages(items: Sequence[JsonObject], history: HistoryReader) -> list[ClientMessage]:
    """Read the items as messages, one for each turn of the model.

    Raises:
        ApiError: an item cannot be told to a model of text.
    """
    built = ConversationBuilder()
    for index, item in enumerate(items):
        for message in _item_messages(item, history, "input", index):
            built.add(message)
    return built.end()


_SILENT: Final = ("reasoning", "additional_tools", "configuration_update", "compaction_trigger")
"""Kinds of items in a conversation without meaning for a model."""


def _item_messages(
    item: JsonObject, history: HistoryReader, *path: str | int
) -> Iterator[ClientMessage]:
    """Yield the messages that an item at this path of the body stands for."""
    kind = item.get("type") or ("message" if "role" in item else None)
    content = history.content
    if kind == "message":
        message = read(MessageItem, item, *path)
        text = content.text(message.content, *path, "content")
        yield ClientMessage("system" if message.role == "developer" else message.role, text)
    elif kind == "function_call":
        call = read(CallItem, item, *path)
        made = history.function_call(call.call_id, call.name, call.arguments, call.namespace or "")
        yield ClientMessage("assistant", calls=(made,))
    elif kind == "custom_tool_call":
        yield ClientMessage("assistant", calls=(history.call(item),))
    elif kind in ("function_call_output", "custom_tool_call_output"):
        output = read(OutputItem, item, *path)
        text = content.text(output.output, *path, "output")
        yield ClientMessage("tool", text, call_id=output.call_id or "")
    elif not isinstance(kind, str) or kind == "item_reference":
        problem = f"an item of type {kind!r} cannot be read here; send the item itself"
        raise unsupported(place(*path, "type"), problem)
    elif kind not in _SILENT:
        yield from history.messages(item)
    elif kind in ("configuration_update", "compaction_trigger"):
        content.left_out[kind] = None


class OfferedTools(Struct, frozen=True):
    """The tools of a request.

    Attributes:
        tools: Those that the client runs.
        descriptions: The tools as a response says them.
        hosted: The kinds of those that a server would run.
    """

    tools: ClientTools
    descriptions: Sequence[JsonObject]
    hosted: Collection[str]


def _read_tools(tools: Sequence[JsonObject], items: Sequence[JsonObject]) -> OfferedTools:
    """Read the tools that a client offers, some by items. Raises `ApiError`."""
    definitions: list[ToolDefinition] = []
    described: list[JsonObject] = []
    hosted: dict[str, None] = {}
    groups: set[str] = set()
    for at, namespace, tool in _flat(tools, items):
        if not isinstance(kind := tool.get("type"), str):
            raise missing(place(at, "type"))
        if kind not in ("function", "custom"):
            hosted[kind] = None
            continue
        param = read(FunctionParam, tool, at)
        space = namespace.name if namespace else ""
        client_tool = ClientTool(param.name, space, kind == "custom")
        description = param.description
        if namespace is not None and namespace.name not in groups:  # the first one of its group
            groups.add(namespace.name)
            texts = (namespace.description, param.description)
            texts_given = [text for text in texts if isinstance(text, str) and text]
            description = "\n".join(texts_given) or None
        grammar = custom_grammar(param.format)
        definitions.append(ToolDefinition(client_tool, description, param.parameters, grammar))
        described.append(_describe_tool(param, kind, description))
    client_tools = ClientTools(definitions)
    told = [
        {**tool, "name": client_tools.model_name(one.tool.name, one.tool.namespace)}
        for tool, one in zip(described, definitions, strict=True)
    ]
    return OfferedTools(client_tools, told, hosted)


def _describe_tool(param: FunctionParam, kind: str, description: Any) -> JsonObject:
    """Describe a tool as a response does, without its name."""
    described = description if isinstance(description, str) else None
    if kind == "custom":
        told = param.format if isinstance(param.format, dict) else {"type": "text"}
        return {"type": "custom", "description": described, "format": told}
    parameters = param.parameters if isinstance(param.parameters, dict) else None
    return {
        "type": "function",
        "description": described,
        "parameters": parameters,
        "strict": param.strict,
    }


_TOOL_ITEMS: Final = ("additional_tools", "tool_search_output")
"""Kinds of items that offer more tools."""


def _flat(
    tools: Sequence[JsonObject], items: Sequence[JsonObject]
) -> Iterator[tuple[str, NamespaceParam | None, JsonObject]]:
    """Yield the tools, each with its place in the body and its group.

    Of the tools in items only the new ones.
    """
    lists: list[tuple[str, Any]] = [("tools", tools)]
    for index, item in enumerate(items):
        if item.get("type") in _TOOL_ITEMS:
            lists.append((place("input", index, "tools"), item.get("tools")))
    seen: set[tuple[str, str]] = set()
    for field_path, listed in lists:
        is_later = field_path != "tools"
        for index, tool in enumerate(listed if isinstance(listed, list | tuple) else ()):
            here = place(field_path, index)
            if is_later and not (isinstance(tool, dict) and isinstance(tool.get("type"), str)):
                continue
            for at, group, inner in _grouped(tool, here):
                key = group.name if group else "", str(inner.get("name"))
                if not (is_later and key in seen):
                    yield at, group, inner
                seen.add(key)


def _grouped(
    tool: JsonObject, field_path: str
) -> Iterator[tuple[str, NamespaceParam | None, JsonObject]]:
    """Yield the tools of a group, or the one tool itself."""
    if tool.get("type") != "namespace":
        yield field_path, None, tool
        return
    namespace = read(NamespaceParam, tool, field_path)
    for index, inner in enumerate(namespace.tools):
        yield place(field_path, "tools", index), namespace, inner


# --- writing --------------------------------------------------------------------------------------


@dataclass
class ResponsesReply:
    """A response that is made of a turn, in one piece or as events.

    Attributes:
        about: What it says of its request.
        tools: The client's tools by the names that the turn knows.
        now: The time in seconds since 1970.
        streamed: The client wants events.
    """

    about: JsonObject
    tools: ClientTools
    now: Callable[[], float]
    streamed: bool
    _output: list[JsonObject] = field(default_factory=list, init=False)
    _open: str = field(default="", init=False)  # the type of the open item of text
    _text: list[str] = field(default_factory=list, init=False)  # the text of that item
    _sent_calls: SentCalls = field(default_factory=SentCalls, init=False)
    _first_call: int = field(default=0, init=False)  # the item of the first call
    _number: int = field(default=-1, init=False)
    _whole: JsonObject = field(default_factory=dict, init=False)

    def begin(self) -> Iterator[str]:
        for kind in ("created", "in_progress"):
            yield self._event(f"response.{kind}", response=self._response("in_progress"))

    def tell(self, event: TurnEvent) -> Iterator[str]:
        match event:
            case TextAdded(text=text):
                yield from self._tell_text("message", text)
            case ThoughtAdded(text=text):
                yield from self._tell_text("reasoning", text)
            case CallAdded():
                yield from self._end_text("completed")
                self._sent_calls.begin(event.name)
                self._first_call = len(self._output) - event.index
                yield self._begin_call(event)
            case ArgumentsAdded(index=index, text=text):
                is_custom = self._is_custom(index)
                yield from self._add_to_call(index, custom_input_piece(text) if is_custom else text)

    def idle(self) -> Iterator[str]:
        yield self._event("response.in_progress", response=self._response("in_progress"))

    def end(self, done: TurnDone) -> Iterator[str]:
        cut = done.finish == "length"
        status = "incomplete" if cut else "completed"
        if not (self._open == "message" or done.text or done.calls or cut):
            yield from self._tell_text("message", "")
        yield from self._end_text(status)
        for index, call in enumerate(done.calls):
            yield from self._end_call(index, call)
        output = [item for item in self._output if item["status"] != "in_progress"]
        self._whole = self._response(
            status,
            output=output,  # without a call that was cut off
            usage=_usage(done.usage),
            incomplete_details={"reason": "max_output_tokens"} if cut else None,
            completed_at=None if cut else int(self.now()),
        )
        notes = {"mlx_tools": done.notes} if done.notes else {}
        yield self._event(f"response.{status}", response=self._whole, **notes)
        yield DONE

    def fail(self, error: ApiError) -> Iterator[str]:
        told = responses_error(error)
        # The specification has the error in a field of its own, OpenAI's client expects it at the
        # top.
        beside = {name: told["error"][name] for name in ("message", "param", "code")}
        yield self._event("error", **beside, **told)
        # Codex asks again up to 30 times unless it knows the code.
        code = "invalid_prompt" if error.should_retry is False else error.code
        if error.code == "context_length_exceeded":
            code = error.code
        why = {"code": code, "message": str(error)}
        yield self._event("response.failed", response=self._response("failed", error=why))
        yield DONE

    def whole(self, done: TurnDone) -> JsonObject:
        events: list[TurnEvent] = [ThoughtAdded(done.thought)] if done.thought else []
        events += [TextAdded(done.text)] if done.text else []
        for event in events:
            for _ in self.tell(event):
                pass
        for _ in self.end(done):
            pass
        return self._whole

    def _tell_text(self, kind: Literal["message", "reasoning"], text: str) -> Iterator[str]:
        """Yield the events of text or of a thought, in an item of its own."""
        is_message = kind == "message"
        if self._open != kind:
            yield from self._end_text("completed")
            at, part = len(self._output), _part(kind, "")
            self._open, self._text = kind, []
            fields: JsonObject = {"role": "assistant"} if is_message else {"summary": []}
            yield self._add(kind, **fields, content=[])
            yield self._event(
                "response.content_part.added", **self._item_position(at, 0), part=part
            )
            self._output[at]["content"].append(part)
        at = len(self._output) - 1
        if text:
            self._text.append(text)
            delta = {"delta": text, **({"logprobs": []} if is_message else {})}
            name = "output_text" if is_message else "reasoning_text"
            yield self._event(f"response.{name}.delta", **self._item_position(at, 0), **delta)

    def _end_text(self, status: str) -> Iterator[str]:
        """End the item of text that is open."""
        kind, self._open = self._open, ""
        if not kind:
            return
        at = len(self._output) - 1
        where, part = self._item_position(at, 0), self._output[at]["content"][0]
        part["text"] = "".join(self._text)
        whole = {"text": part["text"], **({"logprobs": []} if kind == "message" else {})}
        name = "output_text" if kind == "message" else "reasoning_text"
        yield self._event(f"response.{name}.done", **where, **whole)
        yield self._event("response.content_part.done", **where, part=part)
        yield self._done(at, status)

    def _end_call(self, index: int, call: ClientCall) -> Iterator[str]:
        if index >= len(self._sent_calls):
            yield from self.tell(CallAdded(index, call.id, call.name))
        is_custom = self._is_custom(index)
        text = custom_input(call.arguments) if is_custom else call.arguments
        yield from self._add_to_call(index, self._sent_calls.remaining(index, text))
        at = self._first_call + index
        item, where = self._output[at], self._item_position(at)
        whole = {"input": text} if is_custom else {"name": item["name"], "arguments": text}
        item["input" if is_custom else "arguments"] = text
        yield self._event(f"response.{self._delta_kind(index)}.done", **where, **whole)
        yield self._done(at, "completed")

    def _begin_call(self, call: CallAdded) -> str:
        tool = self.tools.client_tool(call.name)
        kind, key = "function_call", "arguments"
        if tool.is_custom:
            kind, key = "custom_tool_call", "input"
        named = {"name": tool.name}
        if tool.namespace:
            named["namespace"] = tool.namespace
        return self._add(kind, **named, call_id=call.id, **{key: ""})

    def _add_to_call(self, index: int, piece: str) -> Iterator[str]:
        """Send a piece of a call's arguments, or of a custom tool's text."""
        if piece:
            self._sent_calls.add(index, piece)
            at = self._item_position(self._first_call + index)
            yield self._event(f"response.{self._delta_kind(index)}.delta", **at, delta=piece)

    def _delta_kind(self, index: int) -> str:
        return "custom_tool_call_input" if self._is_custom(index) else "function_call_arguments"

    def _is_custom(self, index: int) -> bool:
        """Return whether a call that was begun is of a custom tool."""
        return self.tools.client_tool(self._sent_calls.name(index)).is_custom

    def _add(self, kind: str, **fields: Any) -> str:
        at, prefix = len(self._output), _PREFIXES[kind]
        mark = self.about["id"].removeprefix("resp_")
        item = {"id": f"{prefix}_{mark}o{at}", "type": kind, "status": "in_progress"}
        self._output.append({**item, **fields})
        return self._event("response.output_item.added", output_index=at, item=self._output[at])

    def _done(self, item_index: int, status: str) -> str:
        self._output[item_index]["status"] = status
        return self._event(
            "response.output_item.done", output_index=item_index, item=self._output[item_index]
        )

    def _item_position(self, index: int, part: int | None = None) -> JsonObject:
        where = {"item_id": self._output[index]["id"], "output_index": index}
        return where if part is None else where | {"content_index": part}

    def _response(self, status: str, **ends: Any) -> JsonObject:
        nothing: JsonObject = {
            "status": status,
            "completed_at": None,
            "incomplete_details": None,
            "error": None,
            "output": [],
            "usage": None,
        }
        return {**self.about, **nothing, **ends}

    def _event(self, kind: str, **fields: Any) -> str:
        self._number += 1
        return server_sent({"type": kind, "sequence_number": self._number, **fields}, kind)


_PREFIXES: Final = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "custom_tool_call": "ctc",
}
"""The beginnings of the ids of items."""


def _part(kind: str, text: str) -> JsonObject:
    if kind == "reasoning":
        return {"type": "reasoning_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _usage(usage: Usage) -> JsonObject | None:
    """Return the tokens of a response, None if the server did not report them."""
    read, written = usage.prompt_tokens, usage.completion_tokens
    if read is None or written is None:
        return None
    return {
        "input_tokens": read,
        "output_tokens": written,
        "total_tokens": read + written,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens or 0},
        "output_tokens_details": {"reasoning_tokens": 0},
    }
