"""The bodies that clients send about runs. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Final, Literal

from msgspec import Struct, field
from pydantic import ConfigDict, Field

from mlx_tools.controller import ApprovalAnswer, prior_from_messages
from mlx_tools.errors import UsageError
from mlx_tools.gateway import (
    MAX_TOOLS,
    ApiError,
    Body,
    ClientMessage,
    ClientTool,
    ContentReader,
    HistoryReader,
    JsonObject,
    ReadMessage,
    ToolDefinition,
    WaitingCalls,
    answer_schema,
    check_names,
    custom_grammar,
    invalid,
    name_dropped,
    pair_results,
    place,
    read,
    read_arguments,
    read_messages,
)
from mlx_tools.messages import TOOL_NAME, ErrorInfo, ToolSpec, replace
from mlx_tools.policy import PRESETS, Limits
from mlx_tools.tools import MAX_ERROR_CHARS, MAX_OUTPUT_CHARS, ToolResult

Question = Annotated[str, Field(min_length=1, pattern=r"\S")]
Name = Annotated[str, Field(min_length=1, max_length=500)]

_MAX_TOOLS: Final = 200

_MAX_PRIOR_MESSAGES: Final = 1_000
"""Messages before a run's question: each is a record, and all are written at once, in 40 ms."""


class _Strict(Body):
    """A body without unknown fields: a misspelt one would give a run more power."""

    model_config = ConfigDict(extra="forbid")


def _schema_config(*ways: JsonObject, **extra: JsonObject) -> ConfigDict:
    """Describe a body that fits one of these schemas; no field can say that alone."""
    return ConfigDict(extra="forbid", json_schema_extra={"oneOf": [*ways], **extra})


def _field_schema(name: str, kind: str, **fields: JsonObject) -> JsonObject:
    """Return a schema that requires a field of this type, beside ``fields``."""
    return {"required": [name], "properties": {name: {"type": kind}, **fields}}


_NULL: Final = {"type": "null"}
_NOT_EMPTY: Final = {"minLength": 1}


class RunBody(_Strict):
    model_config = _schema_config(
        _field_schema("question", "string", messages=_NULL),
        _field_schema("messages", "array", question=_NULL),
        **{"not": {"required": ["preset", "tools"]}},
    )
    question: Question | None = None
    messages: (
        Annotated[list[ReadMessage], Field(min_length=1, max_length=_MAX_PRIOR_MESSAGES)] | None
    ) = None
    model: str | None = None
    profile: Name | None = None
    preset: Annotated[str, Field(json_schema_extra={"enum": [*PRESETS]})] | None = None
    tools: Annotated[list[Name], Field(max_length=MAX_TOOLS)] | None = None
    roots: Annotated[list[Name], Field(max_length=100)] | None = None
    client_tools: Annotated[list[JsonObject], Field(max_length=_MAX_TOOLS)] | None = None
    limits: JsonObject | None = None
    answer_schema: JsonObject | None = Field(None, alias="schema")
    webhook: Name | None = None


class ApprovalBody(_Strict):
    model_config = _schema_config(
        {
            "properties": {
                "decision": {"const": "approve"},
                "digest": _NOT_EMPTY,
                "arguments": _NULL,
            }
        },
        _field_schema("arguments", "object", decision={"const": "edit"}, digest=_NOT_EMPTY),
        {"properties": {"decision": {"const": "deny"}, "arguments": _NULL}},
    )
    call_id: Name
    digest: str
    decision: Literal["approve", "deny", "edit"]
    arguments: JsonObject | None = None
    reason: Annotated[str, Field(max_length=10_000)] = ""
    scope: Literal["call", "session"] = "call"

    def answer(self) -> ApprovalAnswer:
        """Return the decision in the form that sessions take. Raises `ApiError`."""
        if (self.arguments is not None) != (self.decision == "edit"):
            raise invalid("arguments", "an edit has some, no other decision does")
        if self.decision == "deny":
            return ApprovalAnswer(False, self.reason or "the user said no")
        if not self.digest:
            raise invalid("digest", "that of the call as it was shown")
        lasting = self.scope == "session"
        return ApprovalAnswer(True, self.reason, self.arguments, lasting, self.digest)


