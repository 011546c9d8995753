"""Faults of a completion, with the right form of the call that the model tried."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from mlx_tools.messages import ErrorInfo, Style, ToolCall, ToolSpec, replace
from mlx_tools.parsing import compact, find_objects
from mlx_tools.prompt import GAP, one_line
from mlx_tools.protocol import (
    Reading,
    ToolCatalog,
    call_sequences,
    closest_tool,
    fitting_calls,
    possible_calls,
    validate_arguments,
    write_call,
)
from mlx_tools.schema import read_properties, read_required

if TYPE_CHECKING:
    from mlx_tools.controller.state import SessionState

_MAX_CHARS: Final = 500
"""Characters of an error's words: what all of them have (`PromptWords.error`)."""

_MAX_VALUE_CHARS: Final = 80
"""Characters of a value, or of the model's text, that are shown: more would not explain the form.
"""

_ELLIPSIS: Final = "…"

_SYNTAX_FAULTS: Final = ("invalid_json", "truncated_output", "unfilled")
"""Codes of faults that the right form of the same call mends."""


def explain_reading(reading: Reading, session: SessionState) -> ErrorInfo:
    """Return the error of a reading, with the right form of the attempted call."""
    error = reading.error
    assert error is not None
    if error.code not in _SYNTAX_FAULTS:
        return error
    tools = session.offered_tools
    attempt = attempted_call(reading.retained_text, tools)
    name = attempt.name if attempt is not None else session.choice
    if name not in tools:
        return error
    message = error.message
    if attempt is not None and error.code == "invalid_json":
        message = session.words.text("turns.wrote", text=attempt.text, reason=message)
    # The form shows the parts of the attempt that fit: a small model copies it, and fills the gaps.
    arguments = attempt.arguments if attempt is not None else None
    form = _form(tools[name], arguments, session)
    return replace(error, message=one_line(message, _MAX_CHARS), form=form)


def explain_call(call: ToolCall, error: ErrorInfo, session: SessionState) -> ErrorInfo:
    """Return the error of a call, with the right form of one that fits."""
    tools = session.offered_tools
    name = call.name if error.code == "invalid_arguments" else ""
    if error.code == "unknown_tool":
        # A made-up name is mostly near a real one, whose form then helps more than a list of all
        # names.
        name = closest_tool(call.name, tools)
    if name not in tools:
        return error
    return replace(error, form=_form(tools[name], call.arguments, session))


def _form(spec: ToolSpec, arguments: Mapping[str, Any] | None, session: SessionState) -> str:
    is_asked_by_chat = session.header.route.get("path") == "native"
    native = ("", "") if is_asked_by_chat else session.call_form
    return write_example_call(spec, arguments, session.header.style, native)


def write_example_call(
    spec: ToolSpec,
    arguments: Mapping[str, Any] | None,
    style: Style,
    native: tuple[str, str] = ("", ""),
) -> str:
    """Return a call of this tool as the model should write it.

    It has the arguments that fit. An argument that is missing, long or does not fit is a `GAP`. In
    style ``native`` it is the object between the marks of the model's own form, because those are
    control tokens; ``native`` has the text before the name, and before the arguments. The form is
    empty if there is no such object.
    """
    values = _fitting(spec, arguments)
    before, between = native
    if style != "native":
        form = write_call(spec.name, values, style=style)
    # Only the object between the marks: the marks are control tokens, which no text may hold.
    elif "{" in before and between.rstrip().endswith(":"):
        form = f"{before[before.index('{') :]}{spec.name}{between}{compact(values)}}}"
    else:
        return ""
    return form.replace(f'"{GAP}"', GAP)


def _fitting(spec: ToolSpec, arguments: Mapping[str, Any] | None) -> dict[str, Any]:
    schema = spec.parameters
    known, due = read_properties(schema), read_required(schema)
    given = dict(arguments or {})
    if validate_arguments(spec, given)[2] is None and (arguments or not known):
        values = given
    else:
        keys = [key for key in known if key in given or key in due] or [*known][:1]
        values = {key: given[key] if _fits(spec, key, given) else GAP for key in keys}
    return {k: v if len(compact(v)) <= _MAX_VALUE_CHARS else GAP for k, v in values.items()}


def _fits(spec: ToolSpec, key: str, arguments: Mapping[str, Any]) -> bool:
    """Return whether the value of one key fits, whatever the other keys are."""
    if key not in arguments:
        return False
    # Each key by itself, so that one wrong argument does not blank the others.
    parameters = {**spec.parameters, "required": [key], "minProperties": 0}
    alone = ToolSpec(spec.name, parameters=parameters)
    return validate_arguments(alone, {key: arguments[key]})[2] is None


# --- the call that was tried ---------------------------------------------------------------------


class AttemptedCall(Struct, frozen=True):
    """A call that the model tried to make."""

    text: str
    """The beginning of the model's text."""
    name: str
    """The tool's own name."""
    arguments: Mapping[str, Any] | None = None
    """None if they cannot be read."""


def attempted_call(text: str, tools: Mapping[str, ToolSpec]) -> AttemptedCall | None:
    """Return the call in ``text`` that names one of the tools, at any place.

    Of several it is the first whose arguments fit. Without a call, a line that names a tool counts
    as one. None if there is no such line.
    """
    catalog = ToolCatalog({name: spec.parameters for name, spec in tools.items()})
    attempts = [one for one in _attempts(text, catalog) if one.name in tools]
    if attempts:  # the first call with the most arguments that can be read
        return max(attempts, key=lambda one: _fit_score(one, catalog))
    found = catalog.pattern().search(text)
    name = catalog.find(found[0]) if found is not None else ""
    if found is None or name not in tools:
        return None
    begin = text.rfind("\n", 0, found.start()) + 1
    return AttemptedCall(_shorten(text[max(begin, found.start() - _MAX_VALUE_CHARS // 2) :]), name)


def _attempts(text: str, catalog: ToolCatalog) -> Iterator[AttemptedCall]:
    """Yield the calls that can be read: objects by any keys, then any family's form."""
    for value in filter(None, (value for _, value in find_objects(text))):
        outline = ", ".join(f"{compact(str(key))}: {_ELLIPSIS}" for key in value)
        for name, arguments in (*possible_calls(value), *fitting_calls(catalog, value)):
            yield AttemptedCall(f"{{{outline}}}"[:_MAX_VALUE_CHARS], catalog.find(name), arguments)
    for sequence in call_sequences(text):
        for call in sequence.calls[:1]:
            written = _shorten(text[sequence.begin : sequence.end])
            yield AttemptedCall(written, catalog.find(call.name), call.arguments)


def _fit_score(attempt: AttemptedCall, catalog: ToolCatalog) -> int:
    """Return how well the arguments fit: 0 if there are none."""
    given = attempt.arguments
    return (1 + catalog.fits(attempt.name, given)) if given else 0


def _shorten(text: str) -> str:
    line = " ".join(text[: 4 * _MAX_VALUE_CHARS].split())
    return line if len(line) <= _MAX_VALUE_CHARS else line[: _MAX_VALUE_CHARS - 1] + _ELLIPSIS
