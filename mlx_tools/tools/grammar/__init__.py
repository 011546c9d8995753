"""Tools as a grammar of the line that calls them, for whatever masks a sampler with one.

It holds the type, enum, required, length, item and bound keywords, and the common formats of dates.
It is narrower than the schemas where that costs nothing: compact separators, properties in the
schema's order, none beyond those that are named unless the schema speaks of others, a schema that
names no type taken for those its keywords speak of, numbers of so many digits. It is never wider,
but for the keywords that it says it leaves to validation, and for a key that comes twice in an
object whose keys nobody named.
"""

from __future__ import annotations

from mlx_tools.tools.grammar.line import LineGrammar, line_grammar
from mlx_tools.tools.grammar.terminals import MAX_CHARS

__all__ = ["MAX_CHARS", "LineGrammar", "line_grammar"]
