"""The texts of a scripted model in sections of the documentation without a real one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from mlx_tools.testing import answer, call

_SUM: Final = (call("calculator", expression="17 * 23"), answer("17 * 23 is 391."))

_MORE: Final = (call("calculator", expression="64 + 128"), answer("It is 192."))

SCRIPTS: Final[Mapping[str, tuple[str, ...]]] = {
    "README: Five first things": (
        *_SUM,
        call("edit_file", path="plan.md", old="kale", new="lettuce"),
        answer("Bed 2 has lettuce now."),
        call("area", width=3.5, height=4),
        answer("It is 14 square metres."),
        call("weather", city="Oslo"),
        *_SUM,
    ),
    "built-in: Files": (
        call("search_files", pattern="Ada"),
        answer("It is monday.md."),
        call("edit_file", path="monday.md", old="Ada", new="Ada Lovelace"),
        answer("It is written."),
    ),
    "built-in: ": (call("calculator", expression="34 * 24"), answer("816 hours are left.")),
    "decoding: ": _SUM,
    "prompts: ": _SUM,
    "cookbook: Change a file": (
        call("edit_file", path="plan.md", old="kale", new="lettuce"),
        answer("Bed 2 has lettuce now."),
    ),
    "cookbook: Give it a function of mine": (
        call("in_stock", article="hammer"),
        answer("There are 3 hammers."),
    ),
    "cookbook: Test it in CI": _SUM,
    "cookbook: Use it in a script": (answer("A function that returns 1."), *_SUM),
    "library: ": (call("area", width=3.5, height=4), answer("It is 14 square metres.")),
    "library: Stream to a web page": _SUM,
    "library: Ask a person before a call runs": (
        call("send", to="ada@example.com", text="The build is green."),
        answer("She knows."),
    ),
    "library: Pause, and go on in another process": (call("send", text="Hello."), answer("Sent.")),
    "library: Messages in and out": (
        *_SUM,
        call("calculator", expression="391 / 2"),
        answer("195.5"),
    ),
    "library: Structured answers": (call("final_result", city="Oslo", people=717710),),
    "library: Turns: your client runs the tools": (call("weather", city="Oslo"),),
    "library: Your tools beside the built-in ones": (
        call("inhabitants", city="Oslo"),
        call("create_file", path="oslo.txt", content="717710"),
        answer("It is written."),
    ),
    "macos: The first question": _SUM,
    "training: ": (*_SUM, *_MORE, *_MORE),
}
"""The completions in order, by page and section."""
