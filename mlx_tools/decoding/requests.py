"""The requests of a constrained turn to the backend."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct


class SampleTokens(Struct, frozen=True):
    """Let the model continue the prompt and a text."""

    text: str
    """The text after the prompt."""
    attempt: int = 0
    """The number of earlier requests with this text. From 1 on, tokens are sampled at random."""


class ScoreTokens(Struct, frozen=True):
    """Ask for the log probabilities of the token that follows the prompt and a text."""

    text: str
    """The text after the prompt."""


Alternatives = Sequence[tuple[str, float]]
"""Tokens as text with their log probabilities (natural logarithms), the likeliest first."""
