"""The rules for a project's file: it can only tighten the settings.

The file comes with a folder that a stranger may have written, such as a cloned repository. So it is
compared with the settings that would apply without it. Values that loosen them are problems.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Mapping
from typing import Any

from mlx_tools.app.setting_rows import SettingRow
from mlx_tools.app.settings import table
from mlx_tools.policy import PLUGIN, PRESETS, Rate, is_glob, names_same_tool


def find_loosened(source: str, values: Mapping[str, Any], base: Mapping[str, Any]) -> list[str]:
    """Return the problems of a project's file.

    Args:
        source: the file.
        values: the settings in it.
        base: the values that apply without it.
    """
    return [
        f"{source}: {key}: {fault}"
        for key, value in values.items()
        if (fault := find_fault(table()[key], value, base))
    ]


def find_fault(row: SettingRow, value: Any, base: Mapping[str, Any]) -> str | None:
    """Return why a project's file must not set this value, or None.

    Args:
        row: the setting.
        value: its value in the file.
        base: the values that apply without the file.
    """
    old_value = base.get(row.key)
    match row.setting.project:
        case "never":
            return "a project's file must not set this (set it in your own file)"
        case "only_true" | "only_false" as rule:
            required = rule == "only_true"
            is_allowed = value in (required, old_value)
            return None if is_allowed else _loosens(str(required).lower())
        case "lower":
            is_allowed = old_value is None or value <= old_value  # None depends on the model
            return None if is_allowed else _loosens(f"at most {old_value}")
        case "rarer":
            return _check_rates(value, old_value)
        case "stricter":
            allowed = row.choices[: row.choices.index(old_value) + 1]
            return None if value in allowed else _loosens(" or ".join(allowed))
        case "more":
            is_allowed = set(old_value or ()) <= set(value)
            return None if is_allowed else _loosens(f"{', '.join(old_value or ())}, and more")
        case "allow":
            return _describe_widened(_allowed_tools({row.key: value}), _allowed_tools(base))
        case "any" | "add":  # the first gives no power, the second only adds to a list
            return None
    return "a project's file must not set this (its rule is unknown)"


def _loosens(allowed: str) -> str:
    return f"a project's file can only tighten this (allowed: {allowed})"


def _check_rates(value: Any, old_value: Any) -> str | None:
    """Return the problem if a rate, or one in a table, allows more calls, or None."""
    if isinstance(value, Mapping):
        faults = (
            (name, _check_rates(value[name], (old_value or {}).get(name))) for name in sorted(value)
        )
        return next((f"{name}: {fault}" for name, fault in faults if fault), None)
    if old_value is None or Rate.parse(value).is_as_strict_as(Rate.parse(old_value)):
        return None
    return _loosens(f"no more calls than {old_value}, in a time no shorter")


def _allowed_tools(values: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names and patterns of the list, or of the preset if there is no list."""
    allow, preset = values.get("policy.allow"), values.get("policy.preset")
    if allow is not None:
        return tuple(allow)
    return PRESETS[preset].tools if preset is not None and preset in PRESETS else ()


def _describe_widened(new_names: Collection[str], old_names: Collection[str]) -> str | None:
    new_tools = [name for name in new_names if not _is_covered(name, old_names)]
    if not new_tools:
        return None
    return (
        f"a project's file can only tighten this: {', '.join(new_tools)} is not allowed without it "
        f"(allowed: {', '.join(old_names) or 'no tool'})"
    )


def _is_covered(name: str, old_names: Collection[str]) -> bool:
    """Return True if the tools that ``name`` means may be allowed already.

    Only a list of exact names proves that they are not. In any case a run's policy never allows
    more than without the project's file (`Configuration.policy`).
    """
    if any(names_same_tool(old_name, name) for old_name in old_names) or "*" in old_names:
        return True
    if name.startswith(PLUGIN):
        return name.partition("/")[0] in old_names  # a tool of a plugin that is allowed as a whole
    if is_glob(name):
        return False
    return any(
        pattern.startswith(PLUGIN) or fnmatch.fnmatchcase(name, pattern) for pattern in old_names
    )
