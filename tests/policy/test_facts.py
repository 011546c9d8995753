"""Facts about arguments: every text in them, and never the value of a secret."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_tools.messages import ALL_EFFECTS, Effects, ToolSpec
from mlx_tools.policy import Facts, collect_facts
from mlx_tools.tools import EffectsBy
from tests.tables import table


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


TOKEN = "ghp_" + "aB3dE6gH9jK2mN5pQ8sT1vW4yZ7bC0eF3hJ6"
"""Made up, of the shape of a token of GitHub's."""


def wide(text: str) -> str:
    return "".join(chr(ord(char) + 0xFEE0) if "!" <= char <= "~" else char for char in text)


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
    facts = collect_facts(spec("network", "write"), {"x": value}, Words())
    assert facts.secrets == ("token",) and facts.placeholder


def test_only_what_could_be_forbidden_is_looked_for() -> None:
    finder = Words()
    arguments = {"x": "SECRET [REDACTED]"}
    assert collect_facts(spec("read"), arguments, finder) == Facts() and finder.asked == []
    assert collect_facts(spec("network"), arguments, finder) == Facts(secrets=("token",))
    assert collect_facts(spec("execute"), arguments, finder) == Facts(placeholder=True)
    assert collect_facts(spec(*ALL_EFFECTS), arguments, None) == Facts()


def test_effects_that_depend_on_the_arguments_are_looked_at_in_full() -> None:
    """An argument that is in no table has all effects, which `possible` does not say."""
    effects = EffectsBy("mode", {"read": frozenset({"read"})})
    found = collect_facts(ToolSpec("x", effects=effects), {"mode": "SECRET"}, Words())
    assert found.secrets == ("token",)

    def raising(arguments: Mapping[str, Any]) -> Effects:
        raise KeyError

    assert collect_facts(ToolSpec("x", effects=raising), {"mode": "SECRET"}, Words()).secrets


DISGUISES = {
    "base64": lambda text: base64.b64encode(text.encode()).decode(),
    "base64 twice": lambda text: base64.b64encode(base64.b64encode(text.encode())).decode(),
    "base64 of a URL": lambda text: base64.urlsafe_b64encode(f"k={text}".encode()).decode(),
    "hexadecimal": lambda text: text.encode().hex(),
    "of a URL": lambda text: "".join(f"%{ord(char):02x}" for char in text),
    "of a URL, twice": lambda text: "".join(f"%25{ord(char):02X}" for char in text),
    "of JSON": lambda text: "".join(f"\\u{ord(char):04x}" for char in text),
    "wide letters": wide,
    "what nobody sees": "\u200b".join,
    "a soft hyphen": lambda text: f"{text[:12]}\u00ad{text[12:]}",
    "a line end": lambda text: f"{text[:12]}\r\n{text[12:]}",
    "blanks": lambda text: f"{text[:9]} {text[9:20]}  {text[20:]}",
    "blanks of a URL": lambda text: f"{text[:9]}%20{text[9:20]}+{text[20:]}",
    "a NUL of a URL": lambda text: f"{text[:9]}%00{text[9:]}",
    "single letters": " ".join,
}


@table("kind", DISGUISES)
def test_a_secret_for_the_network_is_known_in_disguise(kind: str) -> None:
    secret = DISGUISES[kind](TOKEN)
    for text in (secret, f"https://site.example/?q={secret}", f"a translation of {secret} please"):
        if kind == "single letters" and "?" in text:
            continue  # the first letter belongs to the URL
        assert collect_facts(spec("network"), {"x": text}).secrets == ("github_personal_token",), (
            text
        )


@pytest.mark.parametrize("effects", ["network", "write"])
def test_words_that_are_no_secret_are_none_when_joined(effects: str) -> None:
    for text in (
        "what does AKIA stand for in the names of AWS access keys and how long is such a key",
        "https://site.example/search?q=how+to+reset+my+password+on+github+or+gitlab&page=2",
        "ghp_ is the prefix of personal access tokens",
        "\uff24\uff29\uff39 shelf \u2014 na\u00efve caf\u00e9 \u65e5\u672c\u8a9e",
        "a b c d e f g h i j k l m n o p q r s t u v w x y z 0 1 2 3 4 5 6 7 8 9",
    ):
        assert collect_facts(spec(effects), {"x": text}) == Facts()


def test_a_very_long_text_is_looked_at_in_good_time() -> None:
    finder = Words()
    collect_facts(spec("network"), {"x": "ab cd " * 20_000 + "\u200b"}, finder)
    assert sum(map(len, finder.asked)) < 500_000
