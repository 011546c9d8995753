"""The lines that the host writes in the model's place or for it to read, in each style.

Compact separators, nothing escaped but what JSON or the style needs. What `write_call` and
`write_answer` write is read back as it was.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from mlx_tools.messages import ToolObservation
from mlx_tools.protocol.compact import compact
from mlx_tools.protocol.lexis import (
    ANSWER_END,
    ANSWER_TAG,
    CALL_END,
    CALL_TAG,
    RESPONSE_END,
    RESPONSE_TAG,
    WHITE,
)
from mlx_tools.protocol.rules import Style

_OPEN: Final = {"jsonl": "", "markdown-json": "```json\n", "xml": CALL_TAG}
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_OWN_TAG: Final = re.compile(r"<(?=/?(?:tool_call|tool_response|final_answer)>)")


def _json(value: Mapping[str, Any], style: Style) -> str:
    text = compact(value)
    if not text.isascii():  # half a surrogate pair cannot be written as UTF-8
        text = _SURROGATE.sub(lambda half: f"\\u{ord(half[0]):04x}", text)
    return _OWN_TAG.sub(r"\\u003c", text) if style == "xml" else text


def _wrapped(text: str, style: Style, tag: str = "", end: str = "") -> str:
    if style == "markdown-json":
        return f"```json\n{text}\n```"
    return f"{tag}{text}{end}" if style == "xml" else text


def write_call(
    name: str,
    arguments: Mapping[str, Any],
    id: str | None = None,  # noqa: A002  (the key on the wire)
    style: Style = "jsonl",
) -> str:
    """A call as the model should write it."""
    call: dict[str, Any] = {} if style == "xml" else {"type": "tool_call"}
    call |= {"name": name, "arguments": arguments}
    if id is not None:
        call["id"] = id
    return _wrapped(_json(call, style), style, CALL_TAG, CALL_END)


def write_answer(content: str, style: Style = "jsonl") -> str:
    """A final answer as the model should write it.

    In style ``xml`` a text that its tags would not give back as it is stands in an object instead.
    """
    if style == "xml" and content == content.strip(WHITE) and ANSWER_END not in content:
        return f"{ANSWER_TAG}{content}{ANSWER_END}"
    return _wrapped(_json({"type": "final_answer", "content": content}, style), style)


def write_observation(observation: ToolObservation, style: Style = "jsonl") -> str:
    """What came of a call, for the model to read: one line of JSON, whatever the tool gave."""
    line: dict[str, Any] = {"type": "tool_observation", "name": observation.name}
    if observation.id is not None:
        line["id"] = observation.id
    if observation.error is not None:
        line["error"] = {"code": observation.error.code, "message": observation.error.message}
    else:
        line["content"] = observation.content or ""
    return _wrapped(_json(line, style), style, RESPONSE_TAG, RESPONSE_END)


def forcing_prefix(style: Style, tool_choice: str) -> str:
    """What the host writes at the start of the model's turn, so that it can only go on so.

    ``tool_choice`` is ``auto`` (nothing is forced), ``none`` (an answer), ``required`` (a call) or
    the name of the tool to call.
    """
    if tool_choice == "auto":
        return ""
    if tool_choice == "none":
        if style == "xml":
            return ANSWER_TAG
        return _OPEN[style] + '{"type":"final_answer","content":"'
    call = _OPEN[style] + ("{" if style == "xml" else '{"type":"tool_call",') + '"name":"'
    if tool_choice == "required":
        return call
    return call + json.dumps(tool_choice)[1:-1] + '","arguments":{'


def closing(style: Style, message: str) -> str:
    """What closes a message whose last value is written: a ``tool_call`` whose arguments are, or a
    ``final_answer`` whose text is."""
    call = message == "tool_call"
    if style == "xml":
        return "}" + CALL_END if call else ANSWER_END
    return ("}" if call else '"}') + ("\n```" if style == "markdown-json" else "")
