"""Records as messages of OpenAI's chat API, for other programs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Any, Final

from mlx_tools.transcript.records import (
    AnswerRecord,
    CallRecord,
    CompletionRecord,
    ObservationRecord,
    Record,
    UserRecord,
)

_compact: Final = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


def chat_messages(records: Iterable[Record]) -> list[dict[str, Any]]:
    """Return the messages of the user, the assistant and the tools.

    Results stand in the order of their calls. A turn that could not be read is left out, and so is
    its correction. A call without a result, such as one that is pending, has no tool message.
    """
    messages: list[dict[str, Any]] = []
    commentary: dict[int, str] = {}
    results: dict[str, str] = {}
    said: list[UserRecord | CallRecord | AnswerRecord] = []
    for record in records:
        match record:
            case CompletionRecord():
                commentary[record.turn] = record.commentary
            case ObservationRecord():  # of a call in doubt the last one counts
                results[record.call] = observation_text(record)
            case UserRecord() | CallRecord() | AnswerRecord():
                said.append(record)
    for turn, group in groupby(said, lambda one: isinstance(one, CallRecord) and one.turn):
        calls: list[CallRecord] = []
        for one in group:
            if isinstance(one, CallRecord):
                calls.append(one)
            else:
                role = "user" if isinstance(one, UserRecord) else "assistant"
                messages.append({"role": role, "content": one.content})
        if calls:
            told = [tool_call(one.call, one.name, one.arguments) for one in calls]
            content = commentary.get(turn) or None
            messages.append({"role": "assistant", "content": content, "tool_calls": told})
        messages += [
            {"role": "tool", "tool_call_id": one.call, "content": results[one.call]}
            for one in calls
            if one.call in results
        ]
    return messages


def tool_call(call_id: str, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return a call as an assistant message holds it."""
    function = {"name": name, "arguments": _compact(arguments)}
    return {"id": call_id, "type": "function", "function": function}


def observation_text(record: ObservationRecord) -> str:
    """Return the text of a call's end that the model is shown: output or error."""
    error = record.shown_error
    if error is None:
        return record.content or ""
    return _compact({"error": {"code": error.code, "message": error.message}})
