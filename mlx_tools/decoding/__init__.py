"""Decoding that makes a call valid: guided by the client, or masked by a grammar."""

from __future__ import annotations

from mlx_tools.decoding.anew import Opening
from mlx_tools.decoding.asker import Asker, AskerLimits, Restarted, Unfilled
from mlx_tools.decoding.evidence import RequestEvidence, guidance
from mlx_tools.decoding.guided import Guide, Task
from mlx_tools.decoding.weights import Weights, fitted_weights

__all__ = [
    "Asker",
    "AskerLimits",
    "Guide",
    "Opening",
    "RequestEvidence",
    "Restarted",
    "Task",
    "Unfilled",
    "Weights",
    "fitted_weights",
    "guidance",
]
