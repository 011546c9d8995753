"""Held turns over real catalogs, BFCL's, from a model that knows the answer or writes rubbish.

The slow test takes every question; the other a sample of each category. They need BFCL's package in
the cache (`mlx-tools eval bfcl` fetches it), or its wheel in the folder ``MLX_TOOLS_SUITES``.
"""

from __future__ import annotations

import anyio
import pytest
from strong_model import Serving, StrongModel, Wish

from mlx_tools import Limits, RunSettings
from mlx_tools.app.proposal import Proposer
from mlx_tools.evaluate.bfcl_data import CATEGORIES, BfclItem, load_items, sample
from mlx_tools.messages import Strategy
from mlx_tools.prompt.chat_format import NAMED_FORMATS
from mlx_tools.protocol import validate_arguments
from tests.evaluate.questions import fetched_wheel

from .schemas import Rubbish

SAMPLE = 3
"""So many questions of each category in the default run."""


def check(item: BfclItem, strategy: Strategy, number: int) -> None:
    """A right answer stands as it is, and rubbish comes to nothing that does not fit."""
    settings = RunSettings(chat_format=NAMED_FORMATS["chatml"], strategy=strategy)
    limits = Limits(max_tokens=4000)
    model = StrongModel(Wish((), answer="None is needed."), serving=Serving(whole=True))
    right = anyio.run(
        lambda: Proposer(model, settings=settings, limits=limits)(item.question, item.tools)
    )
    assert right.answered and right.requests == 1
    rubbish = Rubbish(number, scores=bool(number % 2))
    found = anyio.run(
        lambda: Proposer(rubbish, settings=settings, limits=limits)(item.question, item.tools)
    )
    for call in found.calls if found.error is None else ():
        assert validate_arguments(item.tools[call.name], call.arguments)[2] is None


@pytest.mark.parametrize("category", CATEGORIES)
@pytest.mark.parametrize("strategy", ["auto", "guided"])
def test_a_sample_of_catalogs_is_held(category: str, strategy: Strategy) -> None:
    items = sample(load_items(category, fetched_wheel()), limit=SAMPLE, seed=7)
    assert items
    for number, item in enumerate(items):
        check(item, strategy, number)


@pytest.mark.slow
@pytest.mark.parametrize("category", CATEGORIES)
def test_every_catalog_is_held(category: str) -> None:
    items = load_items(category, fetched_wheel())
    assert items
    for number, item in enumerate(items):
        check(item, "guided", number)
