"""`mlx-tools prompts` and `ask -p`: questions with a name and blanks to fill in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mlx_tools.cli.named_prompts import NamedPrompts, fill_prompt, find_blanks
from mlx_tools.errors import UsageError
from mlx_tools.paths import config_dir
from mlx_tools.testing import ScriptedServer, answer
from tests.tables import table


@pytest.fixture
def prompts(tmp_path: Path) -> NamedPrompts:
    made = NamedPrompts(tmp_path / "prompts")
    made.write("review", "Review this $language code for ${what}. It costs $$5.")
    made.write("short", "In one sentence: $question Thanks.")
    return made


@table(
    ("name", "words", "asked"),
    [
        (
            "review",
            ["language=Python", "what=bugs"],
            "Review this Python code for bugs. It costs $5.",
        ),
        (
            "review",
            ["language=C", "what=a = b", "x=1", "now"],
            "Review this C code for a = b. It costs $5.\n\nx=1 now",
        ),
        ("short", ["Why", "not?"], "In one sentence: Why not? Thanks."),
        ("short", [], "In one sentence:  Thanks."),
        ("short", ["question=x"], "In one sentence: question=x Thanks."),
    ],
)
def test_blanks_are_filled_and_the_question_has_its_place(
    prompts: NamedPrompts, name: str, words: list[str], asked: str
) -> None:
    assert fill_prompt(name, words, prompts) == asked


def test_what_cannot_be_asked_says_why(prompts: NamedPrompts) -> None:
    with pytest.raises(UsageError, match="lacks values") as lacking:
        fill_prompt("review", ["language=C"], prompts)
    assert "what=…" in (lacking.value.hint or "")
    with pytest.raises(UsageError, match="there is no prompt revew") as unknown:
        fill_prompt("revew", [], prompts)
    assert "review" in (unknown.value.hint or "")
    with pytest.raises(UsageError, match="not followed by a name"):
        prompts.write("five", "It costs $5.")
    for name in ("", "../x", "a/b", ".x", "a" * 65, "ä"):
        with pytest.raises(UsageError, match="is no name"):
            prompts.read(name)


def test_a_value_is_not_filled_in_again(prompts: NamedPrompts) -> None:
    asked = fill_prompt("review", ["language=$what", "what=$question"], prompts)
    assert asked.startswith("Review this $what code for $question.")
    assert find_blanks("$a ${b} $a $$c") == ["a", "b"]


def test_a_prompt_is_kept_listed_shown_asked_and_removed(run: Any) -> None:
    kept = run("prompts", "set", "sum", "Sum", "up", "$what", "in", "one", "line.")
    assert kept.code == 0 and "mlx-tools ask -p sum what=…" in kept.err
    assert run("prompts", "list").out == "sum  Sum up $what in one line.\n"
    assert run("prompts", "list", "--json").json == {
        "name": "sum",
        "text": "Sum up $what in one line.\n",
        "blanks": ["what"],
    }
    assert run("prompts", "show", "sum").out == "Sum up $what in one line.\n"
    with ScriptedServer(answer("Done.")) as server:
        result = run("ask", "--url", server.url, "-p", "sum", "what=this", stdin="The text.")
    assert (result.code, result.out) == (0, "Done.\n")
    assert "Sum up this in one line.\n\nThe text." in server.prompts[0]
    assert run("ask", "-p", "sum").code == 2
    assert run("prompts", "remove", "sum").code == 0
    assert run("prompts", "remove", "sum").code == 2
    assert run("prompts", "list").out == ""
    assert run("prompts", "set", "piped", stdin="From a pipe: $question").code == 0
    assert run("prompts", "show", "piped").out == "From a pipe: $question\n"


def test_a_prompt_too_long_to_be_read_is_not_written(prompts: NamedPrompts) -> None:
    with pytest.raises(UsageError, match="larger than 1 MB"):
        prompts.write("short", "a" * (1 << 20))
    assert prompts.read("short").startswith("In one sentence")


def test_a_prompt_that_cannot_be_asked_hides_no_other_and_can_be_removed(run: Any) -> None:
    assert run("prompts", "set", "sum", "Sum up $what.").code == 0
    for name, content in (("bad", b"It costs $ 5."), ("latin", b"caf\xe9")):
        (config_dir() / "prompts" / f"{name}.md").write_bytes(content)
    for options in ((), ("--json",)):
        listed = run("prompts", "list", *options)
        assert listed.code == 0 and "Sum up $what." in listed.out
        assert "bad is left out" in listed.err and "latin is left out" in listed.err
    for name in ("bad", "latin"):
        assert run("prompts", "remove", name).code == 0
    assert run("prompts", "list").err == ""
