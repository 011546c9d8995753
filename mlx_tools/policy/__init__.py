"""Policy: a call goes in, a decision comes out. Pure; deny is the default."""

from __future__ import annotations

from mlx_tools.policy.decision import (
    Decision,
    Facts,
    SecretFinder,
    asks,
    decide,
    denial,
    exceeded,
    facts_of,
    permitted,
    same,
    seal,
)
from mlx_tools.policy.redact import Redactor, SecretSpan, find_secrets
from mlx_tools.policy.rules import (
    ASKABLE,
    BUILTIN,
    DEFAULT_PRESET,
    PLUGIN,
    PLUGIN_NAME,
    PRESETS,
    RATES,
    Limits,
    Policy,
    Preset,
    Rate,
    RateCounts,
    check_presets,
    checked,
    checked_effects,
    checked_rates,
    checked_templates,
    covers,
    first_match,
    is_glob,
    matches,
    restriction,
    tool_in,
)
