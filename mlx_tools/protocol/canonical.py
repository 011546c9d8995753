"""One text for a call however it was written: RFC 8785 of its name and arguments."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from json import encoder
from json.encoder import encode_basestring
from typing import Any, Final

from mlx_tools.protocol.strict import encodable

Write = Callable[[Any], str]


def writer(*, sort_keys: bool = False, allow_nan: bool = True) -> Write:
    """A function that writes JSON's own types.

    A `json.JSONEncoder` makes its inner writer anew for every text, which takes longer than to
    write a short one; here it is made once. Raises what ``json.dumps`` raises, but RecursionError
    for a value that holds itself.
    """
    plain = json.JSONEncoder(
        ensure_ascii=False, separators=(",", ":"), sort_keys=sort_keys, allow_nan=allow_nan
    )
    make: Any = getattr(encoder, "c_make_encoder", None)
    if make is None:  # an interpreter without the extension module
        return plain.encode
    options = (None, ":", ",", sort_keys, False, allow_nan)
    write = make(None, plain.default, encoder.encode_basestring, *options)
    return lambda value: "".join(write(value, 0))


compact: Final = writer()


_SEPARATORS: Final = re.compile(r"[-_.]")
_sorted: Final = writer(sort_keys=True)


def canonical(name: str, arguments: Mapping[str, Any]) -> str:
    """The canonical form of a call: the same for the same call, whatever its spelling.

    RFC 8785 has no form for an integer beyond 2**53 and for half a surrogate pair; a call that
    holds one gets a form of its own, with sorted keys and every number as Python writes it.
    """
    if type(name) is str and _is_canonical(arguments):
        text = f'{{"arguments":{_sorted(arguments)},"name":{encode_basestring(name)}}}'
        if encodable(text):
            return text
    import rfc8785

    try:
        return rfc8785.dumps({"name": name, "arguments": _plain(arguments)}).decode()
    except (rfc8785.CanonicalizationError, UnicodeEncodeError):
        call = {"name": name, "arguments": _plain(arguments, whole=True)}
        return json.dumps(call, sort_keys=True, separators=(",", ":"))


def _is_canonical(value: Any) -> bool:
    """Whether Python's JSON of ``value``, with sorted keys, is that of RFC 8785 for certain.

    Strings are written alike. Keys are sorted alike where they are ASCII: RFC 8785 sorts by UTF-16.
    Of numbers, those of moderate size that are an int, or have a fraction, are written alike.
    """
    kind: type[Any] = type(value)
    if kind is str or kind is bool or value is None:
        return True
    if kind is int:
        return bool(-(2**53) < value < 2**53)
    if kind is float:
        return bool(1e-4 <= abs(value) < 1e15) and not value.is_integer()
    if kind is dict:
        return all(type(key) is str and key.isascii() for key in value) and all(
            map(_is_canonical, value.values())
        )
    return kind is list and all(map(_is_canonical, value))


def _plain(value: Any, *, whole: bool = False) -> Any:
    """``value`` in JSON's own types; ``whole``: a number without a fraction is an integer."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item, whole=whole) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, whole=whole) for item in value]
    if whole and isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def loose_name(name: str) -> str:
    """A name without case, ``-``, ``_`` and ``.``: what a close match may differ in (rule 10)."""
    return _SEPARATORS.sub("", name).lower()
