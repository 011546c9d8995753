"""The loop: a session says what step is next, the driver takes it, until an answer or a limit.

Each name is imported when it is first used: the session alone costs little.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mlx_tools.lazy import names_of

if TYPE_CHECKING:
    from mlx_tools.controller.approvals import AlwaysApprove as AlwaysApprove
    from mlx_tools.controller.approvals import ApprovalAnswer as ApprovalAnswer
    from mlx_tools.controller.approvals import ApprovalRequest as ApprovalRequest
    from mlx_tools.controller.approvals import Approvals as Approvals
    from mlx_tools.controller.approvals import Approver as Approver
    from mlx_tools.controller.approvals import NobodyThere as NobodyThere
    from mlx_tools.controller.approvals import check_begun_here as check_begun_here
    from mlx_tools.controller.completer import Written as Written
    from mlx_tools.controller.completer import misfits as misfits
    from mlx_tools.controller.controller import Controller as Controller
    from mlx_tools.controller.controller import RunSettings as RunSettings
    from mlx_tools.controller.direct import DirectCall as DirectCall
    from mlx_tools.controller.direct import call_tool as call_tool
    from mlx_tools.controller.driver import Conversation as Conversation
    from mlx_tools.controller.outputs import Outputs as Outputs
    from mlx_tools.controller.session import Complete as Complete
    from mlx_tools.controller.session import Session as Session
    from mlx_tools.controller.session import Write as Write
    from mlx_tools.controller.turn import Turn as Turn
    from mlx_tools.controller.turn import decision_on as decision_on
    from mlx_tools.controller.turn import refusal_by as refusal_by

_HOMES: Final = {
    **dict.fromkeys(("AlwaysApprove", "ApprovalAnswer", "ApprovalRequest"), "approvals"),
    **dict.fromkeys(("Approvals", "Approver", "NobodyThere", "check_begun_here"), "approvals"),
    **dict.fromkeys(("Written", "misfits"), "completer"),
    **dict.fromkeys(("Controller", "RunSettings"), "controller"),
    **dict.fromkeys(("DirectCall", "call_tool"), "direct"),
    **dict.fromkeys(("Complete", "Session", "Write"), "session"),
    **dict.fromkeys(("Turn", "decision_on", "refusal_by"), "turn"),
    "Conversation": "driver",
    "Outputs": "outputs",
}

__all__ = [*_HOMES]

__getattr__, __dir__ = names_of(__name__, _HOMES)
