"""Tools as a GBNF grammar, the kind that llama.cpp's server masks its sampler with.

A grammar holds the type, enum, required, length, item and whole-number bound keywords, and the
common formats of dates. It is narrower than the schema where that costs nothing: compact
separators, properties in one order (the required ones first), none beyond those that are named.
What a grammar cannot hold (``pattern``, ``not``, ``if``, ``uniqueItems``, ``multipleOf``, bounds of
numbers that are not whole, lengths beyond `MAX_REPEAT`) is for the validation that follows.
"""

from __future__ import annotations

from mlx_tools.tools.gbnf.line import line_grammar
from mlx_tools.tools.gbnf.text import MAX_REPEAT

__all__ = ["MAX_REPEAT", "line_grammar"]
