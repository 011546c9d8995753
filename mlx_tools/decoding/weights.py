"""How much each kind of evidence counts."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass

from mlx_tools.data import read_data


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """How much each kind of evidence counts, in natural logarithms of odds.

    docs/call-quality.md says how they were found.
    """

    features: Mapping[str, float]
    """Of the features of candidates: see `mlx_tools.decoding.features`."""
    request: float = 1.0
    """What the request's words count against the model's own likelihoods."""
    call: float = 0.2
    """What the model's own odds of a call against an answer count; the words' count 1."""
    free: float = 0.0
    """What the model's own words count where a required value is to be given."""
    planned: float = 2.0
    """That a candidate is the one which the plan of the whole call has for an argument."""
    sure: float = 6.0
    """From how much on the model is not asked any more."""
    spent: float = 3.0
    """That an array ends where the request says nothing more that could go into it."""

    def score(self, features: Mapping[str, float]) -> float:
        """What features say together, as a natural logarithm of odds."""
        return sum(self.features.get(name, 0.0) * value for name, value in features.items())


@functools.cache
def fitted_weights() -> Weights:
    """The weights of ``config/evidence.toml``, fitted without any model. Raises `ConfigError`."""
    found = tomllib.loads(read_data("config/evidence.toml"))
    return Weights(features=found["features"], **found["weights"])
