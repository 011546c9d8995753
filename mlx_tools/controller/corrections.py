"""Corrections: faults of a completion, with the asked form of its call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from mlx_tools.messages import ErrorInfo, ToolCall, ToolSpec, replace
from mlx_tools.prompt import one_line
from mlx_tools.protocol import Reading, asked_form, attempted_call, closest_tool

if TYPE_CHECKING:
    from mlx_tools.controller.state import SessionState

_MOST_CHARS: Final = 500
"""Characters of an error's words: what all of them have (`PromptWords.error`)."""

_OF_A_TEXT: Final = ("invalid_json", "truncated_output", "unfilled")
"""Codes of faults that another form of the same call mends."""


def explain_reading(reading: Reading, session: SessionState) -> ErrorInfo:
    """Return the error of a reading, with the asked form of the call that was tried."""
    error = reading.error
    assert error is not None
    if error.code not in _OF_A_TEXT:
        return error
    tools = session.offered_tools
    attempt = attempted_call(reading.retained_text, tools)
    name = attempt.name if attempt is not None else session.choice
    if name not in tools:
        return error
    message = error.message
    if attempt is not None and error.code == "invalid_json":
        message = session.words.text("turns.wrote", text=attempt.text, reason=message)
    arguments = attempt.arguments if attempt is not None else None
    form = _form(tools[name], arguments, session)
    return replace(error, message=one_line(message, _MOST_CHARS), form=form)


def explain_call(call: ToolCall, error: ErrorInfo, session: SessionState) -> ErrorInfo:
    """Return the error of a call, with the asked form of one that fits."""
    tools = session.offered_tools
    name = call.name if error.code == "invalid_arguments" else ""
    if error.code == "unknown_tool":
        name = closest_tool(call.name, tools)
    if name not in tools:
        return error
    return replace(error, form=_form(tools[name], call.arguments, session))


def _form(spec: ToolSpec, arguments: Mapping[str, Any] | None, session: SessionState) -> str:
    is_asked_by_chat = session.header.route.get("path") == "native"
    native = ("", "") if is_asked_by_chat else session.call_form
    return asked_form(spec, arguments, session.header.style, native)
