"""The description of runs in OpenAPI."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from mlx_tools.gateway import Operation
from mlx_tools.plugins.runs.body import ApprovalBody, ContinueBody, ResultBody, RunBody

_RUNS: Final = "/v1/runs"
_RUN: Final = "/v1/runs/{id}"
_TEXT: Final = {"type": "string"}
_PAGE: Final = (
    ("limit", "query", {"type": "integer", "minimum": 1, "maximum": 100}),
    ("after", "query", _TEXT),
)
_KEY: Final = (("Idempotency-Key", "header", {"minLength": 1, "maxLength": 255} | _TEXT),)
_LAST: Final = (("Last-Event-ID", "header", {"pattern": "^[0-9]{0,16}$"} | _TEXT),)

RUN_OPERATIONS: Final = (
    Operation("get", _RUNS, "The client's runs, the last first", answer="Runs", parameters=_PAGE),
    Operation("get", _RUN, "A run", answer="Run"),
    Operation(
        *("get", f"{_RUN}/events", "The events of a run, as they are sent by a server"),
        is_streamed=True,
        parameters=_LAST,
    ),
    Operation(
        *("post", _RUNS, "A run of the server's own", RunBody, "Run"), status=201, parameters=_KEY
    ),
    Operation(
        *("post", f"{_RUN}/approvals", "A decision about a call that waits", ApprovalBody, "Run")
    ),
    Operation(
        *("post", f"{_RUN}/tool_results", "What came of a call of the client's", ResultBody, "Run")
    ),
    Operation("post", f"{_RUN}/continue", "Another question", ContinueBody, "Run"),
    Operation("post", f"{_RUN}/cancel", "The end of a run", answer="Run"),
)

RUN_SCHEMAS: Final[Mapping[str, Any]] = {
    "Run": {
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
    },
    "Runs": {
        "type": "object",
        "required": ["data", "first_id", "last_id", "has_more"],
        "properties": {
            "data": {"type": "array", "items": {"$ref": "#/components/schemas/Run"}},
            "first_id": {"type": ["string", "null"]},
            "last_id": {"type": ["string", "null"]},
            "has_more": {"type": "boolean"},
        },
    },
}
