"""Common parts of the scripts of this folder: the question with a sum, and how a result is told.

Each script asks the gateway at GATEWAY_URL for the model GATEWAY_MODEL, does the tests that its
arguments name, else all, and prints a line of JSON for each: client, test, passed, why not.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any

URL = os.environ["GATEWAY_URL"]
MODEL = os.environ["GATEWAY_MODEL"]
SCRIPTED = MODEL == "scripted-chatml"
"""True if the model does exactly what is asked of it."""

MOST = 500 if SCRIPTED else 80
"""Tokens of an answer: a small model may never end."""

SUM = "What is 17 * 23?"
SUMS = "What is 17 * 23, and what is 5 + 6?"
HELLO = "Hello!"
COUNT = "Count from 1 to 20."
SAID = "Hello, this is the scripted model."
JOKE = "Tell me a joke about cats."
PICTURE = (
    "data:image/png;base64,"
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4nGP4z8DwHwAFAAH/iZk9HQAAAABJRU5ErkJggg=="
)

EXPRESSION = {
    "type": "object",
    "properties": {"expression": {"type": "string"}},
    "required": ["expression"],
}
CALCULATOR = {
    "name": "calculator",
    "description": "Work out an arithmetic expression.",
    "parameters": EXPRESSION,
}
WEATHER = {
    "name": "get_weather",
    "description": "The weather of a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
}


def calculate(expression: str) -> str:
    """The value of a sum or product of two numbers."""
    for sign, worked_out in {"*": int.__mul__, "+": int.__add__}.items():
        one, found, other = expression.partition(sign)
        if found and one.strip().isdigit() and other.strip().isdigit():
            return str(worked_out(int(one), int(other)))
    return "unknown"


def check_answer(text: str | None) -> None:
    assert text == SAID if SCRIPTED else text, text


def check_sum(called: list[str], text: str | None) -> None:
    """A call was made, and an answer came of its result; the scripted model's are right."""
    assert called, f"no call; it said {text!r}"
    assert text, "no answer after the call"
    if SCRIPTED:
        assert (called, "391" in text) == (["17 * 23"], True), (called, text)


def check_sums(called: list[str], text: str | None) -> None:
    assert sorted(called) == ["17 * 23", "5 + 6"], called  # some make both at once
    assert text is not None and "391" in text and "11" in text, text


def check_joke(value: Any) -> None:
    assert isinstance(value, Mapping) and set(value) == {"setup", "punchline"}, value


def run(client: str, tests: Mapping[str, Callable[[], Any]]) -> None:
    """Do the tests, and tell of each."""
    for name, test in tests.items():
        if sys.argv[1:] and name not in sys.argv[1:]:
            continue
        why = ""
        try:
            made = test()
            if inspect.isawaitable(made):
                asyncio.run(_awaited(made))
        except Exception as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            place = f" (line {last.lineno})" if isinstance(error, AssertionError) else ""
            why = f"{type(error).__name__}{place}: {error}"[:300]
        print(
            json.dumps({"client": client, "test": name, "passed": not why, "why": why}), flush=True
        )


async def _awaited(made: Any) -> None:
    await made
