"""JSON text of a call's arguments that only grows, while the call is written.

A value is sent once it is complete and fits its schema unchanged. So a client that parses the text
as it comes never sees a value that a repair, a coercion or a mend would change.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct, field

from mlx_tools.errors import ToolDefinitionError
from mlx_tools.messages import json_line
from mlx_tools.parsing import CLOSED, INCOMPLETE, ObjectScanner, Unreadable, loads
from mlx_tools.schema import (
    CheckTooLong,
    dereference,
    find_faults,
    fits_plainly,
    limit_steps,
    list_types,
    make_validator,
    read_properties,
)

_CONDITIONS: Final = frozenset(
    (
        *("anyOf", "oneOf", "allOf", "not", "if", "enum", "const", "dependentSchemas"),
        *("patternProperties", "prefixItems", "contains", "$dynamicRef"),
        *("unevaluatedProperties", "unevaluatedItems"),
    )
)
"""Keywords by which one part of a value decides about another: such a value is sent as a whole."""


class _Container(Struct):
    """An object or array that is open, with the schema of its parts."""

    is_object: bool
    schema: Any
    keys: set[str] = field(default_factory=set)
    key: str = ""
    is_empty: bool = True


class AcceptedArguments:
    """Makes JSON text of a call's raw arguments, up to the last accepted value.

    Attributes:
        keys: The outermost keys, in the order in which they were written.
        text: The JSON text so far.
    """

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        self.keys: list[str] = []
        self.text = ""
        self._parameters = parameters
        self._scanner = ObjectScanner(parts=self)
        self._raw = ""
        self._is_settled = False
        self._is_over = False  # a value has to be checked as a whole: the rest is sent at the end
        self._open: list[_Container] = []
        self._waiting: list[str] = []  # after the last accepted value
        self._is_pending = False  # the last string may go on, if its quote was one within it
        self._whole: int | None = None  # the containers around a value that is sent as a whole
        self._whole_begin = 0  # the first piece of that value
        self._whole_schema: Any = True

    def feed(self, raw: str, *, is_settled: bool) -> str:
        """Take in more raw text; return more of the JSON text.

        Args:
            raw: The next text of the arguments, as the model wrote it.
            is_settled: Whether that text stands whatever follows. If not, a string counts once
                what follows its quote shows that it has ended.
        """
        before = len(self.text)
        self._raw += raw
        self._is_settled = is_settled
        if not self._is_over and self._scanner.status == INCOMPLETE:
            self._scanner.advance(self._raw)
            has_ended = self._scanner.comma_open or self._scanner.status == CLOSED
            if is_settled or has_ended:
                self._commit()
        return self.text[before:]

    # --- what the scanner tells ---

    def on_open(self, begin: int, is_object: bool) -> bool:
        """Take a brace or bracket."""
        self._commit()
        schema = self._part_schema() if self._open else self._parameters
        schema = dereference(schema, self._parameters)
        self._separate()
        if self._whole is None:
            if not _takes(schema, "object" if is_object else "array"):
                return self._stop()
            if isinstance(schema, Mapping) and not _CONDITIONS.isdisjoint(schema):
                self._whole, self._whole_begin = len(self._open), len(self._waiting)
                self._whole_schema = schema
        self._waiting.append("{" if is_object else "[")
        self._open.append(_Container(is_object, schema))
        return True

    def on_key(self, begin: int, key: str) -> bool:
        """Take a key."""
        self._commit()
        container = self._open[-1]
        if key in container.keys:
            return self._stop()  # two readings
        container.keys.add(key)
        container.key = key
        if len(self._open) == 1:
            self.keys.append(key)
        self._separate()
        container.is_empty = True  # no comma before the key's value
        self._waiting.append(f"{json_line(key)}:")
        return True

    def on_value(self, begin: int, end: int, value: str, is_string: bool) -> bool:
        """Take a scalar."""
        self._commit()
        try:
            scalar = value if is_string else loads(value)
        except Unreadable:
            return self._stop()
        if self._whole is None and not self._fits(scalar, self._part_schema()):
            return self._stop()
        self._separate()
        self._waiting.append(json_line(scalar))
        self._is_pending = self._whole is None
        if not is_string or self._is_settled:
            self._commit()
        return True

    def on_close(self, begin: int) -> bool:
        """Take a closing brace or bracket."""
        self._commit()
        container = self._open.pop()
        self._waiting.append("}" if container.is_object else "]")
        if self._whole == len(self._open):
            self._whole = None
            value = json.loads("".join(self._waiting[self._whole_begin :]))
            if not self._fits(value, self._whole_schema):
                return self._stop()
            self._is_pending = True
            self._commit()
        return True

    # --- what comes of it ---

    def _commit(self) -> None:
        if self._is_pending:
            self._is_pending = False
            self.text += "".join(self._waiting)
            self._waiting.clear()

    def _stop(self) -> bool:
        self._is_over = True
        return False

    def _separate(self) -> None:
        """Write the comma that must come before a key or item."""
        if self._open:
            container = self._open[-1]
            if not container.is_empty:
                self._waiting.append(",")
            container.is_empty = False

    def _part_schema(self) -> Any:
        """Return the schema of the value that comes next."""
        container = self._open[-1]
        schema = container.schema if isinstance(container.schema, Mapping) else {}
        if not container.is_object:
            return schema.get("items", True)
        known = read_properties(schema)
        if container.key in known:
            return known[container.key]
        return schema.get("additionalProperties", True)

    def _fits(self, value: Any, schema: Any) -> bool:
        if isinstance(schema, bool):
            return schema
        if "type" in schema and fits_plainly(value, schema):
            return True
        try:
            with limit_steps():
                validator = make_validator(self._parameters).evolve(schema=schema)
                return not find_faults(validator, value, 1)
        except (ToolDefinitionError, CheckTooLong, RecursionError):
            return False


def _takes(schema: Any, kind: str) -> bool:
    """Return whether a schema takes values of this type."""
    if not isinstance(schema, Mapping):
        return schema is not False
    return "type" not in schema or kind in list_types(schema)
