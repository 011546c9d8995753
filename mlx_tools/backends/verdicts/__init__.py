"""What was measured of a model: which style and which strategy it follows best, and where it is
kept."""

from __future__ import annotations

from mlx_tools.backends.verdicts.verdict import (
    DEFAULT_STYLE,
    STRATEGIES,
    STYLES,
    Decided,
    FoundVerdict,
    StrategyChoice,
    StyleChoice,
    StyleVerdict,
    Verdict,
    decide,
)
from mlx_tools.backends.verdicts.verdict_store import VerdictStore, find_verdict, shipped_verdict

__all__ = [
    "DEFAULT_STYLE",
    "STRATEGIES",
    "STYLES",
    "Decided",
    "FoundVerdict",
    "StrategyChoice",
    "StyleChoice",
    "StyleVerdict",
    "Verdict",
    "VerdictStore",
    "decide",
    "find_verdict",
    "shipped_verdict",
]
