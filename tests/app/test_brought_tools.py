"""Folders, programs and files of functions that a person names bring the tools for them."""

from __future__ import annotations

from typing import Any

import pytest

from mlx_tools.app import build_registry
from mlx_tools.errors import UsageError
from mlx_tools.messages import ToolSpec
from mlx_tools.policy import PRESETS, can_be_allowed


def allowed(loaded: Any, *names: str) -> list[bool]:
    specs = (ToolSpec(name, effects=frozenset({"read"})) for name in names)
    return [can_be_allowed(loaded.policy(), spec) for spec in specs]


@pytest.mark.parametrize(
    ("roots", "preset"),
    [
        ([], "readonly_basic"),
        (["."], "readonly_basic"),
        ([".:ro"], "readonly_basic"),
        ([".:rw"], "workspace"),
        ([".", "/tmp:rw"], "workspace"),
        ([".:rw:**/*.py"], "workspace"),
    ],
)
def test_a_folder_that_may_be_written_to_brings_the_preset_for_that(
    place: Any, roots: list[str], preset: str
) -> None:
    loaded = place.load(options={"tools.roots": roots})
    assert loaded.settings.policy.preset == preset
    assert all(allowed(loaded, *PRESETS[preset].tools))
    if preset == "readonly_basic":
        assert allowed(loaded, "create_file") == [False]


def test_whoever_chose_tools_keeps_that_choice(place: Any) -> None:
    roots = {"tools.roots": [".:rw"]}
    for options in ({"policy.allow": "clock"}, {"policy.preset": "readonly_files"}):
        loaded = place.load(options={**roots, **options})
        assert allowed(loaded, "create_file") == [False]
    user = place.load('[policy]\npreset = "readonly_files"\n', options=roots)
    assert allowed(user, "create_file") == [False]
    variable = place.load(environ={"MLX_TOOLS_ALLOWED_TOOLS": "clock"}, options=roots)
    assert allowed(variable, "create_file", "clock") == [False, True]


def test_more_and_less_are_counted_from_what_the_folder_brings(place: Any) -> None:
    options = {"tools.roots": [".:rw"], "policy.allow": "+fetch_url,-format_xml"}
    loaded = place.load(options=options)
    assert allowed(loaded, "create_file", "fetch_url", "format_xml") == [True, True, False]


def test_a_project_cannot_name_folders_programs_or_functions_and_still_narrows(
    place: Any,
) -> None:
    for key, value in (("roots", "['.:rw']"), ("commands", "['sh']"), ("functions", "['f.py']")):
        (problem,) = place.problems("", f"[tools]\n{key} = {value}\n")
        assert f"tools.{key}" in problem and "must not set this" in problem
    options = {"tools.roots": [".:rw"], "tools.commands": "make"}
    loaded = place.load("", '[policy]\nallow = ["clock"]\n', options=options)
    assert allowed(loaded, "clock", "create_file", "run_command") == [True, False, False]


def test_programs_that_are_named_bring_the_tool_that_runs_them(place: Any) -> None:
    loaded = place.load(options={"tools.commands": "python3,make"})
    assert loaded.settings.tools.commands == ("python3", "make")
    assert allowed(loaded, "run_command", "clock", "create_file") == [True, True, False]
    chosen = place.load(options={"tools.commands": "make", "policy.allow": "clock"})
    assert allowed(chosen, "run_command", "clock") == [True, True]
    denied = place.load('[policy]\ndeny = ["run_command"]\n', options={"tools.commands": "make"})
    assert allowed(denied, "run_command") == [False]
    assert allowed(place.load(), "run_command") == [False]


@pytest.mark.parametrize("key", ["tools.roots", "tools.functions"])
def test_the_home_of_a_user_that_does_not_exist_is_told_as_a_path_that_is_not_there(
    place: Any, key: str
) -> None:
    loaded = place.load(options={key: ["~nobody-of-this-name/x"]})
    with pytest.raises(UsageError, match="~nobody-of-this-name/x"):
        build_registry(loaded)
