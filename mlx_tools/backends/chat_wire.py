"""The chat interface with tools: bodies of requests, and answers as text. No I/O.

A server with its own tool parser sends a turn in parts: the thought, the prose, and the calls. As
they stream in they become text again, with a line of the protocol for each call. So the code that
reads, records, checks and replays turns has to know one form only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from mlx_tools.backends.interface import Chunk, CompletionRequest
from mlx_tools.backends.wire import Collector, completion_body, without_surrogates
from mlx_tools.messages import FinishReason

# --- a request --------------------------------------------------------------------------------


def chat_body(
    request: CompletionRequest, *, model: str | None = None, stream: bool = True
) -> dict[str, Any]:
    """Return the JSON body that asks a server to continue ``request.messages``."""
    body = completion_body(request, model=model, stream=stream)
    del body["prompt"]
    body["messages"] = [*(request.messages or ())]
    if request.tools:
        body["tools"] = [*request.tools]
        body["tool_choice"] = openai_choice(request.tool_choice)
    return body


def openai_choice(choice: str) -> str | dict[str, Any]:
    """Return ``tool_choice`` in the format of OpenAI's interface."""
    if choice in ("auto", "none", "required"):
        return choice
    return {"type": "function", "function": {"name": choice}}


# --- the parts of an answer as text -------------------------------------------------------------

_OPEN: Final = "<think>"
_CLOSE: Final = "</think>"

PIECE_BYTES: Final = 64
"""Bytes that each piece of a call counts besides its characters, for a bound of the memory."""

_compact: Final = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


@dataclass(slots=True)
class _ChatCallPieces:
    """A call that has not ended, with the pieces of its arguments."""

    number: int | None
    """The call's index in the server's answer, None if the server sends none."""
    id: str = ""
    name: str = ""
    is_started: bool = False
    closed: bool = False
    blank: bool = True
    """True as long as the arguments are only white space."""
    waiting: list[str] = field(default_factory=list)
    """Pieces of the arguments that are not written yet."""
    depth: int = 0
    """The number of open brackets at the end of the arguments so far."""
    quoted: bool = False
    """True if the arguments so far end within a JSON string."""
    escaped: bool = False

    def add(self, arguments: str) -> None:
        """Add a piece of the arguments. Each character is read only once."""
        self.waiting.append(arguments)
        self.blank = self.blank and not arguments.strip()
        for char in arguments:
            if self.escaped:
                self.escaped = False
            elif self.quoted:
                self.escaped, self.quoted = char == "\\", char != '"'
            else:
                self.quoted = char == '"'
                self.depth += (char in "{[") - (char in "}]")

    @property
    def whole(self) -> bool:
        """True if it has a name, and its arguments are complete."""
        return bool(self.name) and not self.blank and self.depth <= 0 and not self.quoted


