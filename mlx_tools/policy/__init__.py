"""Policy: a call goes in, a decision comes out. Pure; deny is the default."""

from __future__ import annotations

from mlx_tools.policy.facts import Exceeded, Facts, SecretFinder, facts_of
from mlx_tools.policy.limits import Limits
from mlx_tools.policy.patterns import first_match, matches
from mlx_tools.policy.presets import DEFAULT_PRESET, PRESETS, Preset, check_presets
from mlx_tools.policy.rates import Rate, RateCounts
from mlx_tools.policy.rules import (
    Decision,
    Policy,
    asks,
    decide,
    denial,
    exceeded,
    permitted,
    restriction,
)

__all__ = [
    "DEFAULT_PRESET",
    "PRESETS",
    "Decision",
    "Exceeded",
    "Facts",
    "Limits",
    "Policy",
    "Preset",
    "Rate",
    "RateCounts",
    "SecretFinder",
    "asks",
    "check_presets",
    "decide",
    "denial",
    "exceeded",
    "facts_of",
    "first_match",
    "matches",
    "permitted",
    "restriction",
]
