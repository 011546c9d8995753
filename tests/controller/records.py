"""Any records, of every kind, by the types of their fields."""

from __future__ import annotations

from collections.abc import Mapping
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from hypothesis import strategies as st
from msgspec import Struct

from mlx_tools.transcript import records as r

TEXT = st.text(max_size=30)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
PLAIN: dict[Any, st.SearchStrategy[Any]] = {
    Any: JSON,
    NoneType: st.none(),
    bool: st.booleans(),
    int: st.integers(1, 10**9),  # some are no less
    str: TEXT,
}
CALLS = st.sampled_from(["c1", "c2"])


def _values(kind: Any) -> st.SearchStrategy[Any]:
    """Values of a type that a field of a record has."""
    origin, inner = get_origin(kind), get_args(kind)
    if isinstance(kind, type) and issubclass(kind, Struct):
        return _built(kind)
    if kind in PLAIN:
        return PLAIN[kind]
    if origin is Literal:
        return st.sampled_from(inner)
    if origin is tuple:
        return st.lists(_values(inner[0]), max_size=2).map(tuple)
    if origin is Mapping:
        return st.dictionaries(TEXT, _values(inner[1]), max_size=2)
    return st.one_of(*map(_values, inner))


def _built(kind: Any) -> st.SearchStrategy[Any]:
    hints = get_type_hints(kind)
    made = {name: _values(hints[name]) for name in kind.__struct_fields__}
    if "call" in made:
        made["call"] = CALLS | st.none() if kind is r.RepairRecord else CALLS
    return st.builds(kind, **made)


RECORDS = st.one_of(*map(_built, get_args(r.Record)))
