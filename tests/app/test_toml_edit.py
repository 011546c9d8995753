"""A value changed in a file that a person wrote."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

from mlx_tools.app import edit_value
from mlx_tools.app.config import user_path
from mlx_tools.errors import ConfigError

MINE = '''\
# my settings
profile = "work"  # for now

[model]
# the large one
name = "qwen"   # at home
seed = 7

[prompt]
system = """
[model]
seed = 1
"""

[policy]
allow = [
  "clock",  # always
  "calculator",
]  # no more
rate_limits = { "notes_*" = "1/minute" }

# what I call when travelling
[profiles.work]
model.name = "small"
'''


@pytest.mark.parametrize(
    ("key", "value", "line"),
    [
        ("profile", "home # base", 'profile = "home # base"  # for now'),
        ("model.name", 'a "b" \\ c', 'name = "a \\"b\\" \\\\ c"   # at home'),
        ("model.seed", 8, "seed = 8"),
        ("model.temperature", 0.5, "temperature = 0.5"),
        ("policy.allow", ("clock",), 'allow = ["clock"]  # no more'),
        ("policy.dry_run", True, "dry_run = true"),
        ("policy.rate_limits", {"*": "1/hour"}, 'rate_limits = {"*" = "1/hour"}'),
        ("backend.url", "http://127.0.0.1:1", 'url = "http://127.0.0.1:1"'),
        ("enabled", False, "enabled = false"),
    ],
)
def test_one_value_is_changed_and_all_else_stays(key: str, value: Any, line: str) -> None:
    edited = edit_value(MINE, key, value)
    found: Any = tomllib.loads(edited)
    for name in key.split("."):
        found = found[name]
    assert found == (list(value) if isinstance(value, tuple) else value)
    assert line in edited.splitlines()
    before, now = (list(filter(None, text.splitlines())) for text in (MINE, edited))
    kept = [one for one in now if one in before]
    assert len(kept) >= len(before) - (4 if key == "policy.allow" else 1)
    assert kept == [one for one in before if one in kept]


def test_what_stands_in_a_text_of_several_lines_is_no_section_and_no_value() -> None:
    assert "[model]\nseed = 1\n" in edit_value(MINE, "model.seed", 8)
    only = 'a = """\n[model]\nseed = 1\n"""\n'
    assert tomllib.loads(edit_value(only, "model.seed", 8))["model"] == {"seed": 8}


def test_a_value_is_unset_with_its_line() -> None:
    edited = edit_value(MINE, "policy.allow", None)
    assert "always" not in edited and "allow" not in tomllib.loads(edited)["policy"]
    assert edit_value(MINE, "backend.url", None) == MINE


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", "\n[model]\nseed = 8\n"),
        ("model.name = 'x'", "model.name = 'x'\nmodel.seed = 8\n"),
        ("[model]", "[model]\nseed = 8\n"),
        ("[ model ]\nseed=7", "[ model ]\nseed=8"),
        ("[model]\n'seed' = 7", "[model]\n'seed' = 8"),
        ("model = { seed = 7 }\n", "model = { seed = 8 }\n"),
        ("# only words", "# only words\n[model]\nseed = 8\n"),
    ],
)
def test_it_goes_where_it_would_be_looked_for(text: str, wanted: str) -> None:
    assert edit_value(text, "model.seed", 8).lstrip() == wanted.lstrip()


@pytest.mark.parametrize("text", ["model = 7\n", "seed ="])
def test_what_only_an_editor_can_change_is_left_to_it(text: str) -> None:
    with pytest.raises(ConfigError, match="mlx-tools config edit") as raised:
        edit_value(text, "model.seed", 8)
    assert str(user_path()) in raised.value.message


def test_every_character_of_a_text_comes_back() -> None:
    text = (
        "".join(map(chr, (*range(1, 0x300), *range(0x2000, 0x2070), 0xFEFF, 0xFFFD))) + "\U0001f600"
    )
    assert tomllib.loads(edit_value("", "prompt.system", text))["prompt"]["system"] == text
