"""The gateway's description in OpenAPI 3.1, made from the types of its bodies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import Struct
from pydantic.json_schema import models_json_schema

from mlx_tools.gateway.anthropic_messages import CountedBody, MessagesBody
from mlx_tools.gateway.body import Body
from mlx_tools.gateway.chat_completions import ChatBody, CompletionBody
from mlx_tools.gateway.responses import ResponsesBody
from mlx_tools.lazy import VERSION

_SCHEMAS_PATH: Final = "#/components/schemas/"

_TEXT: Final = {"type": "string"}


class Operation(Struct, frozen=True):
    """A method of a path, as it is described."""

    method: str
    path: str
    summary: str
    body: type[Body] | None = None
    """The body that is taken."""
    answer: str = "Answer"
    """The name of the schema of the answer."""
    is_streamed: bool = False
    status: int = 200
    parameters: tuple[tuple[str, str, Mapping[str, Any]], ...] = ()
    """Name, place (``query`` or ``header``) and schema of each."""


OPERATIONS: Final = (
    Operation("get", "/v1/models", "The models that are served"),
    Operation("get", "/health", "Whether the gateway serves"),
    Operation(
        "post", "/v1/chat/completions", "OpenAI's chat completions", ChatBody, is_streamed=True
    ),
    Operation("post", "/v1/responses", "Open Responses", ResponsesBody, is_streamed=True),
    Operation("post", "/v1/messages", "Anthropic's messages", MessagesBody, is_streamed=True),
    Operation("post", "/v1/messages/count_tokens", "How many tokens a prompt has", CountedBody),
    Operation("post", "/v1/completions", "Plain completions", CompletionBody, is_streamed=True),
)
"""The operations of the gateway itself."""

SCHEMAS: Final[Mapping[str, Any]] = {"Answer": {"type": "object"}}
"""The schemas of their answers."""


def openapi_document(
    operations: Sequence[Operation] = OPERATIONS, schemas: Mapping[str, Any] = SCHEMAS
) -> dict[str, Any]:
    """Return the whole description, a JSON value.

    Args:
        operations: What can be asked for.
        schemas: The schemas of answers by name.
    """
    bodies = {operation.body for operation in operations if operation.body is not None}
    listed: Any = [(kind, "validation") for kind in sorted(bodies, key=lambda m: m.__name__)]
    _, made = models_json_schema(listed, ref_template=f"{_SCHEMAS_PATH}{{model}}")
    paths: dict[str, Any] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method] = _describe(operation)
    return {
        "openapi": "3.1.0",
        "info": {"title": "mlx-tools", "version": VERSION},
        "paths": paths,
        "components": {
            "schemas": made["$defs"] | schemas,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }


def _describe(operation: Operation) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "application/json": {"schema": {"$ref": f"{_SCHEMAS_PATH}{operation.answer}"}}
    }
    if operation.is_streamed:
        answer["text/event-stream"] = {"schema": {}}
    error = {"description": "An error", "content": {"application/json": {"schema": _ERROR}}}
    done = {"description": "The answer", "content": answer}
    responses = {str(operation.status): done, "4XX": error, "5XX": error}
    made: dict[str, Any] = {"summary": operation.summary, "responses": responses}
    if operation.body is not None:
        name = operation.body.__name__
        content = {"application/json": {"schema": {"$ref": f"{_SCHEMAS_PATH}{name}"}}}
        made["requestBody"] = {"required": True, "content": content}
    parameters: list[Any] = [
        {"name": name, "in": where, "schema": schema}
        for name, where, schema in operation.parameters
    ]
    if "{id}" in operation.path:
        parameters.insert(0, {"name": "id", "in": "path", "required": True, "schema": _TEXT})
    return made | ({"parameters": parameters} if parameters else {})


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
