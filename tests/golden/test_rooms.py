"""A difference is told once, in the room that it comes from."""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_tools import Limits, Policy, Registry, Tool, ToolSpec, builtin_tools
from mlx_tools.golden import (
    CannotSettle,
    Golden,
    replay,
    replay_file,
    settle,
    to_text,
)
from mlx_tools.messages import replace
from mlx_tools.store import load_words
from mlx_tools.store.transcript import encode
from mlx_tools.testing import answer, call
from mlx_tools.tools import Preview
from mlx_tools.transcript.records import (
    CallRecord,
    CompletionRecord,
    DecisionRecord,
    ObservationRecord,
    Record,
)
from tests.golden.recordings import record_golden


def calculated(*scripts: str, **limits: int) -> Golden:
    """A golden transcript of a scripted run with the built-in tools."""
    policy = Policy(preset="readonly_basic")
    within = Limits(**{"max_observation_chars": 300, **limits})
    return record_golden(builtin_tools(), *scripts, policy=policy, limits=within)


@pytest.fixture(scope="module")
def golden() -> Golden:
    return calculated(call("calculator", expression="6*7"), call("clok"), answer("42"))


def changed(golden: Golden, kind: type[Record], change: Callable[[Any], Any]) -> Golden:
    """The transcript with its first record of a kind changed."""
    place = next(n for n, r in enumerate(golden.records) if isinstance(r, kind))
    records = list(golden.records)
    records[place] = change(records[place])
    return replace(golden, records=tuple(records))


def found(golden: Golden, **today: Any) -> list[tuple[str, str]]:
    return [(d.room, d.subject) for d in replay(golden, **today).differences]


def test_words_of_a_turn_are_the_prompts(golden: Golden) -> None:
    own = load_words()
    words = replace(own, corrections={**own.corrections, "unknown_tool": "Look again."})
    (difference,) = replay(golden, words=words).differences
    assert (difference.room, difference.subject, difference.location) == (
        "prompt",
        "the prompt",
        "turn 3",
    )
    assert any("Look again." in line for line in difference.lines() if line.startswith("+"))


def test_the_change_that_a_dry_run_tells_is_the_worlds_and_its_words_are_the_prompts() -> None:
    spec = ToolSpec("save", effects=frozenset(("write",)))
    change = Preview("-as it was\n+as it is", "", counts="+1 -1")
    registry = Registry([Tool(spec, lambda arguments: "", preview=lambda arguments: change)])
    script = call("save"), answer("Nothing was done.")
    made = record_golden(registry, *script, policy=Policy(allow=["*"], dry_run=True))
    (end,) = (one for one in made.records if isinstance(one, ObservationRecord))
    assert end.would_change == f"It would have made this change (+1 -1):\n{change.text}"
    assert replay(made).passed
    other = changed(made, ObservationRecord, lambda one: replace(one, would_change="Something."))
    assert [room for room, _ in found(other)] == ["prompt"]


def headed(golden: Golden, **header: Any) -> Golden:
    """The transcript with another header."""
    return replace(golden, header=replace(golden.header, **header))


def test_a_chat_format_is_the_prompts(golden: Golden) -> None:
    other = {**golden.header.chat_format, "user": ["<u>", "</u>"]}
    whats = found(headed(golden, chat_format=other))
    assert {room for room, _ in whats} == {"prompt"}
    assert ("prompt", "the chat format chatml") in whats


@pytest.mark.parametrize(
    ("kind", "change", "first"),
    [
        (CallRecord, {"arguments": {"expression": "6*8"}}, ("reading", "the call")),
        (DecisionRecord, {"rule": "allow", "reason": "because"}, ("policy", "the decision")),
        (CompletionRecord, {"commentary": "x"}, ("reading", "what is read (commentary)")),
    ],
)
def test_another_record_is_told_in_its_room(
    golden: Golden, kind: Any, change: dict[str, Any], first: tuple[str, str]
) -> None:
    assert found(changed(golden, kind, lambda record: replace(record, **change)))[0] == first


def test_a_call_that_was_not_read_then_is_readings(golden: Golden) -> None:
    fewer = [r for r in golden.records if getattr(r, "call", None) != "c2"]
    rooms = {room for room, what in found(replace(golden, records=tuple(fewer)))}
    assert "reading" in rooms and "policy" not in rooms and "tools" not in rooms


def test_another_policy_is_policys_and_nothing_elses(golden: Golden) -> None:
    denies = Policy(allow=["calculator", "clock"], deny=["calculator"]).to_json()
    assert {room for room, _ in found(headed(golden, policy=denies))} == {"policy"}


def test_another_tool_and_a_built_in_one_that_is_gone_are_the_tools(golden: Golden) -> None:
    tools = tuple({**tool, "description": "Adds."} for tool in golden.header.tools)
    assert ("tools", "the description of the tool calculator") in found(headed(golden, tools=tools))
    gone = {**golden.header.tools[0], "name": "abacus"}
    known = replace(golden.golden, extra_tools=(*golden.golden.extra_tools, gone))
    assert found(replace(golden, golden=known)) == [("tools", "the tool abacus")]


