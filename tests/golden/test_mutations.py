"""A change of the code or of its words is noticed by the transcripts it concerns, and no other."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "mutate_golden.py"


def _tried(*names: str) -> list[dict[str, Any]]:
    command = [sys.executable, str(SCRIPT), "--json", *names]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


@pytest.mark.slow
def test_a_word_a_rule_and_a_decision_are_each_noticed_by_the_right_transcripts() -> None:
    found = _tried("words/protocol-xml", "repairs/trailing_comma", "policy/dry-run")
    assert [(one["name"], one["rooms"]) for one in found] == [
        ("words/protocol-xml", ["prompt"]),
        ("repairs/trailing_comma", ["reading"]),
        ("policy/dry-run", ["policy"]),
    ]


def test_a_name_that_no_mutation_has_is_told() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "no/such-mutation"], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stderr == "no mutation is named so\n"


@pytest.mark.slow
def test_every_mutation_is_noticed_by_the_right_transcripts_in_the_right_room() -> None:
    found = _tried()
    assert len(found) >= 45
    assert all(one["sound"] for one in found)


def test_the_page_tells_of_every_mutation() -> None:
    sys.path.insert(0, str(ROOT))
    try:
        from scripts.golden_set.mutations import mutations
    finally:
        sys.path.remove(str(ROOT))
    names = [mutation.name for mutation in mutations()]
    assert len(set(names)) == len(names)
    page = (ROOT / "scripts" / "golden_set" / "mutations.md").read_text(encoding="utf-8")
    rows = [line.split(" | ")[0] for line in page.splitlines() if line.startswith("| ")]
    assert rows[1:] == [f"| {name}" for name in names]
