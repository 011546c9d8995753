"""Decoding that makes a call valid: guided by the client, or masked by a grammar.

Each name is imported when it is first used: a run that never decodes so does not wait for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mlx_tools.lazy import names_of

if TYPE_CHECKING:
    from mlx_tools.decoding.anew import Opening as Opening
    from mlx_tools.decoding.asker import Asker as Asker
    from mlx_tools.decoding.asker import AskerLimits as AskerLimits
    from mlx_tools.decoding.asker import CutOff as CutOff
    from mlx_tools.decoding.asker import Restarted as Restarted
    from mlx_tools.decoding.asker import Unfilled as Unfilled
    from mlx_tools.decoding.begin import guide_for as guide_for
    from mlx_tools.decoding.evidence import RequestEvidence as RequestEvidence
    from mlx_tools.decoding.evidence import guidance as guidance
    from mlx_tools.decoding.guided import Guide as Guide
    from mlx_tools.decoding.guided import Task as Task
    from mlx_tools.decoding.weights import Weights as Weights
    from mlx_tools.decoding.weights import fitted_weights as fitted_weights

_HOMES: Final = {
    "Asker": "asker",
    "AskerLimits": "asker",
    "CutOff": "asker",
    "Guide": "guided",
    "Opening": "anew",
    "RequestEvidence": "evidence",
    "Restarted": "asker",
    "Task": "guided",
    "Unfilled": "asker",
    "Weights": "weights",
    "fitted_weights": "weights",
    "guidance": "evidence",
    "guide_for": "begin",
}

__all__ = [
    "Asker",
    "AskerLimits",
    "CutOff",
    "Guide",
    "Opening",
    "RequestEvidence",
    "Restarted",
    "Task",
    "Unfilled",
    "Weights",
    "fitted_weights",
    "guidance",
    "guide_for",
]

__getattr__, __dir__ = names_of(__name__, _HOMES)