def test_another_outcome_is_the_outcomes(golden: Golden) -> None:
    (recorded,) = golden.golden.outcomes
    other = replace(golden.golden, outcomes=({**recorded, "turns": 9},))
    assert found(replace(golden, golden=other)) == [("outcome", "the turns")]


def test_a_run_that_goes_on_where_a_limit_was_is_the_outcomes() -> None:
    calls = (call("calculator", expression=f"{n}+1") for n in range(5))
    stuck = calculated(*calls, max_iterations=4)
    more = headed(stuck, limits={**stuck.header.limits, "max_iterations": 9})
    assert {room for room, _ in found(more)} == {"outcome"}


def test_a_change_that_needs_the_model_is_not_accepted(golden: Golden) -> None:
    # the call is refused; its output stands there still
    other = headed(golden, policy=Policy(allow=["clock"]).to_json())
    longer = headed(golden, limits={**golden.header.limits, "max_iterations": 9})
    cut = replace(longer, records=golden.records[:-2])
    with pytest.raises(CannotSettle, match="would go on"):
        settle(cut)
    with pytest.raises(CannotSettle):
        settle(other)


def test_a_long_output_is_cut_again(tmp_path: Path) -> None:
    numbers = " + ".join(map(str, range(80)))
    golden = calculated(call("calculator", expression=numbers), answer())
    observed = next(r for r in golden.records if isinstance(r, ObservationRecord))
    long = replace(observed, content="x", whole="0123456789" * 100)
    records = tuple(long if r is observed else r for r in golden.records)
    now = settle(replace(golden, records=records)).now
    (shown,) = (r for r in now.records if isinstance(r, ObservationRecord))
    assert shown.whole == "0123456789" * 100
    assert shown.content is not None and len(shown.content) <= 300
    assert found(changed(now, ObservationRecord, lambda r: replace(r, content="cut"))) == [
        ("tools", "what is shown of calculator (content)"),
        ("prompt", "the prompt"),
    ]


def test_what_cannot_be_read_fails_with_its_reason(golden: Golden, tmp_path: Path) -> None:
    lines = [encode(record) for record in golden.all]
    for name, text, fault in (
        ("cut", "\n".join(lines)[:-9], "cut off"),
        ("newer", lines[0].replace('"version":2', '"version":3') + "\n", "format version 3"),
        ("empty", "", "the file is empty"),
        ("alone", f"{lines[0]}\n", "with a question"),
        ("damaged", f"{lines[0]}\nnonsense\n", "line 2"),
        ("binary", "\0\1\2\n", "line 1"),
        ("order", "\n".join([*lines[:3], *lines[4:]]) + "\n", "may not follow"),
    ):
        path = tmp_path / f"{name}.jsonl"
        path.write_text(text)
        check = replay_file(path)
        assert not check.passed, name
        assert fault in check.samples[0].error, (name, check.samples[0].error)


# --- a file is anybody's: whatever stands in it, a replay says so in words ---

OTHER = (None, 5, -3.5, True, "", "zzz", "c1", "\ud800", [], {}, [1], {"a": "b"}, 10**30)


def _mutated(value: Any, pick: random.Random) -> Any:
    """The value with one thing in it removed, or another in its place."""
    if isinstance(value, dict) and value:
        key = pick.choice(sorted(value))
        fate = pick.random()
        if fate < 0.2:
            return {k: v for k, v in value.items() if k != key}
        return value | {key: pick.choice(OTHER) if fate < 0.5 else _mutated(value[key], pick)}
    if isinstance(value, list) and value:
        place = pick.randrange(len(value))
        return [*value[:place], _mutated(value[place], pick), *value[place + 1 :]]
    return pick.choice(OTHER)


def _damaged(lines: list[str], pick: random.Random) -> list[str]:
    one, other = pick.randrange(len(lines)), pick.randrange(len(lines))
    out = [*lines]
    match pick.choice(["value", "value", "value", "drop", "swap", "again"]):
        case "value":
            out[one] = json.dumps(_mutated(json.loads(lines[one]), pick))
        case "drop":
            del out[one]
        case "swap":
            out[one], out[other] = out[other], out[one]
        case "again":
            out.insert(one, lines[other])
    return out


@given(pick=st.randoms(use_true_random=False))
def test_a_damaged_file_is_a_check_that_failed_or_passed(
    golden: Golden, pick: random.Random
) -> None:
    lines = to_text(golden).splitlines()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "it.jsonl"
        path.write_text("\n".join(_damaged(lines, pick)) + "\n", encoding="utf-8")
        check = replay_file(path)
        (sample,) = check.samples
        assert sample.passed or sample.error or sample.differences
        for difference in sample.differences:
            assert difference.lines()
            json.dumps(difference.to_json())
