"""The gateway: a text-only model behind the interfaces of clients and agents."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlx_tools.lazy import names_of

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
        arguments_of,
        pair_results,
    )
    from mlx_tools.gateway.exchange import (
        BODY_SECONDS,
        MAX_BODY,
        MAX_UNKNOWN_BODY,
        PATIENCE,
        UNKNOWN_BODY_SECONDS,
        EventStream,
        body_of,
        json_body,
        left_out_headers,
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
    from mlx_tools.gateway.server import Gateway, application, http_address, serve
    from mlx_tools.gateway.turn import TurnRunner
    from mlx_tools.gateway.turn_stream import Clock

__getattr__, __dir__ = names_of(
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
        "conversation": ("PromptProfile", "WaitingCalls", "arguments_of", "pair_results"),
        "exchange": (
            *("BODY_SECONDS", "MAX_BODY", "MAX_UNKNOWN_BODY", "PATIENCE"),
            *("UNKNOWN_BODY_SECONDS", "EventStream", "body_of", "json_body"),
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
        "server": ("Gateway", "application", "http_address", "serve"),
        "turn": ("TurnRunner",),
        "turn_stream": ("Clock",),
    },
)
