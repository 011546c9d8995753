"""Small changes of the code, as real bugs are: each is made, and tests must notice it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scripts.golden_set.mutations import mutations as golden_mutations
from scripts.mutate import PAGE, code_mutations

ROOT = Path(__file__).parents[1]
ROOMS = ("protocol", "policy", "controller", "tools", "store", "gateway")


def test_every_mutation_changes_the_code_as_it_is() -> None:
    """A mutation whose text is no longer in the code would be left out silently."""
    texts = {
        file: (ROOT / file).read_text(encoding="utf-8")
        for file in {one.file for one in (*code_mutations(), *golden_mutations())}
    }
    gone = [
        one.name
        for one in (*code_mutations(), *golden_mutations())
        if texts[one.file].count(one.old) != 1 or one.old == one.new
    ]
    assert gone == []


def test_every_mutation_of_the_code_is_python_and_names_tests_that_there_are() -> None:
    originals: dict[str, str] = {}
    changed: dict[str, list[str]] = {}
    for one in code_mutations():
        if one.file not in changed:
            originals[one.file] = (ROOT / one.file).read_text(encoding="utf-8")
            changed[one.file] = [originals[one.file]]
        # As many as can be made side by side are compiled at once, which takes a tenth of the time.
        texts = changed[one.file]
        if texts[-1].count(one.old) != 1:
            texts.append(originals[one.file])
        texts[-1] = texts[-1].replace(one.old, one.new)
        assert one.tests, one.name
        assert [test for test in one.tests if not (ROOT / test).is_file()] == [], one.name
    for file, texts in changed.items():
        for text in texts:
            compile(text, file, "exec")


def test_there_are_mutations_of_every_room_each_of_its_own_name() -> None:
    names = [one.name for one in code_mutations()]
    assert len(names) >= 150
    for all_names in (names, [one.name for one in golden_mutations()]):
        assert len(set(all_names)) == len(all_names)
    for one in code_mutations():
        room = one.file.split("/")[1].removesuffix(".py")
        assert one.name.split("/")[0] == room
    for room in ROOMS:
        assert sum(name.startswith(f"{room}/") for name in names) >= 15, room


def test_the_page_tells_of_every_golden_mutation() -> None:
    rows = [
        line.split(" | ")[0]
        for line in PAGE.read_text(encoding="utf-8").splitlines()
        if line.startswith("| ")
    ]
    assert rows[1:] == [f"| {mutation.name}" for mutation in golden_mutations()]


def mutate(*options: str) -> list[dict[str, Any]]:
    """Run the mutations, and return what became of each."""
    command = [sys.executable, str(ROOT / "scripts" / "mutate.py"), "--json", *options]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stderr
    print(done.stderr)
    results: list[dict[str, Any]] = json.loads(done.stdout)
    return results


@pytest.mark.slow
def test_nineteen_of_twenty_mutations_of_the_code_are_noticed_by_the_tests_that_they_name() -> None:
    results = mutate("--only", "code")
    assert len(results) >= 150
    assert [one["name"] for one in results if one["fault"]] == []
    noticed = sum(one["sound"] for one in results)
    assert noticed >= 0.95 * len(results), f"{noticed} of {len(results)}"


@pytest.mark.slow
def test_every_golden_mutation_is_noticed_by_the_right_transcripts_in_the_right_room() -> None:
    results = mutate("--only", "golden")
    assert len(results) >= 45
    assert [one["name"] for one in results if not one["sound"]] == []
