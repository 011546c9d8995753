"""The calls of a reading, validated against their tools: rules 9, 10 and 12.

Each call is judged alone: its name by the catalog, its arguments by the tool's schema. Then reading
says whether it may run without asking. Policy decides later.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Set
from typing import Any, Final, Literal

from msgspec import Struct

from mlx_tools.errors import ToolDefinitionError
from mlx_tools.messages import (
    ALIASES,
    TOOL_NAME,
    ErrorInfo,
    ToolCall,
    ToolSpec,
    loose_name,
    own_name,
    replace,
)
from mlx_tools.protocol.echo import echo_keys
from mlx_tools.protocol.reading import Reading
from mlx_tools.schema import (
    MAX_MESSAGE_CHARS,
    CheckTooLong,
    check_arguments,
    format_path,
    join_faults,
)

_MAX_NAME_CHARS: Final = 80


class JudgedCall(Struct, frozen=True, kw_only=True):
    """A call, and the judgement of reading on it."""

    call: ToolCall
    """The call with the tool's own name and coerced arguments; its repairs have the coercions."""
    runs: Literal["freely", "with_approval"] = "with_approval"
    """``with_approval`` if the call is echoed, or not clean and may change things."""
    echoed: bool = False
    error: ErrorInfo | None = None
    """The observation of a call that is not valid."""


def judge(
    reading: Reading,
    tools: Mapping[str, ToolSpec],
    calls_seen: Set[str] = frozenset(),
    tool_choice: str = "auto",
    aliases: Mapping[str, str] = ALIASES,
) -> tuple[JudgedCall, ...]:
    """Judge each call of ``reading`` alone, and return them in order.

    ``tools`` is the catalog by name. ``calls_seen`` are the calls in earlier outputs
    (`mlx_tools.protocol.find_call_keys`). ``aliases`` are other names that are accepted for a tool.
    """

    def judge_one(written_call: ToolCall) -> JudgedCall:
        spec, repairs = resolve(written_call.name, tools, aliases)
        if spec is None:
            named = replace(written_call, name=own_name(written_call.name, aliases))
            return JudgedCall(call=named, error=unknown_tool(written_call.name, tools))
        arguments, coercions, error = validate_arguments(spec, written_call.arguments)
        repairs = (*written_call.repairs, *repairs, *coercions)
        call = ToolCall(spec.name, arguments, written_call.id, repairs)
        if tool_choice not in ("auto", "required", spec.name) and (
            tool_choice == "none" or resolve(tool_choice, tools, aliases)[0] is not spec
        ):
            what = "no tool" if tool_choice == "none" else f"only {tool_choice}"
            error = ErrorInfo("not_allowed", f"{what} may be called here")
        if error is not None:
            return JudgedCall(call=call, error=error)
        # One of the forms that the call has taken may stand in an observation.
        forms = (
            [echo_keys(one.name, one.arguments) for one in (written_call, call)]
            if calls_seen
            else []
        )
        echoed = any(not keys.isdisjoint(calls_seen) for keys in forms)
        mutates = spec.mutates(arguments)
        if echoed and mutates:
            error = ErrorInfo("echoed_call", "this call stands in an earlier observation")
        freely = not echoed and (not mutates or (reading.clean and not repairs))
        runs: Literal["freely", "with_approval"] = "freely" if freely else "with_approval"
        return JudgedCall(call=call, runs=runs, echoed=echoed, error=error)

    return tuple(judge_one(one) for one in reading.messages if isinstance(one, ToolCall))


# --- the name ---------------------------------------------------------------------------------


def resolve(
    name: str, tools: Mapping[str, ToolSpec], aliases: Mapping[str, str] = ALIASES
) -> tuple[ToolSpec | None, tuple[str, ...]]:
    """Return the tool that ``name`` means, and the repair of the name.

    The repair is ``("tool_name",)`` if the tool has another name.

    An alias is a name like any other. A name in another case, or with other ``-``, ``_`` and ``.``,
    is accepted if it can mean only one tool.
    """
    if name in tools:
        return tools[name], ()
    if (alias := own_name(name, aliases)) in tools:
        return tools[alias], ()
    if not TOOL_NAME.fullmatch(name):  # a look-alike in another script is another name
        return None, ()
    loose = loose_name(name)
    meant = {known for known in tools if loose_name(known) == loose}
    meant |= {
        tool for other, tool in aliases.items() if tool in tools and loose_name(other) == loose
    }
    return (tools[meant.pop()], ("tool_name",)) if len(meant) == 1 else (None, ())


def unknown_tool(name: str, tools: Mapping[str, ToolSpec]) -> ErrorInfo:
    """Return the error of a call whose name no tool has, with the closest tool."""
    # In ASCII, so that a letter of another script shows.
    text = f"{name[:_MAX_NAME_CHARS]!a} is no tool"
    if close := closest_tool(name, tools):
        text += f"; did you mean {close}?"
    return ErrorInfo("unknown_tool", text)


def closest_tool(name: str, tools: Mapping[str, ToolSpec]) -> str:
    """Return the tool whose name is most like ``name``, empty if none is close."""
    # Imported late: a call rarely has a wrong name.
    from difflib import get_close_matches

    by_loose = {loose_name(known): known for known in tools}
    loose = loose_name(name) if len(name) <= _MAX_NAME_CHARS else ""
    close = get_close_matches(loose, by_loose, n=1)
    return by_loose[close[0]] if close else ""


# --- the arguments ----------------------------------------------------------------------------


def validate_arguments(
    spec: ToolSpec, arguments: Mapping[str, Any]
) -> tuple[dict[str, Any], tuple[str, ...], ErrorInfo | None]:
    """Return the arguments as the tool takes them, the coercions, and the error.

    The error is None if they fit, else it lists each fault as ``path: what was expected``. With an
    error the arguments are returned unchanged. Nothing is fetched; the work is bounded.
    """
    given = dict(arguments)
    # jsonschema takes NaN and infinities for numbers, but JSON cannot carry them to a tool.
    if (path := _not_finite(given)) is not None:
        text = f"{format_path(path)}: a finite number"
        return given, (), ErrorInfo("invalid_arguments", text[:MAX_MESSAGE_CHARS])
    try:
        mended, coercions, found = check_arguments(given, spec.parameters)
    except ToolDefinitionError as error:
        text = f"{spec.name}: its parameters cannot be used: {error.message}"
        return given, (), ErrorInfo("tool_error", text[:MAX_MESSAGE_CHARS])
    except (CheckTooLong, RecursionError):
        text = "arguments: less, they are too large or too deep to be checked"
        return given, (), ErrorInfo("invalid_arguments", text)
    if found:
        return given, (), ErrorInfo("invalid_arguments", join_faults(found))
    return mended, coercions, None


def _not_finite(value: Any) -> tuple[str | int, ...] | None:
    """Return the path to a ``NaN`` or an infinity, or None."""
    todo: list[tuple[Any, tuple[str | int, ...]]] = [(value, ())]
    while todo:
        item, path = todo.pop()
        if isinstance(item, float) and not math.isfinite(item):
            return path
        if isinstance(item, Mapping):
            todo += ((inner, (*path, key)) for key, inner in item.items())
        elif isinstance(item, list):
            todo += ((inner, (*path, index)) for index, inner in enumerate(item))
    return None
