"""Policy: a call goes in, a decision comes out. Pure; deny is the default."""

from __future__ import annotations

from mlx_tools.policy.limits import Limits
from mlx_tools.policy.patterns import first_match, matches
from mlx_tools.policy.presets import DEFAULT_PRESET, PRESETS, Preset, check_presets
from mlx_tools.policy.rules import Decision, Policy, asks, decide, permitted

__all__ = [
    "DEFAULT_PRESET",
    "PRESETS",
    "Decision",
    "Limits",
    "Policy",
    "Preset",
    "asks",
    "check_presets",
    "decide",
    "first_match",
    "matches",
    "permitted",
]
