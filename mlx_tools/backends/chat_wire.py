"""The chat interface with tools as bytes.

The body of a request, an answer as a turn.

Nothing here does I/O.

A server with its own tool parser sends what its model said in parts. They become text again, as
they stream in: the thought, the prose, and a line of the protocol for each call. So the code that
reads, records, checks and replays a turn sees the same form, whoever separated the calls from the
text.
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
    """Return ``tool_choice`` as OpenAI's interface has it."""
    if choice in ("auto", "none", "required"):
        return choice
    return {"type": "function", "function": {"name": choice}}


# --- what came, as a turn's text ----------------------------------------------------------------

_OPEN: Final = "<think>"
_CLOSE: Final = "</think>"

PIECE_BYTES: Final = 64
"""Bytes that a piece of a call counts besides its characters: each comes of one token at least."""

_compact: Final = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


@dataclass(slots=True)
class _ChatCallPieces:
    """A call that has not ended, with its arguments as they come."""

    number: int | None
    """The number that its server gives it, None if it gives none."""
    id: str = ""
    name: str = ""
    is_started: bool = False
    closed: bool = False
    blank: bool = True
    """True until a character of the arguments has come that is not white space."""
    waiting: list[str] = field(default_factory=list)
    """Pieces of the arguments that are not written yet."""
    depth: int = 0
    """Brackets that are open at the end of the arguments so far."""
    quoted: bool = False
    """True within a JSON string."""
    escaped: bool = False

    def add(self, arguments: str) -> None:
        """Add a piece of the arguments.

        Each character is looked at once, however the server cuts the pieces.
        """
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
        """True if it has a name, and its arguments have come and are closed again."""
        return bool(self.name) and not self.blank and self.depth <= 0 and not self.quoted


class TurnText:
    """Writes the parts of a turn, as they come, as one text.

    Each method returns the text that its part adds. A call is written once its name has come.
    Several calls are written one after the other, however their pieces are mixed.
    """

    def __init__(self) -> None:
        self.size = 0
        """Bytes of the calls so far, and a few for each piece, for a limit on what is held in
        memory."""
        self.calls: list[_ChatCallPieces] = []
        self._open: list[_ChatCallPieces] = []  # the first is being written
        self._thinks = False
        self._lead = True  # nothing stands in the line

    def think(self, text: str) -> str:
        """Add to the thought. A thought that comes after calls is left out."""
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
        # The next call has begun, so this one is over, unless its server mixes the pieces of
        # several.
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
        # Some servers give all their calls the same number: another id with a name is a new call.
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
        """End the turn. A call that was cut off stays open."""
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
        call.name = call.name or " "  # the model then reads that there is no such tool
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
    """Return a call's arguments as JSON text.

    A server sends them as text or as a value.
    """
    if isinstance(value, str) or value is None:
        return value or ""
    try:
        return _compact(value)
    except (TypeError, ValueError, RecursionError):
        return "null"


# --- an answer ----------------------------------------------------------------------------------


class ChatCollector(Collector):
    """Reads one answer of the chat interface, as `Collector` reads completions.

    If the server's finish reason says that there are calls, and none came, that reason is passed
    on: the server kept the calls, and they can be asked for in another way.
    """

    def __init__(self, address: str, max_tokens: int) -> None:
        super().__init__(address, max_tokens)
        self._turn = TurnText()

    def last(self) -> Chunk:
        """Return the chunk that ends the turn."""
        reason = self.finish or "length"
        text = without_surrogates(self._high + self._turn.end(reason))
        if reason == "tool_calls" and self._turn.calls:
            reason = "stop"  # the calls have all come
        return Chunk(text, reason, self._usage)

    def _extract_text(self, choice: dict[str, Any]) -> str:
        whole_message = choice.get("message")
        if isinstance(whole_message, dict):
            # an end without a reason promises nothing
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