class ResultBody(_Strict):
    model_config = _schema_config(
        {"required": ["output"], "properties": {"error": _NULL}},
        _field_schema("error", "string") | {"not": {"required": ["output"]}},
    )
    call_id: Name
    output: Any = None
    error: Annotated[str, Field(min_length=1)] | None = None

    def result(self) -> ToolResult:
        """Return the end of the call. Raises `ApiError`."""
        if (self.error is not None) == ("output" in self.model_fields_set):
            raise ApiError(400, "invalid_value", "either output or error", param="output")
        if self.error is not None:
            return ToolResult(None, ErrorInfo("tool_error", self.error[:MAX_ERROR_CHARS]), 0, 0)
        given = self.output
        text = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
        if len(text) > MAX_OUTPUT_CHARS:
            problem = f"output: {len(text)} characters are more than {MAX_OUTPUT_CHARS}"
            raise ApiError(413, "payload_too_large", problem, param="output")
        return ToolResult(text, None, 0, len(text))


class ContinueBody(_Strict):
    question: Question


class RunAct(Struct, frozen=True):
    """A thing to do about a run that rests.

    Attributes:
        type: ``ask`` it a question, ``decide`` about a call, ``give`` it the result of a call, or
            ``look`` again at the calls that wait.
        body: The question, decision or result.
        records: How many records its transcript had when this was posted.
    """

    type: str
    body: Mapping[str, Any] = field(default_factory=dict)
    records: int = 0


class RunRequest(Struct, frozen=True, kw_only=True):
    """A run as a client asks for it.

    Attributes:
        body: The body.
        question: The question.
        history: The messages before it.
        client_tools: The tools that the client itself runs.
        schema: The schema that the answer fits, None for text.
        left_out: Names of what has no effect.
    """

    body: RunBody
    question: str
    history: Sequence[JsonObject]
    client_tools: tuple[ToolSpec, ...]
    schema: Mapping[str, Any] | None
    left_out: tuple[str, ...] = ()

    @property
    def own_names(self) -> frozenset[str]:
        """The names of the client's tools."""
        return frozenset(spec.name for spec in self.client_tools)

    def limits_within(self, upper_limits: Limits) -> Limits:
        """Return the limits in force, none wider than ``upper_limits``. Raises `ApiError`."""
        try:
            named = self.body.limits or {}
            wanted = Limits.from_json({**upper_limits.to_json(), **named}).to_json()
        except UsageError as error:
            raise ApiError(400, "invalid_value", str(error), param="limits") from None
        return Limits(**wanted).lower(upper_limits)


def read_run(body: Mapping[str, Any]) -> RunRequest:
    """Read what a body asks for. Raises `ApiError` for the first field that is wrong."""
    given, content = read(RunBody, body), ContentReader()
    question, history = _question_and_history(given, content)
    if given.preset is not None and given.tools is not None:
        raise invalid("tools", "excludes preset")
    if given.preset is not None and given.preset not in PRESETS:
        raise invalid("preset", f"one of {', '.join(PRESETS)}")
    schema = given.answer_schema
    own, dropped = _own_tools(given.client_tools or [])
    return RunRequest(
        body=given,
        question=question,
        history=history,
        client_tools=own,
        schema=None if schema is None else answer_schema(schema, "schema"),
        left_out=(*name_dropped(dropped), *content.left_out),
    )


def own_tool_names(body: Mapping[str, Any]) -> frozenset[str]:
    """Return the names of the client's own tools in a body that was read before."""
    specs, _ = _own_tools(body.get("client_tools") or [])
    return frozenset(spec.name for spec in specs)


