"""instructor: answers that fit a model of pydantic, by each way that it asks for them."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import checks
import instructor
from anthropic import Anthropic
from checks import JOKE, MODEL, URL
from openai import OpenAI
from pydantic import BaseModel


class Joke(BaseModel):
    """A joke."""

    setup: str
    punchline: str


ASKED = [{"role": "user", "content": JOKE}]


def openai_client(mode: Any) -> Any:
    client = OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0)
    return instructor.from_openai(client, mode=mode)


def joke(mode: Any) -> None:
    made = openai_client(mode).chat.completions.create(
        model=MODEL, messages=ASKED, response_model=Joke, max_tokens=checks.MOST, max_retries=1
    )
    checks.check_joke(made.model_dump())


def jokes() -> None:
    made = openai_client(instructor.Mode.TOOLS).chat.completions.create(
        model=MODEL, messages=ASKED, response_model=Iterable[Joke], max_retries=1
    )
    assert [one.model_dump() for one in made], "no joke"


def partial_joke() -> None:
    made = openai_client(instructor.Mode.TOOLS).chat.completions.create_partial(
        model=MODEL, messages=ASKED, response_model=Joke, max_tokens=checks.MOST, max_retries=1
    )
    *_, last = made
    checks.check_joke(last.model_dump())


def by_anthropic() -> None:
    client = Anthropic(base_url=URL, api_key="none", max_retries=0)
    made = instructor.from_anthropic(client).messages.create(
        model=MODEL, messages=ASKED, response_model=Joke, max_tokens=checks.MOST, max_retries=1
    )
    checks.check_joke(made.model_dump())


if __name__ == "__main__":
    modes = instructor.Mode
    checks.run(
        "instructor",
        {
            "schema by a tool": partial(joke, modes.TOOLS),
            "schema": partial(joke, modes.JSON_SCHEMA),
            "JSON": partial(joke, modes.JSON),
            "JSON in Markdown": partial(joke, modes.MD_JSON),
            "a list": jokes,
            "streamed schema": partial_joke,
            "schema by messages": by_anthropic,
        },
    )
