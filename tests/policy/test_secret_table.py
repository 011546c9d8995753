"""Every entry of the table of secrets finds its line, and leaves its other line alone."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from mlx_tools.policy.redact import Redactor, find_secrets
from mlx_tools.policy.secret_kinds import TABLE
from tests.policy.secret_samples import ALNUM, drawn, filled

ENTRIES = [(group, entry) for group, entries in TABLE.items() for entry in entries]
DRAWS = 20


def lines(entry: dict[str, Any], column: str) -> list[str]:
    held: str | list[str] = entry[column]
    return [held] if isinstance(held, str) else held


def glued(words: str) -> list[str]:
    return words.replace("-", "_").split()


@pytest.mark.parametrize(("group", "entry"), ENTRIES)
def test_an_entry_finds_its_line_and_leaves_the_other(group: str, entry: dict[str, Any]) -> None:
    random = Random(1)
    for _ in range(DRAWS):
        for line in lines(entry, "finds"):
            text = filled(line, random)
            kinds = {one.kind for one in find_secrets(text)}
            assert entry["kind"] in kinds if "kind" in entry else kinds, text
        for line in lines(entry, "leaves"):
            text = filled(line, random)
            assert find_secrets(text) == (), text


@pytest.mark.parametrize("entry", TABLE["names"], ids=lambda entry: str(entry["kind"]))
def test_every_name_is_found_however_it_is_written(entry: dict[str, Any]) -> None:
    random = Random(2)
    for name in glued(f"{entry['words']} {entry['whole']}"):
        camel = name.title().replace("_", "")
        for written in (name.upper(), camel, "my" + camel, name.replace("_", "-"), f"x.{name}s"):
            value = f"{drawn(random, ALNUM, 20)}4t{drawn(random, ALNUM, 10)}"
            text = f'{written}="{value}"'
            shown = Redactor().text(text)
            assert shown.text == f'{written}="[redacted:{entry["kind"]}]"', text


@pytest.mark.parametrize("entry", TABLE["not_names"], ids=lambda entry: str(entry["about"]))
def test_no_name_that_is_not_secret_is_found(entry: dict[str, Any]) -> None:
    random = Random(3)
    names = [
        *glued(entry.get("names", "")),
        *(f"api_key_{last}" for last in glued(entry.get("last", ""))),
    ]
    for name in names:
        camel = name.title().replace("_", "")
        for written in (name.upper(), camel, "my" + camel, name.replace("_", "-"), f"x.{name}s"):
            text = f'{written}="{drawn(random, ALNUM, 20)}4t{drawn(random, ALNUM, 10)}"'
            assert find_secrets(text) == (), text
