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
from mlx_tools.protocol.delimiters import (
    ANSWER_END,
    ANSWER_TAG,
    CALL_END,
    CALL_TAG,
    RESPONSE_END,
    RESPONSE_TAG,
    WHITE,
)
from mlx_tools.protocol.reading import Style
from mlx_tools.protocol.strict import compact

_OPEN: Final = {"jsonl": "", "markdown-json": "```json\n", "xml": CALL_TAG}
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_OWN_TAG: Final = re.compile(r"<(?=/?(?:tool_call|tool_response|final_answer)>)")


def _escaped(half: re.Match[str]) -> str:
    return f"\\u{ord(half[0]):04x}"


def _line(value: Mapping[str, Any], style: Style, tag: str = "", end: str = "") -> str:
    """``value`` as one line of JSON, in what the style puts around it."""
    text = compact(value)
    if not text.isascii():  # half a surrogate pair cannot be written as UTF-8
        text = _SURROGATE.sub(_escaped, text)
    if style == "markdown-json":
        return f"```json\n{text}\n```"
    return tag + _OWN_TAG.sub(r"\\u003c", text) + end if style == "xml" else text


def write_call(
    name: str,
    arguments: Mapping[str, Any],
    id: str | None = None,  # noqa: A002  (the key on the wire)
    style: Style = "jsonl",
) -> str:
    """A call as the model should write it; in style ``native`` as most families do."""
    if style == "native":
        given = {} if id is None else {"id": id}
        text = json.dumps({"name": name, "arguments": arguments} | given, ensure_ascii=False)
        return f"{CALL_TAG}\n{_SURROGATE.sub(_escaped, text)}\n{CALL_END}"
    call: dict[str, Any] = {} if style == "xml" else {"type": "tool_call"}
    call |= {"name": name, "arguments": arguments}
    if id is not None:
        call["id"] = id
    return _line(call, style, CALL_TAG, CALL_END)


def write_answer(content: str, style: Style = "jsonl") -> str:
    """A final answer as the model should write it: bare text in style ``native``.

    In style ``xml`` a text that its tags would not give back as it is stands in an object instead.
    """
    if style == "native":
        return content
    if style == "xml" and content == content.strip(WHITE) and ANSWER_END not in content:
        return f"{ANSWER_TAG}{content}{ANSWER_END}"
    return _line({"type": "final_answer", "content": content}, style)


def write_observation(observation: ToolObservation, style: Style = "jsonl") -> str:
    """Return what came of a call as one line of JSON, whatever the tool gave."""
    line: dict[str, Any] = {"type": "tool_observation", "name": observation.name}
    if observation.id is not None:
        line["id"] = observation.id
    if observation.error is not None:
        line["error"] = {"code": observation.error.code, "message": observation.error.message}
    else:
        line["content"] = observation.content or ""
    return _line(line, style, RESPONSE_TAG, RESPONSE_END)


def forcing_prefix(style: Style, tool_choice: str, call: tuple[str, str] = ("", "")) -> str:
    """Return what the host writes at the start of the model's turn, so that it can only go on so.

    ``tool_choice`` is ``auto`` (nothing is forced), ``none`` (an answer), ``required`` (a call) or
    the name of the tool to call. In style ``native`` ``call`` is what stands before a call's name,
    its mark whole, and between name and arguments; a bare answer has no beginning to be written.
    """
    if tool_choice == "auto" or (style == "native" and (tool_choice == "none" or not call[0])):
        return ""
    if style == "native":
        if tool_choice == "required":
            return call[0]
        in_json = call[1].rstrip().endswith(":")
        return call[0] + tool_choice + call[1] + ("{" if in_json else "")
    if tool_choice == "none":
        if style == "xml":
            return ANSWER_TAG
        return _OPEN[style] + '{"type":"final_answer","content":"'
    begun = _OPEN[style] + ("{" if style == "xml" else '{"type":"tool_call",') + '"name":"'
    if tool_choice == "required":
        return begun
    return begun + json.dumps(tool_choice)[1:-1] + '","arguments":{'


def opening(style: Style) -> str:
    """Return what the host writes at the start of a turn that is to be a message, whichever;
    nothing where a mark of the style would be split."""
    return "" if style in ("xml", "native") else _OPEN[style] + '{"type":"'
