"""The number of examples of a property where one of them costs much."""

from __future__ import annotations

from hypothesis import settings

FEW = settings(max_examples=settings().max_examples // 4)
"""A quarter of what others take, whichever profile is used."""
