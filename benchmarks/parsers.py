"""Calls of each parser as its users write them, one text in, one value out."""

from __future__ import annotations

import json
from collections.abc import Callable
from time import process_time
from typing import Any

from texts import KINDS, Text

Parse = Callable[[str], Any]


def plain_json() -> Parse:
    return json.loads


def json_repair() -> Parse:
    import json_repair

    return json_repair.loads


def langchain() -> Parse:
    from langchain_core.output_parsers import JsonOutputParser

    return JsonOutputParser().parse


def _call_of(reading: Any) -> Any:
    """The result of a reading, in the form in which the others return it."""
    if reading.error is not None or len(reading.messages) != 1:
        return None
    message = reading.messages[0]
    if message.type != "tool_call":
        return None
    return {"type": "tool_call", "name": message.name, "arguments": message.arguments}


def mlx_tools() -> Parse:
    from mlx_tools.protocol import read

    return lambda text: _call_of(read(text))


def mlx_tools_streamed() -> Parse:
    """Fed four characters at a time, about a token, and stopped where it says it is done."""
    from mlx_tools.protocol import Reader

    def parse(text: str) -> Any:
        reader = Reader()
        for start in range(0, len(text), 4):
            reader.feed(text[start : start + 4])
            if reader.done:
                break
        return _call_of(reader.finish())

    return parse


PARSERS: dict[str, Callable[[], Parse]] = {
    "json": plain_json,
    "mlx-tools": mlx_tools,
    "mlx-tools, streamed": mlx_tools_streamed,
    "json_repair": json_repair,
    "LangChain": langchain,
}


class Subject:
    """A parser, as the harness runs it.

    Parsers only compute, so what counts is the processor's time, which a busy machine bends less.
    """

    clock = staticmethod(process_time)

    def __init__(self, name: str) -> None:
        self.parse = PARSERS[name]()
        self.text = Text("")

    def prepare(self, kind: str, size: int) -> None:
        self.text = KINDS[kind](size)

    def run(self) -> Any:
        """Reads the text once. Timed. Whatever a parser raises is its answer."""
        try:
            return self.parse(self.text.text)
        except Exception as error:
            return error

    def outcome(self, found: Any) -> str:
        """The result of ``run``, in a word or two. Not timed."""
        if isinstance(found, Exception):
            return type(found).__name__
        if found is None or found == "":
            return "nothing"
        if self.text.call is None:
            return "some value"
        return "the call" if found == self.text.call else "another value"

    def close(self) -> None:
        """Nothing to remove."""
