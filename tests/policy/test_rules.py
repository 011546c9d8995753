"""What policy decides, in every order of its rules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlx_tools.errors import ErrorCode, UsageError
from mlx_tools.policy import PRESETS, Decision, Policy, asks, decide, permitted
from mlx_tools.policy.patterns import first_match
from mlx_tools.spec import ALL_EFFECTS, MUTATING, Effects, ToolSpec

READ: Effects = frozenset(("read",))
WRITE: Effects = frozenset(("write",))


def effects_of(arguments: Mapping[str, Any]) -> Effects:
    return WRITE if arguments.get("operation") == "write" else READ


LOOK = ToolSpec("look", effects=READ)
CHANGE = ToolSpec("change", effects=WRITE)
FETCH = ToolSpec("fetch", effects=frozenset(("read", "network")))
UNDECLARED = ToolSpec("undeclared")
CAREFUL = ToolSpec("careful", effects=READ, needs_approval=True)
CALCULATOR = ToolSpec("calculator", effects=READ)
FILES = ToolSpec("file_access", effects=effects_of)
FORECAST = ToolSpec("forecast", effects=READ, plugin="weather")
SPECS = (LOOK, CHANGE, FETCH, UNDECLARED, CAREFUL, CALCULATOR, FILES, FORECAST)

Runs = Literal["freely", "with_approval"]


def verdict(
    policy: Policy,
    spec: ToolSpec | None,
    arguments: Mapping[str, Any] | None = None,
    *,
    runs: Runs = "freely",
    echoed: bool = False,
    disabled_reason: str | None = None,
) -> tuple[str, ErrorCode | None]:
    name = spec.name if spec is not None else "nothing"
    decision = decide(
        policy,
        spec,
        name,
        arguments or {},
        runs=runs,
        echoed=echoed,
        disabled_reason=disabled_reason,
    )
    assert decision.reason
    assert decision.rule
    return decision.decision, decision.code


def test_the_empty_policy_denies_everything() -> None:
    for spec in SPECS:
        assert verdict(Policy(), spec) == ("deny", "not_allowed")


def test_an_unknown_tool_is_denied_even_where_everything_is_allowed() -> None:
    assert verdict(Policy(allow=["*"]), None) == ("deny", "unknown_tool")


def test_disabled_is_told_from_not_permitted_with_its_reason() -> None:
    decision = decide(
        Policy(allow=["look"]), LOOK, "look", {}, runs="freely", disabled_reason="ddgs is missing"
    )
    assert (decision.decision, decision.code) == ("deny", "disabled")
    assert "ddgs is missing" in decision.reason
    assert verdict(Policy(allow=["look"]), None, disabled_reason="broken") == ("deny", "disabled")


@pytest.mark.parametrize("allow", [["look"], ["l*"], ["l?ok"], ["[kl]ook"], ["x", "look"]])
def test_a_name_and_a_glob_allow(allow: list[str]) -> None:
    assert verdict(Policy(allow=allow), LOOK) == ("allow", None)


@pytest.mark.parametrize("allow", ["loo", "Look", "look_", "lookup", "plugin:look", "ook"])
def test_a_name_means_itself_alone(allow: str) -> None:
    assert verdict(Policy(allow=[allow]), LOOK) == ("deny", "not_allowed")


@pytest.mark.parametrize(
    ("pattern", "meant"),
    [
        ("plugin:weather", True),
        ("plugin:weather/forecast", True),
        ("plugin:weather/fore*", True),
        ("plugin:w*", True),
        ("plugin:weather/history", False),
        ("plugin:other", False),
        ("plugin:other/forecast", False),
        ("weather", False),
        ("weather/forecast", None),
    ],
)
def test_a_plugin_is_named_with_its_prefix(pattern: str, meant: bool | None) -> None:
    if meant is None:
        with pytest.raises(UsageError, match="cannot name a tool"):
            Policy(allow=[pattern])
        return
    assert verdict(Policy(allow=[pattern]), FORECAST)[0] == ("allow" if meant else "deny")
    assert verdict(Policy(allow=["*"], deny=[pattern]), FORECAST)[0] == (
        "deny" if meant else "allow"
    )


def test_a_tool_without_a_plugin_is_in_no_plugin() -> None:
    assert verdict(Policy(allow=["plugin:*"]), LOOK) == ("deny", "not_allowed")


def test_denied_beats_allowed() -> None:
    assert verdict(Policy(allow=["look"], deny=["look"]), LOOK) == ("deny", "not_allowed")
    assert verdict(Policy(preset="readonly_basic", deny=["calc*"]), CALCULATOR) == (
        "deny",
        "not_allowed",
    )


def test_a_name_denied_is_denied_under_the_name_that_was_called() -> None:
    policy = Policy(allow=["look"], deny=["lookAlias"])
    decision = decide(policy, LOOK, "lookAlias", {}, runs="freely")
    assert decision.decision == "deny"


def test_a_preset_admits_a_tool_for_its_read_only_calls_alone() -> None:
    policy = Policy(preset="readonly_basic")
    assert verdict(policy, FILES, {"operation": "read"}) == ("allow", None)
    assert verdict(policy, FILES, {"operation": "write"}) == ("deny", "not_allowed")


def test_a_preset_does_not_admit_a_tool_of_its_name_that_does_more() -> None:
    imitation = ToolSpec("calculator", effects=ALL_EFFECTS)
    assert verdict(Policy(preset="readonly_basic"), imitation) == ("deny", "not_allowed")


def test_effects_that_cannot_be_told_are_all_effects() -> None:
    def raises(arguments: Mapping[str, Any]) -> Effects:
        raise KeyError("operation")

    spec = ToolSpec("file_access", effects=raises)
    assert verdict(Policy(preset="readonly_files"), spec) == ("deny", "not_allowed")


def test_allowing_by_name_grants_all_effects_of_a_clean_call() -> None:
    assert verdict(Policy(allow=["change"]), CHANGE) == ("allow", None)
    assert verdict(Policy(allow=["undeclared"]), UNDECLARED) == ("allow", None)


def test_local_only_denies_what_may_use_the_network() -> None:
    policy = Policy(allow=["*"], local_only=True)
    assert verdict(policy, FETCH) == ("deny", "not_allowed")
    assert verdict(policy, UNDECLARED) == ("deny", "not_allowed")
    assert verdict(policy, LOOK) == ("allow", None)
    assert verdict(policy, CHANGE) == ("allow", None)


def test_a_call_that_was_not_written_cleanly_is_asked_about() -> None:
    assert verdict(Policy(allow=["change"]), CHANGE, runs="with_approval") == (
        "ask",
        "requires_confirmation",
    )


def test_an_echoed_call_is_asked_about_or_refused_where_it_can_change_things() -> None:
    policy = Policy(allow=["*"])
    assert verdict(policy, LOOK, runs="with_approval", echoed=True)[0] == "ask"
    assert verdict(policy, LOOK, echoed=True)[0] == "ask"
    assert verdict(policy, CHANGE, runs="with_approval", echoed=True) == ("deny", "echoed_call")


def test_a_tool_that_needs_approval_and_one_on_the_ask_list_are_asked_about() -> None:
    assert verdict(Policy(allow=["*"]), CAREFUL)[0] == "ask"
    assert verdict(Policy(allow=["*"], ask=["lo*"]), LOOK)[0] == "ask"
    assert asks(Policy(allow=["*"], ask=["look"]), LOOK)
    assert not asks(Policy(allow=["*"]), LOOK)


def test_asking_does_not_allow() -> None:
    assert verdict(Policy(ask=["look"]), LOOK) == ("deny", "not_allowed")


@pytest.mark.parametrize("spec", [CHANGE, UNDECLARED])
def test_a_dry_run_lets_nothing_run_that_can_change_things(spec: ToolSpec) -> None:
    policy = Policy(allow=["*"], dry_run=True)
    assert verdict(policy, spec) == ("deny", "dry_run")
    assert verdict(policy, spec, runs="with_approval") == ("deny", "dry_run")


def test_a_dry_run_comes_before_approval() -> None:
    policy = Policy(allow=["*"], dry_run=True)
    assert verdict(policy, CAREFUL) == ("deny", "dry_run")
    assert verdict(policy, LOOK, runs="with_approval", echoed=True) == ("deny", "dry_run")
    assert verdict(policy, LOOK) == ("allow", None)


def test_a_dry_run_does_not_hide_a_denial() -> None:
    assert verdict(Policy(dry_run=True), CHANGE) == ("deny", "not_allowed")


def test_permitted_tells_whether_any_call_might_be_allowed() -> None:
    policy = Policy(preset="readonly_basic")
    assert permitted(policy, FILES)
    assert permitted(policy, CALCULATOR)
    assert not permitted(policy, LOOK)
    assert not permitted(policy, ToolSpec("calculator"))
    assert not permitted(Policy(allow=["*"], local_only=True), FETCH)


# --- values ---


@pytest.mark.parametrize(
    "wrong",
    [
        {"allow": "look"},
        {"allow": None},
        {"allow": [1]},
        {"allow": [""]},
        {"allow": ["саlculator"]},
        {"allow": ["look\u200b"]},
        {"deny": ["look look"]},
        {"deny": ["plugin:"]},
        {"ask": ["plugin:a/"]},
        {"allow": ["plugin:a/b/c"]},
        {"preset": "readonly_nothing"},
        {"dry_run": 1},
        {"local_only": None},
    ],
)
def test_a_policy_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"^policy\."):
        Policy(**wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        {"allowed": []},
        {"allow": "x"},
        {"narrowing": [{"allow": [], "narrowing": [{}]}]},
        {"narrowing": "x"},
        {"narrowing": [3]},
        [],
        None,
        "policy",
    ],
)
def test_what_is_not_a_policy_is_not_read_as_one(wrong: Any) -> None:
    with pytest.raises(UsageError):
        Policy.from_json(wrong)


def test_an_empty_object_is_the_policy_that_denies() -> None:
    assert Policy.from_json({}) == Policy()


NAMES = st.sampled_from([spec.name for spec in SPECS])
PATTERNS = st.one_of(
    NAMES,
    st.sampled_from(["*", "c*", "?ook", "plugin:weather", "plugin:*", "plugin:weather/*", "other"]),
)
LISTS = st.lists(PATTERNS, max_size=4)
PLAIN = st.builds(
    Policy,
    allow=LISTS,
    deny=LISTS,
    ask=LISTS,
    preset=st.sampled_from([None, *PRESETS]),
    local_only=st.booleans(),
    dry_run=st.booleans(),
)
POLICIES = st.one_of(PLAIN, st.builds(lambda a, b: a.narrowed_by(b), PLAIN, PLAIN))
CALLS = st.tuples(
    st.sampled_from(SPECS),
    st.fixed_dictionaries({"operation": st.sampled_from(["read", "write", "x"])}),
    st.sampled_from(get_args(Runs)),
    st.booleans(),
)
Call = tuple[ToolSpec, dict[str, Any], Runs, bool]


def decided(policy: Policy, call: Call) -> Decision:
    spec, arguments, runs, echoed = call
    return decide(policy, spec, spec.name, arguments, runs=runs, echoed=echoed)


@given(POLICIES, CALLS)
@settings(max_examples=300, deadline=None)
def test_only_what_is_allowed_and_not_denied_ever_runs(policy: Policy, call: Call) -> None:
    spec, arguments, runs, echoed = call
    decision = decided(policy, call)
    if decision.decision == "deny":
        assert decision.code is not None
        return
    effects = spec.effects_of(arguments)
    for part in policy.parts:
        assert first_match(part.deny, spec) is None
        preset = PRESETS.get(part.preset or "")
        by_preset = preset is not None and spec.name in preset.tools and effects <= preset.effects
        assert first_match(part.allow, spec) is not None or by_preset
        assert not (part.local_only and "network" in effects)
        assert not (part.dry_run and effects & MUTATING)
    if decision.decision == "allow":
        assert runs == "freely"
        assert not echoed
        assert not spec.needs_approval
        assert all(first_match(part.ask, spec) is None for part in policy.parts)


@given(POLICIES, POLICIES, CALLS)
@settings(max_examples=300, deadline=None)
def test_a_narrowed_policy_never_allows_what_either_does_not(
    one: Policy, other: Policy, call: Call
) -> None:
    order = {"allow": 0, "ask": 1, "deny": 2}
    both = decided(one.narrowed_by(other), call)
    alone = [decided(policy, call) for policy in (one, other)]
    if any(d.decision == "ask" for d in alone) and any(p.dry_run for p in (one, other)):
        assert both.decision == "deny"
        return
    strictest = max(order[decision.decision] for decision in alone)
    dry = any(p.dry_run for q in (one, other) for p in q.parts)
    assert order[both.decision] == strictest or (dry and both.code == "dry_run")


@given(POLICIES, POLICIES)
@settings(max_examples=150, deadline=None)
def test_a_policy_survives_json_and_its_digest_tells_it(one: Policy, other: Policy) -> None:
    again = Policy.from_json(one.to_json())
    assert again == one
    assert again.digest() == one.digest()
    if one.digest() != other.digest():
        assert one != other
    assert one.narrowed_by(one) == one
    assert one.narrowed_by(other).narrowed_by(other) == one.narrowed_by(other)


def test_the_digest_changes_with_anything_that_may_change_a_decision() -> None:
    base = Policy(allow=["a", "b"], preset="readonly_basic")
    assert base.digest() == Policy(allow=["b", "a", "a"], preset="readonly_basic").digest()
    others = [
        Policy(allow=["a"], preset="readonly_basic"),
        Policy(allow=["a", "b"]),
        Policy(allow=["a", "b"], preset="readonly_files"),
        Policy(allow=["a", "b"], preset="readonly_basic", deny=["a"]),
        Policy(allow=["a", "b"], preset="readonly_basic", ask=["a"]),
        Policy(allow=["a", "b"], preset="readonly_basic", dry_run=True),
        Policy(allow=["a", "b"], preset="readonly_basic", local_only=True),
        base.narrowed_by(Policy(allow=["*"])),
    ]
    assert len({policy.digest() for policy in (base, *others)}) == len(others) + 1
