"""The settings of policy: rates, the network after a private read, redaction; and that no
project's file loosens any of them."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_tools.app import config
from mlx_tools.app.config import ConfigErrors, Layer
from mlx_tools.messages import ALL_EFFECTS, ToolSpec, replace
from mlx_tools.policy import PRESETS, Facts, Policy, decide, find_exceeded_rate
from mlx_tools.store.access_list import fingerprints
from tests.policy.test_rules import EFFECTS, PATTERNS, RATES, SPECS, at

ALL_SET = """
[policy]
allow = ["*"]
network_after_read = "ask"
redact_paths = true

[policy.rate_limits]
session = "100/hour"
web_search = "10/minute"
"notes_*" = "100/hour"
"plugin:weather/*" = "1/day"
"""


def test_the_policy_has_what_the_settings_say(place: Any) -> None:
    assert place.load(ALL_SET).policy() == Policy(
        allow=["*"],
        rate_limits={"web_search": "10/minute", "notes_*": "100/hour", "plugin:weather/*": "1/day"},
        session_rate_limit="100/hour",
        network_after_read="ask",
        redact_paths=True,
    )
    default = place.load().policy()
    assert default.redacts and not default.redacts_paths and not default.rate_limits


def test_the_environment_writes_rates_with_commas_and_adds_up(place: Any) -> None:
    variables = {
        "MLX_TOOLS_POLICY_RATE_LIMITS": " web_search = 99/minute , fetch_url=1/second,"
        "session=5/day",
        "MLX_TOOLS_POLICY_NETWORK_AFTER_READ": "deny",
        "MLX_TOOLS_POLICY_REDACT_PATHS": "no",
    }
    loaded = place.load(ALL_SET, environ=variables)
    policy = loaded.policy()
    assert policy.rate_limits["web_search"] == "99/minute"
    assert policy.rate_limits["fetch_url"] == "1/second"
    assert policy.rate_limits["notes_*"] == "100/hour"
    assert (policy.session_rate_limit, policy.network_after_read) == ("5/day", "deny")
    assert policy.redact and not policy.redact_paths
    kinds = [origin.kind for origin in loaded.origins["policy.rate_limits"]]
    assert kinds[-2:] == ["user", "environment"]
    empty = place.load(ALL_SET, environ={"MLX_TOOLS_POLICY_RATE_LIMITS": ""}).policy()
    assert len(empty.rate_limits) == 3


@pytest.mark.parametrize("text", ["x", "x=", "=1/hour", "x=1/hour,x=2/hour", "x=1/hour;y=1/hour"])
def test_a_variable_that_is_no_table_of_rates_is_a_fault(place: Any, text: str) -> None:
    with pytest.raises(ConfigErrors, match=r"MLX_TOOLS_POLICY_RATE_LIMITS.*10/minute"):
        place.load(environ={"MLX_TOOLS_POLICY_RATE_LIMITS": text})


def test_a_project_file_may_lower_rates_and_add_some(place: Any) -> None:
    project = (
        "[policy]\nnetwork_after_read = 'deny'\n"
        "[policy.rate_limits]\nsession = '100/day'\nweb_search = '9/minute'\n'*' = '1000/hour'\n"
    )
    policy = place.load(ALL_SET, project).policy()
    assert policy.rate_limits["web_search"] == "9/minute"
    assert policy.rate_limits["*"] == "1000/hour" and policy.rate_limits["notes_*"] == "100/hour"
    assert (policy.session_rate_limit, policy.network_after_read) == ("100/day", "deny")
    assert place.load("", "policy.rate_limits.session = '9/day'\n").policy().session_rate_limit


@pytest.mark.parametrize("user", ["", "ask_effects = []"])
def test_a_project_file_may_ask_more(place: Any, user: str) -> None:
    project = "[policy]\nask_effects = ['write', 'execute', 'network']\n"
    policy = place.load(f"[policy]\n{user}\n", project).policy()
    assert policy.ask_effects == ("write", "execute", "network")


def test_a_users_own_choice_of_what_asks_holds_beside_a_projects_list_of_tools(
    place: Any,
) -> None:
    user = "[policy]\nallow = ['*']\nask_effects = []\n"
    loaded = place.load(user, "[policy]\nallow = ['create_file', 'notes_create']\n")
    for policy in (loaded.policy(), loaded.configured_policy()):
        for name in ("create_file", "notes_create"):
            spec = ToolSpec(name, effects=frozenset({"write"}))
            assert decide(policy, spec, name, {}, runs="freely").decision == "allow"


# --- what is watched ---


def test_every_place_where_a_file_is_or_would_be_read_is_watched(place: Any) -> None:
    loaded = place.load()
    folders = (place.cwd, *place.cwd.parents[:2], place.home)
    wanted = [place.user, *(folder / "mlx-tools.toml" for folder in folders)]
    assert loaded.watched == {str(path): "absent" for path in wanted}
    found = place.load("[policy]\n", "[policy]\n").watched
    assert list(found) == [str(path) for path in wanted]
    assert found == fingerprints(found) and "absent" not in (
        found[str(place.user)],
        found[str(place.project)],
    )


# --- whatever a project's file says ---

KEYS: dict[str, st.SearchStrategy[Any]] = {
    "policy.allow": st.lists(PATTERNS, max_size=3).map(tuple),
    "policy.preset": st.sampled_from(list(PRESETS)),
    "policy.deny": st.lists(PATTERNS, max_size=2).map(tuple),
    "policy.ask": st.lists(PATTERNS, max_size=2).map(tuple),
    "policy.ask_effects": EFFECTS,
    "policy.local_only": st.booleans(),
    "policy.dry_run": st.booleans(),
    "policy.rate_limits": st.dictionaries(PATTERNS | st.just("session"), RATES, max_size=2),
    "policy.network_after_read": st.sampled_from(["allow", "ask", "deny"]),
    "policy.redact_paths": st.booleans(),
}
VALUES = st.fixed_dictionaries({}, optional=KEYS)


def test_no_setting_of_the_policy_is_left_out_here() -> None:
    keys = {key for key in config.table() if key.startswith("policy.")}
    assert keys - {"policy.approve"} == set(KEYS)  # which decides who is asked, about no call


def layer(kind: Any, values: dict[str, Any]) -> Layer:
    if "policy.allow" in values:
        values = {key: value for key, value in values.items() if key != "policy.preset"}
    return Layer(kind, kind, values, {key: key for key in values})


CALLS: list[tuple[ToolSpec, dict[str, str], Facts, int]] = [
    (spec, {"operation": operation}, Facts(private_read=private, consented=consented), made)
    for spec in SPECS
    for operation in ("read", "write")
    for private in (False, True)
    for consented in (None, frozenset(ALL_EFFECTS))
    for made in (0, 1, 2, 3)
]


def decisions(policy: Policy) -> list[str]:
    """The fate of each of the calls, so many calls of the same tool a second after the other
    having been made before."""
    found = []
    for spec, arguments, facts, made in CALLS:
        tally = {f"c{number}": (spec.name, at(number)) for number in range(made)}
        facts = replace(facts, rate_denial=find_exceeded_rate(policy, spec, tally, at(made)))
        found.append(
            decide(policy, spec, spec.name, arguments, runs="freely", facts=facts).decision
        )
    return found


@given(st.sampled_from([{}, {"policy.allow": ("*",)}]), VALUES, VALUES, VALUES)
def test_no_project_file_makes_anything_of_a_denial_or_lets_a_question_pass(
    always: dict[str, Any], user: dict[str, Any], outer: dict[str, Any], project: dict[str, Any]
) -> None:
    layers = [config.defaults(), layer("user", {**user, **always})]
    with contextlib.suppress(ConfigErrors):  # whatever a file above it says
        config.merge([*layers, layer("project", outer)])
        layers.append(layer("project", outer))
    before = config.merge(layers).policy()
    without = decisions(before)
    order = ["allow", "ask", "deny"]
    for key, value in project.items():  # one fault must not hide the others
        try:
            after = config.merge([*layers, layer("project", {key: value})]).policy()
        except ConfigErrors:
            continue
        for then, now in zip(without, decisions(after), strict=True):
            assert order.index(now) >= order.index(then), key
        assert after.redacts >= before.redacts and after.redacts_paths >= before.redacts_paths
