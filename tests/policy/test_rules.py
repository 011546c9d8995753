"""What policy decides, in every order of its rules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Literal, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlx_tools.errors import ErrorCode, UsageError
from mlx_tools.messages import ALL_EFFECTS, MUTATING, Effects, ToolSpec, replace
from mlx_tools.policy import (
    PRESETS,
    Decision,
    Facts,
    Policy,
    asks,
    decide,
    exceeded,
    first_match,
    may_stand,
    restriction,
)

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
    **facts: Any,
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
        facts=Facts(**facts),
    )
    assert decision.reason
    assert decision.rule
    return decision.decision, decision.code


def test_the_empty_policy_denies_everything() -> None:
    for spec in SPECS:
        for policy in (Policy(), Policy(ask=["*"]), Policy(dry_run=True)):
            assert verdict(policy, spec) == ("deny", "not_allowed")
    assert verdict(Policy(allow=["plugin:*"]), LOOK) == ("deny", "not_allowed")
    assert verdict(Policy(allow=["*"]), None) == ("deny", "unknown_tool")


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


def test_a_name_denied_is_denied_under_the_name_that_was_called() -> None:
    policy = Policy(allow=["look"], deny=["lookAlias"])
    decision = decide(policy, LOOK, "lookAlias", {}, runs="freely")
    assert decision.decision == "deny"


def test_a_preset_admits_a_tool_for_its_read_only_calls_alone() -> None:
    policy = Policy(preset="readonly_basic")
    assert verdict(policy, FILES, {"operation": "read"}) == ("allow", None)
    assert verdict(policy, FILES, {"operation": "write"}) == ("deny", "not_allowed")


def test_effects_that_cannot_be_told_are_all_effects() -> None:
    def raises(arguments: Mapping[str, Any]) -> Effects:
        raise KeyError("operation")

    spec = ToolSpec("file_access", effects=raises)
    assert verdict(Policy(preset="readonly_files"), spec) == ("deny", "not_allowed")


def test_which_effects_ask_is_said_by_the_policy_alone() -> None:
    silent = Policy(allow=["*"], ask_effects=())
    made = decide(silent, CHANGE, "change", {}, runs="freely")
    assert made.decision == "allow" and "to write unasked" in made.reason
    assert verdict(silent, UNDECLARED) == ("allow", None)
    assert verdict(silent, CHANGE, runs="with_approval")[0] == "ask"
    careful = Policy(allow=["*"], ask_effects=["network", "write", "execute"])
    assert verdict(careful, FETCH)[0] == "ask" and verdict(ALL, FETCH)[0] == "allow"
    assert verdict(Policy(allow=["*"], ask_effects=["execute"]), CHANGE)[0] == "allow"
    assert verdict(silent.narrowed_by(Policy(allow=["*"])), CHANGE)[0] == "ask"
    assert verdict(silent.narrowed_by(restriction(dry_run=False)), CHANGE)[0] == "allow"
    asking = decide(ALL, UNDECLARED, "undeclared", {}, runs="freely")
    assert asking.rule == "ask_effects execute, write"


def test_a_standing_yes_answers_for_effects_and_the_tool_and_for_nothing_else() -> None:
    policy = Policy(allow=["*"], ask=["change"])
    assert may_stand(rule_of(policy, CAREFUL)) and may_stand(rule_of(policy, UNDECLARED))
    assert not may_stand(rule_of(policy, CHANGE))
    assert not may_stand(rule_of(policy, LOOK)) and rule_of(policy, LOOK) == "allow *"
    both = Policy(allow=["*"], ask=["careful"])
    assert rule_of(both, CAREFUL) == "ask careful"
    unclean = decide(ALL, CHANGE, "change", {}, runs="with_approval")
    assert (unclean.decision, may_stand(unclean.rule)) == ("ask", False)


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


@pytest.mark.parametrize("spec", [CHANGE, UNDECLARED, FETCH])
def test_a_dry_run_lets_nothing_run_that_can_change_things_or_use_the_network(
    spec: ToolSpec,
) -> None:
    policy = Policy(allow=["*"], dry_run=True)
    assert verdict(policy, spec) == ("deny", "dry_run")
    assert verdict(policy, spec, runs="with_approval") == ("deny", "dry_run")


# --- what else is known of a call ---

ALL = Policy(allow=["*"])
ALL_OF_IT = frozenset(ALL_EFFECTS)


def rule_of(policy: Policy, spec: ToolSpec, *, runs: Runs = "freely", **facts: Any) -> str:
    return decide(policy, spec, spec.name, {}, runs=runs, facts=Facts(**facts)).rule


@pytest.mark.parametrize(
    ("said", "decided"), [("allow", "allow"), ("ask", "ask"), ("deny", "deny")]
)
def test_the_network_after_a_private_read_is_as_the_policy_says(said: Any, decided: str) -> None:
    policy = Policy(allow=["*"], network_after_read=said)
    assert verdict(policy, FETCH, private_read=True)[0] == decided
    assert verdict(policy, FETCH, private_read=False)[0] == "allow"
    assert verdict(policy, LOOK, private_read=True)[0] == "allow"
    both = policy.narrowed_by(Policy(allow=["*"], network_after_read="ask"))
    assert verdict(both, FETCH, private_read=True)[0] == ("ask" if said != "deny" else "deny")


def test_a_standing_consent_answers_what_would_have_been_asked() -> None:
    careful = ToolSpec("careful", effects=READ, needs_approval=True)
    assert rule_of(ALL, careful, consented=READ) == "session_consent"
    assert verdict(ALL, careful, consented=READ) == ("allow", None)
    asking = Policy(allow=["*"], ask=["change"])
    assert verdict(asking, CHANGE, consented=WRITE) == ("allow", None)
    assert rule_of(asking, LOOK, consented=READ) == "allow *"  # nothing was to be asked


def test_a_standing_consent_covers_no_more_effects_than_it_was_given_for() -> None:
    asking = Policy(allow=["*"], ask=["*"])
    assert verdict(asking, FILES, {"operation": "read"}, consented=READ)[0] == "allow"
    assert verdict(asking, FILES, {"operation": "write"}, consented=READ)[0] == "ask"
    assert verdict(asking, FILES, {"operation": "write"}, consented=frozenset())[0] == "ask"


def test_a_standing_consent_covers_no_suspect_call() -> None:
    asking = Policy(allow=["*"], ask=["*"], network_after_read="ask")
    assert rule_of(asking, CHANGE, runs="with_approval", consented=ALL_OF_IT) == "unclean"
    assert rule_of(asking, FETCH, private_read=True, consented=ALL_OF_IT) == "network_after_read"
    assert verdict(asking, LOOK, echoed=True, consented=ALL_OF_IT)[0] == "ask"


def test_a_standing_consent_allows_nothing_that_is_denied() -> None:
    consent = {"consented": ALL_OF_IT}
    assert verdict(Policy(ask=["look"]), LOOK, **consent) == ("deny", "not_allowed")
    assert verdict(ALL, FETCH, secrets=("x",), **consent)[0] == "deny"
    assert verdict(ALL, CHANGE, placeholder=True, **consent)[0] == "deny"
    assert verdict(ALL, CHANGE, echoed=True, **consent) == ("deny", "echoed_call")
    dry = Policy(allow=["*"], ask=["*"], dry_run=True)
    assert verdict(dry, LOOK, **consent) == ("deny", "dry_run")


def test_the_rules_come_in_their_order() -> None:
    """A call that every rule speaks against is denied by the first; take that away, by the next."""
    policy = Policy(
        allow=["x"],
        deny=["x"],
        ask=["x"],
        local_only=True,
        dry_run=True,
        network_after_read="deny",
    )
    facts = Facts(
        secrets=("key",),
        placeholder=True,
        private_read=True,
        exceeded=Decision("deny", "rate_limit x 1/day", "later", "rate_limited"),
        consented=READ,
    )
    given_now: dict[str, Any] = {
        "policy": policy,
        "facts": facts,
        "runs": "with_approval",
        "echoed": True,
        "disabled_reason": "broken",
    }
    steps: list[tuple[str, dict[str, Any]]] = [
        ("disabled", {"disabled_reason": None}),
        ("deny x", {"policy": {"deny": ()}}),
        ("local_only", {"policy": {"local_only": False}}),
        ("secret", {"facts": {"secrets": ()}}),
        ("placeholder", {"facts": {"placeholder": False}}),
        ("network_after_read", {"policy": {"network_after_read": "ask"}}),
        ("echoed", {"echoed": False}),
        ("rate_limit x 1/day", {"facts": {"exceeded": None}}),
        ("dry_run", {"policy": {"dry_run": False}}),
        ("unclean", {"runs": "freely"}),
        ("network_after_read", {"policy": {"network_after_read": "allow"}}),
        ("ask x", {"facts": {"consented": ALL_OF_IT}}),
        ("session_consent", {"facts": {"consented": None}}),
        ("ask x", {"policy": {"ask": ()}}),
        ("needs_approval", {}),
    ]
    spec = ToolSpec("x", needs_approval=True)
    for rule, change in steps:
        how = {key: value for key, value in given_now.items() if key != "policy"}
        assert decide(given_now["policy"], spec, "x", {}, **how).rule == rule
        for key, value in change.items():
            held = given_now[key]
            given_now[key] = replace(held, **value) if isinstance(value, dict) else value
    how = {key: value for key, value in given_now.items() if key != "policy"}
    assert decide(given_now["policy"], LOOK, "x", {}, **how).rule == "default"


# --- values ---


WRONG: dict[str, tuple[Any, ...]] = {
    "allow": ("look", None, [1], [""], ["саlculator"], ["look\u200b"], ["plugin:a/b/c"]),
    "deny": (["look look"], ["plugin:"]),
    "ask": (["plugin:a/"],),
    "ask_effects": ("write", ["read"], None, [["write"]]),
    "preset": ("readonly_nothing",),
    "dry_run": (1,),
    "local_only": (None,),
    "redact": (1,),
    "redact_paths": (None,),
    "network_after_read": ("never", None, ["deny"]),
    "session_rate_limit": ("often", 3),
}


@pytest.mark.parametrize(
    ("key", "value"), [(k, one) for k, wrong in WRONG.items() for one in wrong]
)
def test_a_policy_that_cannot_be_is_refused(key: str, value: Any) -> None:
    with pytest.raises(UsageError, match=r"^policy\."):
        Policy(**{key: value})


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


def test_the_standing_approvals_of_an_older_transcript_give_nothing() -> None:
    older = Policy.from_json({**ALL.to_json(), "standing_approvals": ["*"]})
    assert older == ALL and older.digest() == ALL.digest()


def at(second: int) -> str:
    return f"2026-03-01T12:00:{second:02}Z"


NAMES = st.sampled_from([spec.name for spec in SPECS])
PATTERNS = st.one_of(
    NAMES,
    st.sampled_from(["*", "c*", "?ook", "plugin:weather", "plugin:*", "plugin:weather/*", "other"]),
)
RATES = st.sampled_from(["1/second", "2/minute", "1/minute", "3/day"])
EFFECTS = st.sampled_from([(), ("write",), ("write", "execute"), ("network",)])
LISTS = st.lists(PATTERNS, max_size=4)
PLAIN = st.builds(
    Policy,
    allow=LISTS,
    deny=LISTS,
    ask=LISTS,
    ask_effects=EFFECTS,
    preset=st.sampled_from([None, *PRESETS]),
    local_only=st.booleans(),
    dry_run=st.booleans(),
    rate_limits=st.dictionaries(PATTERNS, RATES, max_size=2),
    session_rate_limit=st.none() | RATES,
    network_after_read=st.sampled_from(["allow", "ask", "deny"]),
    redact=st.booleans(),
    redact_paths=st.booleans(),
)
POLICIES = st.one_of(PLAIN, st.builds(lambda a, b: a.narrowed_by(b), PLAIN, PLAIN))
FACTS = st.builds(
    Facts,
    consented=st.none() | st.frozensets(st.sampled_from(sorted(ALL_EFFECTS))),
    secrets=st.sampled_from([(), (), ("key",)]),
    placeholder=st.sampled_from([False, False, True]),
    private_read=st.booleans(),
)
MADE = st.lists(
    st.tuples(st.sampled_from([s.name for s in SPECS]), st.sampled_from(["", *map(at, range(3))])),
    max_size=4,
)
CALLS = st.tuples(
    st.sampled_from(SPECS),
    st.fixed_dictionaries({"operation": st.sampled_from(["read", "write", "x"])}),
    st.sampled_from(get_args(Runs)),
    st.booleans(),
    FACTS,
    MADE,
)
Call = tuple[ToolSpec, dict[str, Any], Runs, bool, Facts, list[tuple[str, str]]]


def decided(policy: Policy, call: Call) -> Decision:
    """The decision at 2026-03-01T12:00:02Z, as a session comes to it."""
    spec, arguments, runs, echoed, facts, made = call
    tally = {f"c{number}": one for number, one in enumerate(made)}
    facts = replace(facts, exceeded=exceeded(policy, spec, tally, at(2)))
    return decide(policy, spec, spec.name, arguments, runs=runs, echoed=echoed, facts=facts)


@settings(max_examples=20 * settings().max_examples)  # most of them are denied
@given(POLICIES, CALLS)
def test_only_what_is_allowed_and_not_denied_ever_runs(policy: Policy, call: Call) -> None:
    spec, arguments, runs, echoed, facts, _ = call
    decision = decided(policy, call)
    assert decision == decided(policy, call)
    assert decision.rule and decision.reason
    assert (decision.code is None) == (decision.decision == "allow")
    if decision.decision == "deny":
        return
    effects = spec.effects_of(arguments)
    for part in policy.parts:
        assert first_match(part.deny, spec) is None
        preset = PRESETS.get(part.preset or "")
        by_preset = preset is not None and spec.name in preset.tools and effects <= preset.effects
        assert first_match(part.allow, spec) is not None or by_preset
        assert not (part.local_only and "network" in effects)
        assert not (part.dry_run and effects & {*MUTATING, "network"})
        after = part.network_after_read if facts.private_read and "network" in effects else "allow"
        assert after == "allow" or (after == "ask" and decision.decision == "ask")
    assert not (facts.secrets and "network" in effects)
    assert not (facts.placeholder and effects & MUTATING)
    if decision.decision == "allow":
        assert runs == "freely"
        assert not echoed
        asked = spec.needs_approval or any(
            first_match(part.ask, spec) or effects & set(part.ask_effects) for part in policy.parts
        )
        consented = facts.consented is not None and effects <= facts.consented
        assert asked == (decision.rule == "session_consent") and (consented or not asked)


@given(POLICIES, POLICIES, CALLS)
def test_a_narrowed_policy_never_allows_what_either_does_not(
    one: Policy, other: Policy, call: Call
) -> None:
    order = {"allow": 0, "ask": 1, "deny": 2}
    both = decided(one.narrowed_by(other), call)
    alone = [decided(policy, call) for policy in (one, other)]
    strictest = max(order[decision.decision] for decision in alone)
    dry = any(p.dry_run for q in (one, other) for p in q.parts)
    assert order[both.decision] == strictest or (dry and both.code == "dry_run")
    narrowed = one.narrowed_by(other)
    assert narrowed.redacts == (one.redacts or other.redacts)
    assert narrowed.redacts_paths == (one.redacts_paths or other.redacts_paths)


@given(PLAIN, st.randoms(), CALLS)
def test_the_order_of_names_changes_neither_digest_nor_decision(
    policy: Policy, random: Any, call: Call
) -> None:
    def mixed(names: Any) -> Any:
        found = [*names, *names]
        random.shuffle(found)
        return found

    rates = dict(sorted(policy.rate_limits.items(), reverse=True))
    other = replace(
        policy,
        allow=mixed(policy.allow),
        deny=mixed(policy.deny),
        ask=mixed(policy.ask),
        ask_effects=mixed(policy.ask_effects),
        rate_limits=rates,
    )
    assert other.digest() == policy.digest()
    assert decided(other, call).decision == decided(policy, call).decision
    one, two = policy.narrowed_by(other), other.narrowed_by(policy)
    assert one == policy or one.digest() == two.digest()


@given(POLICIES, POLICIES)
def test_a_policy_survives_json_and_its_digest_tells_it(one: Policy, other: Policy) -> None:
    again = Policy.from_json(one.to_json())
    assert again == one
    assert again.digest() == one.digest()
    if one.digest() != other.digest():
        assert one != other
    assert one.narrowed_by(one) == one
    assert one.narrowed_by(other).narrowed_by(other) == one.narrowed_by(other)


def test_every_field_of_a_policy_is_in_its_digest() -> None:
    """A field that is added must come with what makes it differ here."""
    other: dict[str, tuple[Any, ...]] = {
        "allow": (["x"], ["x", "y"]),
        "deny": (["x"],),
        "ask": (["x"],),
        "ask_effects": ((), ("write",), ("network",)),
        "preset": ("readonly_basic", "readonly_files"),
        "local_only": (True,),
        "dry_run": (True,),
        "rate_limits": ({"x": "1/day"}, {"x": "2/day"}, {"y": "1/day"}),
        "session_rate_limit": ("1/day",),
        "network_after_read": ("ask", "deny"),
        "redact": (False,),
        "redact_paths": (True,),
        "narrowing": ((Policy(allow=["y"]),), (Policy(allow=["*"]),)),
    }
    assert set(other) == {field.name for field in fields(Policy) if field.init}
    policies = [Policy(), *(Policy(**{name: one}) for name, many in other.items() for one in many)]
    assert len({policy.digest() for policy in policies}) == len(policies)
    assert all(Policy.from_json(policy.to_json()) == policy for policy in policies)
