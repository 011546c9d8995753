"""Compact JSON, written quickly: no spaces, and nothing escaped that need not be."""

from __future__ import annotations

import json
from collections.abc import Callable
from json import encoder
from typing import Any, Final

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
