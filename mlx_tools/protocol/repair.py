"""Named repairs (reading rule 7): a text that is almost JSON, made JSON by its `Fix`es.

The scanner finds what deviates and where; here the fixes are put in and the result is read
strictly. So a repair changes punctuation, quotes and escapes, and takes nothing from anywhere else:
every string and every number of the result stands in the text (reading rule 8).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from mlx_tools.protocol.lexemes import Fix
from mlx_tools.protocol.strict import Unreadable, loads

REPAIRS: Final[tuple[str, ...]] = (
    "single_quotes",
    "python_literal",
    "trailing_comma",
    "missing_comma",
    "unquoted_key",
    "raw_newline",
    "raw_control",
    "comment",
    "invalid_escape",
    "inline",
    "missing_closers",
    "envelope_alias",
    "arguments_string",
    "missing_arguments",
    "id_string",
    "tool_name",
    "dialect",
    "noise",
)
"""Every repair a message can bear, those of the envelope and of the tool's name included."""

SECOND_OPINION_CHARS: Final = 2000
"""The longest text for which `json_repair`, which is not linear, is asked."""


def repaired(text: str, fixes: Sequence[Fix], closers: str = "") -> tuple[Any, tuple[str, ...]]:
    """The value of ``text`` with ``fixes`` and ``closers`` put in, and the names of the repairs.

    Raises `Unreadable` where the result is no strict JSON, or a second reader finds another
    meaning in it.
    """
    if not fixes and not closers:
        return loads(text), ()
    ordered = sorted(fixes)
    value = loads(_patched(text, ordered) + closers)
    names = tuple(dict.fromkeys(fix.name for fix in ordered))
    if "missing_comma" in names:
        _agree(text + closers, value)
    return value, (*names, "missing_closers") if closers else names


def _patched(text: str, fixes: Sequence[Fix]) -> str:
    pieces: list[str] = []
    done = 0
    for fix in fixes:
        pieces += (text[done : fix.start], fix.text)
        done = fix.end
    pieces.append(text[done:])
    return "".join(pieces)


def _agree(text: str, value: Any) -> None:
    """Raises `Unreadable` where `json_repair` reads ``text`` as something else than ``value``.

    Where a comma is missing, the text alone does not say what the writer meant to separate. Two
    readings that differ are an error, not a choice (reading rule 8).
    """
    if len(text) > SECOND_OPINION_CHARS:
        return
    import json_repair

    try:
        agrees = _loose(json_repair.loads(text, skip_json_loads=True)) == _loose(value)
    except Exception:  # a guesser that stumbles has no opinion
        return
    if not agrees:
        raise Unreadable("a comma is missing, and the text can be read in two ways")


def _loose(value: Any) -> Any:
    """``value`` without what `json_repair` is known to get wrong: backslashes and white space."""
    if isinstance(value, dict):
        return {key: _loose(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_loose(item) for item in value]
    if isinstance(value, str):
        return "".join(value.replace("\\", "").split())
    return value
