"""The chat interface with tools as bytes: a request's body, and an answer read as a turn. Pure.

What a model says by way of its server's own tool parser becomes text again: what it thought, what
it said, and a line of the protocol for each call, as they stream in. So all that reads, records,
checks and replays a turn sees what it always sees, whoever told the calls from the text.
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
    """The JSON body that asks for ``request.messages`` to be gone on with."""
    body = completion_body(request, model=model, stream=stream)
    del body["prompt"]
    body["messages"] = [*(request.messages or ())]
    if request.tools:
        body["tools"] = [*request.tools]
        body["tool_choice"] = openai_choice(request.tool_choice)
    return body


def openai_choice(choice: str) -> str | dict[str, Any]:
    """``tool_choice`` as OpenAI's interface has it."""
    if choice in ("auto", "none", "required"):
        return choice
    return {"type": "function", "function": {"name": choice}}


# --- what came, as a turn's text ----------------------------------------------------------------

_OPEN: Final = "<think>"
_CLOSE: Final = "</think>"

PIECE_BYTES: Final = 64
"""What a piece of a call is counted for besides its characters: one comes of a token at least."""

_compact: Final = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


@dataclass(slots=True)
class _ChatCallPieces:
    """A call that is not closed, by the ``number`` that its server gives it. ``waiting`` is what
    came of its arguments and is not written yet; ``depth`` and ``quoted`` are where they stand."""

    number: int | None
    id: str = ""
    name: str = ""
    is_started: bool = False
    closed: bool = False
    blank: bool = True
    waiting: list[str] = field(default_factory=list)
    depth: int = 0
    quoted: bool = False
    escaped: bool = False

    def add(self, arguments: str) -> None:
        """More of its arguments. Each character is looked at once, however they are cut."""
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
        """Whether it has a name, and its arguments have come, and are closed again."""
        return bool(self.name) and not self.blank and self.depth <= 0 and not self.quoted


class TurnText:
    """Writes the parts of a turn, as they come, as one text.

    Each method returns what its part adds. A call is told of once its name is there; several are
    written one after the other, however their pieces are mixed. ``size`` is in bytes, for a bound
    on what is kept: what came of calls, and something for each piece.
    """

    def __init__(self) -> None:
        self.size = 0
        self.calls: list[_ChatCallPieces] = []
        self._open: list[_ChatCallPieces] = []  # the first is being written
        self._thinks = False
        self._lead = True  # nothing stands in the line

    def think(self, text: str) -> str:
        """More of a thought. One that comes behind calls is left out."""
        text = text.replace(_CLOSE, "")
        if not text or self.calls:
            return ""
        opening, self._thinks = ("" if self._thinks else _OPEN), True
        return opening + text

    def say(self, text: str) -> str:
        """More of what the model says."""
        if not text or (self.calls and not text.strip()):
            return ""
        written = self._end_thought() + "".join(self._close() for _ in [*self._open])
        self._lead = text.endswith("\n")
        return written + text

    def call(self, number: int | None, call_id: str, name: str, arguments: str) -> str:
        """More of the call with this number, or a new one."""
        self.size += PIECE_BYTES + len(call_id) + len(name) + len(arguments)
        call = self._find_call(number, call_id, name)
        if call is None or call.closed:
            return ""
        call.id, call.name = call.id or call_id, call.name or name
        call.add(arguments)
        written = self._write(self._open[0])
        # The next call has begun: this one is over, unless its server mixes their pieces.
        while len(self._open) > 1 and (call is self._open[0] or not call.is_started):
            if not self._open[0].whole:
                break
            written += self._close() + self._write(self._open[0])
        return written

    def _find_call(self, number: int | None, call_id: str, name: str) -> _ChatCallPieces | None:
        """The call that a piece belongs to, None where it belongs to none."""
        last = self.calls[-1] if self.calls else None
        found = last
        if number is not None:
            found = next((one for one in reversed(self.calls) if one.number == number), None)
        elif call_id and last is not None and last.id != call_id:
            found = next((one for one in self.calls if one.id == call_id), None)
        elif name:
            found = None
        # Some servers give all their calls the same number.
        other = found is not None and call_id and found.id and call_id != found.id
        if found is not None and not (other and name):
            return found
        if not (name or call_id or number is not None):
            return None
        call = _ChatCallPieces(number)
        self.calls.append(call)
        self._open.append(call)
        return call

    def end(self, reason: FinishReason) -> str:
        """The turn is over. A call that was cut off stays open."""
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
        """What can be written of the call that is first."""
        text = ""
        if not call.name:
            return text
        if not call.is_started:
            given = f'"id":{_compact(call.id)},' if call.id else ""
            text = self._end_thought() + ("" if self._lead else "\n")
            text += f'{{"type":"tool_call",{given}"name":{_compact(call.name)},"arguments":'
            call.is_started, self._lead = True, False
        text += "".join(call.waiting)
        call.waiting.clear()
        return text

    def _close(self) -> str:
        call = self._open.pop(0)
        call.name = call.name or " "  # of which the model is told that it is no tool
        text = self._write(call) + ("{}}\n" if call.blank else "}\n")
        call.closed = self._lead = True
        return text


def text_of(content: Any) -> str:
    """The text of a message's content: a string, nothing, or parts."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    texts = (part.get("text") for part in parts if isinstance(part, dict))
    return "".join(text for text in texts if isinstance(text, str))


def arguments_text(value: Any) -> str:
    """A call's arguments as JSON text: they come as that, or as a value."""
    if isinstance(value, str) or value is None:
        return value or ""
    try:
        return _compact(value)
    except (TypeError, ValueError, RecursionError):
        return "null"


# --- an answer ----------------------------------------------------------------------------------


class ChatCollector(Collector):
    """Reads one answer of the chat interface, streamed or whole, as `Collector` reads text.

    Where the server says by its finish reason that there are calls, and gave none, that reason is
    passed on: it kept them to itself, and they can be asked for in another way.
    """

    def __init__(self, address: str, max_tokens: int) -> None:
        super().__init__(address, max_tokens)
        self._turn = TurnText()

    def last(self) -> Chunk:
        """The chunk that ends the turn."""
        reason = self.finish or "length"
        text = without_surrogates(self._high + self._turn.end(reason))
        if reason == "tool_calls" and self._turn.calls:
            reason = "stop"  # they are all there
        return Chunk(text, reason, self._usage)

    def _extract_text(self, choice: dict[str, Any]) -> str:
        whole = choice.get("message")
        if isinstance(whole, dict):
            # an end without a reason promises nothing
            choice["finish_reason"] = choice.get("finish_reason") or "length"
        said = whole if isinstance(whole, dict) else choice.get("delta")
        if not isinstance(said, dict):
            return ""
        text = self._turn.think(text_of(said.get("reasoning_content") or said.get("reasoning")))
        text += self._turn.say(text_of(said.get("content")))
        calls = said.get("tool_calls")
        for call in calls if isinstance(calls, list) else []:
            if isinstance(call, dict):
                text += self._call(call)
        return text

    def _retained_bytes(self) -> int:
        return self._bytes + self._turn.size

    def _call(self, call: Mapping[str, Any]) -> str:
        inner = call.get("function")
        function = inner if isinstance(inner, dict) else call
        number, given, name = call.get("index"), call.get("id"), function.get("name")
        return self._turn.call(
            number if isinstance(number, int) else None,
            str(given) if isinstance(given, str | int) else "",
            name if isinstance(name, str) else "",
            arguments_text(function.get("arguments")),
        )
