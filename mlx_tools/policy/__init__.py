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
from mlx_tools.policy.redact import Redactor, SecretSpan, find_secrets
from mlx_tools.policy.rules import (
    ASKABLE,
    BUILTIN,
    DEFAULT_PRESET,
    PRESETS,
    Policy,
    Preset,
    check_presets,
    checked_effects,
    restriction,
)
from mlx_tools.policy.seals import same, seal
