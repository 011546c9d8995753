"""The pieces of a turn as events on the wire: what was told, what is left, one event's text."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from mlx_tools.gateway.request import ArgumentsMore, CallBegun, TextPiece, TurnDone

Piece = TextPiece | CallBegun | ArgumentsMore


class Told:
    """What a client was told of a turn so far. Of a turn that is done it gives what is left, so
    that a reply in one piece is written in the same way as a streamed one."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._arguments: list[list[str]] = []

    def note(self, piece: Piece) -> Piece:
        """Take this piece as told."""
        match piece:
            case TextPiece(text):
                self._text.append(text)
            case CallBegun():
                self._arguments.append([])
            case ArgumentsMore(index, text):
                self._arguments[index].append(text)
        return piece

    def rest(self, done: TurnDone) -> Iterator[Piece]:
        """What is left to be told of this turn. Each piece is taken as told when it is asked for.
        A call that was begun and never became one stays as it is."""
        if more := done.text.removeprefix("".join(self._text)):
            yield self.note(TextPiece(more))
        for index, call in enumerate(done.calls):
            if index == len(self._arguments):
                yield self.note(CallBegun(index, call.id, call.name))
            if more := call.arguments.removeprefix("".join(self._arguments[index])):
                yield self.note(ArgumentsMore(index, more))


def server_sent(kind: str, data: Mapping[str, Any]) -> str:
    """One server-sent event of this kind, with its blank line. Plain ASCII."""
    return f"event: {kind}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n"
