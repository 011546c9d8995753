"""What a project's file may do: take power away, never give it.

The file comes with a folder that somebody else may have written, such as a cloned repository. So
it is held against what holds without it, and whatever would loosen that is a fault.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Mapping
from typing import Any

from mlx_tools.app.config.layers import Layer
from mlx_tools.app.config.table import SettingRow, table
from mlx_tools.policy import PLUGIN, PRESETS, Rate, covers, is_glob


def loosened(layer: Layer, base: Mapping[str, Any]) -> list[str]:
    """The faults of a project's file, given the values that hold without it."""
    problems = []
    for key, value in layer.values.items():
        row = table()[key]
        fault = _fault(row, value, base)
        if fault:
            problems.append(f"{layer.source}: {key}: {fault}")
    return problems


def allowed_tools(values: Mapping[str, Any]) -> tuple[str, ...]:
    """The names and patterns that the list or, without one, the preset allows."""
    allow, preset = values.get("policy.allow"), values.get("policy.preset")
    if allow is not None:
        return tuple(allow)
    return PRESETS[preset].tools if preset is not None and preset in PRESETS else ()


def _fault(row: SettingRow, value: Any, base: Mapping[str, Any]) -> str | None:
    before = base.get(row.key)
    match row.setting.project:
        case "never":
            return "a project's file must not set this (set it in your own file)"
        case "only_true":
            return None if value or value == before else _loosens("true")
        case "only_false":
            return None if not value or value == before else _loosens("false")
        case "lower":
            return None if value <= before else _loosens(f"at most {before}")
        case "rarer":
            return _oftener(value, before)
        case "stricter":
            order = row.choices
            within = order[: order.index(before) + 1]
            return None if value in within else _loosens(" or ".join(within))
        case "more":
            fine = set(before or ()) <= set(value)
            return None if fine else _loosens(f"{', '.join(before or ())}, and more")
        case "allow":
            return _widened(row, value, allowed_tools(base))
        case _:  # "any" gives no power, "add" only adds to what is refused
            return None


def _oftener(value: Any, before: Any) -> str | None:
    """A rate, or one of a table of rates, that allows more calls than the one before it."""
    if isinstance(value, Mapping):
        faults = ((name, _oftener(value[name], (before or {}).get(name))) for name in sorted(value))
        return next((f"{name}: {fault}" for name, fault in faults if fault), None)
    if before is None or Rate.parse(value).within(Rate.parse(before)):
        return None
    return _loosens(f"no more calls than {before}, in a time no shorter")


def _loosens(allowed: str) -> str:
    return f"a project's file can only tighten this (allowed: {allowed})"


def _widened(row: SettingRow, value: Any, before: Collection[str]) -> str | None:
    wanted = allowed_tools({row.key: value})
    more = [name for name in wanted if not _covered(name, before)]
    if not more:
        return None
    return (
        f"a project's file can only tighten this: {', '.join(more)} is not allowed without it "
        f"(allowed: {', '.join(before) or 'no tool'})"
    )


def _covered(name: str, before: Collection[str]) -> bool:
    """Whether what ``name`` means may be allowed already.

    Only a list of exact names says for sure that it is not. Whatever is said here, the policy of a
    run holds what a project's file allows to what holds without it (`Configuration.policy`).
    """
    if any(covers(other, name) for other in before) or "*" in before:
        return True
    if name.startswith(PLUGIN):
        return name.partition("/")[0] in before  # some tools of a plugin that is allowed whole
    if is_glob(name):
        return False
    return any(p.startswith(PLUGIN) or fnmatch.fnmatchcase(name, p) for p in before)
