"""What is known of a tool before it runs, as JSON values: for ``tools show`` and ``tools list``."""

from __future__ import annotations

from typing import Any

from mlx_tools.messages import ToolSpec
from mlx_tools.policy import Policy, asks, permitted
from mlx_tools.policy.patterns import PLUGIN


def described(spec: ToolSpec) -> dict[str, Any]:
    """All that a tool declares."""
    return {
        "name": spec.name,
        "description": spec.description,
        "parameters": spec.parameters,
        "effects": sorted(spec.possible_effects),
        "plugin": spec.plugin,
        "timeout": spec.timeout,
        "retry": spec.retry,
        "needs_approval": spec.needs_approval,
        "private": spec.private,
        "cache": spec.cache,
    }


def row(spec: ToolSpec, off: str | None, policy: Policy) -> dict[str, Any]:
    """A tool in a list. ``off`` is why it is disabled, None where it is not."""
    return {
        "name": spec.name,
        "description": spec.description,
        "effects": sorted(spec.possible_effects),
        "plugin": spec.plugin,
        "enabled": off is None,
        "disabled_reason": off,
        "permitted": off is None and permitted(policy, spec),
        "needs_approval": asks(policy, spec),
    }


def row_of_offer(key: str, why: str) -> dict[str, Any]:
    """What stands in the list for an offer, ``plugin:PACKAGE/NAME``, that came to no tool."""
    plugin, _, name = key.removeprefix(PLUGIN).partition("/")
    return {
        "name": name,
        "description": "",
        "effects": [],
        "plugin": plugin,
        "enabled": False,
        "disabled_reason": why,
        "permitted": False,
        "needs_approval": False,
    }
