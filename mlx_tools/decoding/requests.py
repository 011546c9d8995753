"""The requests of a turn that is held to its schema."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct


class SampleTokens(Struct, frozen=True):
    """Let the model go on from the prompt and ``text``.

    A later ``attempt`` samples at random.
    """

    text: str
    attempt: int = 0


class ScoreTokens(Struct, frozen=True):
    """Ask how likely each next token is after the prompt and ``text``."""

    text: str


Alternatives = Sequence[tuple[str, float]]
"""Tokens as text with the natural logarithm of their probability, the likeliest first."""
