"""Decisions of policy, in every order of its rules."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Literal, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlx_tools.errors import UsageError
from mlx_tools.messages import ALL_EFFECTS, MUTATING, Effects, ToolSpec, replace
from mlx_tools.policy import (
    PRESETS,
    Decision,
    Facts,
    Policy,
    always_asks,
    can_be_preapproved,
    decide,
    find_exceeded_rate,
    first_match,
    is_glob,
)
from tests.tables import table

READ: Effects = frozenset(("read",))
WRITE: Effects = frozenset(("write",))


def get_effects(arguments: Mapping[str, Any]) -> Effects:
    return WRITE if arguments.get("operation") == "write" else READ


LOOK = ToolSpec("look", effects=READ)
CHANGE = ToolSpec("change", effects=WRITE)
FETCH = ToolSpec("fetch", effects=frozenset(("read", "network")))
UNDECLARED = ToolSpec("undeclared")
CAREFUL = ToolSpec("careful", effects=READ, needs_approval=True)
CALCULATOR = ToolSpec("calculator", effects=READ)
FILES = ToolSpec("file_access", effects=get_effects)
FORECAST = ToolSpec("forecast", effects=READ, plugin="weather")
SPECS = (LOOK, CHANGE, FETCH, UNDECLARED, CAREFUL, CALCULATOR, FILES, FORECAST)

Runs = Literal["freely", "with_approval"]
ALL = Policy(allow=["*"])
ASKING = Policy(allow=["*"], ask=["*"])
ANY: Effects = frozenset(ALL_EFFECTS)
PRESET = Policy(preset="readonly_basic")


def made(
    policy: Policy,
    spec: ToolSpec | None,
    arguments: Mapping[str, Any] | None = None,
    *,
    runs: Runs = "freely",
    echoed: bool = False,
    **facts: Any,
) -> Decision:
    name = spec.name if spec is not None else "nothing"
    given = Facts(**facts)
    decision = decide(policy, spec, name, arguments or {}, runs=runs, echoed=echoed, facts=given)
    assert decision.reason and decision.rule
    return decision


def raising(arguments: Mapping[str, Any]) -> Effects:
    raise KeyError("operation")


def after_read(said: Any) -> Policy:
    return Policy(allow=["*"], network_after_read=said)


UNTOLD = ToolSpec("file_access", effects=raising)
DENIED, SURE = {"operation": "write"}, {"operation": "read"}
UNCLEAN: dict[str, Any] = {"runs": "with_approval"}
CONSENT: dict[str, Any] = {"consented": ANY}


@table(
    ("policy", "spec", "given", "decision", "said"),
    [
        (ALL, None, {}, "deny", "unknown_tool"),
        (Policy(allow=["plugin:*"]), LOOK, {}, "deny", "not_allowed"),
        # effects
        (PRESET, FILES, {"arguments": SURE}, "allow", "preset readonly_basic"),
        (PRESET, FILES, {"arguments": DENIED}, "deny", "not_allowed"),
        (Policy(preset="readonly_files"), UNTOLD, {}, "deny", "not_allowed"),
        (ALL, FETCH, {}, "allow", "allow *"),
        (ALL, UNDECLARED, {}, "ask", "ask_effects execute, write"),
        (Policy(allow=["*"], ask_effects=()), UNDECLARED, {}, "allow", "allow *"),
        (Policy(allow=["*"], ask_effects=()), CHANGE, UNCLEAN, "ask", "unclean"),
        (Policy(allow=["*"], ask_effects=["network"]), FETCH, {}, "ask", "ask_effects network"),
        (Policy(allow=["*"], ask_effects=["execute"]), CHANGE, {}, "allow", "allow *"),
        # the call itself
        (Policy(allow=["change"]), CHANGE, UNCLEAN, "ask", "requires_confirmation"),
        (ALL, LOOK, {"echoed": True}, "ask", "echoed"),
        (ALL, LOOK, {**UNCLEAN, "echoed": True}, "ask", "echoed"),
        (ALL, CHANGE, {**UNCLEAN, "echoed": True}, "deny", "echoed_call"),
        # the tool's own wish, and the list of those that ask
        (ALL, CAREFUL, {}, "ask", "needs_approval"),
        (Policy(allow=["*"], ask=["lo*"]), LOOK, {}, "ask", "ask lo*"),
        (Policy(allow=["*"], ask=["careful"]), CAREFUL, {}, "ask", "ask careful"),
        # a dry run
        *(
            (Policy(allow=["*"], dry_run=True), spec, given, "deny", "dry_run")
            for spec in (CHANGE, UNDECLARED, FETCH)
            for given in ({}, UNCLEAN)
        ),
        # a dry run that only one of the policies asks for, whichever it is
        *(
            (policy, spec, {}, "deny", "dry_run")
            for spec in (CHANGE, UNDECLARED, FETCH)
            for policy in (
                Policy(allow=["*"], ask_effects=()).intersect(Policy(allow=["*"], dry_run=True)),
                Policy(allow=["*"], dry_run=True).intersect(Policy(allow=["*"], ask_effects=())),
            )
        ),
        # the network after a private read
        *(
            (after_read(said), FETCH, {"private_read": True}, said, said)
            for said in ("allow", "ask", "deny")
        ),
        (after_read("deny"), FETCH, {}, "allow", "allow *"),
        (after_read("deny"), LOOK, {"private_read": True}, "allow", "allow *"),
        (
            *(after_read("ask").intersect(after_read("deny")), FETCH, {"private_read": True}),
            *("deny", "network_after_read"),
        ),
        # a standing consent: for what would have been asked, no more effects, nothing suspect
        (ALL, CAREFUL, {"consented": READ}, "allow", "session_consent"),
        (ALL, LOOK, {"consented": READ}, "allow", "allow *"),
        (ASKING, FILES, {"arguments": SURE, "consented": READ}, "allow", "session_consent"),
        (ASKING, FILES, {"arguments": DENIED, "consented": READ}, "ask", "ask *"),
        (ASKING, FILES, {"arguments": DENIED, "consented": frozenset()}, "ask", "ask *"),
        (ASKING, CHANGE, {**CONSENT, **UNCLEAN}, "ask", "unclean"),
        (after_read("ask"), FETCH, {**CONSENT, "private_read": True}, "ask", "network_after_read"),
        (ASKING, LOOK, {**CONSENT, "echoed": True}, "ask", "echoed"),
        (Policy(ask=["look"]), LOOK, CONSENT, "deny", "not_allowed"),
        (ALL, FETCH, {**CONSENT, "secrets": ("x",)}, "deny", "secret"),
        (ALL, CHANGE, {**CONSENT, "placeholder": True}, "deny", "placeholder"),
        (ALL, CHANGE, {**CONSENT, "echoed": True}, "deny", "echoed_call"),
        (Policy(allow=["*"], ask=["*"], dry_run=True), LOOK, CONSENT, "deny", "dry_run"),
    ],
)
def test_a_call_is_decided_on_by_what_it_may_do_and_what_is_known_of_it(
    policy: Policy, spec: ToolSpec | None, given: dict[str, Any], decision: str, said: str
) -> None:
    found = made(policy, spec, **given)
    assert found.decision == decision
    assert said in (found.rule, found.code, decision)


def test_the_empty_policy_denies_everything() -> None:
    for spec in SPECS:
        for policy in (Policy(), Policy(ask=["*"]), Policy(dry_run=True)):
            assert made(policy, spec).code == "not_allowed"


@table(
    ("pattern", "spec", "meant"),
    [
        *((name, LOOK, False) for name in ("loo", "Look", "look_", "lookup", "plugin:look", "ook")),
        *((name, FORECAST, True) for name in ("plugin:weather", "plugin:w*", "plugin:weather/f*")),
        ("plugin:weather/forecast", FORECAST, True),
        *((f"plugin:{name}", FORECAST, False) for name in ("weather/history", "o", "o/forecast")),
        ("weather", FORECAST, False),
    ],
)
def test_a_name_means_itself_alone_and_a_plugin_is_named_with_its_prefix(
    pattern: str, spec: ToolSpec, meant: bool
) -> None:
    assert made(Policy(allow=[pattern]), spec).decision == ("allow" if meant else "deny")
    denying = Policy(allow=["*"], deny=[pattern])
    assert made(denying, spec).decision == ("deny" if meant else "allow")


def test_a_policy_is_copied_and_pickled_as_it_is() -> None:
    policy = Policy(allow=["look"], rate_limits={"look": "3/minute"}).intersect(ASKING)
    for again in (copy.deepcopy(policy), pickle.loads(pickle.dumps(policy))):
        assert again == policy and again.parts == policy.parts


def test_a_name_denied_is_denied_under_the_name_that_was_called() -> None:
    policy = Policy(allow=["look"], deny=["lookAlias"])
    assert decide(policy, LOOK, "lookAlias", {}, runs="freely").decision == "deny"


def test_a_narrower_policy_asks_again_and_what_lets_a_call_through_is_said() -> None:
    silent = Policy(allow=["*"], ask_effects=())
    assert "to write unasked" in made(silent, CHANGE).reason
    assert made(silent.intersect(ALL), CHANGE).decision == "ask"
    assert always_asks(Policy(allow=["*"], ask=["look"]), LOOK) and not always_asks(ALL, LOOK)


def test_the_rule_of_an_allowed_call_is_the_recorded_policys() -> None:
    recorded = Policy(allow=["look"])
    assert made(recorded.intersect(Policy(allow=["*"])), LOOK).rule == "allow look"


def test_a_standing_yes_answers_for_effects_and_the_tool_and_for_nothing_else() -> None:
    policy = Policy(allow=["*"], ask=["change"])
    assert all(can_be_preapproved(made(policy, spec).rule) for spec in (CAREFUL, UNDECLARED))
    assert not any(can_be_preapproved(made(policy, spec).rule) for spec in (CHANGE, LOOK))
    assert not can_be_preapproved(made(ALL, CHANGE, runs="with_approval").rule)


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
        rate_denial=Decision("deny", "rate_limit x 1/day", "later", "rate_limited"),
        consented=READ,
    )
    call: dict[str, Any] = {
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
        ("rate_limit x 1/day", {"facts": {"rate_denial": None}}),
        ("dry_run", {"policy": {"dry_run": False}}),
        ("unclean", {"runs": "freely"}),
        ("network_after_read", {"policy": {"network_after_read": "allow"}}),
        ("ask x", {"facts": {"consented": ANY}}),
        ("session_consent", {"facts": {"consented": None}}),
        ("ask x", {"policy": {"ask": ()}}),
        ("needs_approval", {"policy": {"allow": ()}}),
        ("default", {}),
    ]
    spec = ToolSpec("x", needs_approval=True)
    for rule, change in steps:
        assert decide(spec=spec, name="x", arguments={}, **call).rule == rule
        for key, value in change.items():
            call[key] = replace(call[key], **value) if isinstance(value, dict) else value


# --- values ---


WRONG: dict[str, tuple[Any, ...]] = {
    "allow": ("look", None, [1], [""], ["саlculator"], ["look\u200b"], ["plugin:a/b/c"], ["a/b"]),
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


@table(("key", "value"), [(k, one) for k, wrong in WRONG.items() for one in wrong])
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
POLICIES = st.one_of(PLAIN, st.builds(lambda a, b: a.intersect(b), PLAIN, PLAIN))
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
    facts = replace(facts, rate_denial=find_exceeded_rate(policy, spec, tally, at(2)))
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
    effects = spec.get_effects(arguments)
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
    both = decided(one.intersect(other), call)
    alone = [decided(policy, call) for policy in (one, other)]
    strictest = max(order[decision.decision] for decision in alone)
    dry = any(p.dry_run for q in (one, other) for p in q.parts)
    assert order[both.decision] == strictest or (dry and both.code == "dry_run")
    narrowed = one.intersect(other)
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
    one, two = policy.intersect(other), other.intersect(policy)
    assert one == policy or one.digest() == two.digest()


@given(POLICIES, POLICIES)
def test_a_policy_survives_json_and_its_digest_tells_it(one: Policy, other: Policy) -> None:
    again = Policy.from_json(one.to_json())
    assert again == one
    assert again.digest() == one.digest()
    if one.digest() != other.digest():
        assert one != other
    assert one.intersect(one) == one
    assert one.intersect(other).intersect(other) == one.intersect(other)


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


@pytest.mark.parametrize(
    ("pattern", "names", "others"),
    [
        ("look_[ab]", ("look_a", "look_b"), ("look_c", "look_", "look_ab")),
        ("look_?", ("look_a", "look_c"), ("look_", "look_ab")),
        ("look_*", ("look_a", "look_", "look_ab"), ("look",)),
        ("look_[!a]", ("look_b", "look_c"), ("look_a",)),
    ],
)
def test_each_sign_of_a_pattern_makes_it_one(
    pattern: str, names: tuple[str, ...], others: tuple[str, ...]
) -> None:
    assert is_glob(pattern)
    policy = Policy(allow=[pattern])
    for name in (*names, *others):
        found = made(policy, ToolSpec(name, effects=READ))
        assert (found.decision == "allow") == (name in names), name
