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
    ("/v1/runs", "The client's runs, the last first"),
    (_RUN, "A run"),
    (f"{_RUN}/events", "The events of a run, as they are sent by a server"),
    ("/v1/models", "The models that are served"),
    ("/health", "Whether the gateway serves"),
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
    schemas["Answer"] = {"type": "object"}
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
    for path, about in _GETS:
        streamed = path.endswith("/events")
        paths[path] = {"get": _named(path) | _operation(about, streamed=streamed)}
    for path, about, kind, streamed in _POSTS:
        paths[path] = {"post": _body(kind) | _operation(about, streamed=streamed)}
    for path, about, taken in _RUN_POSTS:
        post = _named(path) | ({} if taken is None else _body(taken))
        status = "201" if path == "/v1/runs" else "200"
        paths.setdefault(path, {})["post"] = post | _operation(about, status=status)
    limit = {"type": "integer", "minimum": 1, "maximum": 100}
    paths["/v1/runs"]["get"]["parameters"] = [
        {"name": "limit", "in": "query", "schema": limit},
        {"name": "after", "in": "query", "schema": {"type": "string"}},
    ]
    return paths


def _named(path: str) -> dict[str, Any]:
    """The parameters in an address."""
    one = {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}
    return {"parameters": [one]} if "{id}" in path else {}


def _body(kind: type[Body]) -> dict[str, Any]:
    content = {"application/json": {"schema": {"$ref": f"{_AT}{kind.__name__}"}}}
    return {"requestBody": {"required": True, "content": content}}


def _operation(about: str, *, streamed: bool = False, status: str = "200") -> dict[str, Any]:
    answer: dict[str, Any] = {"application/json": {"schema": {"$ref": f"{_AT}Answer"}}}
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
