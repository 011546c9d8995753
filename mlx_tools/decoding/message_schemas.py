"""Schemas of the messages of a turn, and checks of whole messages and turns."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from mlx_tools.decoding.value import MessageSchema
from mlx_tools.messages import FinalAnswer, ToolCall, ToolSpec
from mlx_tools.prompt import holds_result
from mlx_tools.protocol import DIALECTS, Dialect, Reading, ReadingRules, judge, resolve
from mlx_tools.schema import fits_plainly

JSON_DIALECTS: Final = {
    dialect.open: dialect
    for dialect in reversed(DIALECTS)
    if dialect.body == "json" and dialect.name_key
}
_ARGUMENTS_KEY: Final = re.compile(r'"(\w+)"\s*:\s*\Z')
_schemas: dict[tuple[Any, ...], tuple[Mapping[str, ToolSpec], MessageSchema | None]] = {}
"""Schemas by their arguments and the identities of their tools.

The tools are stored too: without them another tool could get the identity of one.
"""
_MAX_SCHEMAS: Final = 64


def get_message_schema(
    dialect: Dialect | None, choice: str, offered: Mapping[str, ToolSpec], exact: str
) -> MessageSchema | None:
    """Return the schema of a message. It is compiled once for the same tools.

    Args:
        dialect: the dialect of the message, None for the protocol's own form.
        choice: the tool choice.
        offered: the tools by name.
        exact: the name of the tool whose arguments must be exact, because they are the result.

    Returns:
        The schema, None if there are no tools or too many for llguidance.
    """
    key = dialect, choice, exact, *map(id, offered.values())
    if key in _schemas:
        return _schemas[key][1]
    chosen_tool = resolve(choice, offered)[0]
    tools = dict(offered) if chosen_tool is None else {chosen_tool.name: chosen_tool}

    def canonical_key(name: str) -> str | None:
        spec = resolve(name, offered)[0]
        return None if spec is None else spec.name

    parameters = {n: spec.parameters for n, spec in tools.items() if choice != "none"}
    keys = None if dialect is None else (dialect.name_key, dialect.arguments_key)
    schema: MessageSchema | None = None
    with suppress(ValueError):  # no tools, or too many for llguidance
        answers = choice in ("auto", "none")
        schema = MessageSchema(parameters, canonical_key, keys=keys, answers=answers, exact=exact)
    if len(_schemas) >= _MAX_SCHEMAS:
        _schemas.clear()
    _schemas[key] = dict(offered), schema
    return schema


def find_bare_dialect(rules: ReadingRules) -> Dialect | None:
    """Return the dialect of a template with calls as bare objects, else None."""
    key = _ARGUMENTS_KEY.search(rules.call[1])
    if key is None:
        return None
    return Dialect(
        "bare", open="", close="", body="json", form="objects", arguments_key=key[1], separator=";"
    )


def fits_unchanged(
    message: ToolCall | FinalAnswer, tools: Mapping[str, ToolSpec], tool_choice: str
) -> bool:
    """Return whether a message is allowed, with arguments that fit unchanged."""
    if isinstance(message, FinalAnswer):
        return tool_choice in ("auto", "none")
    spec = tools.get(message.name)
    is_allowed = spec is not None and tool_choice in ("auto", "required", spec.name)
    return spec is not None and is_allowed and fits_plainly(message.arguments, spec.parameters)


def is_valid_turn(reading: Reading, tools: Mapping[str, ToolSpec], rules: ReadingRules) -> bool:
    """Return whether a reading has valid calls, an answer, or the value asked for."""
    spec = tools.get(rules.result)
    if spec is not None and isinstance(next(iter(reading.messages), None), FinalAnswer):
        return holds_result(spec, reading)
    if reading.error is not None or reading.bare_text or not reading.messages:
        return False
    return not any(call.error for call in judge(reading, tools, tool_choice=rules.tool_choice))
