"""Checks golden transcripts one by one as a test run asks for it, and words what was found."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

from mlx_tools.backends import (
    CompletionsBackend,
    StrategyChoice,
    StyleChoice,
    find_served_format,
    look_at,
    native_markers,
)
from mlx_tools.controller.run_settings import RunSettings
from mlx_tools.errors import BackendError, MlxToolsError
from mlx_tools.golden.batch import replay_file
from mlx_tools.golden.difference import Difference
from mlx_tools.golden.file import Golden, read_golden
from mlx_tools.golden.results import Column, GoldenCheck, Sample
from mlx_tools.golden.visible import spelled
from mlx_tools.protocol import Style
from mlx_tools.tools import Registry

_SHOWN: Final = 8
"""Differences of a sample that are shown; the others are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """How transcripts are asked again: on which server, how often, and how it is spoken to.

    A ``style`` ``auto`` is that in which a transcript was recorded.
    """

    url: str
    samples: int = 1
    min_rate: float = 1.0
    style: StyleChoice = "auto"
    strategy: StrategyChoice = "auto"
    temperature: float = 0.0


class Checker:
    """Checks transcripts.

    ``live`` None replays them; ``with_records`` keeps the records that a report shows.
    """

    def __init__(self, live: Live | None = None, *, with_records: bool = False) -> None:
        self._live = live
        self._with_records = with_records
        self._found: dict[frozenset[str], tuple[CompletionsBackend, RunSettings]] = {}

    def reach(self) -> None:
        """Finds out what stands behind the address. Raises `MlxToolsError` where nothing does."""
        self._served("jsonl")

    def check(self, path: Path, registry: Registry | None = None) -> GoldenCheck:
        """The check of one file; what cannot be read or run is a check that failed.

        With a ``registry`` its tools are run: in a replay those that only read, live all.
        """
        if self._live is None:
            return replay_file(path, with_records=self._with_records, registry=registry)
        golden: Golden | None = None
        try:
            golden = read_golden(path)
            return self._ask(golden, self._live, registry)
        except BackendError as error:  # its hint is for the command line
            return _failed(path, golden, error.message, self._live)
        except MlxToolsError as error:
            return _failed(path, golden, str(error).removeprefix(f"{path}: "), self._live)

    def passed(self, check: GoldenCheck) -> bool:
        """Whether as many of the runs passed as are asked for."""
        needed = 1.0 if self._live is None else self._live.min_rate
        return (check.share.value or 0.0) >= needed

    def _ask(self, golden: Golden, live: Live, registry: Registry | None) -> GoldenCheck:
        import anyio

        from mlx_tools.golden.live import check_live

        tools: Literal["replay", "run"] = "replay" if registry is None else "run"
        style = golden.header.style if live.style == "auto" else live.style
        backend, settings = self._served(style)
        asked = partial(check_live, settings=settings, samples=live.samples)
        return anyio.run(partial(asked, golden, backend, tools=tools, registry=registry))

    def _served(self, style: Style) -> tuple[CompletionsBackend, RunSettings]:
        """The backend, and how its model is spoken to. Which of its own markers the model shall not
        write depends on the style."""
        import anyio

        live, forbid = self._live, native_markers(style)
        if live is None:
            raise AssertionError("there is no server in a replay")
        if forbid not in self._found:
            self._found[forbid] = anyio.run(_find, live, style)
        return self._found[forbid]


async def _find(live: Live, style: Style) -> tuple[CompletionsBackend, RunSettings]:
    backend = CompletionsBackend(live.url)
    chosen = await look_at(backend, forbid=native_markers(style))
    found = await find_served_format(backend, files=chosen.files, model=chosen.model)
    return backend, RunSettings(
        style=live.style,
        strategy=live.strategy,
        chat_format=found.chat_format,
        temperature=live.temperature,
        seed=0 if live.temperature else None,
        model=chosen.model,
    )


def _failed(path: Path, golden: Golden | None, error: str, live: Live) -> GoldenCheck:
    own: dict[str, Any] = {"name": path.stem}
    if golden is not None:
        about = golden.golden
        own = {"name": golden.name, "source": about.source, "about": about.about}
        own |= {"features": about.features}
    cell = Column("", live.style, live.strategy)
    return GoldenCheck(
        path=str(path), mode="live", cell=cell, samples=(Sample(error=error),), **own
    )


def failure_text(check: GoldenCheck) -> str:
    """What was found of a check that did not pass, for a person at a terminal: nothing in it steers
    that, or cannot be sent as UTF-8."""
    return spelled(_text(check))


def _text(check: GoldenCheck) -> str:
    if len(check.samples) == 1:
        return "\n".join(_lines(check.samples[0]))
    share = check.share
    lines = [f"{share.hits} of {share.total} runs were as they should be"]
    for number, sample in enumerate(check.samples, start=1):
        if not sample.passed:
            lines += ["", f"run {number}", *_lines(sample)]
    return "\n".join(lines)


def _lines(sample: Sample) -> Iterator[str]:
    if sample.error:
        yield sample.error
    for difference in sample.differences[:_SHOWN]:
        yield _heading(difference)
        yield from (f"  {line}" for line in difference.lines())
    if (more := len(sample.differences) - _SHOWN) > 0:
        yield f"({more} more)"


def _heading(difference: Difference) -> str:
    where = f" ({difference.where})" if difference.where else ""
    return f"{difference.room}: {difference.what}{where}"
