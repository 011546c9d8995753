"""Decisions about calls: allow, ask or deny.

The room is pure, and what no rule allows is denied. The search for secrets reads a table, so it is
imported at its first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlx_tools.lazy import attach_names
from mlx_tools.policy.approval_template import ApprovalTemplate, CallContext, compute_pin
from mlx_tools.policy.decision import (
    IN_DOUBT,
    TEMPLATE,
    Decision,
    Facts,
    SecretFinder,
    always_asks,
    can_be_allowed,
    can_be_preapproved,
    collect_facts,
    decide,
    decide_by_template,
    equal_digests,
    find_denial,
    find_exceeded_rate,
    seal,
)
from mlx_tools.policy.rules import (
    ASKABLE,
    BUILTIN,
    FUNCTIONS,
    MIN_CHARS_PER_TOKEN,
    MIN_OBSERVATION_CHARS,
    PLUGIN,
    PLUGIN_NAME,
    PRESETS,
    RATES,
    Limits,
    Policy,
    Rate,
    RateCounts,
    check_effects,
    check_patterns,
    check_presets,
    check_rates,
    first_match,
    is_glob,
    match_path_parts,
    matches,
    names_same_tool,
    restriction,
)

if TYPE_CHECKING:
    from mlx_tools.policy.redact import Redactor, find_secrets
    from mlx_tools.policy.secret_kinds import SecretSpan

__getattr__, __dir__ = attach_names(
    globals(),
    {
        "redact": ("Redactor", "find_secrets"),
        "secret_kinds": ("SecretSpan",),
    },
)
