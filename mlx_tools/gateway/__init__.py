"""The gateway: a text-only model behind the interfaces of clients and agents."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlx_tools.lazy import names_of

if TYPE_CHECKING:
    from mlx_tools.gateway.body import json_object
    from mlx_tools.gateway.exchange import (
        BODY_SECONDS,
        MAX_BODY,
        MAX_UNKNOWN_BODY,
        UNKNOWN_BODY_SECONDS,
        EventStream,
        body_of,
    )
    from mlx_tools.gateway.request import ApiError, as_api_error, server_sent
    from mlx_tools.gateway.run_body import read_run
    from mlx_tools.gateway.run_rows import RUNS, RunRow, RunRows
    from mlx_tools.gateway.run_work import is_begun, requests_of
    from mlx_tools.gateway.run_worker import work
    from mlx_tools.gateway.runs import END_STATUSES, PATIENCE, Runs, conflict
    from mlx_tools.gateway.served_models import ServedModels
    from mlx_tools.gateway.server import Gateway, http_address, serve
    from mlx_tools.gateway.turn import TurnRunner

__getattr__, __dir__ = names_of(
    globals(),
    {
        "body": ("json_object",),
        "exchange": (
            *("BODY_SECONDS", "MAX_BODY", "MAX_UNKNOWN_BODY", "UNKNOWN_BODY_SECONDS"),
            *("EventStream", "body_of"),
        ),
        "request": ("ApiError", "as_api_error", "server_sent"),
        "run_body": ("read_run",),
        "run_rows": ("RUNS", "RunRow", "RunRows"),
        "run_work": ("is_begun", "requests_of"),
        "run_worker": ("work",),
        "runs": ("END_STATUSES", "PATIENCE", "Runs", "conflict"),
        "served_models": ("ServedModels",),
        "server": ("Gateway", "http_address", "serve"),
        "turn": ("TurnRunner",),
    },
)
