"""One text for a call however it was written: RFC 8785 of its name and arguments."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def canonical(name: str, arguments: Mapping[str, Any]) -> str:
    """The canonical form of a call: the same for the same call, whatever its spelling.

    RFC 8785 has no form for an integer beyond 2**53 and for half a surrogate pair; a call that
    holds one gets a form of its own, with sorted keys and every number as Python writes it.
    """
    import rfc8785

    try:
        return rfc8785.dumps({"name": name, "arguments": _plain(arguments)}).decode()
    except (rfc8785.CanonicalizationError, UnicodeEncodeError):
        call = {"name": name, "arguments": _plain(arguments, whole=True)}
        return json.dumps(call, sort_keys=True, separators=(",", ":"))


def _plain(value: Any, *, whole: bool = False) -> Any:
    """``value`` in JSON's own types; ``whole``: a number without a fraction is an integer."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item, whole=whole) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, whole=whole) for item in value]
    if whole and isinstance(value, float) and value.is_integer():
        return int(value)
    return value
