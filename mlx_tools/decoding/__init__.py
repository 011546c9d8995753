"""Decoding that makes calls valid, by a schema or a grammar for the model's text."""

from __future__ import annotations

from mlx_tools.decoding.constrained_turn import ConstrainedTurn
from mlx_tools.decoding.constraints import Grammar, build_grammar
from mlx_tools.decoding.repetition import RepetitionWatch
from mlx_tools.decoding.requests import SampleTokens, ScoreTokens
