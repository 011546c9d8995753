"""Messages for a wrong setting, with the names and values that may be meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, Final

from mlx_tools.app.setting_rows import SettingRow
from mlx_tools.app.settings import OTHER_VARIABLES, table

_RESTRICTING: Final = ("enabled", "policy", "limits")
"""The settings and sections that restrict what runs."""
_LIKE: Final = 0.7
"""The likeness, from 0 to 1, of two names of which one may be a misspelling."""


@cache
def list_section_names() -> tuple[str, ...]:
    """Return the dotted names of all sections."""
    return tuple(sorted({key.rpartition(".")[0] for key in table()} - {""}))


@cache
def map_rows_by_variable() -> dict[str, SettingRow]:
    """Return the settings by their environment variable."""
    return {row.env: row for row in table().values()}


def find_close_variable(name: str) -> str | None:
    """Return the variable that a wrong name may mean, None if there is none.

    The wrong name may also come from a setting's key.
    """
    key_like = name.removeprefix("MLX_TOOLS_").lower().replace("_", ".", 1)
    if match := next(
        (key for key in (key_like, *_find_similar_keys(key_like)) if key in table()), None
    ):
        return table()[match].env
    close = difflib.get_close_matches(
        name, [*map_rows_by_variable(), *OTHER_VARIABLES], n=1, cutoff=0.8
    )
    return close[0] if close else None


def _normalise(key: str) -> str:
    """Return a key without units and separators, to compare it with typed text."""
    return key.lower().removesuffix("_ms").replace("_", "").replace("-", "")


def _find_similar_keys(key: str) -> list[str]:
    """Return the settings and sections that a wrong key may mean, the likeliest first.

    A person may have written a wrong section or none, the name of the option, or a misspelling.
    """
    section, _, tail = key.rpartition(".")
    flag = f"--{tail.replace('_', '-')}"
    same_tail = [
        known
        for known, row in table().items()
        if known.rpartition(".")[2] == tail or row.setting.flag == flag
    ]
    same_tail.sort(key=lambda known: -difflib.SequenceMatcher(None, known, key).ratio())
    names = {_normalise(known): known for known in (*table(), *list_section_names())}
    names |= {} if section else {_normalise(known.rpartition(".")[2]): known for known in table()}
    close = difflib.get_close_matches(_normalise(key), names, n=1, cutoff=_LIKE)
    return same_tail + [names[name] for name in close]


def may_be_of_missing_plugin(key: str, value: Any) -> bool:
    """Return True if an unknown key may be the table of a plugin that is gone.

    A name that is close to a known one is a typing error. A table with a key of the policy or the
    limits may be meant to restrict something. Both must be reported as errors.
    """
    if not isinstance(value, Mapping) or "." in key or key in list_section_names():
        return False
    if difflib.get_close_matches(key, list_section_names(), n=1, cutoff=_LIKE):
        return False
    return _find_restricting_key(value) is None


def _find_restricting_key(value: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return a key of a table that may restrict what runs, and the setting meant.

    The key may also be in a table inside it.
    """
    restricting = {
        _normalise(known.rpartition(".")[2]): known
        for known in table()
        if known.partition(".")[0] in _RESTRICTING
    }
    for key, inner in value.items():
        close = difflib.get_close_matches(_normalise(key), restricting, n=1, cutoff=_LIKE)
        if close:
            return key, restricting[close[0]]
        for part in inner if isinstance(inner, list) else [inner]:
            if isinstance(part, Mapping) and (found := _find_restricting_key(part)):
                return found
    return None


def describe_missing_plugin(key: str) -> str:
    """Return the message about a table that is ignored."""
    return (
        f"[{key}] is ignored: no installed plugin has this table (install the plugin again,"
        " or remove the table: mlx-tools config edit)"
    )


def describe_unknown_key(key: str, value: Any) -> str:
    """Return the message about an unknown key, with the key that may be meant."""
    if key in list_section_names():
        return f"{key}: a section, written [{key}]"
    section = key.partition(".")[0]
    # the key is in the section already, so the section is no hint
    close = [known for known in _find_similar_keys(key) if known != section]
    known = [k for k in table() if k.startswith(f"{section}.")] or list_section_names()
    if not close and isinstance(value, Mapping) and (found := _find_restricting_key(value)):
        return (
            f"{key}: no such section, and {key}.{found[0]} may be meant to restrict something"
            f" (did you mean {found[1]}? else remove the section: mlx-tools config edit)"
        )
    hint = f"did you mean {close[0]}?" if close else f"allowed here: {', '.join(known)}"
    noun = "section" if isinstance(value, Mapping) else "setting"
    return f"{key}: no such {noun} ({hint})"


def not_allowed(row: SettingRow, allowed_text: str, scale: int = 1) -> str:
    """Return the message about a wrong value, with the allowed values."""
    guess = guess_word(allowed_text.strip("'\""), row.choices)
    allowed_text = (
        "(hidden)"
        if row.setting.secret
        else allowed_text
        if len(allowed_text) <= 80
        else allowed_text[:77] + "..."
    )
    return f"{allowed_text} is not allowed (allowed: {row.allowed(scale)}{guess})"


def guess_word(text: str, words: Iterable[str]) -> str:
    """Return a "did you mean" for the word that is most like a text, or ""."""
    close = difflib.get_close_matches(text, list(words), n=1)
    return f"; did you mean {close[0]}?" if close else ""
