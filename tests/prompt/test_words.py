"""The words in ``prompts/``: all there, and a slip in them is told by file and key."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import get_args

import pytest

from mlx_tools.errors import ConfigError
from mlx_tools.paths import read_data
from mlx_tools.prompt.words import CODES, FILES, fill, parse_words
from mlx_tools.store import load_words
from mlx_tools.transcript import MendKind
from tests.tables import table

TEXTS: Mapping[str, str] = {name: read_data(f"prompts/{name}") for name in FILES}


def changed(file: str, old: str, new: str) -> Mapping[str, str]:
    assert old in TEXTS[file]
    return {**TEXTS, file: TEXTS[file].replace(old, new)}


def test_there_are_words_for_every_error_code() -> None:
    words = load_words()
    assert set(words.errors) == set(CODES)
    for code in CODES:
        text = words.error(code, name="tool", reason="because")
        assert text
        assert "\n" not in text
        assert "{{" not in text


def test_a_part_that_does_not_fit_is_told_in_a_sentence_without_its_internal_word() -> None:
    words = load_words()
    for kind in get_args(MendKind):
        text = words.error("unfilled", reason=words.text(f"misfits.{kind}"))
        assert re.fullmatch(r"The line could not be completed\. [A-Z][^.]+ [^.]+\.", text), text
    assert "envelope" not in words.text("misfits.envelope")


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        ("", "The user refused this call of x. Do not try it again."),
        ("Too slow", "The user refused this call of x. Too slow. Do not try it again."),
        (" Why?\n", "The user refused this call of x. Why? Do not try it again."),
    ],
)
def test_a_reason_is_a_sentence_of_its_own_or_nothing(reason: str, text: str) -> None:
    line = 'denied = "The user refused this call of {{name}}. {{reason}} Do not try it again."'
    messages = re.sub(r"(?m)^denied = .*$", line, TEXTS["messages.toml"])
    words = parse_words({**TEXTS, "messages.toml": messages})
    assert words.error("denied", name="x", reason=reason) == text


def test_an_error_is_at_most_500_characters() -> None:
    assert len(load_words().error("tool_error", name="x", reason="y" * 1000)) == 500


def test_the_notice_of_a_cut_names_the_number() -> None:
    assert "1234" in load_words().text("turns.cut", omitted=1234)


def test_a_value_with_braces_is_not_filled_again() -> None:
    assert fill("{{a}}{{b}}", {"a": "{{b}}", "b": "{{a}}"}) == "{{b}}{{a}}"


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named(name: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(name)):
        parse_words({key: text for key, text in TEXTS.items() if key != name})


@table(
    ("file", "old", "new", "said"),
    [
        ("messages.toml", "{{tools}}", "", "messages.toml, catalog.tools: .*{{tools}} is missing"),
        ("messages.toml", "{{count}}", "{{number}}", "catalog.hidden: .*{{count}} is missing"),
        ("messages.toml", "{{context}}", "x", "project_context: .*{{context}} is missing"),
        ("messages.toml", "{{omitted}}", "x", "turns.cut: .*{{omitted}} is missing"),
        ("messages.toml", "{{reason}}", "{{raeson}}", "errors.*{{raeson}} is unknown"),
        ("messages.toml", "timeout =", "tiemout =", "unknown key errors.tiemout"),
        ("messages.toml", "[turns]", "[trun]", "lacks the key turns"),
        ("messages.toml", "[turns]", "[turns", "messages.toml is not TOML"),
        ("messages.toml", "dry_run =", "dry_run = 7 #", "needs a text for errors.dry_run"),
        ("examples.toml", "[samples]", "[smaples]", "examples.toml: .*`samples`"),
        ("examples.toml", "{{arguments}}", "x", "{{arguments}} is missing"),
        ("persona.txt", "You", "You, {{name}},", "persona.txt: .*{{name}} is unknown"),
        ("protocol-xml.txt", "NAME", "{{tool}}", "protocol-xml.txt: .*{{tool}} is unknown"),
    ],
)
def test_a_slip_is_told_by_file_and_key(file: str, old: str, new: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_words(changed(file, old, new))


def test_a_data_file_that_is_not_there_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"prompts/nothing\.txt is missing"):
        read_data("prompts/nothing.txt")


def test_no_file_of_prompts_is_read_by_nobody() -> None:
    root = Path(__file__).parents[2]
    if not (root / "prompts").is_dir():
        pytest.skip("not run from a checkout")
    others = {path.name for path in (root / "prompts").iterdir() if path.is_file()} - {*FILES}
    sources = "".join(path.read_text() for path in (root / "mlx_tools").rglob("*.py"))
    assert [name for name in others if f"prompts/{name}" not in sources] == []
