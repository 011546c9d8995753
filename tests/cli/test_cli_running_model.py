"""The model of a server that does not tell it: a person is asked, a script refused."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.backends.stand_in import CHATML, HEADERS, MlxServer, put_model

NAMES = ["org/chatml", "org/headers"]


@pytest.fixture
def url(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A server that counts no tokens, and lists two models with different templates."""
    monkeypatch.setenv("HF_HUB_CACHE", str(home / "hub"))
    cache = Path(os.environ["HF_HUB_CACHE"])
    folder = put_model(cache, NAMES[0], CHATML, ("<|im_start|>", "<|im_end|>"))
    put_model(cache, NAMES[1], HEADERS, ("<|header|>", "<|end|>", "<|eot|>"))
    with MlxServer(folder, NAMES, None, usage=False).serve() as server:
        yield server.url


def test_a_script_is_told_the_names_and_ends_with_2(run: Any, url: str) -> None:
    result = run("ask", "--url", url, "Hi")
    assert result.code == 2
    assert "org/chatml, org/headers" in result.error and "--model" in result.error


def test_at_a_terminal_the_user_chooses_by_number(terminal: Any, url: str) -> None:
    shown = terminal("doctor", "--url", url)
    shown.see("1. org/chatml")
    shown.see("2. org/headers")
    shown.type("2")
    shown.press("enter")
    shown.see("model: org/headers")
    shown.see("the model's own template")


def test_a_chat_takes_the_choice_before_its_first_question(terminal: Any, url: str) -> None:
    shown = terminal("chat", "--url", url)
    shown.see("1-2:")
    shown.type("2")
    shown.see("1-2: 2")
    shown.press("enter")
    shown.see("^org/headers")
    shown.see("^>")
    shown.press("ctrl-d")
    assert shown.end() == 0


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ("3", "there is no 3: type a number from 1 to 2, or Enter for none"),
        ("0", "there is no 0: "),
        ("9" * 5000, "there is no 999"),
        ("org/", "several begin with org/: "),
    ],
)
def test_a_wrong_choice_is_told_the_numbers_and_asked_for_again(
    terminal: Any, url: str, wrong: str, problem: str
) -> None:
    shown = terminal("doctor", "--url", url)
    shown.see("1-2:")
    shown.type(wrong)
    shown.press("enter")
    shown.see(problem)
    shown.type("2")
    shown.press("enter")
    shown.see("model: org/headers")


@pytest.mark.parametrize("command", [("ask", "Hi"), ("chat",), ("doctor",)])
def test_ctrl_c_leaves_the_choice_at_once(
    terminal: Any, url: str, command: tuple[str, ...]
) -> None:
    shown = terminal(*command, "--url", url)
    shown.see("1-2:")
    shown.press("ctrl-c")
    assert shown.end() == 130


def test_a_chat_format_that_is_named_needs_no_model(run: Any, url: str) -> None:
    result = run("ask", "--url", url, "--chat-format", "chatml", "Hi")
    assert "does not say which model" not in result.err
