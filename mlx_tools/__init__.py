"""Reliable tool use for local models that only complete text.

    from mlx_tools import Controller, CompletionsBackend, Policy, tool

    @tool(effects={"read"})
    def area(width: float, height: float) -> float:
        "Area of a rectangle in square metres."
        return width * height

    backend = CompletionsBackend("http://127.0.0.1:8080")
    controller = Controller(backend, tools=[area], policy=Policy(allow=["area"]))
    outcome = controller.run_sync("How large is a room of 3.5 by 4 metres?")

Each name is imported when it is first used, so that importing the package costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mlx_tools.lazy import VERSION, attach_names

if TYPE_CHECKING:
    from mlx_tools.app import builtin_tools
    from mlx_tools.backends import (
        Chunk,
        CompletionRequest,
        CompletionsBackend,
        ServerBackend,
    )
    from mlx_tools.controller import (
        ApprovalAnswer,
        ApprovalRequest,
        ApproveAlways,
        Approver,
        Controller,
        Conversation,
        RunSettings,
    )
    from mlx_tools.errors import (
        BackendError,
        MlxToolsError,
        TranscriptError,
        UsageError,
    )
    from mlx_tools.messages import ToolSpec
    from mlx_tools.policy import Limits, Policy
    from mlx_tools.prompt import ChatFormat
    from mlx_tools.store import TranscriptStore
    from mlx_tools.tools import (
        EffectsBy,
        Registry,
        Tool,
        ToolContext,
        ToolError,
        tool,
    )
    from mlx_tools.transcript import (
        Answered,
        AnswerPiece,
        CallRead,
        CallReport,
        Event,
        Finished,
        Outcome,
        Paused,
        PendingCall,
        Source,
        Sources,
        Stopped,
        ThoughtPiece,
        ToolEnded,
        ToolStarted,
    )

__version__: Final = VERSION

__all__ = [
    "AnswerPiece",
    "Answered",
    "ApprovalAnswer",
    "ApprovalRequest",
    "ApproveAlways",
    "Approver",
    "BackendError",
    "CallRead",
    "CallReport",
    "ChatFormat",
    "Chunk",
    "CompletionRequest",
    "CompletionsBackend",
    "Controller",
    "Conversation",
    "EffectsBy",
    "Event",
    "Finished",
    "Limits",
    "MlxToolsError",
    "Outcome",
    "Paused",
    "PendingCall",
    "Policy",
    "Registry",
    "RunSettings",
    "ServerBackend",
    "Source",
    "Sources",
    "Stopped",
    "ThoughtPiece",
    "Tool",
    "ToolContext",
    "ToolEnded",
    "ToolError",
    "ToolSpec",
    "ToolStarted",
    "TranscriptError",
    "TranscriptStore",
    "UsageError",
    "__version__",
    "builtin_tools",
    "tool",
]

__getattr__, __dir__ = attach_names(
    globals(),
    {
        "app": ("builtin_tools",),
        "backends": (
            "Chunk",
            "CompletionRequest",
            "CompletionsBackend",
            "ServerBackend",
        ),
        "controller": (
            "ApproveAlways",
            "ApprovalAnswer",
            "ApprovalRequest",
            "Approver",
            "Controller",
            "Conversation",
            "RunSettings",
        ),
        "errors": (
            "BackendError",
            "MlxToolsError",
            "TranscriptError",
            "UsageError",
        ),
        "messages": ("ToolSpec",),
        "policy": ("Limits", "Policy"),
        "prompt": ("ChatFormat",),
        "store": ("TranscriptStore",),
        "tools": (
            "EffectsBy",
            "Registry",
            "Tool",
            "ToolContext",
            "ToolError",
            "tool",
        ),
        "transcript": (
            "AnswerPiece",
            "Answered",
            "CallRead",
            "CallReport",
            "Event",
            "Finished",
            "Outcome",
            "Paused",
            "PendingCall",
            "Source",
            "Sources",
            "Stopped",
            "ThoughtPiece",
            "ToolEnded",
            "ToolStarted",
        ),
    },
)
