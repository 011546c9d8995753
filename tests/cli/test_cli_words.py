"""Ways to write a command: words without quotes, short names, a preset with more or less, keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mlx_tools.cli.completion import profile_names
from mlx_tools.testing import ScriptedServer, answer


def asked(run: Any, *words: str) -> Any:
    with ScriptedServer(answer("Hi."), model="oracle") as server:
        result = run("ask", "--url", server.url, *words)
        assert (result.code, result.out) == (0, "Hi.\n"), result.err
        return server


@pytest.mark.parametrize(
    "words",
    [
        ("what", "is", "17", "times", "23"),
        ("-m", "oracle", "what", "is", "--seed", "7", "17", "times", "23"),
        ("what", "is", "17", "times 23", "--max-tokens", "99"),
        ("--", "what", "is", "17", "times", "23"),
    ],
)
def test_words_without_quotes_are_one_question(run: Any, words: tuple[str, ...]) -> None:
    (prompt,) = asked(run, *words).prompts
    assert "what is 17 times 23" in prompt


def test_a_word_that_is_no_option_says_how_it_can_be_one_of_the_question(run: Any) -> None:
    result = run("ask", "what", "is", "-5", "squared")
    assert result.code == 2 and "put words that start with - after --" in result.error


def test_short_names_are_those_of_the_long_ones(run: Any) -> None:
    server = asked(run, "-m", "oracle", "-t", "calculator", "-s", "You are a pirate.", "Hello?")
    (prompt,), (body,) = server.prompts, server.bodies
    assert "You are a pirate." in prompt and "calculator" in prompt and "clock" not in prompt
    assert body["model"] == "oracle"


@pytest.mark.parametrize("said", [["--tools=-clock"], ["-t", "-clock"], ["--tools", "-clock"]])
def test_a_tool_that_is_taken_away_is_not_read_as_an_option(run: Any, said: list[str]) -> None:
    rows = run("tools", "list", "--json", "--preset", "notes", *said).lines
    assert {row["name"] for row in rows if row["permitted"]} == {
        *("notes_create", "notes_search", "read_artifact")
    }


def test_a_preset_and_more(run: Any) -> None:
    rows = run("tools", "list", "--json", "--preset", "notes", "-t", "+calculator,-clock").lines
    permitted = {row["name"] for row in rows if row["permitted"]}
    assert "calculator" in permitted and "clock" not in permitted and "notes_create" in permitted


def test_a_sign_before_a_tool_that_is_not_there_is_told(run: Any) -> None:
    for said in ("+calculater", "-calculater"):
        result = run("tools", "list", "--tools", said)
        assert result.code == 2 and "--tools: there is no tool calculater" in result.error


@pytest.mark.parametrize(
    ("word", "hint"), [("all", "did you mean '*'?"), ("None", "did you mean '[]'?")]
)
def test_a_word_for_all_tools_or_none_is_told_what_means_it(run: Any, word: str, hint: str) -> None:
    result = run("ask", "--tools", word, "Hi")
    assert result.code == 2 and hint in result.error
    result = run("tools", "list", "--tools", hint.split("'")[1])
    assert result.code == 0 and result.err == ""


def test_a_search_takes_words(run: Any, write: Any) -> None:
    write("tides.txt", "The spring tide follows the full moon.")
    assert run("kb", "add", "tides.txt").code == 0
    assert "spring tide" in run("kb", "search", "full", "moon", "--limit", "1").out
    assert "calculator" in run("tools", "search", "work", "out", "an", "expression").out


def test_the_key_of_a_server_is_read_from_a_file_and_kept_nowhere(
    run: Any, write: Any, home: Path
) -> None:
    write("key", "s3cret\n")
    server = asked(run, "--api-key-file", "key", "Hello?")
    assert server.headers[0]["Authorization"] == "Bearer s3cret"
    (transcript,) = home.glob("state/sessions/*/transcript.jsonl")
    assert "s3cret" not in transcript.read_text()


def test_a_profile_is_used_and_shown(run: Any, configure: Any) -> None:
    configure("[profiles.terse]\nmodel.name = 'oracle'\nprompt.system = 'You are terse.'\n")
    server = asked(run, "--profile", "terse", "Hello?")
    assert "You are terse." in server.prompts[0] and server.bodies[0]["model"] == "oracle"
    (row,) = [
        one for one in run("config", "show", "--json").lines if one["key"] == "profiles.terse"
    ]
    assert row["value"]["model.name"] == "oracle"
    assert "profiles.terse" in run("config", "show").out
    assert profile_names() == ["terse"]
    result = run("ask", "--profile", "ters", "Hello?")
    assert result.code == 2 and "no profile 'ters' (there are terse)" in result.error
