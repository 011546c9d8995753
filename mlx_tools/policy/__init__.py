"""Policy: a call goes in, a decision comes out. Pure; deny is the default."""

from __future__ import annotations

from mlx_tools.policy.access import (
    AccessList,
    ApprovalSubject,
    approval_digest,
    refusal,
    refused,
    same,
    seal,
)
from mlx_tools.policy.decision import (
    Decision,
    Exceeded,
    Facts,
    SecretFinder,
    asks,
    decide,
    denial,
    exceeded,
    facts_of,
    permitted,
)
from mlx_tools.policy.limits import RATES, Limits, Rate, RateCounts, checked_rates
from mlx_tools.policy.patterns import (
    PLUGIN,
    PLUGIN_NAME,
    checked,
    checked_templates,
    covers,
    first_match,
    is_glob,
    matches,
    tool_in,
)
from mlx_tools.policy.presets import BUILTIN, DEFAULT_PRESET, PRESETS, Preset, check_presets
from mlx_tools.policy.rules import ASKABLE, Policy, checked_effects, restriction

__all__ = [
    "ASKABLE",
    "BUILTIN",
    "DEFAULT_PRESET",
    "PLUGIN",
    "PLUGIN_NAME",
    "PRESETS",
    "RATES",
    "AccessList",
    "ApprovalSubject",
    "Decision",
    "Exceeded",
    "Facts",
    "Limits",
    "Policy",
    "Preset",
    "Rate",
    "RateCounts",
    "SecretFinder",
    "approval_digest",
    "asks",
    "check_presets",
    "checked",
    "checked_effects",
    "checked_rates",
    "checked_templates",
    "covers",
    "decide",
    "denial",
    "exceeded",
    "facts_of",
    "first_match",
    "is_glob",
    "matches",
    "permitted",
    "refusal",
    "refused",
    "restriction",
    "same",
    "seal",
    "tool_in",
]
