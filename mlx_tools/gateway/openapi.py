"""The gateway's own description, in OpenAPI 3.1: made of what bodies are read by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic.json_schema import models_json_schema

from mlx_tools.gateway.anthropic_messages import CountedBody, MessagesBody
from mlx_tools.gateway.body import Body
from mlx_tools.gateway.chat_completions import ChatBody, CompletionBody
from mlx_tools.gateway.responses import ResponsesBody
from mlx_tools.gateway.run_body import ApprovalBody, ContinueBody, ResultBody, RunBody
from mlx_tools.lazy import VERSION

_SCHEMAS_PATH: Final = "#/components/schemas/"

_RUN: Final = "/v1/runs/{id}"
_OPERATIONS: Final[tuple[tuple[str, str, str, type[Body] | None, str], ...]] = (
    ("get", "/v1/runs", "The client's runs, the last first", None, "Runs"),
    ("get", _RUN, "A run", None, "Run"),
    ("get", f"{_RUN}/events", "The events of a run, as they are sent by a server", None, "Answer"),
    ("get", "/v1/models", "The models that are served", None, "Answer"),
    ("get", "/health", "Whether the gateway serves", None, "Answer"),
    ("post", "/v1/chat/completions", "OpenAI's chat completions", ChatBody, "Answer"),
    ("post", "/v1/responses", "Open Responses", ResponsesBody, "Answer"),
    ("post", "/v1/messages", "Anthropic's messages", MessagesBody, "Answer"),
    ("post", "/v1/messages/count_tokens", "How many tokens a prompt has", CountedBody, "Answer"),
    ("post", "/v1/completions", "Plain completions", CompletionBody, "Answer"),
    ("post", "/v1/runs", "A run of the server's own", RunBody, "Run"),
    ("post", f"{_RUN}/approvals", "A decision about a call that waits", ApprovalBody, "Run"),
    ("post", f"{_RUN}/tool_results", "What came of a call of the client's", ResultBody, "Run"),
    ("post", f"{_RUN}/continue", "Another question", ContinueBody, "Run"),
    ("post", f"{_RUN}/cancel", "The end of a run", None, "Run"),
)
"""Method, path and what it is about; the body that is taken, and the schema of what is answered."""

_STREAMED: Final = (
    *("/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/completions"),
    f"{_RUN}/events",
)
_TEXT: Final = {"type": "string"}
_PARAMETERS: Final[Mapping[tuple[str, str], tuple[tuple[str, str, Any], ...]]] = {
    ("get", "/v1/runs"): (
        ("limit", "query", {"type": "integer", "minimum": 1, "maximum": 100}),
        ("after", "query", _TEXT),
    ),
    ("post", "/v1/runs"): (
        ("Idempotency-Key", "header", {"minLength": 1, "maxLength": 255} | _TEXT),
    ),
    ("get", f"{_RUN}/events"): (("Last-Event-ID", "header", {"pattern": "^[0-9]{0,16}$"} | _TEXT),),
}


def openapi_document() -> dict[str, Any]:
    """The whole description, a JSON value."""
    models = sorted({taken for *_, taken, _ in _OPERATIONS if taken}, key=lambda m: m.__name__)
    listed: Any = [(kind, "validation") for kind in models]
    _, made = models_json_schema(listed, ref_template=f"{_SCHEMAS_PATH}{{model}}")
    schemas = made["$defs"] | {"Answer": {"type": "object"}, "Run": _RUN_SEEN, "Runs": _RUNS}
    paths: dict[str, Any] = {}
    for method, path, about, taken, seen in _OPERATIONS:
        paths.setdefault(path, {})[method] = _operation(method, path, about, taken, seen)
    return {
        "openapi": "3.1.0",
        "info": {"title": "mlx-tools", "version": VERSION},
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }


def _operation(
    method: str, path: str, about: str, body_type: type[Body] | None, status_code: str
) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "application/json": {"schema": {"$ref": f"{_SCHEMAS_PATH}{status_code}"}}
    }
    if path in _STREAMED:
        answer["text/event-stream"] = {"schema": {}}
    error = {"description": "An error", "content": {"application/json": {"schema": _ERROR}}}
    done = {"description": "The answer", "content": answer}
    status = "201" if (method, path) == ("post", "/v1/runs") else "200"
    made = {"summary": about, "responses": {status: done, "4XX": error, "5XX": error}}
    if body_type is not None:
        content = {"application/json": {"schema": {"$ref": f"{_SCHEMAS_PATH}{body_type.__name__}"}}}
        made["requestBody"] = {"required": True, "content": content}
    given: list[Any] = [
        {"name": name, "in": where, "schema": schema}
        for name, where, schema in _PARAMETERS.get((method, path), ())
    ]
    if "{id}" in path:
        given.insert(0, {"name": "id", "in": "path", "required": True, "schema": _TEXT})
    return made | ({"parameters": given} if given else {})


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
        "data": {"type": "array", "items": {"$ref": f"{_SCHEMAS_PATH}Run"}},
        "first_id": {"type": ["string", "null"]},
        "last_id": {"type": ["string", "null"]},
        "has_more": {"type": "boolean"},
    },
}
