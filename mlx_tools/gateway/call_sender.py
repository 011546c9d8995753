"""The calls of a turn on their way to a client, while the model writes them.

A client gets a call's name once a tool has it, and its arguments up to the last accepted value.
Text that was sent never changes. If the model's turn differs from it, the model is asked to go on
from what was sent.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from mlx_tools.gateway.accepted_arguments import AcceptedArguments
from mlx_tools.gateway.client_tools import CUSTOM_ARGUMENT, CUSTOM_BEGINNING
from mlx_tools.gateway.request import (
    ArgumentsAdded,
    CallAdded,
    ClientCall,
    Emit,
)
from mlx_tools.messages import ToolSpec, json_line
from mlx_tools.protocol import JudgedCall, forcing_prefix, resolve


@dataclass
class SentCall:
    """A call that was begun for a client. ``text`` is what was sent of its arguments."""

    id: str
    name: str
    text: str = ""
    keys: list[str] = field(default_factory=list)

    @property
    def prefix(self) -> str:
        """The beginning of a model's turn that goes on from what was sent."""
        begun = forcing_prefix("jsonl", self.name)
        return begun.removesuffix("{") + self.text if self.text else begun

    def final_call(self, call: JudgedCall) -> ClientCall | None:
        """Return the call as it ends, or None if it differs from what was sent."""
        if call.error is not None or call.call.name != self.name:
            return None
        arguments = call.call.arguments
        for text in _texts(arguments, self.keys):
            if text.startswith(self.text):
                return ClientCall(self.id, self.name, text)
        return None


def _texts(arguments: Mapping[str, Any], keys: Sequence[str]) -> Iterator[str]:
    """Yield ways to write arguments; one begins as the client was told."""
    yield json_line(arguments)
    first = {key: arguments[key] for key in keys if key in arguments}
    ordered = {**first, **arguments}
    yield json_line(ordered)
    yield _escape_by_parts(ordered)


def _escape_by_parts(value: Any) -> str:
    """Return JSON text whose keys and scalars are escaped each by itself."""
    if isinstance(value, Mapping):
        members = (f"{json_line(key)}:{_escape_by_parts(item)}" for key, item in value.items())
        return f"{{{','.join(members)}}}"
    if isinstance(value, list):
        return f"[{','.join(map(_escape_by_parts, value))}]"
    return json_line(value)


_TEXT_BEGINS: Final = re.compile(rf'\s*\{{\s*"{CUSTOM_ARGUMENT}"\s*:\s*"')
_MAX_BEGINNING_CHARS: Final = 200
"""Characters before a custom tool's text: at most some blanks and line breaks."""

_TEXT_PART: Final = re.compile(
    r"""(?:[^"\\\x00-\x1f\ud800-\udfff]|[\t\n\r]"""
    r"""|\\(?:["\\/bfnrt]|u(?![dD][89a-fA-F])[0-9a-fA-F]{4}"""
    r"""|u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}))+"""
)
"""Whole characters of a JSON string, as text or escapes; models write raw line breaks, too."""


_MAX_ESCAPE_CHARS: Final = len(r"\ud83d\ude00")


class CustomTextReader:
    """Makes JSON text of a custom tool's raw arguments, also within their one text.

    That text has no schema that a part of it could break. It is read up to its first quote, or the
    first escape that JSON does not have: what follows is known at the end of the call.

    Attributes:
        keys: The outermost keys.
        text: The JSON text so far.
    """

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.text = ""
        self._unread = ""
        self._is_over = False

    def feed(self, raw: str, *, is_settled: bool) -> None:
        """Take the next text of the arguments, as the model wrote it."""
        if self._is_over:
            return
        self._unread += raw
        if not self.text:
            begin = _TEXT_BEGINS.match(self._unread)
            if begin is None:
                self._is_over = len(self._unread) > _MAX_BEGINNING_CHARS
                return
            self.keys, self.text = [CUSTOM_ARGUMENT], CUSTOM_BEGINNING
            self._unread = self._unread[begin.end() :]
        if (part := _TEXT_PART.match(self._unread)) is not None:
            value: str = json.loads(f'"{part[0]}"', strict=False)
            self.text += json_line(value)[1:-1]
            self._unread = self._unread[part.end() :]
        self._is_over = len(self._unread) >= _MAX_ESCAPE_CHARS or self._unread[:1] == '"'


class CallSender:
    """Sends calls to a client while they are written."""

    def __init__(
        self,
        tools: Mapping[str, ToolSpec],
        custom_tools: Container[str],
        emit: Emit,
        new_id: Callable[[], str],
    ) -> None:
        self.calls: list[SentCall] = []
        self._tools, self._custom_tools = tools, custom_tools
        self._emit, self._new_id = emit, new_id
        self._slots: dict[int, int] = {}  # by the call's number in the turn
        self._readers: dict[int, AcceptedArguments | CustomTextReader] = {}
        self._next = 0

    def begin_turn(self, first: int = 0) -> None:
        """Begin a turn of the model, whose first call is the one of this place."""
        self._slots, self._readers, self._next = {}, {}, first

    def open_call(self, number: int, name: str) -> None:
        """Begin a call; ``number`` is its place in the model's turn."""
        spec = resolve(name, self._tools)[0]
        if spec is None:
            return
        slot = self._slots.get(number)
        if slot is None:
            slot, self._next = self._next, self._next + 1
            self._slots[number] = slot
        if slot >= len(self.calls):
            call = SentCall(self._new_id(), spec.name)
            self.calls.append(call)
            self._emit(CallAdded(slot, call.id, call.name))
        if self.calls[slot].name == spec.name:
            is_custom = spec.name in self._custom_tools
            self._readers[number] = (
                CustomTextReader() if is_custom else AcceptedArguments(spec.parameters)
            )
        else:
            self._readers.pop(number, None)

    def add_arguments(self, number: int, raw: str, *, is_settled: bool) -> None:
        """Take more raw text of a call's arguments."""
        reader = self._readers.get(number)
        if reader is None:
            return
        reader.feed(raw, is_settled=is_settled)
        slot = self._slots[number]
        call = self.calls[slot]
        if len(reader.text) > len(call.text) and reader.text.startswith(call.text):
            more = reader.text[len(call.text) :]
            call.text, call.keys = reader.text, list(reader.keys)
            self._emit(ArgumentsAdded(slot, more))

    def stop_arguments(self) -> None:
        """Send no more arguments before the end: those that came were dropped."""
        self._readers.clear()

    def final_calls(self, judgements: Sequence[JudgedCall]) -> list[ClientCall | None]:
        """Return the calls that were begun; None for one that ends differently."""
        numbers = {slot: number for number, slot in self._slots.items()}
        ends: list[ClientCall | None] = []
        for slot, call in enumerate(self.calls):
            number = numbers.get(slot, len(judgements))
            ends.append(call.final_call(judgements[number]) if number < len(judgements) else None)
        return ends

    def is_sent(self, number: int) -> bool:
        """Return whether the call with this number in the model's turn was begun."""
        return number in self._slots
