"""Asks golden transcripts of real models: every model, with every style and strategy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import cast

from mlx_tools.app.wiring import RunOptions, found, registry_of
from mlx_tools.backends.verdicts import StrategyChoice, StyleChoice
from mlx_tools.cli.output import complain
from mlx_tools.controller.run_settings import RunSettings
from mlx_tools.golden import Golden
from mlx_tools.golden.live import check_live
from mlx_tools.golden.results import GoldenCheck


@dataclass(frozen=True, slots=True)
class Matrix:
    """What transcripts are asked with: every model with every style and strategy. None is what the
    settings say, for a style what was recorded."""

    models: Sequence[str | None]
    styles: Sequence[str | None]
    strategies: Sequence[str | None]

    def __len__(self) -> int:
        return len(self.models) * len(self.styles) * len(self.strategies)

    def of(self, settings: RunSettings) -> Iterator[RunSettings]:
        """The settings of one model's cells."""
        for style in self.styles:
            for strategy in self.strategies:
                own = settings.strategy if strategy is None else cast(StrategyChoice, strategy)
                wanted: StyleChoice = "auto" if style is None else cast(StyleChoice, style)
                yield replace(settings, style=wanted, strategy=own)


async def check_all(
    goldens: Sequence[Golden],
    run: RunOptions,
    matrix: Matrix,
    *,
    samples: int,
    run_tools: bool,
    told: Callable[[GoldenCheck], None],
) -> list[GoldenCheck]:
    """Asks all, cell by cell; ``told`` gets each check as it is there. ``run_tools``: tools are run
    instead of giving what was recorded."""
    checks: list[GoldenCheck] = []
    registry = registry_of(run.configuration) if run_tools else None
    for model in matrix.models:
        named = run if model is None else replace(run, model=model)
        async with found(named, lambda line: complain(line, kind="note")) as (chosen, settings):
            for own in matrix.of(settings):
                for golden in goldens:
                    check = await check_live(
                        golden,
                        chosen.backend,
                        settings=own,
                        samples=samples,
                        tools="run" if run_tools else "replay",
                        registry=registry,
                    )
                    checks.append(check)
                    told(check)
    return checks
