"""Presets: frozen, and held to the tools that exist."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from mlx_tools.errors import ToolDefinitionError
from mlx_tools.policy import DEFAULT_PRESET, PRESETS, Preset, check_presets
from mlx_tools.policy.presets import READ_ONLY
from mlx_tools.spec import ALL_EFFECTS, MUTATING, Effects, ToolSpec
from mlx_tools.tools import Registry

READ: Effects = frozenset(("read",))


def specs(**effects: Any) -> dict[str, ToolSpec]:
    names = ("calculator", "clock", "file_access", "read_artifact")
    given = {**dict.fromkeys(names, READ), **effects}
    return {name: ToolSpec(name, effects=what) for name, what in given.items()}


def test_the_presets_hold_for_the_built_in_tools() -> None:
    check_presets(Registry.builtin().all_specs())


def test_the_default_is_read_only_and_has_what_needs_no_permission() -> None:
    preset = PRESETS[DEFAULT_PRESET]
    assert set(preset.tools) == {"calculator", "clock", "file_access", "read_artifact"}
    assert preset.effects == READ


def test_presets_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        PRESETS["mine"] = PRESETS[DEFAULT_PRESET]  # type: ignore[index]
    with pytest.raises(AttributeError):
        PRESETS[DEFAULT_PRESET].tools = ("run_command",)  # type: ignore[misc]


def test_every_read_only_preset_grants_nothing_that_changes_things() -> None:
    for name, preset in PRESETS.items():
        assert name == preset.name
        if name.startswith(READ_ONLY):
            assert MUTATING.isdisjoint(preset.effects)


def test_a_read_only_preset_with_more_cannot_even_be_made() -> None:
    with pytest.raises(ToolDefinitionError, match="readonly_mine"):
        Preset("readonly_mine", (), frozenset(("write",)))


def test_a_tool_that_has_come_to_write_is_found_at_start() -> None:
    for drifted in (ALL_EFFECTS, frozenset(("read", "write")), frozenset(("execute",))):
        with pytest.raises(ToolDefinitionError, match=r"readonly_basic: clock"):
            check_presets(specs(clock=drifted))


def test_a_name_that_is_not_registered_is_found_at_start() -> None:
    missing = specs()
    del missing["clock"]
    with pytest.raises(ToolDefinitionError, match="no tool clock is registered"):
        check_presets(missing)


def test_a_tool_whose_effects_depend_on_its_arguments_is_left_to_each_call() -> None:
    def effects(arguments: Mapping[str, Any]) -> Effects:
        return ALL_EFFECTS

    check_presets(specs(file_access=effects))
