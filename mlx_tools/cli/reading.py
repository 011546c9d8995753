"""One completion's text, read and judged, as the JSON object that `parse` and `propose` print."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from mlx_tools.cli.toolfile import read_tools
from mlx_tools.errors import ToolDefinitionError, UsageError
from mlx_tools.messages import ErrorInfo, FinishReason, ToolCall, ToolSpec, tool_named
from mlx_tools.protocol import DIALECTS, JudgedCall, Reading, ReadingRules, Style, judge, read

Tools = Mapping[str, ToolSpec]

_OPENINGS: Final = frozenset(("", *(dialect.open for dialect in DIALECTS)))
"""How calls begin in the form of some model's own template, which is not known here."""


def tools_from(path: Path | None) -> Tools | None:
    """The tools of a file; None, where no file is named, for tools that nobody knows."""
    return None if path is None else read_tools(path)


def read_completion(
    text: str,
    *,
    tools: Tools | None,
    finish_reason: FinishReason = "stop",
    style: Style = "jsonl",
    prefix: str = "",
    tool_choice: str = "auto",
    observations: Sequence[str] = (),
) -> dict[str, Any]:
    """How the text is read: messages, what stands beside them, and at most one error.

    Without ``tools`` any tool is taken to exist, to take any arguments and to have all effects.
    """
    rules = reading_rules(tools, style=style, prefix=prefix, tool_choice=tool_choice)
    return as_json(read(text, finish_reason, rules), tools, tool_choice, observations)


def reading_rules(
    tools: Tools | None, *, style: Style, prefix: str = "", tool_choice: str = "auto"
) -> ReadingRules:
    """The rules for a completion that may call these tools."""
    check_choice(tool_choice, tools)

    def mutates(name: str, arguments: Mapping[str, Any]) -> bool:
        spec = (tools or {}).get(name)
        return spec is None or spec.mutates(arguments)

    return ReadingRules(
        style=style,
        prefix=prefix,
        tool_choice=tool_choice,
        mutates=mutates,
        catalog={name: spec.parameters for name, spec in (tools or {}).items()},
        native=_OPENINGS if style == "native" else frozenset(),
    )


def check_choice(tool_choice: str, tools: Tools | None) -> None:
    """Raise `UsageError` for a choice that is neither a word nor one of the tools."""
    allowed = ("auto", "none", "required", *(tools or ()))
    if tools is not None and tool_named(tool_choice, tools) not in allowed:
        raise UsageError(
            f"--tool-choice: {tool_choice!r} is not allowed",
            hint=f"auto, none, required or one of {', '.join(tools) or 'no tools'}",
        )


def as_json(
    reading: Reading,
    tools: Tools | None,
    tool_choice: str = "auto",
    observations: Sequence[str] = (),
) -> dict[str, Any]:
    """A reading, its calls judged, as `parse` prints it.

    A call that is wrong stays among the messages, with its own ``error``; the first of these is the
    reading's where it had none.
    """
    known = tools if tools is not None else _assumed(reading)
    judged = iter(judge(reading, known, observations, tool_choice))
    error = reading.error
    messages: list[dict[str, Any]] = []
    for message in reading.messages:
        if not isinstance(message, ToolCall):
            messages.append(
                {
                    "type": message.type,
                    "content": message.content,
                    "sources": list(message.sources),
                    "repairs": list(message.repairs),
                }
            )
            continue
        call = next(judged)
        messages.append(_call(call))
        error = error or call.error
    return {
        "messages": messages,
        "bare_text": reading.bare_text,
        "truncated": reading.truncated,
        "call_like": reading.call_like,
        "commentary": reading.commentary,
        "reasoning": reading.reasoning,
        "dropped": list(reading.dropped),
        "error": None if error is None else _error(error),
    }


def _call(judged: JudgedCall) -> dict[str, Any]:
    call = judged.call
    value: dict[str, Any] = {"type": call.type}
    if call.id is not None:
        value["id"] = call.id
    value |= {
        "name": call.name,
        "arguments": dict(call.arguments),
        "repairs": list(call.repairs),
        "runs": "with_approval" if judged.error is not None else judged.runs,
    }
    if judged.error is not None:
        value["error"] = _error(judged.error)
    return value


def _error(error: ErrorInfo) -> dict[str, str]:
    return {"code": error.code, "message": error.message}


def _assumed(reading: Reading) -> Tools:
    tools: dict[str, ToolSpec] = {}
    for message in reading.messages:
        if isinstance(message, ToolCall):
            try:
                tools[message.name] = ToolSpec(message.name, parameters={"type": "object"})
            except ToolDefinitionError:  # no tool can have this name: unknown
                continue
    return tools
