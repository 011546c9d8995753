"""The tool whose call is the answer, if the answer has to fit a JSON Schema.

The answer is then the call of one more tool, which is in no registry. So it is held to its schema,
mended, repaired and validated like any call, in every style and dialect.
"""

from __future__ import annotations

import json
import re
from collections.abc import Container, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any, Final

from msgspec import Struct

from mlx_tools.messages import FinalAnswer, ToolSpec, loose_name
from mlx_tools.parsing import Unreadable, compact, fences, loads
from mlx_tools.protocol import Reading, validate_arguments
from mlx_tools.schema import check_parameters, is_of_objects, object_schema, schema_text

_KEY: Final = "value"
_LAST_LINES: Final = re.compile(r"^[ \t]*[{\[].*\Z", re.DOTALL | re.MULTILINE)


class ResultTool(Struct, frozen=True):
    """The tool whose call is the answer.

    ``is_wrapped``: the answer may be something else than an object, and is the value of the one key
    that ``spec`` has.
    """

    spec: ToolSpec
    is_wrapped: bool

    @classmethod
    def from_schema(cls, schema: Mapping[str, Any], name: str, description: str) -> ResultTool:
        """Make the tool for answers that fit ``schema``.

        Raises `ToolDefinitionError` if the schema cannot be used.
        """
        return _make_tool(schema_text(schema), name, description)

    def is_called(self, name: str, other_tools: Container[str]) -> bool:
        """Return whether a call's name means this tool and none of the ``other_tools``."""
        own = self.spec.name
        return name == own or (name not in other_tools and loose_name(name) == loose_name(own))

    def make_answer(
        self, arguments: Mapping[str, Any], repairs: tuple[str, ...]
    ) -> FinalAnswer | None:
        """Return the answer that a call with these arguments gives, as compact JSON.

        None if they do not fit.
        """
        fitting, coercions, error = validate_arguments(self.spec, arguments)
        if error is not None:
            return None
        value = fitting[_KEY] if self.is_wrapped else fitting
        return FinalAnswer(compact(value), (), (*repairs, *coercions))

    def parse_arguments(self, text: str) -> Mapping[str, Any] | None:
        """Return the arguments that the JSON in ``text`` stands for, else None.

        It may stand in the text's one fence, or be the last lines of the text.
        """
        fenced = [*fences(text)]
        fence = fenced[0].inside if len(fenced) == 1 else ""
        last = _LAST_LINES.search(text)
        for value in (text, fence, last[0] if last else ""):
            with suppress(Unreadable):
                return self._arguments(loads(value))
        return None

    def _arguments(self, value: Any) -> Mapping[str, Any] | None:
        if self.is_wrapped:
            return {_KEY: value}
        return value if isinstance(value, dict) else None


def holds_result(spec: ToolSpec, reading: Reading) -> bool:
    """Return whether an answer is JSON that a result tool's ``spec`` takes.

    It may be the arguments themselves or, of a wrapped answer, the value.
    """
    (answer,) = reading.messages
    if not isinstance(answer, FinalAnswer) or reading.truncated:
        return False
    tools = (ResultTool(spec, is_wrapped) for is_wrapped in (False, True))
    said = (tool.parse_arguments(answer.content) for tool in tools)
    return any(one is not None and validate_arguments(spec, one)[2] is None for one in said)


@lru_cache(maxsize=256)
def _make_tool(text: str, name: str, description: str) -> ResultTool:
    """Make the tool once for a schema, so that what is compiled for it is kept."""
    schema = json.loads(text)
    is_object = is_of_objects(schema)
    parameters = {**schema, "type": "object"} if is_object else object_schema(schema, _KEY)
    check_parameters(parameters)
    return ResultTool(ToolSpec(name, description, parameters, effects=frozenset()), not is_object)