def _question_and_history(body: RunBody, content: ContentReader) -> tuple[str, list[JsonObject]]:
    """Return the question and the messages before it, read as those of a turn are."""
    if (body.question is None) == (body.messages is None):
        raise ApiError(400, "invalid_value", "either question or messages", param="question")
    if body.question is not None:
        return body.question, []
    *earlier, last = read_messages(body.messages or [], HistoryReader(_same_name, content))
    if last.role != "user" or not last.content.strip():
        raise invalid("messages", "the last one is the user's question")
    history = [*_with_call_ids(pair_results(earlier))]
    try:
        prior_from_messages(history)
    except UsageError as error:
        raise invalid("messages", str(error)) from None
    return last.content, history


def _same_name(name: str, namespace: str) -> str:
    """Return the name of an earlier call's tool, which the run need not have."""
    return f"{namespace}.{name}" if namespace else name


def _with_call_ids(messages: Iterable[ClientMessage]) -> Iterator[JsonObject]:
    """Yield messages as sessions take them, each call with an id of its own."""
    waiting = WaitingCalls(())
    seen: set[str] = set()
    for number, message in enumerate(messages):
        made: JsonObject = {"role": message.role, "content": message.content}
        if message.role == "tool":
            yield made | {"tool_call_id": waiting.take(message.call_id)}
            continue
        calls: list[JsonObject] = []
        keys: list[tuple[str, str]] = []
        for index, call in enumerate(message.calls):
            key = call.id if call.id and call.id not in seen else f"call_{number}_{index}"
            seen.add(key)
            keys.append((call.id or key, key))
            calls.append(
                {"id": key, "function": {"name": call.name, "arguments": read_arguments(call)}}
            )
        waiting = WaitingCalls(keys)
        yield made | ({"tool_calls": calls} if calls else {})


class _ToolBody(Body):
    """A tool that the client of a run runs, as OpenAI, Anthropic or MCP defines one."""

    name: Annotated[str, Field(min_length=1, max_length=500)]
    description: Any = None
    parameters: Any = None
    input_schema: Any = None
    inputSchema: Any = None  # noqa: N815, the field of MCP
    format: Any = None

    def definition(self, *, is_custom: bool) -> ToolDefinition:
        """Return the tool, with the first of the schemas that is there."""
        schemas = (self.parameters, self.input_schema, self.inputSchema)
        parameters = next((schema for schema in schemas if schema is not None), None)
        tool = ClientTool(self.name, is_custom=is_custom)
        return ToolDefinition(tool, self.description, parameters, custom_grammar(self.format))


_KINDS: Final = ("function", "custom")
"""The types of tools that a client can run; an inner object of the same name may define one."""


def _definition(value: JsonObject, field_path: str) -> ToolDefinition:
    """Read the definition of a tool. Raises `ApiError`."""
    kind = next((kind for kind in _KINDS if isinstance(value.get(kind), dict)), None)
    is_custom = "custom" in (kind, value.get("type"))
    if kind is not None:
        field_path, value = place(field_path, kind), value[kind]
    tool = read(_ToolBody, value, field_path)
    if not TOOL_NAME.fullmatch(tool.name):
        problem = f"{tool.name!r}: 1 to 64 of A-Z a-z 0-9 _ . -"
        raise invalid(place(field_path, "name"), problem)
    return tool.definition(is_custom=is_custom and "input_schema" not in value)


def _own_tools(
    definitions: Sequence[JsonObject],
) -> tuple[tuple[ToolSpec, ...], dict[str, Sequence[str]]]:
    """Return the client's tools, and by name the faulty places of their schemas.

    Nobody here knows what they do, so their calls are treated as calls that change things: none is
    made from text that was cut off, or copied out of a result.
    """
    tools = [
        _definition(value, place("client_tools", index)) for index, value in enumerate(definitions)
    ]
    check_names(tools, "client_tools")
    made = [tool.spec(tool.tool.name) for tool in tools]
    specs = (replace(spec, effects=frozenset(("write",))) for spec, _ in made)
    return tuple(specs), {spec.name: dropped for spec, dropped in made if dropped}