class TurnText:
    """Writes the parts of a turn as one text, while they stream in.

    Each method returns the text that its part adds. A call is written as soon as its name has come.
    Calls are written one after the other, also if the server mixes their pieces.
    """

    def __init__(self) -> None:
        self.size = 0
        """The bytes of all calls so far, with `PIECE_BYTES` for each piece, to bound the memory."""
        self.calls: list[_ChatCallPieces] = []
        self._open: list[_ChatCallPieces] = []  # the first is being written
        self._thinks = False
        self._lead = True  # at the beginning of a line

    def think(self, text: str) -> str:
        """Add to the thought. A thought after calls is dropped."""
        text = text.replace(_CLOSE, "")
        if not text or self.calls:
            return ""
        opening, self._thinks = ("" if self._thinks else _OPEN), True
        return opening + text

    def say(self, text: str) -> str:
        """Add to the prose."""
        if not text or (self.calls and not text.strip()):
            return ""
        written = self._end_thought() + "".join(self._close() for _ in [*self._open])
        self._lead = text.endswith("\n")
        return written + text

    def call(self, number: int | None, call_id: str, name: str, arguments: str) -> str:
        """Add a piece to the call with this number, or begin a new call."""
        self.size += PIECE_BYTES + len(call_id) + len(name) + len(arguments)
        call = self._find_call(number, call_id, name)
        if call is None or call.closed:
            return ""
        call.id, call.name = call.id or call_id, call.name or name
        call.add(arguments)
        written = self._write(self._open[0])
        # Another call has begun, so the first one is over, unless it is incomplete because the
        # server mixes the pieces of several calls.
        while len(self._open) > 1 and (call is self._open[0] or not call.is_started):
            if not self._open[0].whole:
                break
            written += self._close() + self._write(self._open[0])
        return written

    def _find_call(self, number: int | None, call_id: str, name: str) -> _ChatCallPieces | None:
        """Return the call that a piece belongs to, None if there is none."""
        last = self.calls[-1] if self.calls else None
        match = last
        if number is not None:
            match = next(
                (open_call for open_call in reversed(self.calls) if open_call.number == number),
                None,
            )
        elif call_id and last is not None and last.id != call_id:
            match = next((open_call for open_call in self.calls if open_call.id == call_id), None)
        elif name:
            match = None
        # Some servers give all calls the same number: a new id with a name is another call.
        is_another_id = match is not None and call_id and match.id and call_id != match.id
        if match is not None and not (is_another_id and name):
            return match
        if not (name or call_id or number is not None):
            return None
        call = _ChatCallPieces(number)
        self.calls.append(call)
        self._open.append(call)
        return call

    def end(self, reason: FinishReason) -> str:
        """End the turn. A call that was cut off by the token limit stays open."""
        written = self._end_thought()
        while self._open:
            if len(self._open) == 1 and reason == "length":
                return written + self._write(self._open[0])
            written += self._close()
        return written

    def _end_thought(self) -> str:
        closing, self._thinks = (f"{_CLOSE}\n" if self._thinks else ""), False
        return closing

    def _write(self, call: _ChatCallPieces) -> str:
        """Return the text of the first call that can be written now."""
        text = ""
        if not call.name:
            return text
        if not call.is_started:
            id_field = f'"id":{_compact(call.id)},' if call.id else ""
            text = self._end_thought() + ("" if self._lead else "\n")
            text += f'{{"type":"tool_call",{id_field}"name":{_compact(call.name)},"arguments":'
            call.is_started, self._lead = True, False
        text += "".join(call.waiting)
        call.waiting.clear()
        return text

    def _close(self) -> str:
        call = self._open.pop(0)
        call.name = call.name or " "  # no tool has this name, and the model reads that error
        text = self._write(call) + ("{}}\n" if call.blank else "}\n")
        call.closed = self._lead = True
        return text


def read_content(content: Any) -> str:
    """Return the text of a message's content: a string, a list of parts, or nothing."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    texts = (part.get("text") for part in parts if isinstance(part, dict))
    return "".join(text for text in texts if isinstance(text, str))


def arguments_text(value: Any) -> str:
    """Return a call's arguments as JSON text; servers send a text or a value."""
    if isinstance(value, str) or value is None:
        return value or ""
    try:
        return _compact(value)
    except (TypeError, ValueError, RecursionError):
        return "null"


# --- an answer ----------------------------------------------------------------------------------


class ChatCollector(Collector):
    """Reads one answer of the chat interface, as `Collector` reads completions.

    If the finish reason is ``tool_calls`` but no call came, that reason is passed on: the server
    has dropped the calls, and the model can be asked in another way.
    """

    def __init__(self, address: str, max_tokens: int) -> None:
        super().__init__(address, max_tokens)
        self._turn = TurnText()

    def last(self) -> Chunk:
        """Return the chunk that ends the turn."""
        reason = self.finish or "length"
        text = without_surrogates(self._high + self._turn.end(reason))
        if reason == "tool_calls" and self._turn.calls:
            reason = "stop"  # all calls have come
        return Chunk(text, reason, self._usage)

    def _extract_text(self, choice: dict[str, Any]) -> str:
        whole_message = choice.get("message")
        if isinstance(whole_message, dict):
            # Without a reason the answer may be incomplete.
            choice["finish_reason"] = choice.get("finish_reason") or "length"
        message = whole_message if isinstance(whole_message, dict) else choice.get("delta")
        if not isinstance(message, dict):
            return ""
        text = self._turn.think(
            read_content(message.get("reasoning_content") or message.get("reasoning"))
        )
        text += self._turn.say(read_content(message.get("content")))
        calls = message.get("tool_calls")
        for call in calls if isinstance(calls, list) else []:
            if isinstance(call, dict):
                text += self._call(call)
        return text

    def _retained_bytes(self) -> int:
        return self._bytes + self._turn.size

    def _call(self, call: Mapping[str, Any]) -> str:
        inner = call.get("function")
        function = inner if isinstance(inner, dict) else call
        number, call_id, name = call.get("index"), call.get("id"), function.get("name")
        return self._turn.call(
            number if isinstance(number, int) else None,
            str(call_id) if isinstance(call_id, str | int) else "",
            name if isinstance(name, str) else "",
            arguments_text(function.get("arguments")),
        )
