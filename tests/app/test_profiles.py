"""Profiles of the user's file, tools that an option adds and takes away, keys in files."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlx_tools.messages import ToolSpec
from mlx_tools.policy import BUILTIN, Policy, find_denial
from tests.app.conftest import Place

WORK = """
[model]
name = "small"
seed = 7

[profiles.work]
model.name = "large"
policy.preset = "workspace"
limits.max_iterations = 9

[profiles.terse.prompt]
system = "Be brief."
"""


def may(policy: Policy, name: str, *effects: str) -> bool:
    spec = ToolSpec(
        name=name,
        description="x",
        parameters={"type": "object"},
        effects=frozenset(effects),  # type: ignore[arg-type]
        plugin=BUILTIN,
    )
    return find_denial(policy, spec) is None


def test_a_profile_goes_over_the_other_values_of_the_file_and_under_options(place: Place) -> None:
    assert place.load(WORK).settings.model.name == "small"
    chosen = place.load(WORK, options={"profile": "work"})
    assert (chosen.settings.model.name, chosen.settings.model.seed) == ("large", 7)
    assert chosen.settings.limits.max_iterations == 9
    assert chosen.describe_origin("model.name") == "--profile work"
    over = place.load(WORK, options={"profile": "work", "model.name": "mine"})
    assert over.settings.model.name == "mine"
    environ = {"MLX_TOOLS_PROFILE": "terse", "MLX_TOOLS_MODEL_NAME": "mine"}
    by_variable = place.load(WORK, environ=environ)
    assert by_variable.settings.prompt.system == "Be brief."
    assert by_variable.settings.model.name == "mine"


def test_the_users_file_may_choose_a_profile_for_all_commands(place: Place) -> None:
    loaded = place.load(f'profile = "work"\n{WORK}')
    assert loaded.settings.model.name == "large"
    assert loaded.describe_origin("model.name") == f"{place.user}: profiles.work: model.name"
    assert [*loaded.profiles] == ["work", "terse"]


def test_a_project_tightens_a_profile_and_neither_defines_nor_chooses_one(place: Place) -> None:
    tight = place.load(WORK, "[limits]\nmax_iterations = 3\n", options={"profile": "work"})
    assert tight.settings.limits.max_iterations == 3
    (fault,) = place.problems(WORK, 'profile = "work"\n')
    assert "profile: a project's file must not set this" in fault
    (fault,) = place.problems(WORK, '[profiles.work]\nmodel.name = "theirs"\n')
    assert "profiles: a project's file must not define any" in fault


def test_a_profile_that_is_not_there_is_told_with_those_that_are(place: Place) -> None:
    (fault,) = place.problems(WORK, options={"profile": "wrok"})
    assert fault == "--profile: no profile 'wrok' (there are work, terse)"
    (fault,) = place.problems("", options={"profile": "work"})
    assert f"{place.user} defines none" in fault


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[profiles.a]\nmodel.nmae = 'x'\n", "profiles.a: model.nmae: no such setting"),
        ("[profiles.a]\nmodel.seed = 'x'\n", "profiles.a: model.seed: 'x' is not allowed"),
        ("[profiles.a]\nprofile = 'b'\n", "profiles.a: profile: no such setting"),
        ("[profiles]\nmodel = 'x'\n", "profiles: no tables of settings"),
        ("[profiles.a.policy]\npreset = 'notes'\nallow = []\n", "excludes policy.preset"),
    ],
)
def test_a_fault_in_a_profile_is_one_of_the_file_chosen_or_not(
    place: Place, text: str, said: str
) -> None:
    (fault,) = place.problems(text)
    assert said in fault


def test_a_profile_asked_for_once_holds_no_session_that_goes_on(place: Place) -> None:
    once = place.load(WORK, options={"profile": "work"}).configured_policy()
    always = place.load(f'profile = "work"\n{WORK}').configured_policy()
    assert may(once, "notes_create", "write") and not may(always, "notes_create", "write")


def test_tools_with_signs_are_more_and_less_than_a_preset(place: Place) -> None:
    options = {"policy.preset": "readonly_basic", "policy.allow": "+format_xml,-clock"}
    policy = place.load(options=options).policy()
    assert may(policy, "format_xml") and may(policy, "calculator") and not may(policy, "clock")
    assert not may(policy, "create_file", "write")
    # What the preset does not grant, none of its tools gains by the others.
    assert not may(policy, "file_access", "write")


def test_tools_with_signs_go_from_what_holds_where_no_preset_is_named(place: Place) -> None:
    listed = '[policy]\nallow = ["clock", "notes_*"]\n'
    policy = place.load(listed, options={"policy.allow": "-notes_create,+calculator"}).policy()
    assert may(policy, "clock") and may(policy, "notes_search") and may(policy, "calculator")
    assert not may(policy, "notes_create", "write")


def test_what_a_project_took_away_comes_back_only_by_name(place: Place) -> None:
    project = '[policy]\nallow = ["clock"]\n'
    policy = place.load("", project, options={"policy.allow": "+format_xml"}).policy()
    assert may(policy, "clock") and may(policy, "format_xml") and not may(policy, "calculator")


@pytest.mark.parametrize("text", ["clock,+calculator", "+clock,calculator", "+", "-,+a", "+a b"])
def test_names_with_and_without_signs_are_a_fault(place: Place, text: str) -> None:
    if text[0] in "+-":
        (fault,) = place.problems(options={"policy.allow": text})
        assert fault.startswith("--tools: ")
    else:
        place.problems(options={"policy.allow": text})


def test_a_key_is_read_from_the_file_that_an_option_names(place: Place, tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("s3cret\n")
    loaded = place.load(options={"backend.api_key": str(file)})
    assert loaded.settings.backend.api_key == "s3cret"
    file.write_text("two words\n")
    (fault,) = place.problems(options={"backend.api_key": str(file)})
    assert fault.startswith(f"--api-key-file: {file} holds no key") and "two" not in fault
    (fault,) = place.problems(options={"backend.api_key": str(tmp_path / "none")})
    assert "No such file" in fault
