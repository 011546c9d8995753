"""The gateway: a text-only model behind the interfaces of clients and agents."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlx_tools.lazy import attach_names

if TYPE_CHECKING:
    from mlx_tools.gateway.admission import Admission
    from mlx_tools.gateway.body import MAX_TOOLS, Body, answer_schema, json_object, place, read
    from mlx_tools.gateway.chat_completions import ReadMessage, read_messages
    from mlx_tools.gateway.client_tools import (
        ClientTool,
        ToolDefinition,
        check_names,
        custom_grammar,
        name_dropped,
    )
    from mlx_tools.gateway.content import ContentReader
    from mlx_tools.gateway.conversation import (
        PromptProfile,
        WaitingCalls,
        pair_results,
        read_arguments,
    )
    from mlx_tools.gateway.exchange import (
        BODY_SECONDS,
        MAX_BODY,
        MAX_UNKNOWN_BODY,
        SEND_SECONDS,
        UNKNOWN_BODY_SECONDS,
        EventStream,
        json_body,
        left_out_headers,
        read_body,
    )
    from mlx_tools.gateway.history import HistoryReader
    from mlx_tools.gateway.meters import Meters
    from mlx_tools.gateway.openapi import Operation
    from mlx_tools.gateway.request import (
        ApiError,
        ClientMessage,
        JsonObject,
        as_api_error,
        invalid,
        openai_error,
        server_sent,
    )
    from mlx_tools.gateway.served_models import DEFAULT, Note, ServedModels
    from mlx_tools.gateway.server import (
        Gateway,
        application,
        http_address,
        open_turns,
        serve,
    )
    from mlx_tools.gateway.turn import TurnRunner
    from mlx_tools.gateway.turn_stream import Clock

__getattr__, __dir__ = attach_names(
    globals(),
    {
        "admission": ("Admission",),
        "body": (
            *("MAX_TOOLS", "Body", "answer_schema", "json_object"),
            *("place", "read"),
        ),
        "chat_completions": ("ReadMessage", "read_messages"),
        "client_tools": (
            *("ClientTool", "ToolDefinition", "check_names", "custom_grammar"),
            *("name_dropped",),
        ),
        "content": ("ContentReader",),
        "conversation": ("PromptProfile", "WaitingCalls", "read_arguments", "pair_results"),
        "exchange": (
            *("BODY_SECONDS", "MAX_BODY", "MAX_UNKNOWN_BODY", "SEND_SECONDS"),
            *("UNKNOWN_BODY_SECONDS", "EventStream", "read_body", "json_body"),
            *("left_out_headers",),
        ),
        "history": ("HistoryReader",),
        "meters": ("Meters",),
        "openapi": ("Operation",),
        "request": (
            *("ApiError", "ClientMessage", "JsonObject", "as_api_error"),
            *("invalid", "openai_error", "server_sent"),
        ),
        "served_models": ("DEFAULT", "Note", "ServedModels"),
        "server": ("Gateway", "application", "http_address", "open_turns", "serve"),
        "turn": ("TurnRunner",),
        "turn_stream": ("Clock",),
    },
)
