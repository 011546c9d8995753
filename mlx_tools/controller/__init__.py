"""The loop: a session says what step is next, the driver takes it.

Each name is imported when it is first used: the session alone costs little.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlx_tools.lazy import attach_names

if TYPE_CHECKING:
    from mlx_tools.controller.approvals import CallApprovals, check_begun_here, check_header
    from mlx_tools.controller.approver import (
        ApprovalAnswer,
        ApprovalRequest,
        Approvals,
        ApproveAlways,
        Approver,
        PauseApprover,
        StepApprover,
    )
    from mlx_tools.controller.completer import (
        Completer,
        CompletionResult,
        make_request,
        mend_points,
        to_chat_request,
    )
    from mlx_tools.controller.context import FittedStep
    from mlx_tools.controller.controller import Controller, RunSettings, check_output_schema
    from mlx_tools.controller.conversation import Conversation
    from mlx_tools.controller.direct import DirectCall, call_tool
    from mlx_tools.controller.driver import CallEnd, Driver, DriverParts, RunClock
    from mlx_tools.controller.earlier import PriorConversation, make_turn, prior_from_messages
    from mlx_tools.controller.outputs import Outputs, cleaner, make_preface, shorten
    from mlx_tools.controller.session import (
        Ask,
        Complete,
        Execute,
        Session,
        Step,
        Write,
        reread_completion,
    )
    from mlx_tools.controller.state import SessionInputs, Turn
    from mlx_tools.controller.turn import decide_call, make_refusal, not_started
    from mlx_tools.controller.writer import Emit, Observer, RunObserver, SessionWriter

__getattr__, __dir__ = attach_names(
    globals(),
    {
        "approvals": ("CallApprovals", "check_begun_here", "check_header"),
        "approver": (
            "ApproveAlways",
            "ApprovalAnswer",
            "ApprovalRequest",
            "Approvals",
            "Approver",
            "StepApprover",
            "PauseApprover",
        ),
        "completer": (
            "Completer",
            "CompletionResult",
            "mend_points",
            "to_chat_request",
            "make_request",
        ),
        "context": ("FittedStep",),
        "controller": ("Controller", "RunSettings", "check_output_schema"),
        "direct": ("DirectCall", "call_tool"),
        "conversation": ("Conversation",),
        "driver": ("CallEnd", "Driver", "DriverParts", "RunClock"),
        "earlier": ("PriorConversation", "prior_from_messages", "make_turn"),
        "outputs": ("Outputs", "cleaner", "make_preface", "shorten"),
        "session": ("Ask", "Complete", "Execute", "Session", "Step", "Write", "reread_completion"),
        "state": ("SessionInputs", "Turn"),
        "writer": ("Emit", "Observer", "RunObserver", "SessionWriter"),
        "turn": ("decide_call", "not_started", "make_refusal"),
    },
)
