"""A file is anybody's: whatever stands in it, a replay says so in words."""

from __future__ import annotations

import json
import random
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_tools.golden import replay_file, to_text
from tests.golden.test_rooms import answer, call, golden_of

OTHER = (None, 5, -3.5, True, "", "zzz", "c1", "\ud800", [], {}, [1], {"a": "b"}, 10**30)


@pytest.fixture(scope="module")
def lines() -> list[str]:
    golden = golden_of(call("calculator", expression="6*7"), call("clok"), answer("42"))
    return to_text(golden).splitlines()


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
    lines: list[str], pick: random.Random
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "it.jsonl"
        path.write_text("\n".join(_damaged(lines, pick)) + "\n", encoding="utf-8")
        check = replay_file(path)
        (sample,) = check.samples
        assert sample.passed or sample.error or sample.differences
        for difference in sample.differences:
            assert difference.lines()
            json.dumps(difference.to_json())
