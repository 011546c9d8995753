"""What is found in arguments: every text in them, and never the value of a secret."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from mlx_tools.policy import Facts, facts_of
from mlx_tools.spec import ALL_EFFECTS, Effects, ToolSpec
from mlx_tools.tools.tool import EffectsBy


@dataclass
class Kind:
    kind: str


@dataclass
class Words:
    """A finder to which ``SECRET`` is a secret and ``[REDACTED]`` a placeholder."""

    asked: list[str] = field(default_factory=list)

    def find_secrets(self, text: str, /) -> Sequence[Kind]:
        self.asked.append(text)
        kinds = ("token", "SECRET"), ("password", 'password":"')
        return [Kind(kind) for kind, mark in kinds if mark in text]

    def holds_placeholder(self, text: str, /) -> bool:
        self.asked.append(text)
        return "[REDACTED]" in text


def spec(*effects: str) -> ToolSpec:
    return ToolSpec("x", effects=frozenset(effects))  # type: ignore[arg-type]


JSON = st.recursive(
    st.none() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)


def placed(value: Any, word: str, path: int) -> Any:
    """The value with the word somewhere in it, as an item, a value or a name."""
    match path % 4:
        case 0:
            return [value, f"a {word} b"]
        case 1:
            return {"k": value, "l": word}
        case 2:
            return {word: value}
        case _:
            return {"n": [{"m": [value, {word: 1}]}]}


@given(JSON, st.lists(st.integers(0, 3), min_size=1, max_size=4))
def test_a_secret_is_found_wherever_it_stands(value: Any, path: list[int]) -> None:
    for step in path:
        value = placed(value, "SECRET [REDACTED]", step)
    facts = facts_of(spec("network", "write"), {"x": value}, Words())
    assert facts.secrets == ("token",) and facts.placeholder


@given(JSON)
def test_where_there_is_none_none_is_found(value: Any) -> None:
    facts = facts_of(spec("network", "write"), {"x": value}, Words())
    assert facts == Facts()


def test_a_value_is_looked_at_beside_its_name_too() -> None:
    assert facts_of(spec("network"), {"password": "x"}, Words()).secrets == ("password",)


def test_line_ends_and_quotes_are_looked_at_as_they_are() -> None:
    finder = Words()
    facts_of(spec("network"), {"x": 'a\n"b"'}, finder)
    assert 'a\n"b"' in finder.asked


def test_only_what_could_be_forbidden_is_looked_for() -> None:
    finder = Words()
    arguments = {"x": "SECRET [REDACTED]"}
    assert facts_of(spec("read"), arguments, finder) == Facts() and finder.asked == []
    assert facts_of(spec("network"), arguments, finder) == Facts(secrets=("token",))
    assert facts_of(spec("execute"), arguments, finder) == Facts(placeholder=True)
    assert facts_of(spec(*ALL_EFFECTS), arguments, None) == Facts()


def test_effects_that_depend_on_the_arguments_are_looked_at_in_full() -> None:
    """An argument that is in no table has all effects, which `possible` does not say."""
    effects = EffectsBy("mode", {"read": frozenset({"read"})})
    found = facts_of(ToolSpec("x", effects=effects), {"mode": "SECRET"}, Words())
    assert found.secrets == ("token",)

    def raising(arguments: Mapping[str, Any]) -> Effects:
        raise KeyError

    assert facts_of(ToolSpec("x", effects=raising), {"mode": "SECRET"}, Words()).secrets


def test_very_deep_arguments_are_looked_through() -> None:
    value: Any = "SECRET"
    for _ in range(500):
        value = [value]
    assert facts_of(spec("network"), {"x": value}, Words()).secrets == ("token",)
