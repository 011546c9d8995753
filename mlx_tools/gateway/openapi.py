"""The gateway's own description, in OpenAPI 3.1: made of what bodies are read by."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any, Final

from pydantic.json_schema import models_json_schema

from mlx_tools.gateway.anthropic_messages import CountedBody, MessageParam, MessagesBody, ToolParam
from mlx_tools.gateway.body import Body
from mlx_tools.gateway.chat_completions import ChatBody, ChatMessage, ChatTool
from mlx_tools.gateway.completions_api import CompletionBody
from mlx_tools.gateway.responses_body import ResponsesBody
from mlx_tools.gateway.run_body import ApprovalBody, ContinueBody, ResultBody, RunBody

_AT: Final = "#/components/schemas/"

_ITEMS: Final[tuple[tuple[type[Body], str, type[Body]], ...]] = (
    (ChatBody, "messages", ChatMessage),
    (ChatBody, "tools", ChatTool),
    (CountedBody, "messages", MessageParam),
    (CountedBody, "tools", ToolParam),
    (MessagesBody, "messages", MessageParam),
    (MessagesBody, "tools", ToolParam),
)
"""What the items of a list are, where each is read by itself."""

_TEXTS: Final = (
    (ResponsesBody, "input"),
    (CountedBody, "system"),
    (MessagesBody, "system"),
    (MessageParam, "content"),
)
"""Lists for which a text may stand, as the one part of it."""

_POSTS: Final = (
    ("/v1/chat/completions", "OpenAI's chat completions", ChatBody, True),
    ("/v1/responses", "Open Responses", ResponsesBody, True),
    ("/v1/messages", "Anthropic's messages", MessagesBody, True),
    ("/v1/messages/count_tokens", "How many tokens a prompt has", CountedBody, False),
    ("/v1/completions", "Plain completions", CompletionBody, True),
)
_RUN: Final = "/v1/runs/{id}"
_RUN_POSTS: Final = (
    ("/v1/runs", "A run of the server's own", RunBody),
    (f"{_RUN}/approvals", "A decision about a call that waits", ApprovalBody),
    (f"{_RUN}/tool_results", "The result of a call of the client's own tool", ResultBody),
    (f"{_RUN}/continue", "Another question", ContinueBody),
    (f"{_RUN}/cancel", "The end of a run", None),
)
_GETS: Final = (
    ("/v1/runs", "The client's runs, the last first", "Runs"),
    (_RUN, "A run", "Run"),
    (f"{_RUN}/events", "The events of a run, as they are sent by a server", "Answer"),
    ("/v1/models", "The models that are served", "Answer"),
    ("/health", "Whether the gateway serves", "Answer"),
)


_TEXT: Final = {"type": "string"}
_PARAMETERS: Final[tuple[Any, ...]] = (
    (
        "/v1/runs",
        "get",
        ("limit", "query", {"type": "integer", "minimum": 1, "maximum": 100}),
        ("after", "query", _TEXT),
    ),
    (
        "/v1/runs",
        "post",
        ("Idempotency-Key", "header", {"minLength": 1, "maxLength": 255} | _TEXT),
    ),
    (f"{_RUN}/events", "get", ("Last-Event-ID", "header", {"pattern": "^[0-9]{0,16}$"} | _TEXT)),
)


def openapi_document() -> dict[str, Any]:
    """The whole description, a JSON value."""
    models = {kind for kind, _, _ in _ITEMS} | {item for _, _, item in _ITEMS}
    models |= {kind for _, _, kind, _ in _POSTS}
    models |= {kind for _, _, kind in _RUN_POSTS if kind is not None}
    listed: Any = [(kind, "validation") for kind in sorted(models, key=lambda m: m.__name__)]
    _, made = models_json_schema(listed, ref_template=f"{_AT}{{model}}")
    schemas = made["$defs"]
    for kind, name, item in _ITEMS:
        field = schemas[kind.__name__]["properties"][name]
        for one in (field, *field.get("anyOf", ())):
            if one.get("type") == "array":
                one["items"] = {"$ref": f"{_AT}{item.__name__}"}
    for kind, name in _TEXTS:
        fields = schemas[kind.__name__]["properties"]
        fields[name] = {"anyOf": [{"type": "string"}, fields[name]]}
    schemas |= {"Answer": {"type": "object"}, "Run": _RUN_SEEN, "Runs": _RUNS}
    return {
        "openapi": "3.1.0",
        "info": {"title": "mlx-tools", "version": version("mlx-tools")},
        "paths": _paths(),
        "components": {
            "schemas": schemas,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }


def _paths() -> dict[str, Any]:
    paths: dict[str, Any] = {}
    for path, about, seen in _GETS:
        streamed = path.endswith("/events")
        paths[path] = {"get": _named(path) | _operation(about, seen, streamed=streamed)}
    for path, about, kind, streamed in _POSTS:
        paths[path] = {"post": _body(kind) | _operation(about, streamed=streamed)}
    for path, about, taken in _RUN_POSTS:
        post = _named(path) | ({} if taken is None else _body(taken))
        status = "201" if path == "/v1/runs" else "200"
        paths.setdefault(path, {})["post"] = post | _operation(about, "Run", status=status)
    for path, method, *more in _PARAMETERS:
        taken = paths[path][method].setdefault("parameters", [])
        taken += [{"name": name, "in": where, "schema": schema} for name, where, schema in more]
    return paths


def _named(path: str) -> dict[str, Any]:
    """The parameters in an address."""
    one = {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}
    return {"parameters": [one]} if "{id}" in path else {}


def _body(kind: type[Body]) -> dict[str, Any]:
    content = {"application/json": {"schema": {"$ref": f"{_AT}{kind.__name__}"}}}
    return {"requestBody": {"required": True, "content": content}}


def _operation(
    about: str, seen: str = "Answer", *, streamed: bool = False, status: str = "200"
) -> dict[str, Any]:
    answer: dict[str, Any] = {"application/json": {"schema": {"$ref": f"{_AT}{seen}"}}}
    if streamed:
        answer["text/event-stream"] = {"schema": {}}
    error = {"description": "An error", "content": {"application/json": {"schema": _ERROR}}}
    done = {"description": "The answer", "content": answer}
    return {"summary": about, "responses": {status: done, "4XX": error, "5XX": error}}


_ERROR: Final = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type"],
            "properties": {"message": {"type": "string"}, "type": {"type": "string"}},
        }
    },
}

_RUN_SEEN: Final = {
    "type": "object",
    "required": ["id", "status", "answer", "reason", "calls", "pending"],
    "properties": {
        "id": {"type": "string"},
        "status": {"enum": ["queued", "running", "paused", "answered", "stopped", "cancelled"]},
        "answer": {"type": ["string", "null"]},
        "reason": {"type": ["string", "null"]},
        "calls": {"type": "array", "items": {"type": "object"}},
        "pending": {"type": "array", "items": {"type": "object"}},
    },
}
_RUNS: Final = {
    "type": "object",
    "required": ["data", "first_id", "last_id", "has_more"],
    "properties": {
        "data": {"type": "array", "items": {"$ref": f"{_AT}Run"}},
        "first_id": {"type": ["string", "null"]},
        "last_id": {"type": ["string", "null"]},
        "has_more": {"type": "boolean"},
    },
}
