"""Calls that a model tried to make, for corrections."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from msgspec import Struct

from mlx_tools.messages import ToolSpec
from mlx_tools.parsing import compact, objects_in
from mlx_tools.protocol import ToolCatalog, call_sequences, fitting_calls, possible_calls

_SHOWN_CHARS: Final = 80
"""Characters of what was written that are shown: more says no more of the form."""

_ELLIPSIS: Final = "…"


class AttemptedCall(Struct, frozen=True):
    """A call that the model tried to make."""

    text: str
    """The beginning of what it wrote."""
    name: str
    """The tool's own name."""
    arguments: Mapping[str, Any] | None = None
    """None if they cannot be read."""


def attempted_call(text: str, tools: Mapping[str, ToolSpec]) -> AttemptedCall | None:
    """Return the call in ``text`` that names one of the tools, wherever it stands.

    Of several it is the first whose arguments fit. Without a call the line that names a tool is
    one; None if no line does.
    """
    catalog = ToolCatalog({name: spec.parameters for name, spec in tools.items()})
    attempts = [one for one in _attempts(text, catalog) if one.name in tools]
    if attempts:  # the first of those of which most can be read
        return max(attempts, key=lambda one: _fit(one, catalog))
    found = catalog.pattern().search(text)
    name = catalog.find(found[0]) if found is not None else ""
    if found is None or name not in tools:
        return None
    begin = text.rfind("\n", 0, found.start()) + 1
    return AttemptedCall(_shorten(text[max(begin, found.start() - _SHOWN_CHARS // 2) :]), name)


def _attempts(text: str, catalog: ToolCatalog) -> Iterator[AttemptedCall]:
    """Calls that can be read: objects by any keys, then any family's form."""
    for value in filter(None, (value for _, value in objects_in(text))):
        outline = ", ".join(f"{compact(str(key))}: {_ELLIPSIS}" for key in value)
        for name, arguments in (*possible_calls(value), *fitting_calls(catalog, value)):
            yield AttemptedCall(f"{{{outline}}}"[:_SHOWN_CHARS], catalog.find(name), arguments)
    for sequence in call_sequences(text):
        for call in sequence.calls[:1]:
            written = _shorten(text[sequence.begin : sequence.end])
            yield AttemptedCall(written, catalog.find(call.name), call.arguments)


def _fit(attempt: AttemptedCall, catalog: ToolCatalog) -> int:
    """Return how well the arguments fit: 0 if there are none."""
    given = attempt.arguments
    return (1 + catalog.fits(attempt.name, given)) if given else 0


def _shorten(text: str) -> str:
    line = " ".join(text[: 4 * _SHOWN_CHARS].split())
    return line if len(line) <= _SHOWN_CHARS else line[: _SHOWN_CHARS - 1] + _ELLIPSIS
