"""Policy: a call goes in, a decision comes out. Pure; deny is the default.

What finds secrets, which reads a table, is imported when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlx_tools.lazy import names_of
from mlx_tools.policy.approval_template import ApprovalTemplate, CallContext, pin_of
from mlx_tools.policy.decision import (
    IN_DOUBT,
    TEMPLATE,
    Decision,
    Facts,
    SecretFinder,
    asks,
    can_be_preapproved,
    decide,
    decide_by_template,
    denial,
    exceeded_rate,
    facts_of,
    permitted,
    same,
    seal,
)
from mlx_tools.policy.rules import (
    ASKABLE,
    BUILTIN,
    CHARS_OF_TOKEN,
    FUNCTIONS,
    MIN_OBSERVATION_CHARS,
    PLUGIN,
    PLUGIN_NAME,
    PRESETS,
    RATES,
    Limits,
    Policy,
    Rate,
    RateCounts,
    check_patterns,
    check_presets,
    checked_effects,
    checked_rates,
    covers,
    first_match,
    is_glob,
    matches,
    parts_reached,
    restriction,
)

if TYPE_CHECKING:
    from mlx_tools.policy.redact import Redactor, find_secrets
    from mlx_tools.policy.secret_kinds import SecretSpan

__getattr__, __dir__ = names_of(
    globals(),
    {
        "redact": ("Redactor", "find_secrets"),
        "secret_kinds": ("SecretSpan",),
    },
)
