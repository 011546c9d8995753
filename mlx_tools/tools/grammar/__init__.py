"""Tools as a grammar of the turn that calls them, for whatever masks a sampler or holds a text.

Arguments are held as llguidance compiles their schemas (`compilable`); GBNF says less. What is not
held is named, and validated afterwards.
"""

from __future__ import annotations

from mlx_tools.tools.grammar.compilable import COMPACT, Compilable, compilable
from mlx_tools.tools.grammar.turn import TurnGrammar, turn_grammar

__all__ = ["COMPACT", "Compilable", "TurnGrammar", "compilable", "turn_grammar"]
