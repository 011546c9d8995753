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

from mlx_tools.lazy import names_of

if TYPE_CHECKING:
    from mlx_tools.backends import Chunk as Chunk
    from mlx_tools.backends import CompletionRequest as CompletionRequest
    from mlx_tools.backends import CompletionsBackend as CompletionsBackend
    from mlx_tools.backends import LocalBackend as LocalBackend
    from mlx_tools.backends import ServerBackend as ServerBackend
    from mlx_tools.controller import AlwaysApprove as AlwaysApprove
    from mlx_tools.controller import ApprovalAnswer as ApprovalAnswer
    from mlx_tools.controller import ApprovalRequest as ApprovalRequest
    from mlx_tools.controller import Approver as Approver
    from mlx_tools.controller import Controller as Controller
    from mlx_tools.controller import Conversation as Conversation
    from mlx_tools.controller import RunSettings as RunSettings
    from mlx_tools.errors import BackendError as BackendError
    from mlx_tools.errors import MlxToolsError as MlxToolsError
    from mlx_tools.errors import UsageError as UsageError
    from mlx_tools.messages import ToolSpec as ToolSpec
    from mlx_tools.policy import Limits as Limits
    from mlx_tools.policy import Policy as Policy
    from mlx_tools.prompt import ChatFormat as ChatFormat
    from mlx_tools.store.session_store import TranscriptStore as TranscriptStore
    from mlx_tools.toolbox import builtin_tools as builtin_tools
    from mlx_tools.tools import Registry as Registry
    from mlx_tools.tools import Tool as Tool
    from mlx_tools.tools import tool as tool
    from mlx_tools.transcript.outcome import Answered as Answered
    from mlx_tools.transcript.outcome import Outcome as Outcome
    from mlx_tools.transcript.outcome import Paused as Paused
    from mlx_tools.transcript.outcome import Stopped as Stopped
    from mlx_tools.transcript.sources import Source as Source
    from mlx_tools.transcript.sources import Sources as Sources

__version__: Final = "0.1.0"

_HOMES: Final = {
    "AlwaysApprove": "controller",
    "Answered": "transcript.outcome",
    "ApprovalAnswer": "controller",
    "ApprovalRequest": "controller",
    "Approver": "controller",
    "BackendError": "errors",
    "ChatFormat": "prompt",
    "Chunk": "backends",
    "CompletionRequest": "backends",
    "CompletionsBackend": "backends",
    "Controller": "controller",
    "Conversation": "controller",
    "Limits": "policy",
    "LocalBackend": "backends",
    "MlxToolsError": "errors",
    "Outcome": "transcript.outcome",
    "Paused": "transcript.outcome",
    "Policy": "policy",
    "Registry": "tools",
    "RunSettings": "controller",
    "ServerBackend": "backends",
    "Source": "transcript.sources",
    "Sources": "transcript.sources",
    "Stopped": "transcript.outcome",
    "Tool": "tools",
    "ToolSpec": "messages",
    "TranscriptStore": "store.session_store",
    "UsageError": "errors",
    "builtin_tools": "toolbox",
    "tool": "tools",
}

__all__ = [
    "AlwaysApprove",
    "Answered",
    "ApprovalAnswer",
    "ApprovalRequest",
    "Approver",
    "BackendError",
    "ChatFormat",
    "Chunk",
    "CompletionRequest",
    "CompletionsBackend",
    "Controller",
    "Conversation",
    "Limits",
    "LocalBackend",
    "MlxToolsError",
    "Outcome",
    "Paused",
    "Policy",
    "Registry",
    "RunSettings",
    "ServerBackend",
    "Source",
    "Sources",
    "Stopped",
    "Tool",
    "ToolSpec",
    "TranscriptStore",
    "UsageError",
    "__version__",
    "builtin_tools",
    "tool",
]

__getattr__, __dir__ = names_of(__name__, _HOMES)
