"""Policy: a call goes in, a decision comes out. Pure; deny is the default."""

from __future__ import annotations

from mlx_tools.policy.access import AccessList as AccessList
from mlx_tools.policy.access import ApprovalSubject as ApprovalSubject
from mlx_tools.policy.access import approval_digest as approval_digest
from mlx_tools.policy.access import refusal as refusal
from mlx_tools.policy.access import refused as refused
from mlx_tools.policy.access import same as same
from mlx_tools.policy.access import seal as seal
from mlx_tools.policy.decision import Decision as Decision
from mlx_tools.policy.decision import Exceeded as Exceeded
from mlx_tools.policy.decision import Facts as Facts
from mlx_tools.policy.decision import SecretFinder as SecretFinder
from mlx_tools.policy.decision import asks as asks
from mlx_tools.policy.decision import decide as decide
from mlx_tools.policy.decision import denial as denial
from mlx_tools.policy.decision import exceeded as exceeded
from mlx_tools.policy.decision import facts_of as facts_of
from mlx_tools.policy.decision import permitted as permitted
from mlx_tools.policy.limits import RATES as RATES
from mlx_tools.policy.limits import Limits as Limits
from mlx_tools.policy.limits import Rate as Rate
from mlx_tools.policy.limits import RateCounts as RateCounts
from mlx_tools.policy.limits import checked_rates as checked_rates
from mlx_tools.policy.patterns import PLUGIN as PLUGIN
from mlx_tools.policy.patterns import PLUGIN_NAME as PLUGIN_NAME
from mlx_tools.policy.patterns import checked as checked
from mlx_tools.policy.patterns import checked_templates as checked_templates
from mlx_tools.policy.patterns import covers as covers
from mlx_tools.policy.patterns import first_match as first_match
from mlx_tools.policy.patterns import is_glob as is_glob
from mlx_tools.policy.patterns import matches as matches
from mlx_tools.policy.patterns import tool_in as tool_in
from mlx_tools.policy.rules import ASKABLE as ASKABLE
from mlx_tools.policy.rules import BUILTIN as BUILTIN
from mlx_tools.policy.rules import DEFAULT_PRESET as DEFAULT_PRESET
from mlx_tools.policy.rules import PRESETS as PRESETS
from mlx_tools.policy.rules import Policy as Policy
from mlx_tools.policy.rules import Preset as Preset
from mlx_tools.policy.rules import check_presets as check_presets
from mlx_tools.policy.rules import checked_effects as checked_effects
from mlx_tools.policy.rules import restriction as restriction
